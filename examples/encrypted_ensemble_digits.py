"""An ensemble of 50 closed-form models whose weights the coordinator cannot read.

All clients keep the same key pair; here the key store is a temporary folder that SOLERA_KEYS names.
With finish="client" the coordinator adds what clients encrypted and key holders solve. With
finish="coordinator" it also multiplies by the inverse Gram matrices, under encryption. Either way
the weights are those of the plain ensemble, and without the key nothing can be predicted.

Every member sees 0.8 of a client's 134 rows and 51 of the 64 features: more rows than columns, or
the Gram matrices, which travel in the clear, would tell the rows up to a rotation.

Needs the extra "he".

    python examples/encrypted_ensemble_digits.py
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import numpy as np

import solera as so

PATCHES = so.RandomPatches(50, rows=0.8, features=0.8)


def main() -> None:
    X, y, X_test, y_test = so.datasets.digits()
    X, X_test = X / 16, X_test / 16  # grey values; everybody knows their range
    fed = so.simulate(X, y, clients=10, seed=0)

    with tempfile.TemporaryDirectory() as folder:
        store, empty = Path(folder) / "keys", Path(folder) / "nothing"
        os.environ["SOLERA_KEYS"] = str(store)
        so.keys.create(store, "sums", so.keys.CLIENT)
        so.keys.create(store, "products", so.keys.COORDINATOR)
        ways = {
            "plain": None,
            "finish=client": so.Encryption("sums", finish="client"),
            "finish=coordinator": so.Encryption("products", finish="coordinator"),
        }

        print("                     accuracy   sent per client   seconds   weights differ by")
        plain = None
        for name, encrypt in ways.items():
            fed.meter.clear()
            began = time.perf_counter()
            model = so.FedHEONN(lam=0.01, ensemble=PATCHES, encrypt=encrypt).fit(fed)
            weights = model.weights_  # decrypted here, where the key is
            seconds = time.perf_counter() - began
            plain = weights if plain is None else plain
            apart = np.linalg.norm(weights - plain) / np.linalg.norm(plain)
            sent = fed.meter.total(task="heonn.statistics").up / len(fed) / 1e6
            accuracy = model.score(X_test, y_test)
            print(f"{name:<18} {accuracy:>10.3f} {sent:>14.2f} MB {seconds:>9.2f} {apart:>19.0e}")
            assert apart < 1e-6

        path = model.for_prediction().save(Path(folder) / "digits.sol")
        os.environ["SOLERA_KEYS"] = str(empty)
        try:
            so.load(path).predict(X_test)
        except so.errors.UsageError as error:
            print(f"without the key: {error}")
        else:
            raise AssertionError("a model without its key has predicted")


if __name__ == "__main__":
    try:
        main()
    except so.errors.MissingExtra as error:
        raise SystemExit(str(error)) from None

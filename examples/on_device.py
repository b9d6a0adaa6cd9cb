"""Settings for small devices, and what one device sends and works with each of them.

- One thread, as a device would have; no ensemble and no hidden features, which cost it time.
- ``representation="auto"`` sends the Gram matrix or a factor of it, whichever is smaller. The
  factor wins when a device has fewer rows than half the columns. With fewer rows than columns,
  either of them tells the coordinator the rows up to a rotation.
- ``min_rows`` turns such devices away: they refuse before anything is computed.
- ``so.keys.SMALL_CLIENT`` encrypts in a ring of half the size of ``so.keys.CLIENT``. Ciphertexts
  are half as large and take half the time, as precise, while the moments are at most 4,096 numbers.

Encryption needs the extra "he". On ARM: TenSEAL, which it installs, has wheels for 64-bit ARM
(aarch64) as well as x86-64, so a Raspberry Pi with a 64-bit system needs no compiler. There are
none for 32-bit ARM; such a device can take part without encryption.

    python examples/on_device.py
"""

from __future__ import annotations

import logging
import os
import tempfile
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import solera as so

DEVICES = 10


def main() -> None:
    logging.getLogger("solera").setLevel(logging.ERROR)  # the few rows are meant here
    X, y, X_test, y_test = so.datasets.digits()
    X, X_test = X / 16, X_test / 16
    columns = X.shape[1] + 1  # and the bias
    many = so.simulate(X, y, clients=DEVICES, seed=0)
    few = so.simulate(X[:200], y[:200], clients=DEVICES, seed=0)

    print(f"{'one device':<32} {'rows':>5} {'sends':>10} {'works':>9}")
    plain = so.FedHEONN(representation="gram", min_rows=columns)
    show("plain, Gram matrix", plain, many)
    show("plain, Gram matrix", so.FedHEONN(representation="gram"), few)
    show("plain, the smaller one", so.FedHEONN(representation="auto"), few)

    with tempfile.TemporaryDirectory() as store:
        os.environ["SOLERA_KEYS"] = store
        so.keys.create(store, "full", so.keys.CLIENT)
        so.keys.create(store, "small", so.keys.SMALL_CLIENT)
        full = so.FedHEONN(encrypt=so.Encryption("full"), min_rows=columns)
        small = so.FedHEONN(encrypt=so.Encryption("small"), min_rows=columns)
        show("encrypted, keys.CLIENT", full, many)
        show("encrypted, keys.SMALL_CLIENT", small, many)
        apart = np.linalg.norm(small.weights_ - plain.weights_) / np.linalg.norm(plain.weights_)
        print(
            f"accuracy {small.score(X_test, y_test):.3f}, encrypted weights differ by {apart:.0e}"
        )
        assert apart < 1e-6

    try:
        so.FedHEONN(min_rows=columns).fit(few)
    except so.errors.NotEnoughReplies as error:
        print(f"with few rows: {error.failures[0]}")


def show(name: str, model: so.FedHEONN, fed: Any) -> None:
    """Fit on all devices, then let device 0 do its part again, for the bytes and the clock."""
    with threadpool_limits(1):
        model.fit(fed)
        fed.meter.clear()
        model.clone().partial_fit(fed, clients=[0])
    told = fed.meter.total(task="heonn.statistics")
    print(f"{name:<32} {fed.data.sizes()[0]:>5} {told.up:>8,} B {1e3 * told.wall:>6.1f} ms")


if __name__ == "__main__":
    try:
        main()
    except so.errors.MissingExtra as error:
        raise SystemExit(str(error)) from None

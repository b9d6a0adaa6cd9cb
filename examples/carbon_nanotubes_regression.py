"""Regression with 1,000 clients and three numbers to predict.

Where the atoms of a carbon nanotube come to rest: 5 features, 3 coordinates, 8 rows per client. The
activation is linear. λ is chosen from a list by leaving clients out in turn, which takes no further
message: the clients' statistics are folded in groups, and all groups but one are the sum less that
one.

The data set is not bundled. Put carbon_nanotubes.csv.gz into a folder and name it in SOLERA_DATA;
if it is missing, the loader says so.

    SOLERA_DATA=… python examples/carbon_nanotubes_regression.py
"""

from __future__ import annotations

import time

import numpy as np

import solera as so

LAMBDAS = [1e-4, 1e-2, 1.0, 100.0]


def main() -> None:
    X, y, X_test, y_test = so.datasets.carbon_nanotubes()
    fed = so.simulate(X, y, clients=1000, seed=0)

    began = time.perf_counter()
    model = so.Pipeline(so.FedScaler(), so.FedHEONN("linear", lam=LAMBDAS)).fit(fed)
    seconds = time.perf_counter() - began
    layer = model.steps_[-1]

    print("λ         error on clients left out, of the three numbers together")
    for lam, error in layer.lam_errors_.items():
        chosen = "  chosen" if float(lam) == layer.lam_ else ""
        print(f"{float(lam):<10g}{error:.4e}{chosen}")

    errors = (model.predict(X_test) - y_test) ** 2
    each = ", ".join(f"{error:.2e}" for error in errors.mean(axis=0))
    messages = fed.meter.total(task="heonn.statistics")
    print(f"MSE on {len(X_test):,} other rows: {errors.mean():.3e} (u, v, w: {each})")
    print(f"MSE of always saying the mean: {((y.mean(axis=0) - y_test) ** 2).mean():.3e}")
    print(
        f"{len(fed):,} clients, {messages.asks} round, {messages.up // len(fed)} bytes from each, "
        f"{seconds:.2f} s"
    )
    assert np.isclose(layer.lam_errors_[repr(layer.lam_)], min(layer.lam_errors_.values()))


if __name__ == "__main__":
    try:
        main()
    except so.errors.DatasetUnavailable as error:
        raise SystemExit(str(error)) from None

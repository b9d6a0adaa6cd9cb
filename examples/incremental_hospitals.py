"""Hospitals join one after the other, and nobody starts again.

A hospital that joins sends one message about its rows. The coordinator adds it to what it knows and
solves again; no other hospital is asked. Once all have joined, the model is the one that a fit on
all of them at once gives.

    python examples/incremental_hospitals.py
"""

from __future__ import annotations

import numpy as np

import solera as so

HOSPITALS = {"north": 0.15, "harbour": 0.3, "south": 0.2, "lakeside": 0.2, "west": 0.15}
"""Names, and the share of all patients that each of them has."""


def main() -> None:
    X, y, X_test, y_test = so.datasets.breast_cancer()
    shares = so.partitions.ClientWeights(list(HOSPITALS.values()))
    fed = so.simulate(X, y, partition=shares, seed=0)

    # Columns must be scaled alike for all, so the scale is fixed by the first hospital alone.
    first = fed.data.segments(np.array([0]))[0]
    scaler = so.FedScaler().fit(so.simulate(first.X, first.y, clients=1))
    fed, X_test = fed.prepared(scaler), scaler.transform(X_test)

    print("hospital     rows   all rows   bytes sent   accuracy")
    model, before = so.FedHEONN(lam=0.01), 0
    for client, name in enumerate(HOSPITALS):
        fed.meter.clear()
        model.partial_fit(fed, clients=[client])
        known, sent = model.statistics_["rows"], fed.meter.total(task="heonn.statistics").up
        accuracy = model.score(X_test, y_test)
        print(f"{name:<12} {known - before:>4} {known:>10} {sent:>12,} {accuracy:>10.3f}")
        before = known

    at_once = so.FedHEONN(lam=0.01).fit(fed)
    apart = np.linalg.norm(model.weights_ - at_once.weights_) / np.linalg.norm(at_once.weights_)
    print(f"all at once            {at_once.score(X_test, y_test):>34.3f}")
    print(f"relative difference of the weights: {apart:.0e}")
    assert apart < 1e-9


if __name__ == "__main__":
    main()

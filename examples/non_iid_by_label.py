"""Clients that have seen only some of the classes.

FedHEONN folds sums over rows, so it does not matter who has which rows: clients with a single class
each lead to the weights that clients with all classes lead to, after one message. Averaging is
shown for contrast. FedLinear reaches a good accuracy too, but what it learns depends on who has
what, and it takes many rounds.

    python examples/non_iid_by_label.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

import solera as so

PARTITIONS = {
    "all classes": so.partitions.IID(),
    "two shards": so.partitions.Shards(2),
    "two classes": so.partitions.LabelsPerClient(2),
    "one class": so.partitions.LabelsPerClient(1),
}
ROUNDS = 20


def main() -> None:
    X, y, X_test, y_test = so.datasets.digits()
    X, X_test = X / 16, X_test / 16

    def learn(learner: Any, partition: so.partitions.Partition) -> tuple[Any, float, int]:
        """The learner, its accuracy, and the bytes a client has sent."""
        fed = so.simulate(X, y, clients=10, partition=partition, seed=0)
        learner.fit(fed)
        return learner, learner.score(X_test, y_test), fed.meter.total().up // len(fed)

    print(f"every client has  FedHEONN, 1 round            FedLinear, {ROUNDS} rounds")
    print("                  accuracy  weights differ    accuracy  weights differ")
    exact = averaged = None
    for name, partition in PARTITIONS.items():
        heonn, heonn_accuracy, heonn_bytes = learn(so.FedHEONN(lam=0.01), partition)
        linear, linear_accuracy, linear_bytes = learn(
            so.FedLinear(rounds=ROUNDS, epochs=5), partition
        )
        exact = heonn.weights_ if exact is None else exact
        averaged = linear.coef_ if averaged is None else averaged
        moved = relative(heonn.weights_, exact)
        print(
            f"{name:<14} {heonn_accuracy:>11.3f} {moved:>15.0e} "
            f"{linear_accuracy:>11.3f} {relative(linear.coef_, averaged):>15.0e}"
        )
        assert moved < 1e-9
    print(f"bytes a client sends: {heonn_bytes:,} and {linear_bytes:,}")


def relative(weights: Any, reference: Any) -> float:
    return float(np.linalg.norm(weights - reference) / np.linalg.norm(reference))


if __name__ == "__main__":
    main()

"""Agreement of clusterings and rounds of federated k-means, beside what they stand for.

Claims: the Jaccard index of 200,000 points takes under a second; a round over 1,000 simulated
clients is faster with ``many=`` than one client after the other.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.cluster import KMeans
from sklearn.metrics import pair_confusion_matrix

import solera as so
from sizes import sized
from solera.core import task
from solera.learn.cluster.tasks import assign, steps

POINTS, FEW, ROWS, CLIENTS = sized((200_000, 10_000, 100_000, 1000), tiny=(2000, 200, 2000, 20))
REPEATS = sized(7, tiny=1)


def seconds(run: Callable[[], Any], repeats: int = REPEATS) -> float:
    run()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return min(times)


def line(name: str, peer: float, ours: float) -> None:
    print(f"{name:<52}{peer * 1e3:10.2f}{ours * 1e3:10.2f}{peer / ours:9.1f}×")


def all_pairs(a: Any, b: Any) -> float:
    """The definition: every pair of rows, a row at a time."""
    both = either = 0
    for i in range(len(a) - 1):
        x, y = a[i + 1 :] == a[i], b[i + 1 :] == b[i]
        both += int((x & y).sum())
        either += int((x | y).sum())
    return both / either


def scikit_learn(a: Any, b: Any) -> float:
    (_, one), (other, both) = pair_confusion_matrix(a, b)
    return float(both / (both + one + other))


def main() -> None:
    rng = np.random.default_rng(0)
    print(f"{f'milliseconds, fastest of {REPEATS}':<52}{'peer':>10}{'ours':>10}{'ratio':>10}")
    a = rng.integers(0, 3, POINTS)
    b = np.where(rng.random(len(a)) < 0.02, rng.integers(0, 3, len(a)), a)
    assert so.metrics.jaccard(a, b) == scikit_learn(a, b)
    ours = seconds(lambda: so.metrics.jaccard(a, b))
    line(
        f"Jaccard, {POINTS:,} points: scikit-learn's pair counts",
        seconds(lambda: scikit_learn(a, b)),
        ours,
    )
    few = slice(0, FEW)
    assert np.isclose(all_pairs(a[few], b[few]), so.metrics.jaccard(a[few], b[few]))
    pairs = seconds(lambda: all_pairs(a[few], b[few]), 1)
    line(
        f"Jaccard, {FEW:,} points: all pairs",
        pairs,
        seconds(lambda: so.metrics.jaccard(a[few], b[few])),
    )

    X = rng.normal(size=(ROWS, 21)) + 4 * rng.integers(0, 3, ROWS)[:, None]
    start = X[:3]
    fed = so.simulate(X, clients=CLIENTS)
    ask = {"centroids": start}
    batches = {**ask, "batch_size": 20, "epochs": 2, "rate": 1.0}
    for name, which, payload in (
        (f"round, {CLIENTS:,} clients x 100 rows", assign, ask),
        ("round, batches of 20, 2 epochs", steps, batches),
    ):

        def one_round(which: Any = which, payload: Any = payload) -> Any:
            return fed.ask(which.name, payload).fold(so.aggregations.Sum())

        fast = seconds(one_round)
        task._tasks[which.name] = dataclasses.replace(which, many=None)
        slow = seconds(one_round, min(3, REPEATS))
        task._tasks[which.name] = which
        line(f"{name}: one by one", slow, fast)

    one = so.simulate(X, clients=1)
    learner = so.FedKMeans(3, init=start, rounds=10, tolerance=0.0)
    iterations = len(learner.fit(one).history_)
    peer = KMeans(3, init=start, n_init=1, max_iter=iterations, tol=0, algorithm="lloyd")
    line(
        f"{iterations} iterations, {ROWS:,} rows in one place: scikit-learn",
        seconds(lambda: peer.fit(X)),
        seconds(lambda: learner.fit(one)),
    )


if __name__ == "__main__":
    main()

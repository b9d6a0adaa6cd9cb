"""What noise at the sum costs: ε = 8, δ = 1e-5, two honest peers, Cleveland 4 × 57.

Every owner adds its share inside the sums of a closed job (``dp=``). The AUROC on the rows set
aside, over ten seeds, beside the same learner without noise (closed, ``exact_training``; trees
without a policy). Claims: boosted trees at least .84, an MLP and FedHEONN within .05 of no noise.

    python benchmarks/noise_at_sum.py
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

import solera as so
from promise import POLICY, cleveland
from sizes import sized
from solera.core.errors import DataError

(SEEDS,) = sized((10,), tiny=(1,))
EPSILON, DELTA = 8.0, 1e-5
NOISED = {**POLICY, "privacy": {"epsilon": EPSILON, "delta": DELTA}}


def noise(**bounds: Any) -> so.DP:
    """ε and δ of a whole fit, for one row."""
    return so.DP(epsilon=EPSILON, delta=DELTA, level="record", **bounds)


def learners() -> Iterator[tuple[str, Any, Any]]:
    """What is fitted, by name: with noise and without."""
    trees = {"rounds": 10, "max_depth": 1, "bins": 4, "lr": 0.3, "l2": 1.0, "min_rows": 5}
    network = {"model": so.nn.mlp(13, 8, 2), "rounds": 60, "lr": 1.0}

    def scaled(last: Any) -> Any:
        return so.Pipeline(so.FedScaler(), last)

    yield "boosted trees", so.FedHistGBDT(**trees, dp=noise()), so.FedHistGBDT(**trees)
    yield (
        "MLP",
        scaled(so.FedAvg(**network, weight=None, dp=noise(clip=0.5, rate=1.0))),
        scaled(so.FedAvg(**network, batch_size=None)),
    )
    yield (
        "FedHEONN",
        scaled(so.FedHEONN(lam=0.1, dp=noise(clip=2.0))),
        scaled(so.FedHEONN(lam=0.1)),
    )


def auroc(learner: Any, federation: Any, rows: Any) -> float:
    """Of the second class, on rows set aside."""
    model = learner.clone().fit(federation)
    return float(roc_auc_score(rows.y, model.predict_proba(rows.X)[:, 1]))


def run() -> None:
    """Print one line for every learner."""
    federations = [
        so.simulate(cleveland(seed), seed=seed % 10, policy=NOISED, test=0.2)
        for seed in range(SEEDS)
    ]
    for name, noised, exact in learners():
        found = []
        for seed, federation in enumerate(federations):
            rows = federation.data.segments(federation.clients, "test").joined()
            free = federation
            if name == "boosted trees":
                free = so.simulate(federation.data, seed=seed % 10)
            found.append((auroc(noised, federation, rows), auroc(exact, free, rows)))
        with_noise, without = np.array(found).T
        print(
            f"{name:14} {SEEDS:2} seeds  ε = {EPSILON:g}: {with_noise.mean():.3f} ± "
            f"{with_noise.std():.3f}  no noise: {without.mean():.3f} ± {without.std():.3f}  "
            f"{with_noise.mean() - without.mean():+.3f}",
            flush=True,
        )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    try:
        run()
    except DataError as error:
        print(f"not at hand: {error}")

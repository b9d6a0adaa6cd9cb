"""Whether figures of closed jobs lie within their stated bounds, and how wide these are.

A model is fitted and scored in a closed job, again and again with other secrets: other rows are in
the test part, and their counts carry other noise. Each figure is compared with the exact one of the
same rows, pooled. Claim: at least 99 % of 400 draws are within the bounds, for every figure that is
printed. Data that are not at hand (``SOLERA_DATA``) are left out by name.

    python benchmarks/evaluation_bounds.py [DATA …]
"""

from __future__ import annotations

import os
import sys
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer

import solera as so
from sizes import sized
from solera.core.errors import DataError

(DRAWS,) = sized((400,), tiny=(4,))
POLICY = {"policy": "sums", "exact_training": True}
_ROUNDING = 1e-9


def cancer(rows: int, draw: int) -> tuple[Any, Any]:
    """Some of scikit-learn's breast cancers, ten columns."""
    X, y = load_breast_cancer(return_X_y=True)
    chosen = np.random.default_rng(draw).permutation(len(X))[:rows]
    return X[chosen, :10], y[chosen]


def credit(rows: int, draw: int) -> tuple[Any, Any]:
    """Some of the German credits, their numbers."""
    file = Path(os.environ.get("SOLERA_DATA", "")) / "german_credit.csv.gz"
    if not file.is_file():
        raise DataError(f"{file.name} is not in the folder $SOLERA_DATA")
    table = pd.read_csv(file)
    X = table.drop(columns="class").select_dtypes("number").to_numpy(float)
    chosen = np.random.default_rng(draw).permutation(len(X))[:rows]
    return X[chosen], table["class"].to_numpy()[chosen]


def classes(rows: int, draw: int) -> tuple[Any, Any]:
    """Four classes of unequal size."""
    rng = np.random.default_rng(draw)
    X = rng.normal(size=(rows, 5))
    return X, np.digitize(X[:, 0] + 0.4 * rng.normal(size=rows), [-0.8, 0.2, 1.2])


def labels(rows: int, draw: int) -> tuple[Any, Any]:
    """Four labels, of which some are not known."""
    rng = np.random.default_rng(draw)
    X = rng.normal(size=(rows, 5))
    y = X[:, :4] + 0.5 * rng.normal(size=(rows, 4)) > [0.0, 0.4, 0.8, 1.2]
    return X, np.where(rng.random((rows, 4)) < 0.02, -1, y)


CASES = {
    "cancer, 76 rows": (cancer, 380, 0.2),
    "cancer, 228 rows": (cancer, 569, 0.4),
    "credit, 76 rows": (credit, 380, 0.2),
    "credit, 228 rows": (credit, 760, 0.3),
    "four classes, 228 rows": (classes, 1140, 0.2),
    "four labels, 228 rows": (labels, 1140, 0.2),
}


def scored(X: Any, y: Any, test: float, draw: int) -> tuple[Any, Any]:
    """What a closed job says of a model, and what the pooled rows do."""
    federation = so.simulate(X, y, clients=4, test=test, policy=POLICY, seed=draw)
    many = np.ndim(y) > 1
    learner = so.Pipeline(so.FedScaler(), so.FedLinear(rounds=5) if many else so.FedHEONN())
    model = learner.fit(federation, progress=False)
    rows = federation.data.segments(np.arange(4), "test").joined()
    told = model.evaluate(federation, scores=True)
    return told, model.evaluate(rows.X, y=rows.y, scores=so.metrics.ScoreGrid(bins=2000))


def measure(name: str) -> None:
    """Print a line for every figure of one table."""
    make, rows, test = CASES[name]
    outside: dict[str, int] = defaultdict(int)
    widths, errors, exact = (defaultdict(list) for _ in range(3))
    for draw in range(DRAWS):
        told, truth = scored(*make(rows, draw), test, draw)
        for metric, figure in told.metrics.items():
            if metric not in truth.metrics:
                continue
            reach = truth.bounds.get(metric, 0.0) + _ROUNDING
            low, high = figure.between or (float(figure),) * 2
            outside[metric] += not low - reach <= truth[metric] <= high + reach
            widths[metric].append((high - low) / 2)
            errors[metric].append(abs(figure - truth[metric]))
            exact[metric].append(figure.between is None)
    print(f"{name}: {DRAWS} draws")
    for metric, width in widths.items():
        print(
            f"  {metric:20} outside {outside[metric]:3}, half of its width {np.mean(width):.3f}, "
            f"error {np.mean(errors[metric]):.3f}, exact in {np.mean(exact[metric]):.0%}"
        )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for case in CASES:
        if not sys.argv[1:] or any(case.startswith(name) for name in sys.argv[1:]):
            try:
                measure(case)
            except DataError as error:
                print(f"{case}: {error}")

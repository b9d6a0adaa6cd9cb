"""The protocol of the FedHEONN thesis: its splits, its scaling, its way to score."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

import solera as so
from solera.published.rows import AS_PUBLISHED, OURS

THESIS: dict[str, Any] = {"derivative": "thesis", "rule": "nearest"}
"""The thesis ran with f′ = d for the logistic, and took the class whose output is nearest 0.95."""
PROTOCOLS: dict[str, dict[str, Any]] = {AS_PUBLISHED: THESIS, OURS: {}}
DIFFERS = (
    "as published takes f′ = d for the logistic and the class whose output is nearest 0.95; ours "
    "takes f′ = d(1 − d) and the highest output; as published numbers of features are rounded down"
)
DERIVATIVE = (
    "The runs of the thesis used f′(d̄) = d for the logistic instead of d(1 − d): the program had "
    "logsig where its derivative belongs until January 2025. Its figures reproduce only so "
    '(derivative="thesis"). The true derivative is Solera\'s default.'
)
DATA = {
    "MNIST-test": "digits",
    "MNIST-simp": "optdigits",
    "MNIST-orig": "mnist",
    "Skin": "skin",
    "Dry Bean": "drybean",
    "Carbon Nanotubes": "carbon_nanotubes",
}
"""The thesis's names of the data sets, and ours."""
Floats = NDArray[np.float64]


def split(name: str) -> tuple[Floats, Any, Floats, Any]:
    """Training and test rows in z-scores of the training part: X, y, X_test, y_test.

    70/30 with random_state 42; MNIST as Keras has it, 60,000 and 10,000 rows (the thesis's program,
    where its text says 70/30).
    """
    from sklearn.model_selection import train_test_split

    if name == "mnist":
        A, a, B, b = so.datasets.load(name)
        A, B = (np.asarray(part, float).reshape(len(part), -1) for part in (A, B))
    else:
        options: dict[str, Any] = {} if name == "optdigits" else {"test": 0}
        X, y = so.datasets.load(name, **options).all
        A, B, a, b = train_test_split(np.asarray(X, float), y, test_size=0.3, random_state=42)
    mean, spread = A.mean(axis=0), A.std(axis=0)
    spread = np.where(spread > 0, spread, 1)
    return (A - mean) / spread, a, (B - mean) / spread, b


def score_of(model: Any, X: Any, y: Any) -> float:
    """Accuracy in per cent, or the mean squared error of numbers."""
    if model.schema_.target == "numbers":
        return float(((model.predict(X) - y) ** 2).mean())
    return 100.0 * float(model.score(X, y))


def patches(ensemble: Any, columns: int, protocol: str) -> Any:
    """The ensemble of a protocol: the program rounds the number of features down."""
    if ensemble is None or protocol == OURS:
        return ensemble
    down = max(1, int(ensemble.features * columns))
    return ensemble.clone().set_params(features=down / columns)


def cross_validated(X: Any, y: Any, model: Any, seeds: int = 1) -> Floats:
    """Scores as seeds × folds of one client: KFold(10), rows shuffled with seed 1.

    The program shuffles classes and leaves numbers to predict in the order of the split.
    """
    from sklearn.model_selection import KFold

    numbers = np.ndim(y) == 2
    folds = KFold(10) if numbers else KFold(10, shuffle=True, random_state=1)
    return np.array(
        [
            [
                score_of(
                    model.clone().fit(so.simulate(X[train], y[train], clients=1, seed=seed)),
                    X[test],
                    y[test],
                )
                for train, test in folds.split(X)
            ]
            for seed in range(seeds)
        ]
    )

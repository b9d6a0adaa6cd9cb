"""The protocol of the FedHEONN thesis: its split, its scaling, its way to score."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

import solera as so

AS_THESIS: dict[str, Any] = {"derivative": "thesis", "rule": "nearest"}
"""The thesis ran with f′ = d for the logistic, and took the class whose output is nearest 0.95."""
DERIVATIVE = (
    "The runs of the thesis used f′(d̄) = d for the logistic instead of d(1 − d); its figures "
    'reproduce only so (derivative="thesis"). The true derivative is Solera\'s default.'
)
Floats = NDArray[np.float64]
_WITH_TEST_ROWS = ("optdigits", "mnist")


def split(name: str) -> tuple[Floats, Any, Floats, Any]:
    """70/30 with random_state 42, z-scores of the training part: X, y, X_test, y_test."""
    from sklearn.model_selection import train_test_split

    options: dict[str, Any] = {} if name in _WITH_TEST_ROWS else {"test": 0}
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

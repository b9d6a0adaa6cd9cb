"""What is regressed: the second-order Taylor loss of each family, and what it predicts.

Near the score η = 0 every loss is ½ a η² − t η up to a constant, hence its gradient (a η − t) x:

=========  =======================================  ===  ==================  =====================
family     loss                                     a    t                   prediction
=========  =======================================  ===  ==================  =====================
logistic   log(1 + exp(−y η)), y = ±1               ¼    ½ y                 1 / (1 + exp(−η))
linear     ½ (y − η)², y standardised               1    y                   mean + spread · η
Poisson    exp(η) − y η, y divided by its mean      1    y − 1               mean · exp(η)
=========  =======================================  ===  ==================  =====================

The first is Hardy et al. 2017, *Private federated learning on vertically partitioned data via
entity resolution and additively homomorphic encryption*, eq. 8; the loss log 2 − ½ y η + ⅛ η².
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from solera.core.clients import Array, FloatArray
from solera.core.errors import DataError
from solera.core.schema import class_codes
from solera.learn.probabilities import sigmoid

FamilyName = Literal["logistic", "linear", "poisson"]
CURVATURE = {"logistic": 0.25, "linear": 1.0, "poisson": 1.0}
"""a of every family."""


def target_of(family: FamilyName, y: Array, classes: Array) -> tuple[FloatArray, float, float]:
    """t of every row, and the mean and spread of y that predictions need."""
    if family == "logistic":
        return np.asarray(class_codes(y, classes) - 0.5, np.float64), 0.0, 1.0
    numbers = np.asarray(y, dtype=np.float64).reshape(-1)
    if not np.isfinite(numbers).all():
        raise DataError("labels are missing or infinite")
    mean = float(numbers.mean())
    if family == "linear":
        spread = float(numbers.std()) or 1.0
        return (numbers - mean) / spread, mean, spread
    if (numbers < 0).any() or mean == 0:
        raise DataError("counts are needed: numbers >= 0 that are not all 0")
    return numbers / mean - 1, mean, 1.0


def targets(family: FamilyName, y: Array, classes: Array, mean: float, spread: float) -> FloatArray:
    """t of other rows, with the mean and spread of the rows that were trained on."""
    if family == "logistic":
        return np.asarray(class_codes(y, classes) - 0.5, np.float64)
    numbers = np.asarray(y, dtype=np.float64).reshape(-1)
    return (numbers - mean) / spread if family == "linear" else numbers / mean - 1


def predictions(family: FamilyName, scores: FloatArray, mean: float, spread: float) -> FloatArray:
    """Probabilities of two classes, or one number: rows × outputs."""
    if family == "logistic":
        p = sigmoid(scores[:, None])
        return np.concatenate([1 - p, p], axis=1)
    said: Any = mean + spread * scores if family == "linear" else mean * np.exp(scores)
    return np.asarray(said)[:, None]

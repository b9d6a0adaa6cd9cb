"""What is right, by scikit-learn, pandas and NumPy alone: nothing here imports Solera."""

from __future__ import annotations

import warnings
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import sklearn.metrics as sk
from scipy.special import expit, softmax

NAMES = {"two": ["died", "lives"], "three": ["amber", "green", "red"]}


def _mean(values: Any) -> float:
    """The mean of those that are defined; NaN of none."""
    defined = [value for value in values if not np.isnan(value)]
    return float(np.mean(defined)) if defined else np.nan


def _recall(true: Any, predicted: Any) -> float:
    return float(sk.recall_score(true, predicted, zero_division=np.nan))


def _judged(y: Any, names: Any) -> Any:
    """The second of two classes, all of more."""
    return names[1:] if len(names) == 2 else names


def _sensitivity(y: Any, p: Any, names: Any) -> float:
    return _mean(_recall(y == c, p == c) for c in _judged(y, names))


def _specificity(y: Any, p: Any, names: Any) -> float:
    return _mean(_recall(y != c, p != c) for c in _judged(y, names))


def _of_labels(function: Any, y: Any, p: Any) -> float:
    """The mean over labels that occur, in truth or as a prediction."""
    occurs = (y + p).any(axis=0)
    each = np.atleast_1d(function(y, p, average=None, zero_division=0))
    return float(each[occurs].mean()) if occurs.any() else 0.0


CLASSES = {
    "accuracy": lambda y, p, names: sk.accuracy_score(y, p),
    "balanced_accuracy": lambda y, p, names: sk.balanced_accuracy_score(y, p),
    "macro_precision": lambda y, p, names: sk.precision_score(
        y, p, average="macro", zero_division=0
    ),
    "macro_recall": lambda y, p, names: sk.recall_score(y, p, average="macro", zero_division=0),
    "macro_f1": lambda y, p, names: sk.f1_score(y, p, average="macro", zero_division=0),
    "sensitivity": _sensitivity,
    "specificity": _specificity,
    "false_positive_rate": lambda y, p, names: 1 - _specificity(y, p, names),
}
LABELS = {
    "subset_accuracy": lambda y, p, names: sk.accuracy_score(y, p),
    "hamming_loss": lambda y, p, names: sk.hamming_loss(y, p),
    "micro_f1": lambda y, p, names: sk.f1_score(y, p, average="micro", zero_division=0),
    "macro_precision": lambda y, p, names: _of_labels(sk.precision_score, y, p),
    "macro_recall": lambda y, p, names: _of_labels(sk.recall_score, y, p),
    "macro_f1": lambda y, p, names: _of_labels(sk.f1_score, y, p),
    "sensitivity": lambda y, p, names: _mean(map(_recall, y.T, p.T)),
    "specificity": lambda y, p, names: _mean(map(_recall, 1 - y.T, 1 - p.T)),
    "samples_f1": lambda y, p, names: sk.f1_score(y, p, average="samples", zero_division=0),
    "samples_jaccard": lambda y, p, names: sk.jaccard_score(
        y, p, average="samples", zero_division=0
    ),
}
NUMBERS = {
    "mse": lambda y, p, names: sk.mean_squared_error(y, p),
    "mae": lambda y, p, names: sk.mean_absolute_error(y, p),
    "rmse": lambda y, p, names: sk.root_mean_squared_error(y, p),
    "r2": lambda y, p, names: sk.r2_score(y, p) if np.ptp(y) > 0 else np.nan,
}
OF_TARGET = {
    "two": CLASSES, "three": CLASSES, "labels": LABELS, "numbers": NUMBERS, "counts": NUMBERS,
}  # fmt: skip


def metric(target: str, name: str, y: Any, predicted: Any) -> float:
    """A metric by its name; a name that is not here needs a line above."""
    names = np.array(NAMES.get(target, []))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(OF_TARGET[target][name](y, predicted, names))


def score(target: str, y: Any, predicted: Any) -> float:
    """Accuracy, subset accuracy or R²."""
    name = {"labels": "subset_accuracy", "numbers": "r2", "counts": "r2"}.get(target, "accuracy")
    return metric(target, name, y, predicted)


def standardised(X: Any, train: Any) -> Any:
    """Columns with mean 0 and variance 1 over the training rows; sparse ones are not centred."""
    dense = X.toarray() if hasattr(X, "toarray") else X
    rows = np.asarray(dense, dtype=np.float64)[train]
    spread = rows.std(axis=0)
    spread[spread < 1e-12] = 1.0
    if hasattr(X, "toarray"):
        return X.multiply(1 / spread).tocsr()
    kind = X.dtype if X.dtype.kind == "f" else np.float64
    return ((X - rows.mean(axis=0)) / spread).astype(kind)


def filled_and_encoded(frame: Any, train: Any, *, first: bool) -> Any:
    """A frame as numbers: gaps filled with the mean or the commonest, one column per category.

    Without ``first``, the first category of each column has none.
    """
    columns = []
    for name in frame.columns:
        column = frame[name]
        if name == "visit":
            column = (pd.to_datetime(column) - pd.Timestamp("1970-01-01")).dt.days.astype(float)
        if pd.api.types.is_numeric_dtype(column):
            columns.append(column.fillna(column.iloc[train].mean()).to_numpy()[:, None])
            continue
        texts = column.astype(object)
        texts = texts.where(texts.notna(), texts.iloc[train].mode()[0])
        columns.append(pd.get_dummies(texts, drop_first=not first).to_numpy(dtype=float))
    return np.concatenate(columns, axis=1)


def own_weights(weights: Any, state: Any, sizes: Any, layer: int) -> Any:
    """A client's network, as PyTorch writes it: all its own, or one layer of a common one."""
    if "own_model" in state:
        return state["own_model"]
    ends = np.cumsum([0, *((a + 1) * b for a, b in pairwise(sizes))])
    own = np.array(weights)
    own[ends[layer] : ends[layer + 1]] = state["private_part"]
    return own


def network(weights: Any, sizes: Any, X: Any) -> Any:
    """The outputs of dense layers with ReLU between them."""
    z, first = np.asarray(X, dtype=float), 0
    for inputs, outputs in pairwise(sizes):
        W = np.asarray(weights[first : first + inputs * outputs], dtype=float)
        b = weights[first + inputs * outputs : first + (inputs + 1) * outputs]
        z = (z if not first else np.maximum(z, 0)) @ W.reshape(outputs, inputs).T + b
        first += (inputs + 1) * outputs
    return z


def probabilities(target: str, z: Any) -> Any:
    """A sigmoid for every label, a softmax over classes."""
    if target == "labels":
        return expit(z)
    return softmax(z, axis=1)

"""What is right, by scikit-learn, pandas and NumPy alone: nothing here imports Solera."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import sklearn.metrics as sk

CLASSES = {
    "accuracy": sk.accuracy_score,
    "balanced_accuracy": sk.balanced_accuracy_score,
    "macro_precision": lambda y, p: sk.precision_score(y, p, average="macro", zero_division=0),
    "macro_recall": lambda y, p: sk.recall_score(y, p, average="macro", zero_division=0),
    "macro_f1": lambda y, p: sk.f1_score(y, p, average="macro", zero_division=0),
}
LABELS = {
    "subset_accuracy": sk.accuracy_score,
    "hamming_loss": sk.hamming_loss,
    "micro_f1": lambda y, p: sk.f1_score(y, p, average="micro", zero_division=0),
    "macro_f1": lambda y, p: np.mean(_f1_of_labels_that_occur(y, p)),
}
NUMBERS = {
    "mse": sk.mean_squared_error,
    "mae": sk.mean_absolute_error,
    "r2": sk.r2_score,
    "rmse": sk.root_mean_squared_error,
}
OF_TARGET = {"two": CLASSES, "three": CLASSES, "labels": LABELS, "numbers": NUMBERS}
OF_TARGET["counts"] = NUMBERS


def _f1_of_labels_that_occur(y: Any, p: Any) -> list[float]:
    occurs = (y + p).any(axis=0)
    each = sk.f1_score(y, p, average=None, zero_division=0)
    return list(np.atleast_1d(each)[occurs]) or [0.0]


def metric(target: str, name: str, y: Any, predicted: Any) -> float:
    """A metric by its name; a name that is not here needs a line above."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(OF_TARGET[target][name](y, predicted))


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


def filled_and_encoded(frame: Any, train: Any) -> Any:
    """A frame as numbers: gaps filled with the mean or the commonest, one column per category."""
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
        columns.append(pd.get_dummies(texts).to_numpy(dtype=float))
    return np.concatenate(columns, axis=1)

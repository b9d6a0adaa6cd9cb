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


def _of_labels(function: Any, y: Any, p: Any, known: Any) -> float:
    """The mean over labels that occur, in truth or as a prediction."""
    y, p = y * known, p * known
    occurs = (y + p).any(axis=0)
    each = np.atleast_1d(function(y, p, average=None, zero_division=0))
    return float(each[occurs].mean()) if occurs.any() else 0.0


def _recall_of_labels(y: Any, p: Any, known: Any) -> float:
    return _mean(_recall(*pair) for pair in _label_by_label(y, p, known))


def _label_by_label(y: Any, p: Any, known: Any) -> Any:
    return [(y[rows, j], p[rows, j]) for j, rows in enumerate(known.T) if rows.any()]


def known_labels(y: Any, p: Any) -> tuple[Any, Any, Any]:
    """Truth and prediction of the rows that count, and which of their labels are known to both."""
    known = (y >= 0) & (p >= 0)
    rows = known.any(axis=1)
    return y[rows], p[rows], known[rows]


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
    "subset_accuracy": lambda y, p, k: ((y == p) | ~k).all(axis=1).mean(),
    "hamming_loss": lambda y, p, k: sk.hamming_loss(y[k], p[k]),
    "micro_f1": lambda y, p, k: sk.f1_score(y[k], p[k], zero_division=0),
    "macro_precision": lambda y, p, k: _of_labels(sk.precision_score, y, p, k),
    "macro_recall": lambda y, p, k: _of_labels(sk.recall_score, y, p, k),
    "macro_f1": lambda y, p, k: _of_labels(sk.f1_score, y, p, k),
    "sensitivity": lambda y, p, k: _recall_of_labels(y, p, k),
    "specificity": lambda y, p, k: _recall_of_labels(1 - y, 1 - p, k),
    "samples_f1": lambda y, p, k: sk.f1_score(y * k, p * k, average="samples", zero_division=0),
    "samples_jaccard": lambda y, p, k: sk.jaccard_score(
        y * k, p * k, average="samples", zero_division=0
    ),
}
NUMBERS = {
    "mse": lambda y, p, names: sk.mean_squared_error(y, p),
    "mae": lambda y, p, names: sk.mean_absolute_error(y, p),
    "rmse": lambda y, p, names: sk.root_mean_squared_error(y, p),
    "r2": lambda y, p, names: sk.r2_score(y, p) if np.ptp(y) > 0 else np.nan,
}
OF_TARGET = {
    "two": CLASSES, "three": CLASSES, "labels": LABELS, "unknown": LABELS, "numbers": NUMBERS,
    "counts": NUMBERS,
}  # fmt: skip


def metric(target: str, name: str, y: Any, predicted: Any) -> float:
    """A metric by its name; a name that is not here needs a line above."""
    third = np.array(NAMES.get(target, []))
    if OF_TARGET[target] is LABELS:
        y, predicted, third = known_labels(y, predicted)
    if not len(y):
        return np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(OF_TARGET[target][name](y, predicted, third))


def score(target: str, y: Any, predicted: Any) -> float:
    """Accuracy, subset accuracy or R²."""
    headline = {"labels": "subset_accuracy", "unknown": "subset_accuracy"}
    headline |= {"numbers": "r2", "counts": "r2"}
    return metric(target, headline.get(target, "accuracy"), y, predicted)


def judged_rows(target: str, y: Any, predicted: Any) -> int:
    """Of how many rows metrics are: not of those of which no label is known."""
    return len(known_labels(y, predicted)[0]) if OF_TARGET[target] is LABELS else len(y)


def of_scores(target: str, y: Any, p: Any) -> dict[str, float]:
    """AUROC, a mean over classes or labels that both occur and miss, and log-loss."""
    is_labels = OF_TARGET[target] is LABELS
    truth = y if is_labels else (y[:, None] == np.array(NAMES[target])).astype(int)
    known = (truth >= 0) & ~np.isnan(p)
    chosen = np.where(truth == 1, p, 1 - p) if is_labels else np.where(truth, p, 1.0)
    losses = np.where(known, -np.log(np.maximum(chosen, np.finfo(float).eps)), 0.0).sum(axis=1)
    rows = known.any(axis=1)
    found = {"log_loss": float((losses / (known.sum(axis=1) if is_labels else 1))[rows].mean())}
    columns = range(1, 2) if target == "two" else range(p.shape[1])
    pairs = [(truth[known[:, j], j], p[known[:, j], j]) for j in columns]
    areas = [sk.roc_auc_score(*pair) for pair in pairs if len(np.unique(pair[0])) == 2]
    return {**found, "auroc": float(np.mean(areas))} if areas else found


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
    if target in ("labels", "unknown"):
        return expit(z)
    return softmax(z, axis=1)

"""The client's side of evaluation: its rows are predicted where they are, and counted."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from solera.core.clients import Array, Client, FloatArray, Rows
from solera.core.errors import DataError
from solera.core.schema import UNKNOWN, class_codes
from solera.core.task import task
from solera.evaluation.counts import label_counts, ratio
from solera.learn.base import last_step
from solera.learn.client_models import many_models, own_model
from solera.trust.constructors import count_by, sum_by


@task("learner.evaluate", many=many_models("learner.evaluate"), version=4)
def judge_rows(client: Client, ask: Any) -> dict[str, Any]:
    """Counts of the client's rows: a confusion matrix, label counts or sums of squares."""
    rows = client.data.part(ask["part"])
    return count_rows(own_model(client, ask["model"]), rows, ask.get("pivot"), part=ask["part"])


def about_pivot(model: Any) -> dict[str, FloatArray]:
    """A number near those that a model of numbers predicts, for a :class:`Judge`."""
    if model.schema_.target != "numbers" or model.is_personal:
        return {}
    last = last_step(model)
    said = matrix(last.predict(np.zeros((1, last.schema_.width)))).astype(float)[0]
    return {"pivot": np.where(np.isfinite(said), said, 0.0)}


def count_rows(model: Any, rows: Rows, pivot: Any = None, /, **of: Any) -> dict[str, Any]:
    """What these rows give to the counts that metrics are made of.

    ``of``: which rows they are, as ``part=`` or ``rows=`` of contributions.
    """
    if rows.y is None:
        raise DataError("rows without a target cannot be evaluated")
    predicted = model.predict(rows.X) if len(rows) else rows.y
    if model.schema_.target == "classes":
        classes = model.schema_.classes
        k = len(classes)
        true, guessed = class_codes(rows.y, classes), class_codes(predicted, classes)
        confusion = count_by(true * k + guessed, (k, k), **of)
        return {"confusion": confusion, "rows": count_by(None, **of)}
    truth, guess = matrix(rows.y), matrix(predicted)
    if model.schema_.target == "labels":
        return _count_labels(truth, guess, **of)
    return _sum_errors(truth.astype(float), guess, 0.0 if pivot is None else pivot, **of)


def _count_labels(truth: Array, guess: Array, **of: Any) -> dict[str, Any]:
    """Hits and misses by label, and the F1 and Jaccard index of rows.

    A label that is unknown, or that the model has never seen, is in no count but its own; a row of
    which no label is left counts for nothing. F1 and Jaccard index of a row without a label that is
    predicted or true are 0, as in scikit-learn.
    """
    known = (truth != UNKNOWN) & (guess != UNKNOWN)
    marks = label_counts(guess > 0, truth > 0, known)
    hits = marks["true_positive"].sum(axis=1)
    either = hits + (marks["false_positive"] | marks["false_negative"]).sum(axis=1)
    judged = marks["rows"]
    return {
        "samples_f1": sum_by(None, ratio(2 * hits, hits + either), where=judged, **of),
        "samples_jaccard": sum_by(None, ratio(hits, either), where=judged, **of),
        **{name: count_by(mark, **of) for name, mark in marks.items()},
    }


def _sum_errors(truth: FloatArray, guess: Array, pivot: Any, **of: Any) -> dict[str, Any]:
    """Sums of errors and squares; R² has its interval by the ``moments`` of one output."""
    y, error = truth - pivot, truth - guess
    values = {"y": y, "y2": y**2, "error2": error**2, "error": np.abs(error)}
    if y.shape[1] == 1:
        powers = (error**4, error**2 * y, error**2 * y**2, y**3, y**4)
        values["moments"] = np.concatenate(powers, axis=1)
    sums = {name: sum_by(None, value, **of) for name, value in values.items()}
    return {"rows": count_by(None, **of), **sums}


def matrix(y: Array) -> Array:
    return np.asarray(y).reshape(len(y), math.prod(np.shape(y)[1:]))

"""The client's side of evaluation: its rows are predicted where they are, and counted."""

from __future__ import annotations

import math
from typing import Annotated, Any, NotRequired, TypedDict

import numpy as np

from solera.core.clients import (
    Array,
    Client,
    ClientGroup,
    FloatArray,
    IntArray,
    Part,
    Rows,
    Segments,
)
from solera.core.component import build_fitted
from solera.core.disclosure.declared import Fitted, Shape
from solera.core.disclosure.evidence import Sums, cells, everyone
from solera.core.errors import DataError
from solera.core.release import Behind, Cells
from solera.core.replies import Stacked
from solera.core.schema import UNKNOWN, class_codes
from solera.core.task import group_task
from solera.evaluation.counts import label_counts, ratio
from solera.learn.base import Predictor, last_step
from solera.learn.client_models import by_own_models, own_model

Pivot = Annotated[FloatArray, Shape("outputs")]


class Judge(TypedDict):
    """What ``learner.evaluate`` takes: a fitted model, and the part of the rows.

    Sums of numbers are of what they are beyond ``pivot``, the same at all clients.
    """

    model: Annotated[dict[str, Any], Fitted(Predictor)]
    part: Part
    pivot: NotRequired[Pivot]


ALIKE = {
    "y": "numbers", "error": "numbers", "y2": "squares", "error2": "squares",
    "moments": "fourth powers", "samples_f1": "shares", "samples_jaccard": "shares",
}  # fmt: skip
"""Sums that a model can make equal but for a few rows: where it predicts 0, the error is y."""


def _behind(client: Client, ask: Any, reply: Any) -> dict[str, Sums]:
    """The rows of each cell of a confusion matrix, and what rows gave to the other sums."""
    return rows_behind(own_model(client, ask["model"]), client, ask)


def rows_behind(model: Any, client: Client, ask: Any) -> dict[str, Sums]:
    """The rows behind each of the counts of :func:`count_rows`."""
    part = ask["part"]
    rows = client.data.part(part)
    behind = {"rows": everyone(len(rows), part=part)}
    if model.schema_.target == "classes":
        k = len(model.schema_.classes)
        true, guessed = _codes(model, rows)
        return {"confusion": cells(true * k + guessed, k * k, part=part), **behind}
    behind["single"] = Sums(np.arange(len(rows))[:, None] == 0, part=part)
    for name, value in given_by_rows(model, rows, ask.get("pivot", 0.0)).items():
        given = value.reshape(len(rows), -1)
        behind[name] = Sums(given, part=part, what=ALIKE.get(name, ""), beyond=name in ALIKE)
    return behind


def _no_sums(ask: Any, reply: Any) -> dict[str, Any]:
    return {name: np.zeros_like(reply[name]) for name in ALIKE if name in reply}


def _true_classes(ask: Any) -> IntArray:
    """The true class of every cell of a confusion matrix: how many rows have it is known."""
    k = len(build_fitted(ask["model"]).schema_.classes)
    return np.repeat(np.arange(k), k)


def counts_of_rows(behind: Behind) -> list[Cells]:
    """The releases of a reply with the counts of :func:`count_rows`."""
    return [
        Cells("confusion", behind=behind, margins=_true_classes),
        Cells("true_positive", "false_positive", "false_negative", "unknown", behind=behind),
        Cells("y", "y2", "error2", "error", behind=behind, neutral=_no_sums),
        Cells("moments", behind=behind, neutral=_no_sums),
        Cells("samples_f1", "samples_jaccard", behind=behind, neutral=_no_sums),
        Cells("exact", "rows", behind=behind),
        Cells("single", behind=behind),
    ]


@group_task("learner.evaluate", ask=Judge, release=counts_of_rows(_behind), version=3)
def judge_rows(group: ClientGroup, ask: Any) -> Stacked:
    """Counts of each client's rows: a confusion matrix, label counts or sums of squares."""
    pivot = ask.get("pivot", 0.0)
    return Stacked(by_own_models(group, ask, lambda m, rows: count_rows(m, rows, pivot)))


def about_pivot(model: Any) -> dict[str, FloatArray]:
    """A number near those that a model of numbers predicts, for a :class:`Judge`."""
    if model.schema_.target != "numbers" or model.is_personal:
        return {}
    last = last_step(model)
    said = _matrix(last.predict(np.zeros((1, last.schema_.width)))).astype(float)[0]
    return {"pivot": np.where(np.isfinite(said), said, 0.0)}


def count_rows(model: Any, rows: Segments, pivot: Any = 0.0) -> dict[str, Array]:
    """Counts for each client, from one prediction of all their rows.

    ``single`` counts one row, which no gate lets out: without it, small sums may be withheld.
    """
    joined = rows.joined()
    if joined.y is None:
        raise DataError("rows without a target cannot be evaluated")
    owners = rows.owners
    if model.schema_.target == "classes":
        k = len(model.schema_.classes)
        true, guessed = _codes(model, joined)
        confused = (owners * k + true) * k + guessed
        counts = np.bincount(confused, minlength=len(rows) * k * k)
        return {"confusion": counts.reshape(len(rows), k, k), "rows": rows.sizes}
    given = given_by_rows(model, joined, pivot)
    sums = {name: _sums(value, owners, len(rows)) for name, value in given.items()}
    counted = {"rows": rows.sizes, **sums}
    return {**counted, "single": np.minimum(counted["rows"], 1)}


def _predicted(model: Any, rows: Rows) -> Array:
    predicted: Array = model.predict(rows.X) if len(rows) else rows.y
    return predicted


def _codes(model: Any, rows: Rows) -> tuple[IntArray, IntArray]:
    """The true and the predicted class of every row, as codes."""
    classes = model.schema_.classes
    return class_codes(rows.y, classes), class_codes(_predicted(model, rows), classes)


def given_by_rows(model: Any, rows: Rows, pivot: Any = 0.0) -> dict[str, Array]:
    """What every row adds to each sum, for labels and numbers.

    A label that is unknown, or that the model has never seen, is in no sum but its own; a row of
    which no label is left counts for nothing. F1 and Jaccard index of a row without a label that is
    predicted or true are 0, as in scikit-learn. ``moments`` of one output are those of which R² has
    an interval.
    """
    truth, guess = _matrix(rows.y), _matrix(_predicted(model, rows))
    if model.schema_.target == "labels":
        known = (truth != UNKNOWN) & (guess != UNKNOWN)
        given: dict[str, Array] = {**label_counts(guess > 0, truth > 0, known)}
        hits = given["true_positive"].sum(axis=1)
        either = hits + (given["false_positive"] | given["false_negative"]).sum(axis=1)
        given |= {"samples_f1": ratio(2 * hits, hits + either)}
        return given | {"samples_jaccard": ratio(hits, either)}
    y, error = truth.astype(float) - pivot, truth.astype(float) - guess
    given = {"y": y, "y2": y**2, "error2": error**2, "error": np.abs(error)}
    if y.shape[1] == 1:
        powers = (error**4, error**2 * y, error**2 * y**2, y**3, y**4)
        given["moments"] = np.concatenate(powers, axis=1)
    return given


def _matrix(y: Array) -> Array:
    return np.asarray(y).reshape(len(y), math.prod(np.shape(y)[1:]))


def _sums(values: Array, owners: IntArray, clients: int) -> Array:
    """Sums over the rows of each client."""
    kind = np.int64 if values.dtype == bool else float
    total = np.zeros((clients, *values.shape[1:]), dtype=kind)
    if len(owners):
        first = np.flatnonzero(np.diff(owners, prepend=-1))
        total[owners[first]] = np.add.reduceat(values, first, axis=0, dtype=kind)
    return total

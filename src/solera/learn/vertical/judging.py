"""What the label owner tells of a vertical model: predictions, or counts of right and wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from solera.core.clients import Array, Client, IntArray, Rows
from solera.core.errors import DataError
from solera.core.replies import Reply, Stacked
from solera.core.schema import Schema
from solera.core.task import task
from solera.evaluation.evaluation import Evaluation
from solera.evaluation.figure import MeasuredPart
from solera.learn.evaluation import CountTotals, _grid, judged, with_scores
from solera.learn.judging import count_rows
from solera.learn.scores import ScoreGrid, ScoreTotals, score_counts
from solera.learn.vertical.party import (
    SharedPart,
    labelled,
    outputs_of,
    row_numbers,
    shared_rows,
)


class Said:
    """A model whose rows are what was said of them, so that metrics are counted as ever."""

    def __init__(self, schema: Schema) -> None:
        self.schema_ = schema

    def predict(self, said: Array) -> Array:
        if self.schema_.target == "classes":
            return np.asarray(self.schema_.classes[said.argmax(axis=1)])
        if self.schema_.target == "labels":
            return np.asarray(said > 0.5, dtype=np.int64)
        return said[:, 0] if said.shape[1] == 1 else said

    def predict_proba(self, said: Array) -> Array:
        return said


@task("vertical.outputs", version=2)
def tell_outputs(client: Client, ask: Any) -> dict[str, Any]:
    """What the model says of the shared rows, by their numbers in this client's table.

    No identifier leaves: who holds the table knows whose rows these are.
    """
    numbers = row_numbers(client, ask["model"], ask["part"])
    order = np.argsort(numbers, kind="stable")
    outputs = outputs_of(client, ask["model"], ask["part"])
    return {"outputs": outputs[order], "rows": numbers[order]}


def _judged_rows(client: Client, ask: Any) -> tuple[Rows, IntArray]:
    """What the model said of the rows that are judged, and their labels; their numbers."""
    rows = shared_rows(client, ask["model"], ask["part"])
    said = outputs_of(client, ask["model"], ask["part"])
    if rows.y is None:
        raise DataError("this party holds no labels to judge by")
    numbers = row_numbers(client, ask["model"], ask["part"])
    known = labelled(client, ask["model"], ask["part"])
    return Rows(said[known], rows.y[known]), numbers[known]


@task("vertical.counts", version=2)
def count_said(client: Client, ask: Any) -> dict[str, Any]:
    """The counts from which metrics follow, of what the model said of this client's labels."""
    model = Said(client.data.schema)
    rows, numbers = _judged_rows(client, ask)
    counts = count_rows(model, rows, rows=numbers)
    if ask["bins"] is not None and model.schema_.target != "numbers":
        grid = ScoreGrid(ask["bins"], ask["threshold"])
        counts["scores"] = score_counts(model, rows, grid, rows=numbers)
    return counts


def outputs(parties: Any, model: str, owner: int, part: SharedPart) -> tuple[Array, Array]:
    """What the model says of the shared rows, as one label owner tells it, and whose they are.

    A simulation knows the owner's identifiers; elsewhere the numbers of its rows take their place.
    """
    told = parties.ask(tell_outputs, {"model": model, "part": part}, to=[owner])[owner]
    rows = np.asarray(told["rows"])
    source = getattr(parties.federation.engine, "source", None)
    ids = None if source is None else source.identifiers_of(parties.numbers[owner], "train")
    return np.asarray(told["outputs"]), rows if ids is None else ids[rows]


def judge(
    parties: Any,
    model: str,
    owners: Sequence[int],
    part: SharedPart,
    schema: Schema,
    scores: Any,
) -> Evaluation:
    """Metrics from the counts of the label owners."""
    grid = _grid(scores)
    ask = {
        "model": model,
        "part": part,
        "bins": None if grid is None else grid.bins,
        "threshold": 0.5 if grid is None else grid.threshold,
    }
    told = parties.ask(count_said, ask, to=owners)
    settled = [_settled(told[owner]) for owner in owners]
    counts, scored = [one for one, _ in settled], [one for _, one in settled]
    measured: MeasuredPart = "all" if part == "now" else part
    ids = np.array(owners)
    evaluation = judged(ids, dict(Stacked.of(counts).fields), measured)
    if not evaluation.clients:
        raise DataError(
            f"the label owner counted no {part} rows",
            hint="set more aside, such as test=0.2: its policy may withhold counts of a few rows",
        )
    if all(one is not None for one in scored):
        assert grid is not None
        about = {"part": measured, "asked": len(owners)}
        of_scores = dict(Stacked.of(scored).fields)
        evaluation = with_scores(evaluation, Said(schema), ids, of_scores, grid, about)
    names = dict(enumerate(parties.names))
    return replace(evaluation, names=names, positive=schema.positive)


def _settled(told: Mapping[str, Any]) -> tuple[Any, Any]:
    """The counts of a label owner as they add up, and its scores, if it counted any."""
    counts = {name: value for name, value in told.items() if name != "scores"}
    scores = ScoreTotals().lift(Reply(0, told["scores"])) if "scores" in told else None
    return CountTotals().lift(Reply(0, counts)), scores

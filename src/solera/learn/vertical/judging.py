"""What the label owner tells of a vertical model: predictions, or counts of right and wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, TypedDict

import numpy as np

from solera.core.clients import Array, Client, IntArray, Segments
from solera.core.disclosure.evidence import Sums, cells
from solera.core.disclosure.histograms import Histograms
from solera.core.errors import DataError
from solera.core.plan import Plan, planned
from solera.core.release import Cells, RowsOut
from solera.core.replies import Stacked, map_leaves
from solera.core.schema import Schema, class_codes
from solera.core.task import task
from solera.evaluation.counts import countable
from solera.evaluation.evaluation import Evaluation
from solera.evaluation.figure import MeasuredPart
from solera.learn.evaluation import _grid, judged, with_scores
from solera.learn.judging import ALIKE, count_rows, given_by_rows
from solera.learn.scores import Bins, ScoreGrid, Threshold, _scored, located, score_counts
from solera.learn.vertical.party import (
    SharedPart,
    labelled,
    outputs_of,
    row_numbers,
    shared_rows,
)
from solera.trust.declared import Checked

ModelName = Annotated[str, Checked(lambda value, schema: _name_objection(value))]


def _name_objection(value: Any) -> str | None:
    hexadecimal = (
        isinstance(value, str) and len(value) == 32 and set(value) <= set("0123456789abcdef")
    )
    return None if hexadecimal else "is no name of a model"


class Which(TypedDict):
    """A model, and rows of the order that its parties share."""

    model: ModelName
    part: SharedPart


class Judged(TypedDict):
    """What ``vertical.counts`` takes: which rows, and by what scores are counted, if so."""

    model: ModelName
    part: SharedPart
    bins: Bins | None
    threshold: Threshold


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


@task("vertical.outputs", version=2, ask=Which, release=[RowsOut("outputs", "rows")])
def tell_outputs(client: Client, ask: Any) -> dict[str, Any]:
    """What the model says of the shared rows, by their numbers in this client's table.

    No identifier leaves: who holds the table knows whose rows these are.
    """
    numbers = row_numbers(client, ask["model"], ask["part"])
    order = np.argsort(numbers, kind="stable")
    outputs = outputs_of(client, ask["model"], ask["part"])
    return {"outputs": outputs[order], "rows": numbers[order]}


def _rows(client: Client, ask: Any) -> tuple[Said, Segments, IntArray]:
    """The model's words and the labels of the rows that are judged; their numbers."""
    rows = shared_rows(client, ask["model"], ask["part"])
    said = outputs_of(client, ask["model"], ask["part"])
    if rows.y is None:
        raise DataError("this party holds no labels to judge by")
    numbers = row_numbers(client, ask["model"], ask["part"])
    known = labelled(client, ask["model"], ask["part"])
    one = Segments(said[known], rows.y[known], np.zeros(1, np.int64), np.array([known.sum()]))
    return Said(client.data.schema), one, numbers[known]


def spread(values: Array, numbers: IntArray, rows: int, empty: float = 0) -> Array:
    """Values of some rows as those of all rows of the client."""
    spread = np.full((rows, *values.shape[1:]), empty, dtype=values.dtype)
    spread[numbers] = values
    return spread


def _behind(client: Client, ask: Any, reply: Any) -> dict[str, Sums]:
    model, segments, numbers = _rows(client, ask)
    joined, rows = segments.joined(), len(client.data)
    found = {"rows": Sums(spread(np.ones((len(joined), 1), bool), numbers, rows))}
    if model.schema_.target == "classes":
        classes = model.schema_.classes
        k = len(classes)
        true, said = class_codes(joined.y, classes), class_codes(model.predict(joined.X), classes)
        return {"confusion": cells(spread(true * k + said, numbers, rows, -1), k * k), **found}
    for name, value in given_by_rows(model, joined).items():
        given = spread(value.reshape(len(joined), -1), numbers, rows)
        is_sum = name in ALIKE
        found[name] = Sums(given, what=name if is_sum else "", beyond=is_sum)
    found["single"] = Sums(np.arange(rows)[:, None] == numbers[:1])
    return found


def _losses_behind(client: Client, ask: Any, reply: Any) -> dict[str, Sums]:
    model, segments, numbers = _rows(client, ask)
    scored = _scored(model, segments.joined(), _asked_grid(ask).edges)
    rows = len(client.data)
    return {
        "scores.loss": Sums(
            spread(scored.loss[:, None], numbers, rows), what="losses", beyond=True
        ),
        "scores.brier": Sums(
            spread(scored.brier[:, None], numbers, rows), what="squared scores", beyond=True
        ),
        "scores.rows": Sums(spread(np.ones((len(numbers), 1), bool), numbers, rows)),
    }


def _bins_behind(client: Client, ask: Any) -> tuple[IntArray, Any]:
    model, segments, numbers = _rows(client, ask)
    index = _scored(model, segments.joined(), _asked_grid(ask).edges).bins
    return spread(index.reshape(len(numbers), -1), numbers, len(client.data), -1), "train"


def _asked_grid(ask: Any) -> ScoreGrid:
    return ScoreGrid(ask["bins"], ask["threshold"])


@task(
    "vertical.counts",
    ask=Judged,
    release=[
        Cells("confusion", behind=_behind),
        Cells("true_positive", "false_positive", "false_negative", behind=_behind),
        Cells("y", "y2", "error2", "error", behind=_behind),
        Cells("moments", "samples_f1", "samples_jaccard", behind=_behind),
        Cells("exact", "rows", behind=_behind),
        Cells("single", behind=_behind),
        Histograms(
            "scores.counts",
            "scores.merged",
            bins=_bins_behind,
            middle=lambda ask: _asked_grid(ask).middle,
        ),
        Cells("scores.loss", "scores.brier", "scores.rows", behind=_losses_behind),
    ],
)
def count_said(client: Client, ask: Any) -> dict[str, Any]:
    """The counts from which metrics follow, of what the model said of this client's labels."""
    model, segments, _ = _rows(client, ask)
    counts: dict[str, Any] = map_leaves(lambda leaf: leaf[0], count_rows(model, segments))
    if ask["bins"] is not None and model.schema_.target != "numbers":
        found = score_counts(model, segments, _asked_grid(ask))
        counts["scores"] = map_leaves(lambda leaf: leaf[0], found)
    return counts


JUDGING: Plan = (
    planned(tell_outputs, 1, open=["model", "part"], optional=True),
    planned(count_said, 1, open=["model", "part", "bins", "threshold"], optional=True),
)
"""What is asked of label owners once a model has been applied."""


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
    scored = [told[owner].pop("scores", None) for owner in owners]
    measured: MeasuredPart = "all" if part == "now" else part
    ids, stacked = np.array(owners), Stacked.of([told[owner] for owner in owners]).fields
    evaluation = judged(ids, countable(dict(stacked)), measured)
    if not evaluation.clients:
        raise DataError(
            f"the label owner counted no {part} rows",
            hint="set more aside, such as test=0.2: its policy may withhold counts of a few rows",
        )
    if grid is not None and all(counts is not None for counts in scored):
        counts = located(dict(Stacked.of(scored).fields))
        about = {"part": measured, "asked": len(owners)}
        evaluation = with_scores(evaluation, Said(schema), ids, counts, grid, about)
    names = dict(enumerate(parties.names))
    return replace(evaluation, names=names, positive=schema.positive)

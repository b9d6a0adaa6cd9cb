"""Evaluation in a closed job: every owner counts its rows, and only sums over all owners are told.

Losses, errors and squares are exact sums. Counts by cell are exact where every cell of their table
holds enough persons; elsewhere they carry noise, and what follows from them says between what it
is. A part is scored once by a model, with all figures at once: later calls show the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from solera.core.aggregation import Sum
from solera.core.clients import Client, FloatArray, IntArray, Part
from solera.core.component import describe_fitted
from solera.core.errors import DataError
from solera.core.federation import Federation
from solera.core.payload import encode
from solera.core.schema import UNKNOWN, class_codes
from solera.core.task import task
from solera.evaluation.counts import (
    class_metrics,
    label_counts,
    label_metrics,
    metrics_of,
    ratio,
)
from solera.evaluation.evaluation import Evaluation
from solera.evaluation.figure import Figure, figures
from solera.evaluation.metrics import find_metric as about_metric
from solera.evaluation.metrics import headline_of
from solera.evaluation.noised import (
    Between,
    NoisedScores,
    NoisedTables,
    first_cell,
    settled,
    table_bounds,
)
from solera.learn.client_models import own_model
from solera.learn.closed import check_jobs, count_all_persons
from solera.learn.judging import judge_rows, matrix
from solera.learn.row_metrics import find_metric
from solera.learn.scores import (
    ScoreGrid,
    count_scores,
    gives_scores,
    names_of,
    quantile_metrics,
    score_ask,
    scored_rows,
)
from solera.trust.board.engine import NotClosed
from solera.trust.cells import Indexed
from solera.trust.constructors import count_by, sum_by
from solera.trust.contributions import Supports

GRID = ScoreGrid().edges
"""Between what scores are told apart at the finest: 2⁸ steps, so that they are halved 8 times."""
SPLIT, LEAST = 20, 10
"""Bins of scores are halved that hold so many persons, and merged until they hold about these."""
_SUMS = {
    "loss": "log_loss",
    "brier": "brier",
    "samples_f1": "samples_f1",
    "samples_jaccard": "samples_jaccard",
}
"""Entries that are sums over rows, and the metrics they are the means of."""


# --- at the owners ---


@task("evaluation.targets")
def sum_targets(client: Client, ask: Any) -> dict[str, Any]:
    """The numbers of a part's rows: about their mean, sums of squares lose no digits."""
    rows, part = client.data.part(ask["part"]), ask["part"]
    return {"rows": count_by(None, part=part), "y": sum_by(None, rows.y, part=part)}


@task("evaluation.tables")
def count_tables(client: Client, ask: Any) -> dict[str, Any]:
    """Rows by true and predicted class or label, those that are right, and sums of losses."""
    model, rows = _model_and_rows(client, ask)
    part, schema = ask["part"], model.schema_
    predicted = model.predict(rows.X) if len(rows) else rows.y
    if schema.target == "classes":
        k = len(schema.classes)
        truth, guess = (class_codes(each, schema.classes) for each in (rows.y, predicted))
        reply: dict[str, Any] = {
            "confusion": count_by((truth, guess), (k, k), part=part),
            "classes": count_by(truth, k, part=part),
            "right": count_by((truth != guess).astype(int), 2, part=part),
        }
    else:
        reply = _label_tables(matrix(rows.y), matrix(predicted), part)
    if ask["scores"]:
        scored = scored_rows(model, rows, GRID)
        losses = {"loss": scored.loss, "brier": scored.brier}
        reply |= {name: sum_by(None, each, part=part) for name, each in losses.items()}
    return reply


def _label_tables(truth: Any, guess: Any, part: Part) -> dict[str, Any]:
    """Of every label its two by two cells, and those that do not know it in a fifth."""
    labels = truth.shape[1]
    known = (truth != UNKNOWN) & (guess != UNKNOWN)
    marks = label_counts(guess > 0, truth > 0, known)
    cell = np.where(known, 2 * (truth > 0) + (guess > 0), 4)
    hits = marks["true_positive"].sum(axis=1)
    either = hits + (marks["false_positive"] | marks["false_negative"]).sum(axis=1)
    right = np.where(marks["rows"], np.where(marks["exact"], 0, 1), 2)
    return {
        "confusion": count_by((np.arange(labels)[None], cell), (labels, 5), part=part),
        "right": count_by(right, 3, part=part),
        "samples_f1": sum_by(None, ratio(2 * hits, hits + either), part=part),
        "samples_jaccard": sum_by(None, ratio(hits, either), part=part),
    }


@task("evaluation.score_cells")
def count_score_cells(client: Client, ask: Any) -> dict[str, Any]:
    """The persons in bins of scores, of one name after the other; by truth, at the end."""
    model, rows = _model_and_rows(client, ask)
    part, ends = ask["part"], ask["ends"]
    scored = scored_rows(model, rows, GRID)
    bins = np.stack(
        [np.searchsorted(inner, scored.bins[:, i], side="right") for i, inner in enumerate(ends)],
        axis=1,
    )
    sizes = [len(inner) + 1 for inner in ends]
    place = np.where(scored.known, bins + np.cumsum([0, *sizes])[:-1], -1)
    if not ask["by_truth"]:
        return {"persons": _persons(place, sum(sizes), part)}
    by_truth = np.where(scored.known, 2 * place + scored.truth, -1)
    means = {
        str(i): sum_by(np.where(scored.known[:, i], bins[:, i], -1), scored.p[:, i], n, part=part)
        for i, n in enumerate(sizes)
    }
    return {"persons": _persons(by_truth, 2 * sum(sizes), part), "means": means}


def _persons(index: IntArray, cells: int, part: Part) -> Supports:
    return Supports(Indexed(index, (cells,), distinct=True), None, part)


def _model_and_rows(client: Client, ask: Any) -> Any:
    rows = client.data.part(ask["part"])
    if rows.y is None:
        raise DataError("rows without a target cannot be evaluated")
    return own_model(client, ask["model"]), rows


# --- at the learner ---


def evaluate_closed(
    model: Any, federation: Federation, part: Part, metrics: Sequence[str] = ()
) -> Evaluation:
    """What all owners' rows of a part say of a model, from the one scoring that there is."""
    check_jobs(federation, "evaluation")
    ask = {"model": describe_fitted(model.for_prediction()), "part": part}
    once = encode(ask), federation.current_fit
    scored: dict[Any, Evaluation] = federation.engine.scored  # type: ignore[attr-defined]
    if once not in scored:
        scored[once] = _scored_once(model, federation, ask, metrics)
    return scored[once]


_OF_SCORES = ("names", "edges", "counts", "means", "exact")


def _noised(names: Any, edges: Any, counts: Any, means: Any, exact: bool) -> NoisedScores:
    return NoisedScores(
        tuple(names), edges, counts, loss=0.0, brier=0.0, judged=0, means=means, exact=exact
    )


def to_payload(evaluation: Evaluation) -> dict[str, Any]:
    """What a closed job's result holds of its one scoring; :func:`from_payload` reads it."""
    scores = evaluation.scores
    return {
        "metrics": {name: figure.to_payload() for name, figure in evaluation.metrics.items()},
        "counts": evaluation.counts,
        "notes": list(evaluation.notes),
        "positive": evaluation.positive,
        "scores": None if scores is None else [getattr(scores, name) for name in _OF_SCORES],
    }


def from_payload(content: Mapping[str, Any]) -> Evaluation:
    """What :func:`to_payload` gave."""
    scores = content["scores"]
    return Evaluation(
        figures(content["metrics"]),
        {},
        dict(content["counts"]),
        scores=None if scores is None else _noised(*scores),
        notes=tuple(content["notes"]),
        positive=content["positive"],
    )


def check_scores_are_closed(scores: Any) -> None:
    """Refuse a grid of scores."""
    if isinstance(scores, ScoreGrid):
        raise NotClosed(
            "evaluate(scores=ScoreGrid(…)): in a closed job the bins of scores follow from persons",
            hint="scores=True",
        )


def shown(evaluation: Evaluation, scores: bool, metrics: Sequence[str]) -> Evaluation:
    """Of all figures of the one scoring those that were asked for."""
    asked = {
        name: figure
        for name, figure in evaluation.metrics.items()
        if scores or (about := about_metric(name)) is None or not about.needs_scores
    }
    notes = list(evaluation.notes)
    curves = evaluation.scores if scores else None
    if isinstance(curves, NoisedScores):
        notes.append(f"areas are from {curves.grid}")
        notes.append("no ECE, whose tenths hold too few: scores.calibration(), or the Brier score")
    if lacks := [name for name in metrics if name not in asked]:
        notes.append(f"this part was scored once by this model, without {', '.join(lacks)}")
    return replace(evaluation, metrics=asked, scores=curves, notes=tuple(notes))


def closed_score(model: Any, federation: Federation) -> Evaluation:
    """The scoring of the one part that has rows."""
    persons = count_all_persons(federation, classes=False)
    parts = [part for part in federation.scored_parts if persons[part]]
    if len(parts) != 1:
        raise NotClosed(
            f"score: a closed job scores one part, and there are rows of {', '.join(parts)}",
            hint=f'model.evaluate(federation, "test")["{headline_of(model.schema_.target)}"]',
        )
    return evaluate_closed(model, federation, parts[0])


def _scored_once(
    model: Any, federation: Federation, ask: dict[str, Any], metrics: Sequence[str]
) -> Evaluation:
    """All figures of a part, in a few sums."""
    row_metrics = {name: find_metric(name) for name in metrics}
    persons = count_all_persons(federation, classes=False)
    part: Part = ask["part"]
    if not persons[part]:
        raise DataError(
            f"all owners together have too few {part} rows",
            hint=f"set some aside, for example so.simulate({part}=0.2)",
        )
    rows = int(persons["rows"][part])
    owners = len(federation)
    about = {"rows": rows, "clients": owners, "asked": owners, "absent": 0}
    result = _Result(model, federation, ask, rows)
    if model.schema_.target == "numbers":
        result.judge_numbers()
    else:
        result.judge_tables()
        if result.gives_scores and rows == persons[part]:
            result.judge_scores()
    for name, task_of_metric in row_metrics.items():
        total = federation.ask(task_of_metric, ask).fold(Sum())
        result.metrics[name] = float(total["total"] / total["rows"])
    return Evaluation(
        _figures(result.metrics, {"part": part, **about}),
        {},
        {**result.counts, **about},
        scores=result.scores,
        notes=tuple(result.notes),
        positive=model.schema_.positive,
    )


class _Result:
    """What the sums of one scoring come to: exact numbers, and noised ones with their bounds."""

    def __init__(self, model: Any, federation: Federation, ask: dict[str, Any], rows: int) -> None:
        self.model = model
        self.federation = federation
        self.ask = ask
        self.rows = rows
        self.gives_scores = gives_scores(model)
        self.metrics: dict[str, float | Between] = {}
        self.counts: dict[str, Any] = {"rows": rows}
        self.notes: list[str] = []
        self.scores: NoisedScores | None = None

    def judge_numbers(self) -> None:
        """Errors, squares and quantile losses."""
        targets = self.federation.ask(sum_targets, {"part": self.ask["part"]}).fold(Sum())
        ask = {**self.ask, "pivot": targets["y"] / targets["rows"]}
        self.counts = dict(self.federation.ask(judge_rows, ask).fold(Sum()))
        grid = ScoreGrid()
        asked = score_ask(self.model, self.ask["model"], self.ask["part"], grid)
        losses = self.federation.ask(count_scores, asked).fold(Sum())
        total = {"pinball": losses["pinball"], "judged": self.rows}
        self.metrics |= metrics_of(self.counts) | quantile_metrics(total, grid.quantiles)

    def judge_tables(self) -> None:
        """Classes or labels by truth and prediction, and losses."""
        target = self.model.schema_.target
        replies = self.federation.ask(count_tables, {**self.ask, "scores": self.gives_scores})
        total = replies.fold(Sum())
        present = {name: value for name, value in total.items() if name not in replies.absent}
        if replies.noised:
            self.notes.append("counts of few persons carry noise: figures lie between two numbers")
        if len(present) < len(total):
            self.notes.append("what rests on too few persons, or on several rows of one, is absent")
        if "classes" in present and "classes" not in replies.noised:
            self.counts["classes"] = present["classes"]
        if "confusion" in present:
            self._judge_confusion(present["confusion"], "confusion" in replies.noised)
        judged = float(self.rows)
        judged_rows: Between = judged, judged, judged
        if "right" in present:
            cells, is_noised = present["right"], "right" in replies.noised
            right = _cell(cells, 0, self.rows, is_noised)
            if target == "labels":
                low, likely, high = _cell(cells, 2, self.rows, is_noised)
                judged_rows = judged - high, judged - likely, judged - low
            self.metrics[headline_of(target)] = _share(right, judged_rows)
        elif target == "labels":
            return  # nobody knows of how many rows no label is known
        for entry, name in _SUMS.items():
            if entry in present:
                self.metrics[name] = _share((present[entry],) * 3, judged_rows)

    def _judge_confusion(self, cells: Any, noised: bool) -> None:
        target, k = self.model.schema_.target, len(cells)
        totals = self.counts.get("classes")
        if target == "labels":
            tables = NoisedTables(settled(cells, self.rows)[:, :4].reshape(k, 2, 2), 5)
            (_, extra), (missed, hits) = np.maximum(tables.counts, 0.0).transpose(1, 2, 0)
            by_label = {"true_positive": hits, "false_positive": extra, "false_negative": missed}
            counts = {name: values[None] for name, values in by_label.items()}
            known = np.maximum(tables.counts, 0.0).sum(axis=(1, 2))[None]
            rows = np.array([self.rows])
            likely = label_metrics({**counts, "known": known, "rows": rows, "exact": rows})
            del likely["subset_accuracy"]
        else:
            if not noised:
                self.counts["confusion"] = np.asarray(cells)
            if totals is not None:
                tables = NoisedTables(settled(cells, totals)[None], k)
            else:
                flat = settled(np.ravel(cells), self.rows)
                tables = NoisedTables(flat.reshape(1, k, k), k * k)
            likely = class_metrics(np.maximum(tables.counts, 0.0) if noised else np.array([cells]))
            del likely["accuracy"]
        if not noised:
            exact = {name: float(value[0]) for name, value in likely.items()}
            self.metrics |= {name: value for name, value in exact.items() if not np.isnan(value)}
            return
        bounds = table_bounds(tables, target)
        for name, (value,) in likely.items():
            low, high = bounds.get(name, (0.0, 1.0))
            value = (low + high) / 2 if np.isnan(value) else value
            self.metrics[name] = low, float(np.clip(value, low, high)), high

    def judge_scores(self) -> None:
        """Areas and curves, from bins of scores that hold enough persons each."""
        names = names_of(self.model)
        ends = self._halved(len(names))
        ask = {**self.ask, "ends": ends, "by_truth": True}
        replies = self.federation.ask(count_score_cells, ask)
        total = replies.fold(Sum())
        counts = [each.reshape(-1, 2).T for each in _by_name(total["persons"], ends, 2)]
        sides = self.counts.get("classes")
        if sides is not None:
            of_class = sides[1:] if len(names) == 1 else sides
            totals = np.stack([self.rows - of_class, of_class], axis=1)
            counts = [settled(each, both) for each, both in zip(counts, totals, strict=True)]
        means = []
        for i, each in enumerate(counts):
            absent = np.asarray(replies.absent.get(f"means.{i}", 0)) > 0
            rows = np.maximum(each.sum(axis=0), 1.0)
            mean = np.clip(total["means"][str(i)] / rows, 0.0, 1.0)
            means.append(np.where(absent, np.nan, mean))
        edges = [GRID[inner - 1] for inner in ends]
        self.scores = scores = _noised(names, edges, counts, means, sides is not None)
        likely = scores.metrics()
        self.metrics |= {n: (low, likely[n], high) for n, (low, high) in scores.ranges().items()}

    def _halved(self, names: int) -> list[IntArray]:
        """The inner ends of bins of scores, by name: halved while they hold enough, then merged."""
        ends = [np.empty(0, dtype=np.int64)] * names
        while True:
            ask = {**self.ask, "ends": ends, "by_truth": False}
            persons = self.federation.ask(count_score_cells, ask).fold(Sum())["persons"]
            by_name = _by_name(persons, ends, 1)
            halved = [_halve(inner, each) for inner, each in zip(ends, by_name, strict=True)]
            if all(len(new) == len(old) for new, old in zip(halved, ends, strict=True)):
                break
            ends = halved
        return [_merged(inner, each) for inner, each in zip(ends, by_name, strict=True)]


def _halve(inner: IntArray, persons: FloatArray) -> IntArray:
    """The ends of bins with those halved that hold enough persons."""
    outer = np.concatenate([[0], inner, [len(GRID) + 1]])
    first, last = outer[:-1], outer[1:]
    chosen = (persons >= SPLIT) & (last - first > 1)
    return np.sort(np.concatenate([inner, (first[chosen] + last[chosen]) // 2]))


def _merged(inner: IntArray, persons: FloatArray) -> IntArray:
    """The ends of bins that hold about ``LEAST`` persons or more each."""
    group = np.floor(np.maximum.accumulate(np.cumsum(persons)) / LEAST)
    last = max(float(group[-1]), 1.0)
    return inner[np.diff(np.minimum(group, last - 1)) > 0]


def _by_name(cells: FloatArray, ends: Sequence[IntArray], each: int) -> list[FloatArray]:
    """Numbers of all bins, so many for each, by name."""
    sizes = [each * (len(inner) + 1) for inner in ends]
    return np.split(np.asarray(cells, dtype=float), np.cumsum(sizes)[:-1])


def _cell(cells: Any, place: int, total: int, is_noised: bool) -> Between:
    """How many rows are in a cell of a list."""
    if is_noised:
        return first_cell(np.roll(cells, -place), total)
    return (float(cells[place]),) * 3


def _share(top: Any, bottom: Any) -> float | Between:
    """top / bottom, and between what it is unless both are exact."""
    likely = float(top[1] / max(bottom[1], 1.0))
    if top[0] == top[2] and bottom[0] == bottom[2]:
        return likely
    return float(top[0] / bottom[2]), likely, float(top[2] / max(bottom[0], 1.0))


def _figures(found: Mapping[str, float | Between], about: Mapping[str, Any]) -> dict[str, Figure]:
    made = {}
    for name, value in found.items():
        low, likely, high = value if isinstance(value, tuple) else (None, value, None)
        between = None if low is None else (low, high)
        made[name] = Figure(likely, metric=name, between=between, **about)
    return made

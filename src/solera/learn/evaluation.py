"""How good a model is on the rows that clients keep.

Every client predicts its own rows and sends counts; the counts add up to the metrics of the whole
federation (Yang et al. 2019, *Federated Learning*, ch. 4: TP, FP, TN and FN of every participant
are summed before the ratio is taken). No prediction and no row leaves a client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np

from solera.core.clients import IntArray, Part, Rows
from solera.core.component import Component, describe_fitted
from solera.core.constraints import Count, check_values
from solera.core.errors import DataError, UsageError
from solera.core.federation import Federation
from solera.core.replies import map_leaves
from solera.core.rounds import Callback, Round
from solera.data.agreement import check_labelled
from solera.data.frames import encode_target
from solera.evaluation.counts import (
    ABOUT_ROWS,
    countable,
    figures_of,
    metrics_of,
    metrics_of_many,
    summed,
)
from solera.evaluation.evaluation import ClientFigures, Evaluation
from solera.evaluation.figure import Figure, measured
from solera.evaluation.metrics import HELD_OUT, headline_of
from solera.learn.closed import elsewhere, is_closed
from solera.learn.closed_evaluation import (
    check_scores_are_closed,
    closed_score,
    evaluate_closed,
    shown,
)
from solera.learn.judging import about_pivot, count_rows, judge_rows
from solera.learn.row_metrics import MeanTotals, find_metric
from solera.learn.scores import (
    ScoreGrid,
    ScoreTotals,
    check_scores,
    count_scores,
    quantile_metrics,
    score_ask,
    score_counts,
    scores_of,
)
from solera.learn.totals import Gather, Totals
from solera.trust.board.engine import NotClosed
from solera.trust.cells import Behind


def evaluate(
    model: Any,
    federation: Federation,
    part: str = "test",
    *,
    per_client: bool = True,
    scores: bool | ScoreGrid = False,
    metrics: Sequence[str] = (),
) -> Evaluation:
    """Ask every client to judge the model, or its own, on its own rows and fold the counts.

    Without ``per_client`` only the folded counts reach the coordinator.

    With ``scores`` clients count their rows by score and class, too, by a :class:`ScoreGrid` or the
    usual one: AUROC, AUPRC, ECE and, of two classes and of labels, sensitivity and specificity by
    its threshold within the ``bounds`` of the result, log-loss and Brier score exactly; for numbers
    quantile losses. ``metrics`` are the names of
    functions installed by :func:`row_metric <solera.learn.row_metrics.row_metric>`.

    What follows from counts of each kind of target is in :mod:`solera.evaluation.counts`.
    """
    model.check_fitted()
    check_values("evaluate", {"part": Part}, {"part": part})
    model.check_predicts()
    check_labelled(federation)
    federation = federation.closed_job(type(model).__name__)
    closed = is_closed(federation)
    if closed:
        check_scores_are_closed(scores)
    if closed and (owners := elsewhere(federation)) is not None:
        return owners.evaluate(model, cast(Part, part), scores, metrics)
    if model.is_personal:
        federation = model.at_clients(federation)
    if closed:
        evaluation = evaluate_closed(model, federation, cast(Part, part), metrics)
        return shown(evaluation, bool(scores), metrics)
    ask = {"model": describe_fitted(model.for_prediction()), "part": part}
    grid = _grid(scores)
    with federation.announced(model):
        replies = federation.ask(judge_rows, {**ask, **about_pivot(model)})
        ids, counts = _counts(replies, CountTotals(), per_client)
        evaluation = judged(ids, counts, part, replies)
        if not evaluation.counts["rows"]:
            raise DataError(
                f"no client has {part} rows",
                hint=f"set some aside, for example so.simulate({part}=0.2)",
            )
        if grid is not None and evaluation.counts["rows"]:
            replies = federation.ask(count_scores, score_ask(model, ask["model"], part, grid))
            ids, counts = _counts(replies, ScoreTotals(), per_client)
            about = {"part": part, **_asked(replies)}
            evaluation = with_scores(evaluation, model, ids, counts, grid, about)
        for name in metrics:
            replies = federation.ask(find_metric(name), ask)
            ids, counts = _counts(replies, MeanTotals(), per_client)
            about = {"part": part, **_asked(replies)}
            evaluation = _extended(evaluation, ids, counts, about, partial(_mean, name))
    names = dict(enumerate(federation.names)) if per_client else {}
    return replace(evaluation, names=names, positive=model.schema_.positive)


def evaluate_all(model: Any, federation: Federation) -> Evaluation:
    """Metrics over all rows of the clients, whatever they are set aside for.

    Of some rows of a simulation they are those that were chosen.
    """
    closed = federation.closed_job(type(model).__name__)
    if elsewhere(closed) is not None:
        raise NotClosed(
            "score: a closed job scores the test part",
            hint=f'model.evaluate(federation)["{headline_of(model.schema_.target)}"]',
        )
    if is_closed(closed):
        return closed_score(model, closed)
    sizes = {part: federation.engine.sizes(part) for part in federation.scored_parts}
    parts = [part for part, rows in sizes.items() if rows is None or rows.any()]
    counts = [evaluate(model, federation, part, per_client=False).counts for part in parts]
    most = {name: max(c[name] for c in counts) for name in ("clients", "asked", "absent")}
    return _evaluation({**summed(counts), **most}, "all")


def evaluate_rows(
    model: Any,
    X: Any,
    y: Any,
    scores: bool | ScoreGrid = False,
    metrics: Sequence[str] = (),
    pivot: Any = None,
) -> Evaluation:
    """Metrics over rows at hand, counted as a client counts its own.

    ``pivot`` is what sums of numbers are about, which is to be one where they are added up.
    """
    if metrics:
        raise UsageError("metrics of one's own are functions: call them on rows at hand")
    y = encode_target(y, model.schema_)
    X = model.check_rows(X)
    if len(y) != X.shape[0]:
        raise DataError(f"X has {X.shape[0]:,} rows, y has {len(y):,}")
    rows = Rows(X, y)
    nobody = {"clients": 0, "asked": 0, "absent": 0}
    pivot = about_pivot(model).get("pivot") if pivot is None else pivot
    counts = CountTotals().settle(_numbers(count_rows(model, rows, pivot), rows))
    evaluation = _evaluation({**_total(counts), **nobody}, "rows")
    evaluation = replace(evaluation, positive=model.schema_.positive)
    grid = _grid(scores)
    if grid is None:
        return evaluation
    check_scores(model)
    counts = ScoreTotals().settle(_numbers(score_counts(model, rows, grid), rows))
    counts["clients"] = np.zeros(1, np.int64)
    return with_scores(evaluation, model, np.empty(0, np.int64), counts, grid, {"part": "rows"})


def _numbers(contributions: Any, rows: Rows) -> Any:
    """Contributions of rows at hand as numbers, as if of one of several clients."""
    behind = Behind(len(rows))
    return map_leaves(lambda leaf: np.asarray(leaf.numbers(behind))[None], contributions)


# --- from counts to figures ---


class CountTotals(Totals):
    """The sum of all counts that metrics follow from."""

    def settle(self, counts: dict[str, Any]) -> dict[str, Any]:
        return countable(counts)


def judged(ids: IntArray, counts: dict[str, Any], part: str, replies: Any = None) -> Evaluation:
    """Metrics of all clients together and of each; ``counts`` are :func:`countable`."""
    answered = {"asked": len(ids), "absent": 0} if replies is None else _asked(replies)
    total = {**_total(counts), **answered}
    return replace(_evaluation(total, part), clients=_by_client(ids, counts, part))


def evaluation_of(each: Mapping[int, Evaluation], part: str) -> Evaluation | None:
    """What clients found, each with a model of its own; None without any."""
    if not each:
        return None
    counts = map_leaves(lambda *leaves: np.stack(leaves), *(e.counts for e in each.values()))
    evaluation = judged(np.array([*each]), counts | {"clients": 1 * (counts["rows"] > 0)}, part)
    return replace(evaluation, positive=next(iter(each.values())).positive)


def _evaluation(total: dict[str, Any], part: str) -> Evaluation:
    notes = []
    if "exact" in total and not total["rows"]:
        notes.append(f"of no row ({part}) a label is known")
    metrics = metrics_of(total) if total["rows"] else {}
    if "error2" in total and "mse" in metrics and "r2" not in metrics:
        notes.append("no R² where the target is the same in all rows, or predictions dwarf it")
    return Evaluation(figures_of(metrics, total, part=part), {}, total, notes=tuple(notes))


def _grid(scores: bool | ScoreGrid) -> ScoreGrid | None:
    if isinstance(scores, ScoreGrid):
        return scores
    return ScoreGrid() if scores else None


def _counts(replies: Any, totals: Totals, per_client: bool) -> tuple[IntArray, Any]:
    """What adds up of the counts: of each client with its id or, folded, as those of one."""
    if per_client:
        ids, counts = replies.fold(Gather(totals))
        return ids, counts
    folded = replies.fold(totals)
    return np.empty(0, np.int64), map_leaves(lambda leaf: np.asarray(leaf)[None], folded)


def _total(counts: dict[str, Any]) -> dict[str, Any]:
    total: dict[str, Any] = map_leaves(lambda leaf: leaf.sum(axis=0), counts)
    return total


def _asked(replies: Any) -> dict[str, int]:
    """How many clients were asked, and how many of these did not reply."""
    return {"asked": len(replies.ask.clients), "absent": len(replies.failures)}


def _by_client(ids: IntArray, counts: dict[str, Any], part: str) -> ClientFigures:
    """Metrics of every client that has rows, computed for all of them at once."""
    some = np.flatnonzero(counts["rows"][: len(ids)])
    chosen = _of_client(counts, some)
    about = {name: chosen[name] for name in ABOUT_ROWS if name in chosen}
    return ClientFigures(ids[some], metrics_of_many(chosen), about, part)


def _extended(
    evaluation: Evaluation,
    ids: IntArray,
    counts: dict[str, Any],
    about: Mapping[str, Any],
    measure: Callable[..., dict[str, Figure]],
) -> Evaluation:
    """The evaluation with what ``measure`` makes of further counts, of all and of each client."""
    metrics = evaluation.metrics | measure(_total(counts), about)
    clients = dict(evaluation.clients)
    alone = {"part": about["part"], "asked": 1, "absent": 0}
    for i, client in enumerate(ids.tolist()):
        if figures := measure(_of_client(counts, i), alone):
            clients[client] = clients.get(client, {}) | figures
    return replace(evaluation, metrics=metrics, clients=dict(sorted(clients.items())))


def _of_client(counts: dict[str, Any], i: Any) -> Any:
    return map_leaves(lambda leaf: leaf[i], counts)


def with_scores(
    evaluation: Evaluation,
    model: Any,
    ids: IntArray,
    counts: dict[str, Any],
    grid: ScoreGrid,
    about: Mapping[str, Any],
) -> Evaluation:
    """The evaluation with what follows from counted scores."""
    measure = partial(_of_scores, model, grid)
    evaluation = _extended(evaluation, ids, counts, about, measure)
    if "pinball" in counts:
        return evaluation
    each = {
        client: scores_of(model, _of_client(counts, i), grid)
        for i, client in enumerate(ids.tolist())
    }
    scores = scores_of(model, _total(counts), grid)
    return replace(evaluation, scores=scores, client_scores=each)


def _of_scores(
    model: Any, grid: ScoreGrid, total: dict[str, Any], about: Mapping[str, Any]
) -> dict[str, Figure]:
    """Figures of counted scores."""
    of_losses = {"clients": int(total["clients"]), **about}
    rows = int(total["judged"])
    if "pinball" in total:
        return measured(quantile_metrics(total, grid.quantiles), rows=rows, **of_losses)
    scores = scores_of(model, total, grid)
    bounds = scores.bounds()
    figures = measured(scores.metrics(), rows=rows, **of_losses)
    for name, figure in figures.items():
        figure.bound = bounds[name]
    return figures


def _mean(name: str, total: dict[str, Any], about: Mapping[str, Any]) -> dict[str, Figure]:
    """The mean of a metric of one's own."""
    if not total["rows"]:
        return {}
    return figures_of({name: float(total["total"] / total["rows"])}, total, **about)


class Evaluate(Callback, Component):
    """Judge the model every so many rounds; the metrics appear in the history.

    ``Evaluate()`` asks the clients that are trained on and logs what :func:`evaluate` finds on the
    ``part`` they keep; ``Evaluate(X, y)`` logs the ``score`` and the ``held_out_loss`` of rows the
    driver holds. Put it before an :class:`EarlyStopping` that watches one of these metrics.

    Of several in one fit the first logs plain names, and each later one of the same kind names with
    its part before them (``test_accuracy``), or with its place where that is taken, too
    (``rows_score``, ``rows_3_score``).
    """

    _prefix = ""

    def __init__(
        self, X: Any = None, y: Any = None, *, part: Part = "validation", every: Count = 1
    ) -> None:
        self.X = X
        self.y = y
        self.part = part
        self.every = every

    def check_params(self) -> None:
        super().check_params()
        if (self.X is None) != (self.y is None):
            raise UsageError("Evaluate needs rows and their target, or neither")

    def on_start(self, learner: Any, rounds: int, start: int) -> None:
        alike = [
            (c.part if c.X is None else "rows")
            for c in learner._callbacks[: _place(learner._callbacks, self) + 1]
            if isinstance(c, Evaluate) and (c.X is None) == (self.X is None)
        ]
        again = f"_{len(alike)}" if alike[-1] in alike[1:-1] else ""
        self._prefix = f"{alike[-1]}{again}_" if len(alike) > 1 else ""

    def on_round(self, learner: Any, round: Round) -> None:
        if (round.index + 1) % self.every:
            return
        found: dict[str, Any]
        if self.X is None:
            found = evaluate(learner, round.federation, self.part, per_client=False).metrics
        else:
            found = held_out(learner, self.X, self.y)
        round.log(**{f"{self._prefix}{name}": figure for name, figure in found.items()})


def _place(callbacks: Sequence[Callback], callback: Callback) -> int:
    return next(i for i, other in enumerate(callbacks) if other is callback)


def held_out(model: Any, X: Any, y: Any) -> dict[str, Figure]:
    """The score of rows at hand, and their mean loss where the model says one that is finite."""
    score = model.score_figure(X, y)
    found = {"score": score}
    with suppress(UsageError):
        loss = float(np.mean(model.losses(X, y)))
        if np.isfinite(loss):
            name = f"{HELD_OUT}loss"
            found[name] = Figure(loss, metric=name, part="rows", rows=score.rows)
    return found

"""How good a model is on the rows that clients keep.

Every client predicts its own rows and sends counts; the counts add up to the metrics of the whole
federation (Yang et al. 2019, *Federated Learning*, ch. 4: TP, FP, TN and FN of every participant
are summed before the ratio is taken). No prediction and no row leaves a client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from solera.core.aggregation import Aggregation, Sum
from solera.core.clients import (
    PARTS,
    IntArray,
    Part,
    Segments,
)
from solera.core.component import Component, component_name, describe_fitted
from solera.core.constraints import Count, check_values
from solera.core.errors import DataError, UsageError
from solera.core.federation import Federation
from solera.core.html import html_table
from solera.core.plan import Plan, in_turn, planned
from solera.core.replies import Batch, Reply, Stacked, map_leaves
from solera.core.rounds import Callback, Round
from solera.data.agreement import check_labelled
from solera.data.frames import encode_target
from solera.evaluation.counts import (
    metrics_of,
    metrics_of_many,
    rows_counted,
    rows_untold,
    summed,
    told,
)
from solera.evaluation.scores import Scores, quantile, wilson
from solera.learn.judging import count_rows, judge_rows
from solera.learn.row_metrics import Totals, find_metric, metric_asks
from solera.learn.scores import (
    ScoreGrid,
    ScoreTotals,
    check_scores,
    count_scores,
    located,
    quantile_metrics,
    score_ask,
    score_asks,
    score_counts,
    scores_of,
)

_MOST_SHOWN = 20  # clients in a notebook's table


@dataclass(frozen=True)
class Evaluation:
    """Metrics of a federation, and of each client in ``clients``.

    ``counts`` are the folded counts they come from, ``names`` what clients are called, where they
    have names. Where scores were counted, ``bounds`` say how far a metric of the rows themselves
    can be from the one given, and ``scores`` and ``client_scores`` give the curves.

    ``untold``: rows whose counts their owners withheld, or replaced by earlier ones, because too
    few rows stand behind them; the metrics are of the others (errors of numbers where clients are
    asked one by one), and with many untold far from those of all rows. How many *counts* were
    withheld cannot be told: a single row would change that number. Counts of labels are known to be
    withheld only where a client tells none.
    """

    metrics: dict[str, float]
    clients: dict[int, dict[str, float]]
    counts: dict[str, Any]
    names: dict[int, str] = field(default_factory=dict)
    bounds: dict[str, float] = field(default_factory=dict)
    scores: Scores | None = None
    client_scores: dict[int, Scores] = field(default_factory=dict)
    untold: int = 0

    def __getitem__(self, metric: str) -> float:
        return self.metrics[metric]

    def intervals(self, level: float = 0.95) -> dict[str, tuple[float, float]]:
        """Confidence intervals of metrics of all rows, from the counts that left.

        Wilson's of the accuracy and, where scores of two classes were counted, those of
        :meth:`Scores.intervals <solera.evaluation.scores.Scores.intervals>`.
        """
        found = {} if self.scores is None else self.scores.intervals(level)
        if "confusion" in self.counts:
            low, high = wilson(self["accuracy"], self.counts["confusion"].sum(), quantile(level))
            found = {"accuracy": (float(low), float(high)), **found}
        return found

    def _repr_html_(self) -> str:
        """What notebooks show: the metrics of all, then those of each client by its name."""
        rows = [["all", *self.metrics.values()]]
        rows += [
            [self.names.get(client, f"client {client}"), *(each.get(m, "") for m in self.metrics)]
            for client, each in list(self.clients.items())[:_MOST_SHOWN]
        ]
        more = len(self.clients) - _MOST_SHOWN
        title = f"and {more:,} clients more" if more > 0 else ""
        return html_table(rows, ["", *self.metrics], ", ".join(filter(None, [title, self.warning])))

    @property
    def warning(self) -> str:
        """What the metrics leave out, or nothing."""
        if not self.untold:
            return ""
        rows = int(np.sum(self.counts["rows"]))
        return f"counts of {self.untold:,} of {rows:,} rows withheld or replaced by their owners"

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value:.4g}" for name, value in self.metrics.items())
        warning = f"; {self.warning}" if self.untold else ""
        return f"Evaluation({shown}; {len(self.clients)} clients{warning})"


def evaluate(
    model: Any,
    federation: Federation,
    part: str = "test",
    *,
    per_client: bool = True,
    scores: bool | ScoreGrid = False,
    metrics: Sequence[str] = (),
) -> Evaluation:
    """Ask every client to judge the model on its own rows and fold the counts.

    Without ``per_client`` only the folded counts reach the coordinator.

    With ``scores`` clients count their rows by score and class, too, by a :class:`ScoreGrid` or the
    usual one: AUROC, AUPRC, ECE, sensitivity and specificity within the ``bounds`` of the result,
    log-loss and Brier score exactly; for numbers quantile losses. ``metrics`` are the names of
    functions installed by :func:`row_metric <solera.learn.row_metrics.row_metric>`.

    Classes: accuracy, balanced accuracy, macro precision, recall and F1. Labels: subset accuracy,
    Hamming loss, micro- and macro-F1. Numbers: MSE, MAE and R². Metrics of classes or labels that
    do not occur are left out of macro means.
    """
    model.check_fitted()
    check_values("evaluate", {"part": Part}, {"part": part})
    model.check_predicts()
    check_labelled(federation)
    ask = {"model": describe_fitted(model.for_prediction()), "part": part}
    each: dict[int, dict[str, float]] = {}
    grid = _grid(scores)
    counted = Counted()

    def plan() -> Plan:
        more = () if grid is None else score_asks(model, part, grid)
        own = (metric_asks(model, part, name) for name in metrics)
        return in_turn(evaluation_asks(model, part), more, *own)

    with federation.announced(model, plan):
        replies = federation.ask(judge_rows, ask)
        if per_client:
            ids, counts = replies.fold(Gather())
            total = map_leaves(lambda leaf: leaf.sum(axis=0), counts)
            judged = told(counts)
            each = _by_client(ids, counts)
            untold = rows_untold(counts)
        else:
            judged = total = replies.fold(Sum())
            untold = rows_untold(map_leaves(lambda leaf: np.asarray(leaf)[None], total))
        if grid is not None and np.any(rows_counted(total)):
            found = federation.ask(count_scores, score_ask(model, ask["model"], part, grid))
            counted = _counted(model, found, grid, per_client)
        for name in metrics:
            counted.add_means(name, federation.ask(find_metric(name), ask), per_client)
    if not rows_counted(total):
        raise DataError(
            f"no client has {part} rows",
            hint=f"set some aside, for example so.simulate({part}=0.2)",
        )
    names = dict(enumerate(federation.names)) if per_client else {}
    each = {client: found | counted.clients.get(client, {}) for client, found in each.items()}
    return Evaluation(
        {**metrics_of(judged), **counted.metrics},
        each,
        total,
        names,
        counted.bounds,
        counted.scores,
        counted.client_scores,
        untold,
    )


@dataclass
class Counted:
    """Metrics beyond those of the confusion matrix, of all and of every client."""

    metrics: dict[str, float] = field(default_factory=dict)
    clients: dict[int, dict[str, float]] = field(default_factory=dict)
    bounds: dict[str, float] = field(default_factory=dict)
    scores: Scores | None = None
    client_scores: dict[int, Scores] = field(default_factory=dict)

    def add_means(self, name: str, replies: Any, per_client: bool) -> None:
        """The mean of a metric of one's own; a client that withholds its sum is left out."""
        if not per_client:
            told = replies.fold(Totals())
            rows, totals = np.array([told["rows"]]), np.array([told["total"]])
        else:
            ids, counts = replies.fold(Gather())
            rows, totals = counts["rows"], np.where(counts["rows"] > 0, counts["total"], 0.0)
            for client, mean in zip(
                ids[rows > 0], (totals / np.maximum(rows, 1))[rows > 0], strict=True
            ):
                self.clients.setdefault(int(client), {})[name] = float(mean)
        if rows.any():
            self.metrics[name] = float(totals.sum() / rows.sum())


def _grid(scores: bool | ScoreGrid) -> ScoreGrid | None:
    if isinstance(scores, ScoreGrid):
        return scores
    return ScoreGrid() if scores else None


def _counted(model: Any, replies: Any, grid: ScoreGrid, per_client: bool) -> Counted:
    """The metrics of counted scores, folded or of every client."""
    if not per_client:
        return _of_scores(model, replies.fold(ScoreTotals()), grid)
    ids, counts = replies.fold(Gather())
    found = located(counts)
    all_ = _of_scores(model, map_leaves(lambda leaf: leaf.sum(axis=0), found), grid)
    for i, client in enumerate(ids.tolist()):
        own = _of_scores(model, {name: leaf[i] for name, leaf in found.items()}, grid)
        all_.clients[client] = own.metrics
        if own.scores is not None:
            all_.client_scores[client] = own.scores
    return all_


def _of_scores(model: Any, total: dict[str, Any], grid: ScoreGrid) -> Counted:
    if "pinball" in total:
        return Counted(quantile_metrics(total, grid.quantiles))
    scores = scores_of(model, total, grid)
    return Counted(scores.metrics(), {}, scores.bounds(), scores)


def evaluate_all(model: Any, federation: Federation) -> Evaluation:
    """Metrics over all rows of the clients, whatever they are set aside for."""
    sizes = {part: federation.engine.sizes(part) for part in PARTS}
    parts = [part for part, rows in sizes.items() if rows is None or rows.any()]
    found = [evaluate(model, federation, part, per_client=False).counts for part in parts]
    total = summed(found)
    untold = rows_untold(map_leaves(lambda leaf: np.asarray(leaf)[None], total))
    return Evaluation(metrics_of(total), {}, total, untold=untold)


def evaluate_rows(
    model: Any, X: Any, y: Any, scores: bool | ScoreGrid = False, metrics: Sequence[str] = ()
) -> Evaluation:
    """Metrics over rows at hand, counted as a client counts its own."""
    if metrics:
        raise UsageError("metrics of one's own are functions: call them on rows at hand")
    y = encode_target(y, model.schema_)
    X = model.check_rows(X)
    if len(y) != X.shape[0]:
        raise DataError(f"X has {X.shape[0]:,} rows, y has {len(y):,}")
    rows = Segments(X, y, np.zeros(1, np.int64), np.array([len(y)]))
    total = map_leaves(lambda leaf: leaf[0], count_rows(model, rows))
    grid, counted = _grid(scores), Counted()
    if grid is not None:
        check_scores(model)
        found = located(score_counts(model, rows, grid))
        counted = _of_scores(model, {name: leaf[0] for name, leaf in found.items()}, grid)
    all_ = {**metrics_of(total), **counted.metrics}
    return Evaluation(all_, {}, total, bounds=counted.bounds, scores=counted.scores)


def _by_client(ids: IntArray, counts: dict[str, Any]) -> dict[int, dict[str, float]]:
    """Metrics of every client that has rows, computed for all of them at once."""
    some = np.flatnonzero(rows_counted(counts))
    found = metrics_of_many(map_leaves(lambda leaf: leaf[some], counts))
    columns = zip(*(values.tolist() for values in found.values()), strict=True)
    return {
        client: dict(zip(found, values, strict=True))
        for client, values in zip(ids[some].tolist(), columns, strict=True)
    }


def evaluation_asks(model: Component, part: str, most: int = 1) -> Plan:
    """What so many calls of :func:`evaluate` ask."""
    judged = {"model": {"made": {"$component": component_name(type(model))}}, "part": part}
    return (planned(judge_rows, most, judged, open=["model"]),)


class Gather(Aggregation):
    """All replies as stacked arrays: ids in order, and a tree whose first axis is the client."""

    def lift(self, reply: Reply) -> Any:
        return {
            "clients": np.array([reply.client]),
            "stacked": map_leaves(lambda leaf: np.asarray(leaf)[None], reply.payload),
        }

    def combine(self, a: Any, b: Any) -> Any:
        joined = map_leaves(lambda x, y: np.concatenate([x, y]), a, b)
        order = np.argsort(joined["clients"], kind="stable")
        return map_leaves(lambda x: x[order], joined)

    def fold(self, batch: Batch) -> Any:
        if isinstance(batch.payloads, Stacked) and len(batch):
            return {"clients": batch.clients, "stacked": dict(batch.payloads.fields)}
        return self.fold_one_by_one(batch)

    def finish(self, partial: Any) -> tuple[IntArray, Any]:
        return partial["clients"], partial["stacked"]


def evaluation_of(counts: Mapping[int, dict[str, Any]]) -> Evaluation | None:
    """What clients counted, each with a model of its own; None without any."""
    if not counts:
        return None
    total = summed(list(counts.values()))
    each = {client: metrics_of(counted) for client, counted in counts.items()}
    return Evaluation(metrics_of(total), each, total)


class Evaluate(Callback, Component):
    """Judge the model every so many rounds; the metrics appear in the history.

    ``Evaluate()`` asks the clients that are trained on and logs what :func:`evaluate` finds on the
    ``part`` they keep; ``Evaluate(X, y)`` logs the ``score`` on rows the driver holds. Put it
    before an :class:`EarlyStopping` that watches one of these metrics.
    """

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

    def asks(self, learner: Component, rounds: int) -> Plan:
        times = rounds // self.every
        return evaluation_asks(learner, self.part, times) if self.X is None and times else ()

    def on_round(self, learner: Any, round: Round) -> None:
        if (round.index + 1) % self.every:
            return
        if self.X is None:
            found = evaluate(learner, round.federation, self.part, per_client=False)
            round.log(**found.metrics)
        else:
            round.log(score=learner.score(self.X, self.y))

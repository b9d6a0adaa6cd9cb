"""Counts of scores: what clients tell of the probabilities that a model gives their rows.

Every client counts, for an agreed grid of scores, how many of its rows of each class have a score
in each bin. The counts add up, and metrics that need an order of all rows, such as the area under
the ROC curve, follow from them within a bound (:mod:`solera.evaluation.scores`). No score leaves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import numpy as np
from msgspec import Meta

from solera.core.aggregation import Aggregation
from solera.core.clients import (
    Array,
    BoolArray,
    Client,
    ClientGroup,
    FloatArray,
    IntArray,
    Part,
    Rows,
    Segments,
)
from solera.core.component import Component, component_name
from solera.core.constraints import check_values
from solera.core.disclosure.declared import Fitted, Shape
from solera.core.disclosure.evidence import Sums, everyone
from solera.core.disclosure.histograms import Histograms
from solera.core.errors import DataError, UsageError
from solera.core.plan import Plan, planned
from solera.core.release import Cells
from solera.core.replies import Batch, Reply, Stacked, map_leaves
from solera.core.schema import UNKNOWN, Schema, class_codes
from solera.core.task import group_task
from solera.evaluation.counts import ratio
from solera.evaluation.scores import CALIBRATION_BINS, CALIBRATION_EDGES, Scores, lowest_bins
from solera.learn.base import Predictor, last_step
from solera.learn.client_models import by_own_models, own_model

_LEAST = np.finfo(float).eps
"""A probability below has the loss of this one, as in scikit-learn's ``log_loss``."""
_HALVINGS = 16

Bins = Annotated[int, Meta(ge=10, le=2000)]
Threshold = Annotated[float, Meta(ge=0, le=1)]


@dataclass(frozen=True)
class ScoreGrid:
    """What clients count scores by.

    Parameters
    ----------
    bins: equal bins of the scores, a multiple of ten. The first and the last one are halved again
        and again, since many models are sure of most rows.
    threshold: of sensitivity and specificity; it is an edge of the grid.
    quantiles: levels of the quantile loss, for targets that are numbers.
    """

    bins: Bins = 200
    threshold: Threshold = 0.5
    quantiles: tuple[float, ...] = (0.1, 0.5, 0.9)

    def __post_init__(self) -> None:
        given = {"bins": self.bins, "threshold": self.threshold}
        check_values("ScoreGrid", {"bins": Bins, "threshold": Threshold}, given)
        if self.bins % CALIBRATION_BINS:
            raise UsageError(f"bins must be a multiple of {CALIBRATION_BINS}, not {self.bins}")
        if not self.quantiles or not all(0 < q < 1 for q in self.quantiles):
            raise UsageError(f"levels of quantiles are between 0 and 1, not {self.quantiles}")

    @property
    def edges(self) -> FloatArray:
        """The edges between the bins."""
        small = 2.0 ** -np.arange(1, _HALVINGS + 1) / self.bins
        even = np.linspace(0, 1, self.bins + 1)
        even[:: self.bins // CALIBRATION_BINS] = CALIBRATION_EDGES  # the same to the last digit
        edges = np.unique(np.concatenate([small, even, 1 - small, [self.threshold]]))
        return edges[(edges > 0) & (edges < 1)]

    @property
    def middle(self) -> int:
        """The last bin of scores up to a half, of which a model of two classes says no."""
        return int(np.searchsorted(self.edges, 0.5))


class ScoreAsk(TypedDict):
    """What ``learner.score_counts`` takes: a fitted model, the part of the rows, and the grid.

    The edges follow from it: whoever could choose each would put them around single scores.
    """

    model: Annotated[dict[str, Any], Fitted(Predictor)]
    part: Part
    bins: Bins
    threshold: Threshold
    quantiles: Annotated[FloatArray, Shape("levels", least=0, most=1, longest=20)]


def _bins_behind(client: Client, ask: Any) -> tuple[IntArray, Part]:
    rows = client.data.part(ask["part"])
    index = _scored(own_model(client, ask["model"]), rows, _grid_of(ask).edges).bins
    return index.reshape(len(rows), -1), ask["part"]


def _sums_behind(client: Client, ask: Any, reply: Any) -> dict[str, Sums]:
    """What rows gave to the losses; a model can make it the same for all of them but a few."""
    part = ask["part"]
    rows = client.data.part(part)
    model = own_model(client, ask["model"])
    if model.schema_.target == "numbers":
        given = _quantile_losses(model, rows, ask["quantiles"]).reshape(len(rows), -1)
        losses = {"pinball": Sums(given, part=part, what="numbers", beyond=True)}
        return {**losses, "rows": everyone(len(rows), part=part)}
    scored = _scored(model, rows, _grid_of(ask).edges)
    return {
        "loss": Sums(scored.loss[:, None], part=part, what="losses", beyond=True),
        "brier": Sums(scored.brier[:, None], part=part, what="squared scores", beyond=True),
        "rows": Sums(scored.is_judged[:, None], part=part),
    }


def _no_rows(ask: Any, reply: Any) -> dict[str, Any]:
    """No rows stand behind losses that could not leave as they are."""
    return {"rows": 0}


def _no_pinball(ask: Any, reply: Any) -> dict[str, Any]:
    return {"pinball": np.zeros_like(reply["pinball"])}


@group_task(
    "learner.score_counts",
    ask=ScoreAsk,
    release=[
        Histograms("counts", "merged", bins=_bins_behind, middle=lambda ask: _grid_of(ask).middle),
        Cells("loss", "brier", "rows", behind=_sums_behind, neutral=_no_rows),
        Cells("pinball", behind=_sums_behind, neutral=_no_pinball),
    ],
)
def count_scores(group: ClientGroup, ask: Any) -> Stacked:
    """Rows by class and score, and sums of losses, of every client."""
    grid = _grid_of(ask)
    return Stacked(by_own_models(group, ask, lambda m, rows: score_counts(m, rows, grid)))


@dataclass(frozen=True)
class _Scored:
    """Of every row the bin of its score, rows × names × (no, yes) and −1 for none; and losses."""

    bins: IntArray
    loss: FloatArray
    brier: FloatArray

    @property
    def is_judged(self) -> BoolArray:
        """Which rows have a score that is counted: not those whose labels are all unknown."""
        return np.asarray((self.bins >= 0).any(axis=(1, 2)))


def _grid_of(ask: Any) -> ScoreGrid:
    return ScoreGrid(ask["bins"], ask["threshold"], tuple(ask["quantiles"].tolist()))


def score_counts(model: Any, rows: Segments, grid: ScoreGrid) -> dict[str, Array]:
    """Counts for each client, from one prediction of all their rows."""
    joined, owners, clients = rows.joined(), rows.owners, len(rows)
    if joined.y is None:
        raise DataError("rows without a target cannot be evaluated")
    if model.schema_.target == "numbers":
        losses = _quantile_losses(model, joined, np.array(grid.quantiles))
        return {"pinball": _added(losses, owners, clients), "rows": rows.sizes}
    edges = grid.edges
    scored = _scored(model, joined, edges)
    lines, bins = scored.bins.shape[1] * 2, len(edges) + 1
    index = scored.bins.reshape(len(owners), lines)
    cell = (owners[:, None] * lines + np.arange(lines)) * bins + index
    counts = np.bincount(cell[index >= 0], minlength=clients * lines * bins)
    return {
        "counts": counts.reshape(clients, -1, 2, bins),
        "merged": np.zeros(clients, dtype=bool),
        "loss": _added(scored.loss, owners, clients),
        "brier": _added(scored.brier, owners, clients),
        "rows": np.bincount(owners[scored.is_judged], minlength=clients),
    }


def _scored(model: Any, rows: Rows, edges: FloatArray) -> _Scored:
    schema = model.schema_
    if not len(rows):
        names = len(_names(model))
        return _Scored(np.empty((0, names, 2), np.int64), np.empty(0), np.empty(0))
    p = np.clip(np.asarray(model.predict_proba(rows.X), dtype=float), 0, 1)
    if schema.target == "classes":
        codes = class_codes(rows.y, schema.classes)
        truth = codes[:, None] == np.arange(len(schema.classes))
        own = np.take_along_axis(p / p.sum(axis=1, keepdims=True), codes[:, None], axis=1)[:, 0]
        loss = -np.log(np.maximum(own, _LEAST))
        brier = ((p - truth) ** 2).sum(axis=1)
        if p.shape[1] == 2:
            p, truth, brier = p[:, 1:], truth[:, 1:], brier / 2
        known = np.ones_like(truth)
    else:
        y = np.asarray(rows.y).reshape(len(rows), -1)
        truth, known = y > 0, (y != UNKNOWN) & ~np.isnan(p)
        p = np.where(known, p, 0.5)
        share = ratio(known, known.sum(axis=1, keepdims=True) + 0 * known)
        loss = -(np.log(np.maximum(np.where(truth, p, 1 - p), _LEAST)) * share).sum(axis=1)
        brier = ((p - truth) ** 2 * share).sum(axis=1)
    place = np.searchsorted(edges, p, side="left")
    chosen = np.stack([known & ~truth, known & truth], axis=2)
    bins = np.where(chosen, place[:, :, None], -1)
    return _Scored(bins, loss, brier)


def _quantile_losses(model: Any, rows: Rows, levels: FloatArray) -> FloatArray:
    """max(q e, (q − 1) e) with e = y − ŷ: rows × levels × outputs (Koenker & Bassett 1978)."""
    outputs = math.prod(np.shape(rows.y)[1:])
    truth = np.asarray(rows.y, dtype=float).reshape(len(rows), outputs)
    guess = np.asarray(model.predict(rows.X) if len(rows) else rows.y, dtype=float)
    error = (truth - guess.reshape(truth.shape))[:, None, :]
    q = levels[:, None]
    return np.asarray(np.maximum(q * error, (q - 1) * error))


def _added(values: FloatArray, owners: IntArray, clients: int) -> FloatArray:
    """Sums over the rows of each client."""
    total = np.zeros((clients, *values.shape[1:]))
    np.add.at(total, owners, values)
    return total


def _names(model: Any) -> tuple[str, ...]:
    """What scores are about: the second of two classes, each of more, or labels."""
    schema: Schema = model.schema_
    if schema.target == "labels":
        return schema.label_names
    classes = schema.classes.tolist()
    return tuple(str(c) for c in (classes[1:] if len(classes) == 2 else classes))


# --- at the coordinator ---


class ScoreTotals(Aggregation):
    """The sum of all counts, after finding where merged rows can be."""

    additive = True

    def settle(self, counts: dict[str, Any]) -> dict[str, Any]:
        """What adds up of counts of clients, which come first."""
        return located(counts)

    def lift(self, reply: Reply) -> Any:
        stacked = map_leaves(lambda leaf: np.asarray(leaf)[None], reply.payload)
        return map_leaves(lambda leaf: leaf[0], self.settle(stacked))

    def combine(self, a: Any, b: Any) -> Any:
        return map_leaves(lambda x, y: x + y, a, b)

    def fold(self, batch: Batch) -> Any:
        if isinstance(batch.payloads, Stacked) and len(batch):
            settled = self.settle(dict(batch.payloads.fields))
            return map_leaves(lambda leaf: leaf.sum(axis=0), settled)
        return self.fold_one_by_one(batch)


def located(counts: dict[str, Any]) -> dict[str, Any]:
    """Counts of clients by the highest and lowest bin; losses that were withheld count no rows."""
    if "pinball" in counts:
        judged = np.where(counts["pinball"].any(axis=(1, 2)), counts["rows"], 0)
        return {"pinball": counts["pinball"], "judged": judged, "clients": 1 * (judged > 0)}
    merged = np.asarray(counts["merged"], dtype=bool)
    withheld = np.asarray(counts["rows"]) == 0
    some = counts["counts"].reshape(len(merged), -1).any(axis=1)
    return {
        "clients": 1 * some,
        "merged": 1 * merged,
        "high": counts["counts"],
        "low": lowest_bins(counts["counts"], merged),
        "loss": np.where(withheld, 0.0, counts["loss"]),
        "brier": np.where(withheld, 0.0, counts["brier"]),
        "judged": np.asarray(counts["rows"]),
    }


def scores_of(model: Any, total: dict[str, Any], grid: ScoreGrid) -> Scores:
    """The scores of folded counts."""
    return Scores(
        names=_names(model),
        edges=grid.edges,
        high=total["high"],
        low=total["low"],
        loss=float(total["loss"]),
        brier=float(total["brier"]),
        judged=int(total["judged"]),
        threshold=None
        if len(total["high"]) > 1 and model.schema_.target == "classes"
        else grid.threshold,
    )


def quantile_metrics(total: dict[str, Any], levels: Sequence[float]) -> dict[str, float]:
    """The mean quantile loss at every level, over rows and outputs."""
    if not total["judged"]:
        return {}
    means = (total["pinball"] / total["judged"]).mean(axis=1)
    return {f"quantile_loss_{q:g}": float(m) for q, m in zip(levels, means, strict=True)}


def gives_scores(model: Any) -> bool:
    """Whether a model gives probabilities or numbers."""
    return model.schema_.target == "numbers" or hasattr(last_step(model), "predict_proba")


def check_scores(model: Any) -> None:
    """Refuse to count scores of a model that gives neither probabilities nor numbers."""
    if not gives_scores(model):
        last = last_step(model)
        raise UsageError(
            f"{type(last).__name__} gives no probabilities, so there are no scores to count",
            hint="evaluate it without scores",
        )


def score_ask(model: Any, described: Any, part: str, grid: ScoreGrid) -> dict[str, Any]:
    """The payload, for a model that gives probabilities or numbers."""
    check_scores(model)
    return {
        "model": described,
        "part": part,
        "bins": grid.bins,
        "threshold": float(grid.threshold),
        "quantiles": np.array(grid.quantiles, dtype=float),
    }


def score_asks(model: Component, part: str, grid: ScoreGrid) -> Plan:
    """What scores are asked by."""
    asked = {
        "model": {"made": {"$component": component_name(type(model))}},
        "part": part,
        "bins": grid.bins,
        "threshold": float(grid.threshold),
    }
    return (planned(count_scores, 1, asked, open=["model"]),)

"""Counts of scores: what clients tell of the probabilities that a model gives their rows.

Every client counts, for an agreed grid of scores, how many of its rows of each class have a score
in each bin. The counts add up, and metrics that need an order of all rows, such as the area under
the ROC curve, follow from them within a bound (:mod:`solera.evaluation.scores`). No score leaves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from solera.core.clients import BoolArray, Client, FloatArray, IntArray, Rows
from solera.core.constraints import check_values
from solera.core.errors import DataError, UsageError
from solera.core.schema import UNKNOWN, Schema, class_codes
from solera.core.task import task
from solera.evaluation.counts import ratio
from solera.evaluation.scores import CALIBRATION_BINS, CALIBRATION_EDGES, Scores
from solera.learn.base import last_step
from solera.learn.client_models import many_models, own_model
from solera.learn.totals import Totals
from solera.trust.constructors import count_by, sum_by

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


@task("learner.score_counts", many=many_models("learner.score_counts"), version=2)
def count_scores(client: Client, ask: Any) -> dict[str, Any]:
    """Rows by class and score, and sums of losses."""
    grid = ScoreGrid(ask["bins"], ask["threshold"], tuple(ask["quantiles"].tolist()))
    rows = client.data.part(ask["part"])
    return score_counts(own_model(client, ask["model"]), rows, grid, part=ask["part"])


def score_counts(model: Any, rows: Rows, grid: ScoreGrid, /, **of: Any) -> dict[str, Any]:
    """What these rows give to the counts of their scores.

    Of every class or label a histogram of the rows that are of it and one of the others, and how
    many rows each of the two has. ``of``: which rows they are, as ``part=`` or ``rows=`` of
    contributions.
    """
    if rows.y is None:
        raise DataError("rows without a target cannot be evaluated")
    if model.schema_.target == "numbers":
        losses = _quantile_losses(model, rows, np.array(grid.quantiles))
        return {"pinball": sum_by(None, losses, **of), "rows": count_by(None, **of)}
    edges = grid.edges
    scored = scored_rows(model, rows, edges)
    judged = scored.known.any(axis=1)
    bins: dict[str, Any] = {}
    sides: dict[str, Any] = {}
    for i in range(len(names_of(model))):
        known, truth = scored.known[:, i], scored.truth[:, i]
        no = np.where(known & ~truth, scored.bins[:, i], -1)
        yes = np.where(known & truth, scored.bins[:, i], -1)
        cells = len(edges) + 1
        bins[_entry(i)] = {"no": count_by(no, cells, **of), "yes": count_by(yes, cells, **of)}
        sides[_entry(i)] = count_by(np.where(known, truth, -1), 2, **of)
    return {
        "bins": bins,
        "sides": sides,
        "loss": sum_by(None, scored.loss, where=judged, **of),
        "brier": sum_by(None, scored.brier, where=judged, **of),
        "rows": count_by(judged, **of),
    }


@dataclass(frozen=True)
class Scored:
    """Of every row and name the score and its bin, what is true and whether that is known.

    And its losses.
    """

    p: FloatArray
    bins: IntArray
    truth: BoolArray
    known: BoolArray
    loss: FloatArray
    brier: FloatArray


def scored_rows(model: Any, rows: Rows, edges: FloatArray) -> Scored:
    schema = model.schema_
    if not len(rows):
        none = np.empty((0, len(names_of(model))))
        return Scored(none, none.astype(int), none > 0, none > 0, np.empty(0), np.empty(0))
    p = np.clip(np.asarray(model.predict_proba(rows.X), dtype=float), 0, 1)
    if schema.target == "classes":
        codes = class_codes(rows.y, schema.classes)
        truth = codes[:, None] == np.arange(len(schema.classes))
        own = np.take_along_axis(p / p.sum(axis=1, keepdims=True), codes[:, None], axis=1)[:, 0]
        loss = -np.log(np.maximum(own, _LEAST))
        brier = ((p - truth) ** 2).sum(axis=1)
        if p.shape[1] == 2:
            p, truth, brier = p[:, 1:], truth[:, 1:], brier / 2
        known = np.ones(truth.shape, dtype=bool)
    else:
        y = np.asarray(rows.y).reshape(len(rows), -1)
        truth, known = y > 0, (y != UNKNOWN) & ~np.isnan(p)
        p = np.where(known, p, 0.5)
        share = ratio(known, known.sum(axis=1, keepdims=True) + 0 * known)
        loss = -(np.log(np.maximum(np.where(truth, p, 1 - p), _LEAST)) * share).sum(axis=1)
        brier = ((p - truth) ** 2 * share).sum(axis=1)
    return Scored(p, np.searchsorted(edges, p, side="left"), truth, known, loss, brier)


def _quantile_losses(model: Any, rows: Rows, levels: FloatArray) -> FloatArray:
    """max(q e, (q − 1) e) with e = y − ŷ: rows × levels × outputs (Koenker & Bassett 1978)."""
    outputs = math.prod(np.shape(rows.y)[1:])
    truth = np.asarray(rows.y, dtype=float).reshape(len(rows), outputs)
    guess = np.asarray(model.predict(rows.X) if len(rows) else rows.y, dtype=float)
    error = (truth - guess.reshape(truth.shape))[:, None, :]
    q = levels[:, None]
    return np.asarray(np.maximum(q * error, (q - 1) * error))


def names_of(model: Any) -> tuple[str, ...]:
    """What scores are about: the second of two classes, each of more, or labels."""
    schema: Schema = model.schema_
    if schema.target == "labels":
        return schema.label_names
    classes = schema.classes.tolist()
    return tuple(str(c) for c in (classes[1:] if len(classes) == 2 else classes))


def _entry(name: int) -> str:
    """What a name is called in a reply, whose keys hold no dots."""
    return str(name)


# --- at the coordinator ---


class ScoreTotals(Totals):
    """Where the rows of clients are."""

    def settle(self, counts: dict[str, Any]) -> dict[str, Any]:
        judged = np.asarray(counts["rows"])
        settled = {"judged": judged, "clients": 1 * (judged > 0)}
        if "pinball" in counts:
            return {**settled, "pinball": counts["pinball"]}
        return {
            **settled, "bins": counts["bins"], "loss": counts["loss"], "brier": counts["brier"],
        }  # fmt: skip


def scores_of(model: Any, total: dict[str, Any], grid: ScoreGrid) -> Scores:
    """The scores of folded counts."""
    names = names_of(model)
    rows = np.stack(
        [[total["bins"][_entry(i)][side] for side in ("no", "yes")] for i in range(len(names))]
    )
    of_more = len(names) > 1 and model.schema_.target == "classes"
    return Scores(
        names=names,
        edges=grid.edges,
        counts=rows,
        loss=float(total["loss"]),
        brier=float(total["brier"]),
        judged=int(total["judged"]),
        threshold=None if of_more else grid.threshold,
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

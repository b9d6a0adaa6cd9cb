"""FedHistGBDT: gradient boosting on histograms that clients add up; the coordinator's side."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from solera.core.aggregation import Aggregation, Extremes, Fields, Sum
from solera.core.errors import DataError, UsageError
from solera.core.federation import Federation
from solera.core.rounds import Round
from solera.learn.base import Predictor
from solera.learn.trees.boosting.histograms import (
    HistBins,
    Units,
    catch_up,
    describe_target,
    histograms,
)
from solera.learn.trees.boosting.level_growth import GrowingTree, Limits
from solera.learn.trees.tree import Floats, Ints, Tree, dense


class Boosted(Predictor, abstract=True):
    """What boosted ensembles share: scores are sums of trees, probabilities their link."""

    allows_missing = True
    trees_: list[list[Tree]]
    initial_: Floats

    def scores(self, X: Any) -> Floats:
        """Initial score plus the trees' values: rows × (1, or one per class of several)."""
        X = dense(self.check_rows(X))
        total = np.repeat(self.initial_[None], len(X), axis=0)
        for trees in self.trees_:
            for k, tree in enumerate(trees):
                total[:, k] += tree.values(X)[:, 0]
        return total

    def predict_proba(self, X: Any) -> Floats:
        """The sigmoid, or the softmax, of every row's scores."""
        self.check_fitted()
        if self.schema_.target != "classes":
            raise UsageError(f"{type(self).__name__} was fitted to numbers: no probabilities")
        return link(self.scores(X))

    def predict(self, X: Any) -> NDArray[Any]:
        self.check_fitted()
        if self.schema_.target == "classes":
            return np.asarray(self.schema_.classes[self.predict_proba(X).argmax(axis=1)])
        return self.scores(X)[:, 0]

    @property
    def feature_importances_(self) -> Floats:
        """Share of each column in the reduction of the loss, over all trees."""
        self.check_fitted()
        width = self.schema_.width
        total = np.zeros(width)
        for tree in (tree for trees in self.trees_ for tree in trees):
            total += tree.importance(width) * len(tree.leaves)
        return total / total.sum() if total.sum() > 0 else total

    def report_sections(self) -> list[tuple[str, Any]]:
        """What a report shows of the trees: the importance of columns."""
        from solera.learn.trees.plots import plot_importance

        return [("Importance", plot_importance(self.feature_importances_, self.schema_))]

    def _loss(self) -> str:
        target, classes = self.schema_.target, len(self.schema_.classes)
        if target == "numbers" and self.schema_.outputs == 1:
            return "squared"
        if target == "classes" and classes >= 2:
            return "sigmoid" if classes == 2 else "softmax"
        found = f"{classes} class" if target == "classes" else f"{self.schema_.outputs} {target}"
        raise DataError(
            f"{type(self).__name__} learns classes or one number, the target is {found}"
        )


def link(scores: Floats) -> Floats:
    """Probabilities of scores, row by row: sigmoid of one column, softmax of several."""
    if scores.shape[1] == 1:
        p = 0.5 * (1 + np.tanh(0.5 * scores))
        return np.concatenate([1 - p, p], axis=1)
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(p / p.sum(axis=1, keepdims=True))


def initial_scores(counts: Ints) -> Floats:
    """Scores whose link gives the share of each class; classes without rows count as half a row."""
    p = np.maximum(counts, 0.5) / np.maximum(counts, 0.5).sum()
    return np.asarray(np.log(p[1:] / p[:1]) if len(p) == 2 else np.log(p))


class FedHistGBDT(Boosted):
    """Horizontal gradient boosting on histograms, as XGBoost and LightGBM users expect it.

    Columns are cut into bins at quantiles over all clients. A round grows one tree (one per class
    of several) level by level: clients send Σg and Σh by node and bin, the coordinator adds them
    and splits each node where

        ½ [G_L²/(H_L + λ) + G_R²/(H_R + λ) − G²/(H + λ)]

    is largest (Chen & Guestrin 2016, Eq. 7), and tells the splits with the next ask. Of two
    children only the smaller is asked for; the other is the difference. Leaves are −η G/(H + λ).
    Histograms are plain sums of whole numbers (:mod:`.histograms`), so every division of the same
    rows over clients gives the same trees. Missing values go where the gain is larger. Categories
    are read as numbers, in the order of their codes.

    Parameters
    ----------
    rounds: trees (per class of several).
    lr: η. max_depth: levels of a tree. l2: λ.
    min_rows: fewest rows of a leaf. bins: most bins of a column, at most 255.

    Attributes
    ----------
    trees_: the trees of every round. initial_: the score before the first. bins_: the bins.
    progress_: where clients are, for the next round.
    """

    bins_: HistBins
    progress_: dict[str, Any]

    def __init__(
        self,
        *,
        rounds: int = 100,
        lr: float = 0.1,
        max_depth: int = 6,
        l2: float = 0.0,
        min_rows: int = 20,
        bins: int = 255,
    ) -> None:
        self.rounds = rounds
        self.lr = lr
        self.max_depth = max_depth
        self.l2 = l2
        self.min_rows = min_rows
        self.bins = bins

    def train(self, federation: Federation) -> None:
        self._check_params()
        loss = self._loss()
        self.bins_ = HistBins(self.bins).fit(federation)
        binned = federation.prepared(self.bins_)
        rows, self.initial_, bound = boosting_start(binned, loss, self.schema_.classes)
        order = {"loss": loss, "starts": self.bins_.starts_}
        self.trees_ = []
        self.progress_ = {"asks": 0, "behind": [], "bound": bound, "splits": []}
        for r in self.each_round(binned, rounds=self.rounds):
            units = Units.of(rows, self.progress_["bound"], counted=loss == "squared")
            if self.progress_["behind"]:
                self._catch_up(r, order)
            trees, told = self._round(r, order, units)
            self.trees_ = [*self.trees_, trees]
            largest = max(float(np.abs(tree.value).max()) for tree in trees)
            self.progress_ = {
                "asks": told["asks"],
                "splits": told["splits"],
                "behind": sorted({failure.client for failure in r.failures}),
                "bound": told["bound"] + largest if loss == "squared" else 1.0,
            }
            r.log(loss=told["loss"] / rows)

    def _round(
        self, r: Round, order: dict[str, Any], units: Units
    ) -> tuple[list[Tree], dict[str, Any]]:
        """The trees of one round, and what the clients told on the way."""
        limits = Limits(self.l2, self.lr, self.min_rows)
        growing = [GrowingTree(self.bins_, units, limits) for _ in self.initial_]
        last = self.trees_[-1] if self.trees_ else []
        splits = self.progress_["splits"]
        start = {
            "classes": self.schema_.classes,
            "initial": self.initial_,
            "values": [tree.value[:, 0] for tree in last],
        }
        asks, told = self.progress_["asks"], {"bound": 1.0}
        for level in range(self.max_depth):
            ask = {**order, "step": np.array([asks, level, *units]), "splits": splits}
            ask["wanted"] = [tree.wanted for tree in growing]
            fold: Aggregation = Sum()
            if level == 0:
                ask |= start
                if order["loss"] == "squared":
                    fold = Fields({"tree0": Sum(), "loss": Sum(), "exponent": Extremes()})
            answer = r.ask(histograms, ask).fold(fold)
            if level == 0:
                told["loss"] = float(answer["loss"])
            if "exponent" in answer:
                told["bound"] = float(2.0 ** int(answer["exponent"]["max"]))
            for k, tree in enumerate(growing):
                tree.grow(answer.get(f"tree{k}"))
            asks += 1
            splits = [tree.last_splits() for tree in growing]
            if not any(len(tree.wanted) for tree in growing):
                break
        return [tree.builder.build() for tree in growing], {**told, "asks": asks, "splits": splits}

    def _catch_up(self, r: Round, order: dict[str, Any]) -> None:
        """Bring clients that missed an ask to where the others are."""
        ask = {
            **order,
            "initial": self.initial_,
            "after": self.progress_["asks"] - 1,
            "splits": [[self._splits(tree) for tree in trees] for trees in self.trees_],
            "values": [[tree.value[:, 0] for tree in trees] for trees in self.trees_[:-1]],
        }
        r.ask(catch_up, ask, to=self.progress_["behind"], quorum=0).collect()

    def _splits(self, tree: Tree) -> Ints:
        """A tree's splits over cells instead of values, as clients follow them."""
        starts, edges = self.bins_.starts_, self.bins_.edges_
        found = np.zeros((4, len(tree)), dtype=np.int64)
        found[0] = tree.feature
        found[2] = tree.missing_left
        for node in np.flatnonzero(tree.feature >= 0).tolist():
            j = int(tree.feature[node])
            found[1, node] = starts[j] + np.searchsorted(edges[j], tree.threshold[node])
            found[3, node] = tree.branches[tree.start[node]]
        return found

    def _check_params(self) -> None:
        for name in ("rounds", "max_depth", "min_rows"):
            if getattr(self, name) < 1:
                raise UsageError.of(self, name, getattr(self, name), "must be at least 1")
        if not self.lr > 0:
            raise UsageError.of(self, "lr", self.lr, "must be > 0")
        if self.l2 < 0:
            raise UsageError.of(self, "l2", self.l2, "must not be negative")
        if not 2 <= self.bins <= 255:
            raise UsageError.of(self, "bins", self.bins, "must be between 2 and 255")


def boosting_start(federation: Federation, loss: str, classes: Any) -> tuple[int, Floats, float]:
    """Rows, the first scores, and a bound of the first gradients; sums do not depend on order."""
    fold = Fields({"rows": Sum(), "counts": Sum(), "exponent": Extremes(), "total": Sum()})
    ask = {"loss": loss, "classes": classes}
    told = federation.ask(describe_target, ask).fold(fold)
    rows = int(told["rows"])
    if loss != "squared":
        return rows, initial_scores(told["counts"]), 1.0
    exponent = int(told["exponent"]["max"])
    shift = 52 - exponent - rows.bit_length()
    told = federation.ask(describe_target, {**ask, "shift": shift}, round=1).fold(fold)
    mean = float(np.ldexp(float(told["total"]), -shift)) / rows
    return rows, np.array([mean]), 2.0**exponent + abs(mean)

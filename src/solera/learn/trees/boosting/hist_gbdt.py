"""FedHistGBDT: gradient boosting on histograms that clients add up; the coordinator's side."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from solera.core.aggregation import Aggregation, Fields, Sum
from solera.core.clients import BoolArray, IntArray
from solera.core.constraints import Count, NonNegative, Positive
from solera.core.errors import DataError, GateRefusal, UsageError
from solera.core.federation import Federation
from solera.core.rounds import Round
from solera.learn.closed import is_closed, persons_in
from solera.learn.preprocess.atom_bins import check_atoms, gaps_of, lines_of
from solera.learn.preprocess.quantiles import NOISED_ASKS
from solera.learn.trees.boosting.base import (
    Boosted,
    Exponents,
    boosting_start,
    closed_start,
    noised_start,
)
from solera.learn.trees.boosting.histograms import Bins, HistBins, Units, catch_up, histograms
from solera.learn.trees.boosting.level_growth import GrowingTree, Limits
from solera.learn.trees.boosting.private_histograms import (
    in_agreement,
    noised_units,
    rows_hidden,
)
from solera.learn.trees.tree import Tree
from solera.privacy.dp.mechanism import DP
from solera.trust.board.judge import SHARE


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

    In a closed job bins are unions of the epoch's atoms. Cells of few persons are told together
    with their neighbours, of both children of a split or of none, and trees are split between what
    is told. Trees of several levels need owners who allow exact training; stumps (``max_depth=1``)
    add up, and need six persons for each of their parameters, the bins.

    Parameters
    ----------
    rounds: trees (per class of several).
    lr: η. max_depth: levels of a tree. l2: λ.
    min_rows: fewest rows of a leaf. bins: most bins of a column, at most 255.
    dp: None, or :class:`so.DP <solera.privacy.dp.mechanism.DP>` with ``level="record"`` and, for
        targets that are numbers, ``clip``, the largest gradient, which is a difference of target
        and score. Bins, the first scores and every level of every tree are asked with noise
        (:mod:`.private_histograms`): few rounds, levels and bins are better. Sides of a split
        have no fewer rows than noise can hide, and nobody is told the loss.

    Attributes
    ----------
    trees_: the trees of every round. initial_: the score before the first. bins_: the bins.
    progress_: where clients are, for the next round.
    """

    can_start = True
    closed_job = None
    bins_: HistBins
    progress_: dict[str, Any]

    def __init__(
        self,
        *,
        rounds: Count = 100,
        lr: Positive = 0.1,
        max_depth: Count = 6,
        l2: NonNegative = 0.0,
        min_rows: Count = 20,
        bins: Bins = 255,
        dp: DP | None = None,
    ) -> None:
        self.rounds = rounds
        self.lr = lr
        self.max_depth = max_depth
        self.l2 = l2
        self.min_rows = min_rows
        self.bins = bins
        self.dp = dp

    def train(self, federation: Federation) -> None:
        loss = self.loss()
        if self.dp is not None:
            self._train_privately(federation, loss)
            return
        start = self._start
        if start is None:
            self.bins_ = HistBins(self.bins).fit(federation)
        else:
            self.bins_ = start.bins_
            check_atoms(federation, self.bins_.edges_, self.schema_)
        binned = federation.prepared(self.bins_)
        closed = is_closed(federation)
        first_scores = closed_start if closed else boosting_start
        rows, self.initial_, bound = first_scores(binned, loss, self.schema_.classes)
        order = {"loss": loss, "starts": self.bins_.starts_}
        if closed:
            gaps = gaps_of(federation, self.schema_)
            order["lines"] = lines_of(self.bins_.starts_, gaps)
            self._check_stumps(federation, gaps)
        self.trees_ = []
        self.progress_ = {"asks": 0, "behind": [], "bound": bound, "splits": []}
        if start is not None:
            self._continue(start, len(federation), bound)
        for r in self.each_round(federation, rounds=self.rounds, prepared=binned):
            units = Units.of(rows, self.progress_["bound"], counted=loss == "squared")
            if self.progress_["behind"]:
                self._catch_up(r, order)
            trees, progress, total = self._round(r, order, units, self.min_rows)
            self.trees_ = [*self.trees_, trees]
            if loss == "squared":
                progress["bound"] += max(float(np.abs(tree.value).max()) for tree in trees)
            self.progress_ = progress
            r.log(loss=total / rows)

    @property
    def cuts_at_atoms(self) -> bool:
        return self.dp is None

    @property
    def needs_exact_training(self) -> bool:
        return self.max_depth > 1 and self.dp is None

    def _check_stumps(self, federation: Federation, gaps: BoolArray) -> None:
        """Refuse stumps with more bins than a sixth of all persons, who would be told apart."""
        if self.max_depth > 1:
            return
        persons = persons_in(federation)["train"]
        edges = [len(of_column) for of_column in self.bins_.edges_]
        others = 1 + int(gaps.sum())
        parameters = others + sum(edges)
        if SHARE * parameters <= persons:
            return
        fitting = [
            bins
            for bins in range(2, max(edges) + 1)
            if SHARE * (others + sum(min(cuts, bins - 1) for cuts in edges)) <= persons
        ]
        raise GateRefusal(
            f"FedHistGBDT(max_depth=1): bins of {parameters:,} parameters need "
            f"{SHARE * parameters:,} persons of all owners, there are {persons:,}: more parameters "
            "would fix targets of single persons",
            hint=f"bins={fitting[-1]}" if fitting else "fewer columns, so.learn.FedSelect",
        )

    def noised_asks(self) -> int:
        cutting = NOISED_ASKS if self._start is None else 0
        return cutting + 1 + self.rounds * self.max_depth

    def _train_privately(self, federation: Federation, loss: str) -> None:
        """The same from sums with noise, which are no whole numbers and need no bound."""
        start, clients = self._start, len(federation)
        if start is None:
            self.bins_ = HistBins(self.bins).train_with_noise(federation, self.schema_)
        else:
            self.bins_ = start.bins_
        binned = federation.prepared(self.bins_)
        self.initial_ = noised_start(binned, loss, self.schema_.classes)
        noise = federation.noise.table
        order = {"loss": loss, "starts": self.bins_.starts_, "privacy": noise}
        units = Units(*noised_units(order), rows=0, packed=False, counted=False)
        fewest = max(
            self.min_rows, rows_hidden(self.bins_.starts_, len(self.initial_), clients, order)
        )
        self.trees_ = []
        self.progress_ = {"asks": 0, "behind": [], "bound": 0.0, "splits": []}
        if start is not None:
            self._continue(start, clients, 0.0)
        for r in self.each_round(federation, rounds=self.rounds, prepared=binned):
            if self.progress_["behind"]:
                self._catch_up(r, order)
            trees, self.progress_, _ = self._round(r, order, units, fewest)
            self.trees_ = [*self.trees_, trees]

    def with_noise(self, federation: Federation) -> Federation:
        if self.dp is not None and self.loss() == "squared":
            self.dp.need_clip(self, "a gradient")
        return super().with_noise(federation)

    def _begin_with(self, start: Any) -> None:
        if not isinstance(start, FedHistGBDT):
            raise UsageError(f"FedHistGBDT cannot start from {start!r}")
        super()._begin_with(start)

    def _continue(self, start: FedHistGBDT, clients: int, bound: float) -> None:
        """Keep the trees of a model; every client is told them before the first round."""
        self.initial_, self.trees_ = start.initial_, start.trees_
        if self.schema_.target == "numbers":
            largest = [max(float(np.abs(t.value).max()) for t in trees) for trees in start.trees_]
            bound += float(np.abs(start.initial_).max()) + sum(largest)
        behind = list(range(clients))
        self.progress_ = {**start.progress_, "behind": behind, "bound": bound}

    def _round(
        self, r: Round, order: dict[str, Any], units: Units, fewest: int
    ) -> tuple[list[Tree], dict[str, Any], float]:
        """The trees of one round, where clients are after it, and the loss before it."""
        limits = Limits(self.l2, self.lr, fewest)
        growing = [GrowingTree(self.bins_, units, limits) for _ in self.initial_]
        last = self.trees_[-1] if self.trees_ else []
        splits = self.progress_["splits"]
        start = {
            "classes": self.schema_.classes,
            "initial": self.initial_,
            "values": [tree.value[:, 0] for tree in last],
        }
        noised, closed, add = "privacy" in order, "lines" in order, Sum()
        asks, bound, loss = self.progress_["asks"], 1.0, 0.0
        for level in range(self.max_depth):
            ask = {**order, "step": np.array([asks, level, *units]), "splits": splits}
            ask["wanted"] = [tree.wanted for tree in growing]
            fold: Aggregation = add
            if level == 0:
                ask |= start
                if order["loss"] == "squared" and not noised and not closed:
                    fold = Fields({"trees": Sum(), "loss": Sum(), "exponent": Exponents()})
            if closed and level:
                ask["groups"] = [tree.groups for tree in growing]
            replies = r.ask(histograms, ask)
            total = replies.fold(fold)
            hist = list(total["trees"])
            if noised:
                hist = [in_agreement(sums, self.bins_.starts_, order) for sums in hist]
            elif level == 0:
                loss = float(total["loss"])
            if "exponent" in total:
                bound = float(2.0 ** int(total["exponent"]["max"]))
            elif closed and level == 0:
                bound = math.sqrt(2 * loss)  # squared loss is Σ g²/2
            absent = [*replies.absent.get("trees", [0] * len(hist))]
            for tree in growing:
                if not len(tree.wanted):
                    tree.grow(None)
                    continue
                sums, marks = hist.pop(0), absent.pop(0)
                told = np.broadcast_to(marks, sums.shape)[..., 0] == 0 if closed else None
                if told is not None and not told.any() and level == 0:
                    raise DataError("FedHistGBDT: too few persons of all owners to tell anything")
                tree.grow(sums, told)
            asks += 1
            splits = [tree.last_splits() for tree in growing]
            if not any(len(tree.wanted) for tree in growing):
                break
        behind = sorted({failure.client for failure in r.failures})
        progress = {"asks": asks, "splits": splits, "behind": behind, "bound": bound}
        return [tree.builder.build() for tree in growing], progress, loss

    def _catch_up(self, r: Round, order: dict[str, Any]) -> None:
        """Bring clients that missed an ask to where the others are."""
        ask = {
            **order,
            "initial": self.initial_,
            "after": self.progress_["asks"] - 1,
            "splits": [[self._splits(tree) for tree in trees] for trees in self.trees_],
            "values": [[tree.value[:, 0] for tree in trees] for trees in self.trees_[:-1]],
        }
        behind, nothing_told = self.progress_["behind"], r.prepared.noised(None)
        replies = nothing_told.ask(catch_up, ask, to=behind, quorum=0, round=r.index)
        if is_closed(nothing_told):
            replies.fold(Sum())
        else:
            replies.collect()

    def _splits(self, tree: Tree) -> IntArray:
        """A tree's splits over cells instead of values, as clients follow them."""
        starts, edges = self.bins_.starts_, self.bins_.edges_
        splits = np.zeros((4, len(tree)), dtype=np.int64)
        splits[0] = tree.feature
        splits[2] = tree.missing_left
        for node in np.flatnonzero(tree.feature >= 0).tolist():
            j = int(tree.feature[node])
            splits[1, node] = starts[j] + np.searchsorted(edges[j], tree.threshold[node])
            splits[3, node] = tree.branches[tree.start[node]]
        return splits

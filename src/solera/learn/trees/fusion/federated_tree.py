"""FederatedTree: one readable tree out of the trees of many clients (ICDTA4FL)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, Self

import numpy as np
from msgspec import Meta

from solera.core.aggregation import Collect
from solera.core.clients import FloatArray, IntArray
from solera.core.constraints import Count
from solera.core.errors import NotEnoughReplies, UsageError
from solera.core.federation import Federation
from solera.core.replies import Reply
from solera.evaluation.metrics import metric_label
from solera.learn.trees.c45 import sizes_of
from solera.learn.trees.client_trees import CollectTrees
from solera.learn.trees.counted import grow_trees, growing_cart
from solera.learn.trees.fusion.client_counts import (
    METRICS,
    calibrated,
    compare,
    mean_metrics,
)
from solera.learn.trees.fusion.rule_merging import RuleFold
from solera.learn.trees.fusion.rule_tree import tree_of_rules
from solera.learn.trees.fusion.rules import Overlap, RuleSet, rule_table
from solera.learn.trees.fusion.tasks import (
    TreeKind,
    grow_tree,
    judge_trees,
    receive_tree,
)
from solera.learn.trees.id3 import Growing, category_sizes, growing_id3
from solera.learn.trees.single_tree import SingleTree
from solera.learn.trees.tree import Tree

log = logging.getLogger("solera")

Percentile = Annotated[float, Meta(ge=0, le=100)]
Filter = Literal["mean", "median", "mode"] | Percentile | Callable[[FloatArray], float] | None
_ROUNDING = 1e-12
SHOWN_RULES = 50
"""Rules in the table of a report."""


def _mode(score: FloatArray) -> float:
    """The most frequent value in whole per cent, the lowest of several."""
    values, counts = np.unique(np.floor(100 * score + _ROUNDING), return_counts=True)
    return float(values[counts.argmax()]) / 100


_CENTRES: dict[str, Callable[[FloatArray], Any]] = {
    "mean": np.mean,
    "median": np.median,
    "mode": _mode,
}


class FederatedTree(SingleTree):
    """Many clients' trees merged into one by their rules, in one round of four messages.

    1. Every client grows a tree on its own rows and sends it.
    2. Every client judges the trees of the others and answers with their confusion matrices.
    3. The coordinator drops trees below the filter, turns the others into rules, merges the rules
       (:mod:`.rules`) and builds one tree of them (:mod:`.rule_tree`).
    4. Clients receive tree and rules, and count how the global and their own tree do.

    Argente-Garrido, Zuheros, Luzón & Herrera (2024), *An interpretable client decision tree
    aggregation process for federated learning* (ICDTA4FL).

    Parameters
    ----------
    kind: "cart" (binary splits; categorical columns are read as numbers), "id3" (one branch per
        category; numeric columns need :class:`FedBins` before) or "c45" (branches of categories and
        thresholds on numbers, pruned; see :mod:`solera.learn.trees.c45`).
    max_depth: of the clients' trees; by default 5, and half the columns for ID3.
    global_depth: of the global tree; by default twice the depth of the clients' trees.
    filter: trees stay whose mean metric at the other clients is at least the "mean", the "median"
        or the "mode" of all trees (the most frequent per cent, the lower of two), a percentile (a
        number from 0 to 100), or what a function makes of all mean metrics; None keeps all. A
        learner with a function cannot be saved.
    metric: what the filter looks at, "accuracy" or "macro_f1".
    on_overlap: merged conditions are the intersection ("intersect"), or the least restrictive ones
        ("relax", the thesis's text).
    max_rules: most rules kept while merging, those with the most expected rows, among equals the
        purest; ``merged_`` says what was dropped.
    weigh: what rules count by, when ``max_rules`` are kept and in the splits of the global tree:
        the expected "rows" of each, or "rules" for each alike, the purest kept, as in the thesis.
    calibrate: replace the class probabilities of leaves by the class counts of all clients' rows
        there, which the fourth message sums; False keeps the mean of the rules, as in the thesis.
    min_rows: fewest rows of a leaf of a client's CART tree, or of two branches of a C4.5 split.
    by_counts: clients tell counts of rows, from which the coordinator grows the tree of each; no
        client sends a tree. That takes an ask per level in place of the first message, and needs
        CART or ID3 and categories (:class:`FedBins` before it); see
        :mod:`solera.learn.trees.counted`.

    Attributes
    ----------
    tree_, rule_set_: the global tree and the merged rules. ``rules_`` shows them as a table.
    local_trees_, clients_: the clients' trees, and whose they are.
    scores_: mean metrics of every tree at the other clients, NaN where none of them answers: such
        trees are kept. kept_: the clients whose trees were merged.
        threshold_: what the filter asked for.
    merged_: rules, how many were dropped on the way and their share of the expected rows.
    client_metrics_: accuracy and macro-F1 of the local and the global tree at every client, on its
        test rows where it keeps some; of the global one alone with ``by_counts``, where no client
        has a tree.
    """

    tree_: Tree
    rule_set_: RuleSet
    local_trees_: list[Tree]
    clients_: IntArray
    scores_: dict[str, FloatArray]
    kept_: IntArray
    threshold_: float
    merged_: dict[str, Any]
    client_metrics_: list[dict[str, Any]]

    def __init__(
        self,
        kind: TreeKind = "cart",
        *,
        max_depth: Count | None = None,
        global_depth: Count | None = None,
        filter: Filter = "mean",
        metric: Literal["accuracy", "macro_f1"] = "accuracy",
        on_overlap: Overlap = "intersect",
        max_rules: Count = 3000,
        weigh: Literal["rows", "rules"] = "rows",
        calibrate: bool = True,
        min_rows: Count = 1,
        by_counts: bool = False,
    ) -> None:
        self.kind = kind
        self.max_depth = max_depth
        self.global_depth = global_depth
        self.filter = filter
        self.metric = metric
        self.on_overlap = on_overlap
        self.max_rules = max_rules
        self.weigh = weigh
        self.calibrate = calibrate
        self.min_rows = min_rows
        self.by_counts = by_counts

    def check_params(self) -> None:
        super().check_params()
        if self.by_counts and self.kind == "c45":
            raise UsageError("C4.5 looks for thresholds among rows: by_counts is for cart and id3")

    # --- learning ---

    def train(self, federation: Federation) -> None:
        self.check_target()
        ask = self._ask()
        grown = self._grown(federation, ask)
        self.clients_ = np.array(list(grown), dtype=np.int64)
        self.local_trees_ = list(grown.values())
        self._check_splits()
        self._judge(federation, ask)
        self._filter()
        self._merge(ask["sizes"])
        self._hand_out(federation, ask)

    def _grown(self, federation: Federation, ask: dict[str, Any]) -> dict[int, Tree]:
        """The first message: the tree of every client."""
        if self.by_counts:
            return grow_trees(federation, self._count_ask(), self._growing)
        fold = CollectTrees(self.schema_.width, len(self.schema_.classes))
        found = federation.ask(grow_tree, ask).fold(fold)
        return {client: trees[0] for client, trees in found.items()}

    def _growing(self) -> Growing:
        sizes, classes = category_sizes(self.schema_), len(self.schema_.classes)
        if self.kind == "id3":
            return growing_id3(sizes, classes, self._local_depth)
        return growing_cart(sizes, classes, self._local_depth, self.min_rows)

    def _count_ask(self) -> dict[str, Any]:
        return {
            "sizes": category_sizes(self.schema_),
            "width": self.schema_.width,
            "classes": self.schema_.classes,
        }

    def _check_splits(self) -> None:
        """Say so when no client could tell the classes apart, since then nobody can."""
        values = [tree.value[0] for tree in self.local_trees_ if len(tree) == 1]
        if len(values) == len(self.local_trees_) and len(self.schema_.classes) > 1:
            alone = all(np.count_nonzero(value) == 1 for value in values)
            why = "every client has rows of one class only" if alone else "no client's tree splits"
            log.warning(
                "FederatedTree: %s, so the model always predicts the same class; FedID3 and "
                "FedHistGBDT grow one tree from the counts of all clients",
                why,
            )

    def _ask(self) -> dict[str, Any]:
        """What clients are told in every message."""
        return {
            "kind": self.kind,
            "width": self.schema_.width,
            "classes": self.schema_.classes,
            "sizes": self._sizes(),
            "max_depth": self._local_depth,
            "min_rows": self.min_rows,
        }

    def _sizes(self) -> IntArray | None:
        """Categories of every column, where trees have branches for them."""
        if self.kind == "cart":
            return None
        return category_sizes(self.schema_) if self.kind == "id3" else sizes_of(self.schema_)

    @property
    def _local_depth(self) -> int:
        if self.max_depth is not None:
            return self.max_depth
        return max(1, self.schema_.width // 2) if self.kind == "id3" else 5

    def _judge(self, federation: Federation, ask: dict[str, Any]) -> None:
        """The second message: mean metrics of every tree at the clients that did not grow it."""
        self.scores_ = {name: np.zeros(len(self.clients_)) for name in METRICS}
        if len(self.clients_) < 2:
            return
        trees = [tree.to_payload() for tree in self.local_trees_]
        replies = federation.ask(judge_trees, {**ask, "trees": trees}).fold(Collect())
        self.scores_ = mean_metrics(replies, self.clients_)

    def _filter(self) -> None:
        score = self.scores_[self.metric]
        unknown = np.isnan(score)
        if unknown.any():
            log.warning(
                "FederatedTree: %d of %d trees are kept, which no other client has judged",
                unknown.sum(),
                len(score),
            )
        self.threshold_ = 0.0 if unknown.all() else self._threshold(score[~unknown])
        kept = unknown | (score >= self.threshold_ - _ROUNDING)
        if not kept.any():
            best = int(np.argmax(score))
            kept[best] = True
            log.warning(
                "no tree reaches the filter's %s of %.4f: the best one, of client %d with %.4f, "
                "is kept",
                self.metric,
                self.threshold_,
                self.clients_[best],
                score[best],
            )
        self.kept_ = self.clients_[kept]

    def _threshold(self, score: FloatArray) -> float:
        if self.filter is None:
            return 0.0
        if callable(self.filter):
            return float(self.filter(score))
        if isinstance(self.filter, str):
            return float(_CENTRES[self.filter](score))
        return float(np.percentile(score, self.filter))

    def _merge(self, sizes: IntArray | None) -> None:
        """The third step: rules of the kept trees, folded, and the tree they make."""
        fold = RuleFold(
            self.schema_.width,
            len(self.schema_.classes),
            max_rules=self.max_rules,
            weigh=self.weigh,
        )
        partial = None
        for client, tree in zip(self.clients_.tolist(), self.local_trees_, strict=True):
            if client in self.kept_:
                partial = fold.merge(partial, fold.lift(Reply(client, {"tree": tree.to_payload()})))
        merged = fold.result(partial)
        rules: RuleSet = merged["rules"]
        if not len(rules):
            raise UsageError(
                f"no rule is left: those of the trees do not overlap, as few as max_rules = "
                f"{self.max_rules} kept while merging; keep more"
            )
        expected = rules.expected_rows()
        if self.on_overlap == "relax":
            rules, expected = rules.relaxed(expected)
        self.rule_set_ = rules
        self.merged_ = {**merged, "rules": len(rules), "expected_rows": expected}
        depth = 2 * self._local_depth if self.global_depth is None else self.global_depth
        weight = expected if self.weigh == "rows" else np.ones(len(rules))
        mixed = sizes is not None and not sizes.all()  # thresholds serve codes of categories, too
        self.tree_ = tree_of_rules(rules, weight, depth, sizes=None if mixed else sizes)

    def _hand_out(self, federation: Federation, ask: dict[str, Any]) -> None:
        """The fourth message; its counts calibrate the leaves and compare the trees."""
        rules = self.rule_set_.to_payload()
        rules["expected_rows"] = self.merged_["expected_rows"]
        ask = {**ask, "tree": self.tree_.to_payload(), "rules": rules}
        try:
            replies = federation.ask(receive_tree, ask).fold(Collect())
        except NotEnoughReplies:
            log.warning("no client answered the last message: the tree is not calibrated")
            replies = {}
        if self.calibrate and replies:
            seen = sum(reply["train"]["reached"] for reply in replies.values())
            self.tree_ = calibrated(self.tree_, np.asarray(seen, dtype=np.float64))
        predicted = self.tree_.value.argmax(axis=1)
        self.client_metrics_ = [
            {"client": client, **compare(reply, predicted)} for client, reply in replies.items()
        ]

    # --- reading ---

    @property
    def rules_(self) -> list[dict[str, Any]]:
        """The merged rules as a table: condition, class, probability, support, expected rows."""
        self.check_fitted()
        return rule_table(self.rule_set_, self.merged_["expected_rows"], self.schema_, self._raw)

    def local_tree(self, client: int) -> Tree:
        """The tree that a client grew on its own rows."""
        self.check_fitted()
        if client not in self.clients_:
            raise UsageError(f"client {client} sent no tree")
        place = int(np.flatnonzero(self.clients_ == client)[0])
        return self.local_trees_[place]

    def report_sections(self) -> list[tuple[str, Any]]:
        """The tree, the rules with most rows, importance, and what the filter did."""
        from solera.learn.trees.plots import plot_filter

        tree, importance = super().report_sections()
        rules = self.rules_
        shown = [
            {
                "rule": row["rule"],
                "class": row["class"],
                "probability": f"{row['probability']:.3f}",
                "support": f"{row['support']:,.0f}",
                "expected rows": f"{row['expected_rows']:,.1f}",
            }
            for row in rules[:SHOWN_RULES]
        ]
        title = "Rules" if len(shown) == len(rules) else f"{len(shown)} of {len(rules):,} rules"
        kept = np.isin(self.clients_, self.kept_)
        scores = self.scores_[self.metric]
        effect = plot_filter(scores, kept, self.threshold_, metric_label(self.metric))
        return [tree, (title, shown), importance, ("Filter", effect)]

    def for_prediction(self) -> Self:
        state = self.get_state()
        return self.with_state({name: state[name] for name in ("schema_", "tree_")})


def filter_effect(
    learner: FederatedTree, federation: Federation, percentiles: Sequence[float]
) -> list[dict[str, float]]:
    """Mean metrics of the global tree at the clients by percentile (thesis Figure 2.3)."""
    table = []
    for percentile in percentiles:
        model = learner.clone().set_params(filter=float(percentile)).fit(federation)
        row = {"percentile": float(percentile), "trees": float(len(model.kept_))}
        for metric in METRICS:
            name = f"global_{metric}"
            scores = [client[name] for client in model.client_metrics_ if name in client]
            row[metric] = float(np.mean(scores)) if scores else np.nan
        table.append(row)
    return table

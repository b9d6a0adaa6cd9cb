"""FederatedTree: one readable tree out of the trees of many clients (ICDTA4FL)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from solera.core.aggregation import Collect
from solera.core.errors import DataError, NotEnoughReplies, UsageError
from solera.core.federation import Federation
from solera.core.replies import Reply
from solera.core.schema import Schema
from solera.learn.evaluation import metrics as metrics_of
from solera.learn.trees.fusion.rule_merging import RuleFold
from solera.learn.trees.fusion.rule_tree import tree_of_rules
from solera.learn.trees.fusion.rules import Overlap, RuleSet
from solera.learn.trees.fusion.tasks import (
    METRICS,
    CollectTrees,
    grow_tree,
    judge_trees,
    receive_tree,
)
from solera.learn.trees.single_tree import ReadableTree, rule_rows
from solera.learn.trees.tree import Floats, Ints, Tree, shares

log = logging.getLogger("solera")

Filter = Literal["mean", "median"] | float | Callable[[Floats], float] | None
_ROUNDING = 1e-12
SHOWN_RULES = 50
"""Rules in the table of a report."""


class FederatedTree(ReadableTree):
    """Many clients' trees merged into one by their rules, in one round of four messages.

    1. Every client grows a tree on its own rows and sends it.
    2. Every client judges the trees of the others and answers with accuracy and macro-F1.
    3. The coordinator drops trees below the filter, turns the others into rules, merges the rules
       (:mod:`.rules`) and builds one tree of them (:mod:`.rule_tree`).
    4. Clients receive tree and rules, and count how the global and their own tree do.

    Argente-Garrido, Zuheros, Luzón & Herrera (2024), *An interpretable client decision tree
    aggregation process for federated learning* (ICDTA4FL).

    Parameters
    ----------
    kind: "cart" (binary splits; categorical columns are read as numbers) or "id3" (one branch per
        category; numeric columns need :class:`FedBins` before).
    max_depth: of the clients' trees; by default 5 for CART and half the columns for ID3.
    global_depth: of the global tree; by default twice the depth of the clients' trees.
    filter: trees stay whose mean metric at the other clients is at least the "mean" or "median" of
        all trees, a percentile (a number from 0 to 100), or what a function makes of all mean
        metrics; None keeps all. A learner with a function cannot be saved.
    metric: what the filter looks at, "accuracy" or "macro_f1".
    on_overlap: merged conditions are the intersection ("intersect"), or the least restrictive ones
        ("relax", the thesis's text).
    max_rules: most rules kept while merging, those with the most expected rows, among equals the
        purest; ``merged_`` says what was dropped.
    calibrate: replace the class probabilities of leaves by the class counts of all clients' rows
        there, which the fourth message sums; False keeps the mean of the rules, as in the thesis.
    min_rows: fewest rows of a leaf of a client's CART tree.

    Attributes
    ----------
    tree_, rule_set_: the global tree and the merged rules. ``rules_`` shows them as a table.
    local_trees_, clients_: the clients' trees, and whose they are.
    scores_: mean metrics of every tree at the other clients. kept_: the clients whose trees were
        merged. threshold_: what the filter asked for.
    merged_: rules, how many were dropped on the way and their share of the expected rows.
    client_metrics_: accuracy and macro-F1 of the local and the global tree at every client, on its
        test rows where it keeps some.
    """

    tree_: Tree
    rule_set_: RuleSet
    local_trees_: list[Tree]
    clients_: Ints
    scores_: dict[str, Floats]
    kept_: Ints
    threshold_: float
    merged_: dict[str, Any]
    client_metrics_: list[dict[str, Any]]

    def __init__(
        self,
        kind: Literal["cart", "id3"] = "cart",
        *,
        max_depth: int | None = None,
        global_depth: int | None = None,
        filter: Filter = "mean",
        metric: Literal["accuracy", "macro_f1"] = "accuracy",
        on_overlap: Overlap = "intersect",
        max_rules: int = 3000,
        calibrate: bool = True,
        min_rows: int = 1,
    ) -> None:
        self.kind = kind
        self.max_depth = max_depth
        self.global_depth = global_depth
        self.filter = filter
        self.metric = metric
        self.on_overlap = on_overlap
        self.max_rules = max_rules
        self.calibrate = calibrate
        self.min_rows = min_rows

    # --- learning ---

    def train(self, federation: Federation) -> None:
        self._check_params()
        order = self._order()
        width, classes = self.schema_.width, len(self.schema_.classes)
        sent = federation.ask(grow_tree, order).fold(CollectTrees(width, classes))
        self.clients_ = np.array(list(sent), dtype=np.int64)
        self.local_trees_ = [Tree(**reply["tree"]) for reply in sent.values()]
        self._judge(federation, order)
        self._filter()
        self._merge()
        self._hand_out(federation, order)

    def _order(self) -> dict[str, Any]:
        """What clients are told in every message."""
        return {
            "kind": self.kind,
            "width": self.schema_.width,
            "classes": self.schema_.classes,
            "sizes": category_sizes(self.schema_) if self.kind == "id3" else None,
            "max_depth": self._local_depth,
            "min_rows": self.min_rows,
        }

    @property
    def _local_depth(self) -> int:
        if self.max_depth is not None:
            return self.max_depth
        return 5 if self.kind == "cart" else max(1, self.schema_.width // 2)

    def _judge(self, federation: Federation, order: dict[str, Any]) -> None:
        """The second message: mean metrics of every tree at the clients that did not grow it."""
        self.scores_ = {name: np.zeros(len(self.clients_)) for name in METRICS}
        if len(self.clients_) < 2:
            return
        ask = {
            **order,
            "owners": self.clients_,
            "trees": [tree.to_payload() for tree in self.local_trees_],
        }
        told = federation.ask(judge_trees, ask).fold(Collect())
        others = np.array(list(told))[:, None] != self.clients_
        for name in METRICS:
            total = np.where(others, [reply[name] for reply in told.values()], 0.0).sum(axis=0)
            self.scores_[name] = total / np.maximum(others.sum(axis=0), 1)

    def _filter(self) -> None:
        score = self.scores_[self.metric]
        if self.filter is None:
            self.threshold_ = 0.0
        elif self.filter == "mean":
            self.threshold_ = float(score.mean())
        elif self.filter == "median":
            self.threshold_ = float(np.median(score))
        elif callable(self.filter):
            self.threshold_ = float(self.filter(score))
        else:
            self.threshold_ = float(np.percentile(score, self.filter))
        kept = score >= self.threshold_ - _ROUNDING
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

    def _merge(self) -> None:
        """The third step: rules of the kept trees, folded, and the tree they make."""
        fold = RuleFold(self.schema_.width, len(self.schema_.classes), max_rules=self.max_rules)
        partial = None
        for client, tree in zip(self.clients_.tolist(), self.local_trees_, strict=True):
            if client in self.kept_:
                partial = fold.merge(partial, fold.lift(Reply(client, {"tree": tree.to_payload()})))
        merged = fold.result(partial)
        rules: RuleSet = merged["rules"]
        expected = rules.expected_rows()
        if self.on_overlap == "relax":
            rules, expected = rules.relaxed(expected)
        self.rule_set_ = rules
        self.merged_ = {
            "rules": len(rules),
            "dropped": merged["dropped"],
            "dropped_share": merged["dropped_share"],
            "expected_rows": expected,
        }
        sizes = category_sizes(self.schema_) if self.kind == "id3" else None
        depth = 2 * self._local_depth if self.global_depth is None else self.global_depth
        self.tree_ = tree_of_rules(rules, expected, depth, sizes=sizes)

    def _hand_out(self, federation: Federation, order: dict[str, Any]) -> None:
        """The fourth message; its counts calibrate the leaves and compare the trees."""
        rules = {
            **self.rule_set_.get_params(deep=False),
            "expected_rows": self.merged_["expected_rows"],
        }
        ask = {**order, "tree": self.tree_.to_payload(), "rules": rules}
        try:
            told = federation.ask(receive_tree, ask).fold(Collect())
        except NotEnoughReplies:
            log.warning("no client answered the last message: the tree is not calibrated")
            told = {}
        if self.calibrate and told:
            seen = sum(reply["seen"] for reply in told.values())
            self.tree_ = calibrated(self.tree_, np.asarray(seen, dtype=np.float64))
        guess = self.tree_.value.argmax(axis=1)
        self.client_metrics_ = [
            {"client": client, **_compared(reply, guess)} for client, reply in told.items()
        ]

    # --- reading ---

    @property
    def rules_(self) -> list[dict[str, Any]]:
        """The merged rules as a table: condition, class, probability, support, expected rows."""
        self.check_fitted()
        return rule_rows(self.rule_set_, self.merged_["expected_rows"], self.schema_)

    def local_tree(self, client: int) -> Tree:
        """The tree that a client grew on its own rows."""
        self.check_fitted()
        found = np.flatnonzero(self.clients_ == client)
        if not len(found):
            raise UsageError(f"client {client} sent no tree")
        return self.local_trees_[int(found[0])]

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
        effect = plot_filter(scores, kept, self.threshold_, self.metric.replace("_", "-"))
        return [tree, (title, shown), importance, ("Filter", effect)]

    def for_prediction(self) -> Self:
        light = self.clone()
        light.set_state({key: self.get_state()[key] for key in ("schema_", "tree_")})
        light.history_ = []
        return light

    def _check_params(self) -> None:
        if self.kind not in ("cart", "id3"):
            raise UsageError.of(self, "kind", self.kind, "must be 'cart' or 'id3'")
        if self.on_overlap not in ("intersect", "relax"):
            raise UsageError.of(
                self, "on_overlap", self.on_overlap, "must be 'intersect' or 'relax'"
            )
        if self.metric not in METRICS:
            raise UsageError.of(self, "metric", self.metric, f"must be one of {', '.join(METRICS)}")
        for name in ("max_depth", "global_depth", "max_rules", "min_rows"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError.of(self, name, value, "must be at least 1")
        named = self.filter is None or callable(self.filter) or self.filter in ("mean", "median")
        if not named and not (isinstance(self.filter, int | float) and 0 <= self.filter <= 100):
            raise UsageError.of(
                self,
                "filter",
                self.filter,
                "must be 'mean', 'median', a percentile, a function or None",
            )
        check_classes(self, self.schema_)
        if self.kind == "id3":
            check_categorical(self, self.schema_)


def check_classes(learner: object, schema: Schema) -> None:
    """Refuse a target that is not classes."""
    if schema.target != "classes":
        raise DataError(
            f"{type(learner).__name__} predicts classes, the target is {schema.target}",
            hint="FedHistGBDT and FedForest predict numbers too",
        )


def check_categorical(learner: object, schema: Schema) -> None:
    """Refuse numeric columns."""
    numeric = [f.name for f in schema.features if f.kind != "categorical"]
    if numeric:
        raise DataError(
            f"ID3 needs categorical columns, {numeric[0]} is numeric",
            hint=f"so.Pipeline(so.FedBins(8), so.{type(learner).__name__}(…)) cuts it into bins",
        )


def category_sizes(schema: Schema) -> Ints:
    """Categories of every column."""
    return np.array([len(f.categories) for f in schema.features], dtype=np.int64)


def calibrated(tree: Tree, seen: Floats) -> Tree:
    """Leaves with the class shares of the rows seen there; the old shares count as one row.

    A node that rows can stop at, because a category has no branch, gets those of all rows below it.
    """
    below = seen.copy()
    parent, _ = tree.parents
    for node in range(len(tree) - 1, 0, -1):
        below[parent[node]] += below[node]
    parts = {**tree.get_params(deep=False), "value": shares(below + shares(tree.value))}
    return Tree(**parts)


def _compared(reply: dict[str, NDArray[Any]], guess: Ints) -> dict[str, Any]:
    """Metrics of the local and the global tree at one client."""
    judged, local = reply["judged"], reply["local"]
    classes = judged.shape[1]
    of_global = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(of_global.T, guess, judged)
    found: dict[str, Any] = {"rows": int(judged.sum())}
    for name, matrix in (("local", local), ("global", of_global)):
        if matrix.sum():
            metrics = metrics_of({"confusion": matrix})
            found.update({f"{name}_{metric}": metrics[metric] for metric in METRICS})
    return found


def filter_effect(
    learner: FederatedTree, federation: Federation, percentiles: Sequence[float]
) -> list[dict[str, float]]:
    """Mean metrics of the global tree at the clients by percentile (thesis Figure 2.3)."""
    found = []
    for percentile in percentiles:
        model = learner.clone().set_params(filter=float(percentile)).fit(federation)
        told = model.client_metrics_
        row = {"percentile": float(percentile), "trees": float(len(model.kept_))}
        for metric in METRICS:
            row[metric] = float(np.mean([client[f"global_{metric}"] for client in told]))
        found.append(row)
    return found

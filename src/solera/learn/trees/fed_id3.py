"""FedID3: one ID3 tree grown by all clients together, level by level."""

from __future__ import annotations

from typing import Annotated, Any, NotRequired, TypedDict

import numpy as np

from solera.core.aggregation import Sum
from solera.core.clients import Array, Client, FloatArray, IntArray
from solera.core.constraints import Count, Positive
from solera.core.disclosure.node_counts import NodeCells, NodeCounts
from solera.core.disclosure.noised import Noised
from solera.core.errors import Refusal, UsageError
from solera.core.federation import Federation
from solera.core.plan import Plan, planned
from solera.core.task import task
from solera.learn.trees.client_trees import rows_and_codes
from solera.learn.trees.id3 import category_sizes, cell_starts, codes_of, count_rows, grow
from solera.learn.trees.single_tree import SingleTree
from solera.learn.trees.tree import ClassTree, Tree
from solera.privacy.dp.mechanism import DP
from solera.privacy.dp.sums import (
    NoisedSums,
    SumNoise,
    add_noise,
    norm,
    planned_noise,
    spent_by_sums,
    sum_noise,
)
from solera.trust.declared import LONGEST, Classes, Shape


def _counts_like(ask: Any) -> dict[str, Any]:
    cells = int(cell_starts(ask["sizes"])[-1])
    return {"counts": np.zeros((len(ask["nodes"]), cells, len(ask["classes"])))}


class CountAtNodes(TypedDict):
    """What ``trees.count`` takes."""

    tree: ClassTree
    nodes: Annotated[IntArray, Shape("nodes", kind="i", least=0, most=LONGEST)]
    sizes: Annotated[IntArray, Shape("columns", kind="i", least=0, most=LONGEST)]
    width: Count
    classes: Annotated[Array, Classes()]
    privacy: NotRequired[SumNoise]


def _cells_of_rows(client: Client, ask: Any) -> NodeCells:
    X, labels = rows_and_codes(client, client.data.part("train"), ask)
    sizes = ask["sizes"]
    starts = cell_starts(sizes)
    tree = Tree.from_payload(ask["tree"], ask["width"], len(ask["classes"]))
    place = np.full(len(tree), -1)
    place[ask["nodes"]] = np.arange(len(ask["nodes"]))
    return NodeCells(place[tree.apply(X)], labels, codes_of(X, sizes) + starts[:-1], starts)


@task(
    "trees.count",
    version=2,
    like=_counts_like,
    ask=CountAtNodes,
    release=[Noised(NodeCounts("counts", cells=_cells_of_rows), spends=spent_by_sums)],
)
def count_at_nodes(client: Client, ask: Any) -> dict[str, Any]:
    """Rows by open node, category of every column and class; noised here where the ask says so.

    One row changes one count of every column by one: with Laplace noise of scale columns/ε a
    level's counts are ε-differentially private (Dwork et al. 2006).
    """
    X, labels = rows_and_codes(client, client.data.part("train"), ask)
    sizes, classes = ask["sizes"], len(ask["classes"])
    tree = Tree.from_payload(ask["tree"], ask["width"], classes)
    if (ask["nodes"] >= len(tree)).any():
        raise Refusal(f"the ask names nodes that its tree of {len(tree):,} nodes does not have")
    codes = codes_of(X, sizes)
    counts = count_rows(codes, labels, tree.apply(X), ask["nodes"], sizes, classes)
    if "privacy" not in ask:
        return {"counts": counts}
    most = norm(ask["privacy"], len(sizes))
    return add_noise(client, {"counts": counts}, {"counts": most}, ask["privacy"])


class FedID3(SingleTree):
    """ID3 on class counts summed over clients: the tree of the joined rows.

    One ask per level. The coordinator chooses every split from counts by node, category and class
    that are added up over clients (Truex et al. 2019). Without noise the tree is the one that ID3
    grows on all rows together. Columns must be categorical: :class:`FedBins` before it cuts
    numbers.

    Parameters
    ----------
    max_depth: by default half the columns.
    epsilon: None, or the privacy budget of every row over all levels together; clients add Laplace
        noise to their counts, an equal share of ε per level: short for
        ``dp=so.DP(epsilon=…, delta=0, level="record")``.
    dp: None, or :class:`so.DP <solera.privacy.dp.mechanism.DP>` with ``level="record"``.
    """

    tree_: Tree
    accounts_: dict[str, Any]

    def __init__(
        self,
        *,
        max_depth: Count | None = None,
        epsilon: Positive | None = None,
        dp: DP | None = None,
    ) -> None:
        self.max_depth = max_depth
        self.epsilon = epsilon
        self.dp = dp

    def check_params(self) -> None:
        super().check_params()
        if self.epsilon is not None and self.dp is not None:
            raise UsageError("FedID3 takes epsilon= or dp=, which is the same with more to say")

    @property
    def _dp(self) -> DP | None:
        if self.epsilon is None:
            return self.dp
        return DP(epsilon=self.epsilon, delta=0.0, level="record", where="local")

    def train(self, federation: Federation) -> None:
        self.check_target()
        order, dp = self._order(), self._dp
        noise = None
        if dp is not None:
            noise = NoisedSums(*sum_noise(self, dp, self._depth + 1, len(federation)))
        sizes = order["sizes"]
        level = 0

        def count(tree: Tree, nodes: IntArray) -> FloatArray:
            nonlocal level
            ask = {"tree": tree.to_payload(), "nodes": nodes, **order}
            if noise is None:
                total = federation.ask(count_at_nodes, ask, round=level).fold(Sum())
            else:
                total = noise.sum(federation, count_at_nodes, ask, round=level)
                self.accounts_ = noise.accounts
            level += 1
            return np.asarray(np.maximum(total["counts"], 0.0))

        self.tree_ = grow(count, sizes, len(self.schema_.classes), self._depth)

    @property
    def _depth(self) -> int:
        return max(1, self.schema_.width // 2) if self.max_depth is None else self.max_depth

    def _order(self) -> dict[str, Any]:
        """What clients are told at every level."""
        return {
            "sizes": category_sizes(self.schema_),
            "width": self.schema_.width,
            "classes": self.schema_.classes,
        }

    def training_asks(self) -> Plan:
        self.check_target()
        order, open_ = self._order(), list[str]()
        if self._dp is not None:
            order["privacy"], open_ = planned_noise(self._dp)
        return (planned(count_at_nodes, self._depth + 1, order, open=open_),)

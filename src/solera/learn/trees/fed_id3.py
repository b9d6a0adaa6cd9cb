"""FedID3: one ID3 tree grown by all clients together, level by level."""

from __future__ import annotations

from typing import Any

import numpy as np

from solera.core.aggregation import Sum
from solera.core.clients import Client, IntArray
from solera.core.constraints import Count, Positive
from solera.core.errors import DataError, Refusal, UsageError
from solera.core.federation import Federation
from solera.core.task import task
from solera.learn.trees.client_trees import columns_and_codes
from solera.learn.trees.id3 import (
    NodeCounts,
    category_sizes,
    cell_starts,
    cells_at_nodes,
    codes_of,
    grow,
)
from solera.learn.trees.single_tree import SingleTree
from solera.learn.trees.tree import Tree
from solera.privacy.dp.mechanism import DP
from solera.trust.constructors import count_by


def _counts_like(ask: Any) -> dict[str, Any]:
    cells = int(cell_starts(ask["sizes"])[-1])
    shape = len(ask["nodes"]), cells, len(ask["classes"])
    return {"counts": np.zeros(shape, dtype=np.int64)}


@task("trees.count", version=3, many=True, like=_counts_like)
def count_at_nodes(client: Client, ask: Any) -> dict[str, Any]:
    """Rows by open node, category of every column and class.

    One row is in one cell of every column: with Laplace noise of scale columns/ε a level's counts
    are ε-differentially private (Dwork et al. 2006).
    """
    X, labels = columns_and_codes(client.data.part("train"), ask)
    sizes, classes = ask["sizes"], len(ask["classes"])
    tree = Tree.from_payload(ask["tree"], ask["width"], classes)
    if (ask["nodes"] >= len(tree)).any():
        raise Refusal(f"the ask names nodes that its tree of {len(tree):,} nodes does not have")
    at = tree.apply(X)
    cells = cells_at_nodes(codes_of(X, sizes), labels, at, ask["nodes"], sizes, classes)
    return {"counts": count_by(cells)}


class FedID3(SingleTree):
    """ID3 on class counts summed over clients: the tree of the joined rows.

    One ask per level. The coordinator chooses every split from counts by node, category and class
    that are added up over clients (Truex et al. 2019). Without noise the tree is the one that ID3
    grows on all rows together. Columns must be categorical: :class:`FedBins` before it cuts
    numbers. Where clients withhold small counts, a node is split by a column of which every client
    tells all counts there, or stays a leaf; ``fit`` warns of it.

    Parameters
    ----------
    max_depth: by default half the columns.
    epsilon: None, or the privacy budget of every row over all levels together; clients add Laplace
        noise to their counts, an equal share of ε per level: short for
        ``dp=so.DP(epsilon=…, delta=0, level="record")``.
    dp: None, or :class:`so.DP <solera.privacy.dp.mechanism.DP>` with ``level="record"``.
    """

    tree_: Tree

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
    def privacy(self) -> DP | None:
        if self.epsilon is None:
            return self.dp
        return DP(epsilon=self.epsilon, delta=0.0, level="record", where="local")

    def why_not_closed(self) -> str | None:
        if self.privacy is None:
            return super().why_not_closed()
        return "max_depth= says how often it asks with noise" if self.max_depth is None else None

    def noised_asks(self) -> int:
        return self._depth + 1

    def train(self, federation: Federation) -> None:
        self.check_target()
        order = self._order()
        sizes = order["sizes"]
        level = 0

        def count(tree: Tree, nodes: IntArray) -> NodeCounts:
            nonlocal level
            ask = {"tree": tree.to_payload(), "nodes": nodes, **order}
            replies = federation.ask(count_at_nodes, ask, round=level)
            total = replies.fold(Sum())
            absent = replies.absent.get("counts")
            counts = NodeCounts.of(total["counts"], sizes, absent)
            if level == 0 and not counts.told.any():
                raise self._nothing_told(absent)
            level += 1
            return counts

        self.tree_ = grow(count, sizes, len(self.schema_.classes), self._depth)

    def _nothing_told(self, absent: Any) -> DataError:
        """Of every column clients withhold counts of all rows."""
        starts = cell_starts(category_sizes(self.schema_))[:-1]
        clients = np.maximum.reduceat(absent[0].max(axis=1), starts)
        columns = zip(self.schema_.features, clients.tolist(), strict=True)
        named = ", ".join(f"{column.name} (of {many:,})" for column, many in columns)
        return DataError(
            "FedID3: every column has categories with fewer persons than clients' min_count, and "
            f"so of no column all counts are told: {named}",
            hint="fewer categories, such as so.FedBins(3), or dp= with a budget of the owners",
        )

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

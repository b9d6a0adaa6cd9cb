"""FedID3: one ID3 tree grown by all clients together, level by level."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from solera.core.aggregation import Sum
from solera.core.clients import Client, FloatArray, IntArray
from solera.core.constraints import Count, Positive
from solera.core.errors import Refusal, UsageError
from solera.core.federation import Federation
from solera.core.schema import Feature
from solera.core.task import task
from solera.learn.closed import is_closed
from solera.learn.preprocess.atom_bins import category_atoms
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
from solera.trust.contributions import Supports

FEWEST = 4.0
"""In a closed job: fewest persons, with noise, of a category that gets a branch."""


def _counts_like(ask: Any) -> dict[str, Any]:
    cells = int(cell_starts(ask["sizes"])[-1])
    shape = len(ask["nodes"]), cells, len(ask["classes"])
    return {"counts": np.zeros(shape, dtype=np.int64)}


@task("trees.count", version=3, many=True, like=_counts_like)
def count_at_nodes(client: Client, ask: Any) -> dict[str, Any]:
    """Rows by open node, category of every column and class; of a closed job persons, with noise.

    One row is in one cell of every column: with Laplace noise of scale columns/ε a level's counts
    are ε-differentially private (Dwork et al. 2006).
    """
    X, labels = columns_and_codes(client.data.part("train"), ask)
    sizes, classes = ask["sizes"], len(ask["classes"])
    codes = codes_of(X, sizes)
    if "atoms" in ask:
        each = zip(ask["atoms"], codes.T, strict=True)
        codes = np.stack([first.take(column) for first, column in each], axis=1)
    tree = Tree.from_payload(ask["tree"], ask["width"], classes)
    if (ask["nodes"] >= len(tree)).any():
        raise Refusal(f"the ask names nodes that its tree of {len(tree):,} nodes does not have")
    at = tree.apply(X)
    cells = cells_at_nodes(codes, labels, at, ask["nodes"], sizes, classes)
    return {"counts": Supports(cells, None, "train") if "atoms" in ask else count_by(cells)}


class FedID3(SingleTree):
    """ID3 on class counts summed over clients: the tree of the joined rows.

    One ask per level. The coordinator chooses every split from counts by node, category and class
    that are added up over clients (Truex et al. 2019). Without noise the tree is the one that ID3
    grows on all rows together. Columns must be categorical: :class:`FedBins` before it cuts
    numbers.

    In a closed job persons are counted, with noise of deviation 1, the same for the same persons.
    Categories that are one atom of the epoch together have no branch, nor have those of few
    persons: their rows end at the node. Owners allow it with ``exact_training``.

    Parameters
    ----------
    max_depth: by default half the columns.
    epsilon: None, or the privacy budget of every row over all levels together; clients add Laplace
        noise to their counts, an equal share of ε per level: short for
        ``dp=so.DP(epsilon=…, delta=0, level="record")``.
    dp: None, or :class:`so.DP <solera.privacy.dp.mechanism.DP>` with ``level="record"``.
    """

    closed_job = None
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
        if self.privacy is not None and self.max_depth is None:
            return "max_depth= says how often it asks with noise"
        return super().why_not_closed()

    @property
    def cuts_at_atoms(self) -> bool:
        return self.privacy is None

    @property
    def needs_exact_training(self) -> bool:
        return self.privacy is None

    def noised_asks(self) -> int:
        return self._depth + 1

    def train(self, federation: Federation) -> None:
        self.check_target()
        order = self._order()
        if is_closed(federation) and self.privacy is None:
            order["atoms"] = [self._first_codes(federation, f) for f in self.schema_.features]
        level = 0

        def count(tree: Tree, nodes: IntArray) -> NodeCounts:
            nonlocal level
            if "atoms" in order and level == self._depth:
                return NodeCounts.of(_counts_like({**order, "nodes": nodes})["counts"])
            ask = {"tree": tree.to_payload(), "nodes": nodes, **order}
            counts = federation.ask(count_at_nodes, ask, round=level).fold(Sum())["counts"]
            level += 1
            if "atoms" in order:
                return self._branches(counts, order["atoms"])
            return NodeCounts.of(counts)

        self.tree_ = grow(count, order["sizes"], len(self.schema_.classes), self._depth)

    @staticmethod
    def _first_codes(federation: Federation, feature: Feature) -> IntArray:
        """For every category the first one of its atom; the last number is that of a gap."""
        groups = category_atoms(federation, feature)
        first = [int(np.argmax(groups == group)) for group in groups]
        return np.array([*first, len(groups)])

    @staticmethod
    def _branches(counts: FloatArray, atoms: Sequence[IntArray]) -> NodeCounts:
        """Counts that choose splits: no branch for atoms of several categories."""
        sizes = np.array([len(first) - 1 for first in atoms])
        told = NodeCounts.in_agreement(counts, sizes, FEWEST)
        alone = [np.bincount(first, minlength=len(first)) == 1 for first in atoms]
        return NodeCounts(told.rows, told.branching & np.concatenate(alone))

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

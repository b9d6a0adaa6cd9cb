"""Growing a tree from sums by candidate, some of which belong to others and are mere numbers.

It splits by the same gains as :class:`solera.learn.trees.boosting.level_growth.GrowingTree`, and
takes the same split of several that are as good: candidates are ordered as the columns of all
parties side by side would be, up to the order in which a party numbered its own, and the party
says which of its tied ones comes first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from solera.core.clients import FloatArray, IntArray
from solera.learn.trees.boosting.histograms import Units
from solera.learn.trees.boosting.level_growth import GrowingTree, Limits
from solera.learn.trees.tree import Tree
from solera.privacy.additive.ckks import EXACT_BITS


def units_of(rows: int, bound: float, *, counted: bool) -> Units:
    """Units in which the sums over all rows stay below 2^44, where every cipher is exact.

    Hessians are at most ¼; they and the row's one share a number where 12 bits remain for them.
    """
    bits = int(rows).bit_length()
    largest = int(np.frexp(bound)[1])
    packed = not counted and EXACT_BITS + 2 - 2 * bits >= 12
    hessian = min(30, EXACT_BITS + 2 - 2 * bits) if packed else EXACT_BITS - bits
    return Units(EXACT_BITS - 1 - bits - largest, 0 if counted else hessian, bits, packed, counted)


class CandidateTree(GrowingTree):
    """One tree of a round, split by candidates.

    Sums are nodes × (candidates + 1) × k, the last of each node over all its rows.
    """

    def __init__(self, units: Units, limits: Limits) -> None:
        self._begin(units, limits)
        self._chosen: dict[int, int] = {}

    def best(self, sums: IntArray) -> dict[int, IntArray]:
        """For every open node that gains by a split, the candidates that gain most."""
        nodes, hist = self._open_nodes(), self._all_histograms(sums)
        wholes = np.stack(self.units.unpacked(self._totals(hist).T))
        _, gains = self._gains(hist, wholes)
        most = gains.max(axis=1, initial=-np.inf)
        gained = most - self._weight(*wholes[:2].astype(np.float64))
        return {
            int(nodes[i]): np.flatnonzero(gains[i] == most[i]) for i in np.flatnonzero(gained > 0)
        }

    def grow_by(self, sums: IntArray, chosen: Mapping[int, int]) -> None:
        """Split nodes by these candidates, of those that :meth:`best` named."""
        self._chosen = dict(chosen)
        self.grow(sums)

    def _totals(self, hist: IntArray) -> IntArray:
        return np.asarray(hist[:, -1])

    def _gains(self, hist: IntArray, wholes: IntArray) -> tuple[Sequence[IntArray], FloatArray]:
        """Σg, Σh and rows to the left of every candidate, and what both sides weigh."""
        left = self.units.unpacked(hist[:, :-1].transpose(2, 0, 1))
        return left, self._gain(left, wholes)

    def _best(
        self, hist: IntArray, totals: IntArray, wholes: IntArray
    ) -> tuple[IntArray, IntArray, IntArray]:
        left, _ = self._gains(hist, wholes)
        nodes = self._open_nodes()
        divided = np.array(
            [i for i, node in enumerate(nodes.tolist()) if node in self._chosen], dtype=np.int64
        )
        candidate = np.array([self._chosen[n] for n in nodes[divided].tolist()], dtype=np.int64)
        sides = np.stack([part[divided, candidate] for part in left])
        unused = np.zeros_like(candidate)
        splits = np.stack([candidate, unused, unused])
        return divided, splits, sides

    def _threshold(self, column: int, cell: int) -> float:
        return 0.0

    # --- between asks ---

    def to_payload(self) -> dict[str, Any]:
        return {
            "units": list(self.units),
            "limits": list(self.limits),
            "tree": self.builder.build().to_payload(),
            "wanted": self.wanted,
            "siblings": self._siblings,
            "small": self._small,
            "hist": self._hist,
            "parents": self._parents,
        }

    @classmethod
    def from_payload(cls, payload: Mapping[str, Any]) -> CandidateTree:
        tree = cls(Units(*payload["units"]), Limits(*payload["limits"]))
        tree.builder = tree.builder.of(Tree(**payload["tree"]))
        tree.wanted, tree._siblings = payload["wanted"], payload["siblings"]
        tree._small, tree._hist = payload["small"], payload["hist"]
        tree._parents = payload["parents"]
        return tree


class Layout:
    """Where the candidates of each party stand: first all with missing values to the right."""

    def __init__(self, layout: Any) -> None:
        self.blocks: list[tuple[int, int, int]] = []
        """Party, number of its first candidate here, and how many."""
        self.blocks += [(party, 0, right) for party, right, _ in layout]
        self.blocks += [(party, right, left) for party, right, left in layout]
        self.ends = np.cumsum([count for _, _, count in self.blocks])

    def joined(self, sums: dict[int, IntArray]) -> IntArray:
        """Sums of all candidates: nodes × candidates × k."""
        return np.concatenate(
            [sums[party][:, first : first + count] for party, first, count in self.blocks], axis=1
        )

    def first(self, tied: IntArray) -> tuple[int, IntArray]:
        """The first party, and its tied candidates there, by its own numbers."""
        block = int(np.searchsorted(self.ends, tied[0], side="right"))
        party, first, count = self.blocks[block]
        start = int(self.ends[block]) - count
        return party, tied[tied < self.ends[block]] - start + first

    def places(self, party: int, numbers: IntArray) -> IntArray:
        """Where candidates of a party stand."""
        found = np.empty(len(numbers), dtype=np.int64)
        for (owner, first, count), end in zip(self.blocks, self.ends, strict=True):
            here = (owner == party) & (numbers >= first) & (numbers < first + count)
            found[here] = numbers[here] - first + int(end) - count
        return found

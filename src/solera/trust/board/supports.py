"""What of one contribution is told, by the persons that all owners have behind its cells.

Sums of a cell are exact where its support passes, and absent elsewhere. Counts are exact where
every cell passes; otherwise each is told with the noise of its support, unless persons have several
rows. Cells that are :class:`~solera.trust.merging.Neighbours` are merged until they pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from solera.core.clients import BoolArray, FloatArray, IntArray
from solera.trust.board.cell_keys import keyed_sums, shares
from solera.trust.cells import Behind, OneCell
from solera.trust.contributions import Contribution, Counts, Joint, Sums
from solera.trust.merging import Neighbours, least_support, withheld


@dataclass(frozen=True)
class Told:
    """An owner's numbers as they are added up, what of them is absent, and whether with noise."""

    numbers: Any
    absent: IntArray
    noised: int


@dataclass(frozen=True)
class Support:
    """A contribution and the owner's share of its support.

    ``several``: some person has several rows in the part.
    """

    leaf: Counts | Sums
    share: FloatArray
    several: bool

    def told(self, numbers: Any, support: FloatArray, min_count: int) -> Told:
        """What is told of the own numbers, for the support over all owners."""
        cells = self.leaf.cells
        if isinstance(cells, Neighbours):
            ends = cells.told(support, min_count)
            numbers = cells.gathered(np.asarray(numbers), ends)
            return _without(numbers, ~ends)
        few = np.asarray(support < least_support(min_count))
        if isinstance(self.leaf, Sums) or isinstance(cells, OneCell):
            return _without(np.asarray(numbers), self._withheld(support, few, min_count))
        if not few.any():
            return _without(numbers, np.zeros_like(few))
        if self.several:
            return _without(numbers, np.ones_like(few))
        return Told(self.share, np.zeros(few.shape, dtype=np.int64), 1)

    def _withheld(self, support: FloatArray, few: BoolArray, min_count: int) -> BoolArray:
        cells = self.leaf.cells
        if isinstance(cells, OneCell) or support.shape != cells.shape:
            return few  # entries of where=
        if cells.most == 1:
            return withheld(support, min_count)
        if support.ndim == 1:
            return few
        lists = support.reshape(-1, support.shape[-1])
        return np.stack([withheld(one, min_count) for one in lists]).reshape(support.shape)


def is_of_some_rows(leaf: Contribution) -> bool:
    """Whether its numbers are of some rows, so that their persons have to be counted."""
    if isinstance(leaf, Joint):
        return any(map(is_of_some_rows, leaf.sums))
    if not isinstance(leaf, Counts | Sums):
        return False
    where = leaf.where is not None if isinstance(leaf, Sums) else False
    return where or leaf.rows is not None or not isinstance(leaf.cells, OneCell)


def support_of(
    leaf: Contribution, behind: Behind, keys: IntArray, several: bool, secret: bytes, owners: int
) -> Any:
    """The support of a contribution, of a :class:`Joint` one after the other."""
    if isinstance(leaf, Joint):
        return [support_of(one, behind, keys, several, secret, owners) for one in leaf.sums]
    assert isinstance(leaf, Counts | Sums)
    keys = keys if leaf.rows is None else keys[leaf.rows]
    return Support(leaf, shares(secret, keyed_sums(leaf, behind, keys), owners), several)


def _without(numbers: Any, absent: BoolArray) -> Told:
    """The numbers, 0 where they are absent; marks of cells are those of all their numbers."""
    numbers = np.asarray(numbers)
    marks = absent.reshape(absent.shape + (1,) * (numbers.ndim - absent.ndim))
    marks = np.broadcast_to(marks, numbers.shape)
    kept = np.where(marks, np.zeros((), numbers.dtype), numbers)
    return Told(kept[()], marks.astype(np.int64), 0)

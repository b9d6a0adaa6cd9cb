"""A party's own candidate splits: where its columns may be cut, in an order only it knows.

A candidate is a column, the last bin that goes left, and whether missing values go left. A party
numbers its candidates: first those with missing values to the right, in a random order, then the
others, in a random order as well. The label owner hears sums by number and answers with numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solera.core.clients import BoolArray, IntArray, Rows
from solera.core.component import build_fitted, describe_fitted
from solera.core.errors import DataError
from solera.core.schema import Schema
from solera.data.federated import FederatedData
from solera.learn.trees.binned_rows import Cells
from solera.learn.trees.boosting.histograms import HistBins
from solera.learn.trees.boosting.level_growth import threshold_of
from solera.simulate.simulation import simulate


@dataclass(frozen=True)
class Candidates:
    """All candidates of a party, by their numbers; the first ``right`` send missing values right.

    ``column``, ``bin`` and ``missing_left`` say what each is.
    """

    bins: HistBins
    column: IntArray
    bin: IntArray
    missing_left: BoolArray
    right: int

    def __len__(self) -> int:
        return len(self.column)

    @classmethod
    def of(cls, rows: Rows, schema: Schema, bins: int, shuffle: Any) -> Candidates:
        """Bins at quantiles of these rows, and all cuts between them, ``shuffle``\\ d."""
        if not schema.width:
            raise DataError("this party holds no column")
        offsets = np.array([0, len(rows)], dtype=np.int64)
        columns = Schema(schema.features, "none")
        fitted = HistBins(bins).fit(
            simulate(FederatedData(rows.X, None, offsets, schema=columns)), progress=False
        )
        cells = fitted.transform(rows.X)
        right, left = [], []
        for j, edges in enumerate(fitted.edges_):
            gaps = bool((cells[:, j] == fitted.starts_[j + 1] - 1).any())
            right += [(j, b, False) for b in range(len(edges) + gaps)]
            left += [(j, b, True) for b in range(len(edges))] if gaps else []
        order = [*shuffle(len(right)), *(len(right) + shuffle(len(left)))]
        listed = np.array([*right, *left], dtype=np.int64).reshape(-1, 3)[order]
        column, bin, missing_left = listed.T
        return cls(fitted, column, bin, missing_left.astype(bool), len(right))

    def to_payload(self) -> dict[str, Any]:
        arrays = {"column": self.column, "bin": self.bin, "missing_left": self.missing_left}
        return {"bins": describe_fitted(self.bins), **arrays, "right": self.right}

    @classmethod
    def from_payload(cls, payload: Mapping[str, Any]) -> Candidates:
        return cls(**{**payload, "bins": build_fitted(payload["bins"])})

    def cells(self, X: Any) -> Cells:
        return self.bins.transform(X)

    def left(self, cells: Cells, candidate: int) -> BoolArray:
        """Which rows a candidate sends left."""
        return self.goes_left(
            cells,
            int(self.column[candidate]),
            int(self.bin[candidate]),
            bool(self.missing_left[candidate]),
        )

    def goes_left(self, cells: Cells, column: int, bin: int, missing_left: bool) -> BoolArray:
        starts = self.bins.starts_
        own = cells[:, column]
        missing = own == starts[column + 1] - 1
        return np.where(missing, missing_left, own <= starts[column] + bin)

    def matrix(self, cells: Cells) -> NDArray[np.int8]:
        """Which rows each candidate sends left: rows × candidates."""
        found = np.empty((len(cells), len(self)), dtype=np.int8)
        for candidate in range(len(self)):
            found[:, candidate] = self.left(cells, candidate)
        return found

    def sums(self, hist: IntArray) -> IntArray:
        """Sums to the left of every candidate, from those by cell: nodes × candidates × k."""
        starts = self.bins.starts_
        first = starts[self.column]
        running = np.concatenate([np.zeros_like(hist[:, :1]), hist.cumsum(axis=1)], axis=1)
        known = running[:, first + self.bin + 1] - running[:, first]
        missing = hist[:, starts[self.column + 1] - 1]
        return np.asarray(known + missing * self.missing_left[:, None])

    def first_of(self, numbers: Any) -> int:
        """Of candidates that are as good as each other, the one of the lowest column and bin."""
        return int(min(numbers, key=lambda c: (int(self.column[c]), int(self.bin[c]))))

    def threshold(self, column: int, bin: int) -> float:
        return threshold_of(self.bins.edges_[column], bin)

"""What a task returns: which rows gave what to which number.

A task never says the same thing twice. From a contribution follow the numbers (:meth:`numbers`, for
one client or several at once), how far one row can move them (:meth:`sensitivity`) and rows bounded
for noise (:meth:`bounded`).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike

from solera.core.clients import BoolArray, FloatArray, IntArray, Part
from solera.core.errors import UsageError
from solera.trust.cells import Behind, Cells, OneCell, sum_rows

Kind = Literal["facts", "cells", "gram", "update"]
Norm = Literal["l1", "l2"]
Bound = float | Sequence[float] | FloatArray | None


class Contribution:
    """Numbers of a reply, and the rows that gave them.

    ``rows``: which of the part's rows these are, where not all; a row may come several times.
    """

    kind: ClassVar[Kind] = "cells"
    about_rows: ClassVar[bool] = True

    def __init__(self, rows: IntArray | None, part: Part) -> None:
        self.rows = None if rows is None else np.asarray(rows, dtype=np.int64)
        self.part: Part = part

    @abstractmethod
    def numbers(self, behind: Behind) -> Any:
        """An array, or a tree of arrays; the clients' axis first where there are several."""

    @abstractmethod
    def sensitivity(self, norm: Norm, clip: float | None) -> float:
        """How far one row more or less moves the numbers, once rows are :meth:`bounded`."""

    def bounded(self, clip: float | None) -> Self:
        """The same with rows scaled to their bounds; those that are not finite give nothing."""
        return self

    def unjudged(self, behind: Behind) -> Any:
        """The numbers as they are sent where no policy judges them."""
        return self.numbers(behind)

    @property
    def repeats_rows(self) -> bool:
        """Whether a row may give more than once, so that no bound of a row holds."""
        return self.rows is not None and len(np.unique(self.rows)) < len(self.rows)


class Fact(Contribution):
    """A value that is the same whatever the rows are."""

    kind = "facts"
    about_rows = False

    def __init__(self, value: Any) -> None:
        super().__init__(None, "train")
        self.value = value

    def numbers(self, behind: Behind) -> Any:
        return self.value

    def sensitivity(self, norm: Norm, clip: float | None) -> float:
        return 0.0


class Counts(Contribution):
    """How many rows are in each cell."""

    def __init__(self, cells: Cells, rows: IntArray | None, part: Part) -> None:
        super().__init__(rows, part)
        self.cells = cells

    def numbers(self, behind: Behind) -> Any:
        if isinstance(self.cells, OneCell) and behind.owners is None:
            return behind.rows
        return self.cells.count(behind)

    def sensitivity(self, norm: Norm, clip: float | None) -> float:
        return float(self.cells.most if norm == "l1" else math.sqrt(self.cells.most))


class Supports(Counts):
    """The persons in each cell, with the noise that follows from who they are."""


class Sums(Contribution):
    """Sums of what rows gave, over the rows of each cell."""

    def __init__(
        self,
        cells: Cells,
        values: Any,
        where: BoolArray | None,
        bound: Bound,
        rows: IntArray | None,
        part: Part,
    ) -> None:
        super().__init__(rows, part)
        self.cells = cells
        self.values = values
        self.where = where
        self.bound = bound

    def numbers(self, behind: Behind) -> Any:
        values = self.values
        if self.where is not None:
            values = np.where(self.where, values, 0)
        if isinstance(self.cells, OneCell) and not hasattr(values, "tocsr"):
            return sum_rows(values, behind)
        return self.cells.sum(values, behind)

    def sensitivity(self, norm: Norm, clip: float | None) -> float:
        numbers = math.prod(self.values.shape[1:])
        return _moved(own_bound(self.bound, clip), numbers, self.cells.most, norm)

    def bounded(self, clip: float | None) -> Self:
        values = self.values.toarray() if hasattr(self.values, "tocsr") else self.values
        if self.where is not None:
            values = np.where(self.where, values, 0)
        bounded = bound_rows(values, own_bound(self.bound, clip))
        return type(self)(self.cells, bounded, None, self.bound, self.rows, self.part)


class Update(Contribution):
    """What rows gave not by addition: parameters after steps, and what is sent with them."""

    kind = "update"

    def __init__(
        self,
        tree: Any,
        bound: float | None,
        rows: IntArray | None,
        part: Part,
        solves: int | None = None,
    ) -> None:
        super().__init__(rows, part)
        self.tree = tree
        self.bound = bound
        self.solves = solves

    @property
    def parameters(self) -> int:
        """How many numbers these are."""
        return sum(int(np.size(leaf)) for leaf in _leaves(_map(_plain, self.tree)))

    def numbers(self, behind: Behind) -> Any:
        return _map(_plain, self.tree)

    def sensitivity(self, norm: Norm, clip: float | None) -> float:
        """One row may turn an update round, from one end of the ball of its bound to the other."""
        radius = float(np.max(own_bound(self.bound, clip)))
        return 2 * _moved(radius, self.parameters, 1, norm)

    def bounded(self, clip: float | None) -> Self:
        most = float(np.max(own_bound(self.bound, clip)))
        tree = _map(_plain, self.tree)
        leaves = list(_leaves(tree))
        length = math.sqrt(sum(float(np.square(leaf, dtype=np.float64).sum()) for leaf in leaves))
        scale = min(1.0, most / max(length, 1e-300)) if math.isfinite(length) else 0.0
        scaled = _map(lambda leaf: np.nan_to_num(leaf) * scale if scale < 1 else leaf, tree)
        return type(self)(scaled, self.bound, self.rows, self.part, self.solves)


class Joint(Contribution):
    """Several sums to which a row gives once, with one bound of all together."""

    def __init__(self, sums: Sequence[Sums], bound: Bound) -> None:
        super().__init__(sums[0].rows, sums[0].part)
        self.sums = list(sums)
        self.bound = bound

    def numbers(self, behind: Behind) -> list[Any]:
        return [one.numbers(behind) for one in self.sums]

    def sensitivity(self, norm: Norm, clip: float | None) -> float:
        numbers = sum(math.prod(one.values.shape[1:]) for one in self.sums)
        most = max(one.cells.most for one in self.sums)
        return _moved(own_bound(self.bound, clip), numbers, most, norm)

    def bounded(self, clip: float | None) -> Self:
        """A bound per column is one of the lengths of the sums' columns, taken together."""
        bound = np.atleast_1d(np.asarray(own_bound(self.bound, clip), dtype=np.float64))
        finite = [one.bounded(math.inf) for one in self.sums]
        columns = [_flat(one.values) for one in finite]
        if len(bound) == 1:
            columns = [np.linalg.norm(one, axis=1, keepdims=True) for one in columns]
        lengths = np.sqrt(sum(np.square(one) for one in columns))
        scale = np.minimum(1.0, bound / np.maximum(lengths, 1e-300))
        sums = [
            Sums(one.cells, _times(one.values, scale), None, None, one.rows, one.part)
            for one in finite
        ]
        return type(self)(sums, self.bound)


def bound_rows(values: Any, bound: Any) -> FloatArray:
    """Rows no longer than ``bound``, or no larger than it in every column; 0 if not finite."""
    values = np.asarray(values, dtype=np.float64)
    flat = values.reshape(len(values), math.prod(values.shape[1:]))
    flat = np.where(np.isfinite(flat).all(axis=1, keepdims=True), flat, 0.0)
    if np.ndim(bound) == 0:
        lengths = np.sqrt((flat**2).sum(axis=1, keepdims=True))
        flat = flat * np.minimum(1.0, float(np.max(bound)) / np.maximum(lengths, 1e-300))
    else:
        most = np.asarray(bound, dtype=np.float64)
        flat = np.clip(flat, -most, most)
    return np.asarray(flat.reshape(values.shape))


def entries_of(reply: Any) -> Iterator[tuple[str, Contribution | Any]]:
    """Every leaf of a reply with its entry, ``"a.b"`` for nested tables; "" is all of it."""
    if isinstance(reply, Mapping):
        for key, value in reply.items():
            for inner, leaf in entries_of(value):
                yield (f"{key}.{inner}" if inner else str(key)), leaf
    else:
        yield "", reply


def own_bound(bound: Bound, clip: float | None) -> Any:
    if bound is not None:
        return bound
    if clip is None:
        raise UsageError(
            "dp= needs bound=: how far a row can move this sum is not known",
            hint="so.sum_by(…, bound=1.0), or clip= in so.DP",
        )
    return clip


def _moved(bound: Any, numbers: int, cells: int, norm: Norm) -> float:
    """How far a row moves sums, which gives ``numbers`` within its bounds to so many cells."""
    bounds = np.atleast_1d(np.asarray(bound, dtype=np.float64))
    if norm == "l2":
        return float(np.linalg.norm(bounds)) * math.sqrt(cells)
    of_each = math.sqrt(numbers / len(bounds))  # |v|₁ ≤ √n |v|₂ of the n numbers under one bound
    return float(bounds.sum()) * of_each * cells


def _times(values: FloatArray, scale: FloatArray) -> FloatArray:
    """Rows times a number each, or one for every column."""
    return np.asarray((_flat(values) * scale).reshape(values.shape))


def _flat(values: FloatArray) -> FloatArray:
    return values.reshape(len(values), math.prod(values.shape[1:]))


def filled(X: Any) -> Any:
    return X.toarray() if hasattr(X, "tocsr") else np.asarray(X)


def _plain(leaf: ArrayLike) -> Any:
    return leaf if isinstance(leaf, np.ndarray | np.generic | float | int) else np.asarray(leaf)


def _map(function: Any, tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {key: _map(function, value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_map(function, value) for value in tree]
    return function(tree)


def _leaves(tree: Any) -> Iterator[Any]:
    if isinstance(tree, Mapping):
        for value in tree.values():
            yield from _leaves(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from _leaves(value)
    else:
        yield tree

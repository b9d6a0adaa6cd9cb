"""What a task returns: which rows gave what to which number.

A task never says the same thing twice. From a contribution follow the numbers (:meth:`numbers`, for
one client or several at once), the persons behind each of them (:meth:`persons`), how far one row
can move them (:meth:`sensitivity`) and rows bounded for noise (:meth:`bounded`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike

from solera.core.clients import Array, BoolArray, FloatArray, IntArray, Part
from solera.core.errors import UsageError
from solera.trust.cells import Behind, Cells, OneCell, as_cells, count_distinct, sum_rows

Kind = Literal["facts", "cells", "gram", "update"]
Norm = Literal["l1", "l2"]
Bound = float | Sequence[float] | FloatArray | None


class Contribution(ABC):
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
    def persons(self, behind: Behind) -> Any:
        """The persons behind every number, in the form of the numbers of one client."""

    @abstractmethod
    def sensitivity(self, norm: Norm, clip: float | None) -> float:
        """How far one row more or less moves the numbers, once rows are :meth:`bounded`."""

    def bounded(self, clip: float | None) -> Self:
        """The same with rows scaled to their bounds; those that are not finite give nothing."""
        return self

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

    def persons(self, behind: Behind) -> Any:
        return None

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

    def persons(self, behind: Behind) -> IntArray:
        return self.cells.persons(behind)

    def sensitivity(self, norm: Norm, clip: float | None) -> float:
        return float(self.cells.most if norm == "l1" else math.sqrt(self.cells.most))


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

    def persons(self, behind: Behind) -> IntArray:
        tail = self.values.shape[1:]
        if self.where is None:
            persons = self.cells.persons(behind)
            return np.broadcast_to(
                persons.reshape(persons.shape + (1,) * len(tail)), persons.shape + tail
            )
        where = np.broadcast_to(self.where, self.values.shape)
        where = where.reshape(behind.rows, math.prod(tail))
        by_entry = [_persons_of(self.cells, chosen, behind) for chosen in where.T]
        return np.stack(by_entry, axis=-1).reshape(self.cells.shape + tail)

    def sensitivity(self, norm: Norm, clip: float | None) -> float:
        numbers = math.prod(self.values.shape[1:])
        return _moved(_bound(self.bound, clip), numbers, self.cells.most, norm)

    def bounded(self, clip: float | None) -> Self:
        values = self.values.toarray() if hasattr(self.values, "tocsr") else self.values
        if self.where is not None:
            values = np.where(self.where, values, 0)
        bounded = bound_rows(values, _bound(self.bound, clip))
        return type(self)(self.cells, bounded, None, self.bound, self.rows, self.part)


class Gram(Contribution):
    """Xᵀ diag(w) Y for every weight and cell; of XᵀwX the upper triangle, row by row."""

    kind = "gram"

    def __init__(
        self,
        X: Any,
        Y: Any,
        weights: Array | None,
        cells: Cells | None,
        bound: tuple[float, float] | None,
        rows: IntArray | None,
        part: Part,
    ) -> None:
        super().__init__(rows, part)
        self.X = X
        self.Y = Y
        self.weights = weights
        self.cells = cells
        self.bound = bound

    def numbers(self, behind: Behind) -> Any:
        if behind.owners is None and self.cells is None:
            return self._of(slice(None))
        places: Any = (
            np.zeros(behind.rows, dtype=np.int64) if behind.owners is None else (behind.owners)
        )
        row: Any = slice(None)
        shape: tuple[int, ...] = () if behind.owners is None else (behind.clients,)
        if self.cells is not None:
            row, cell = self.cells.pairs(behind.rows)
            places = places[row] * self.cells.size + cell
            shape += self.cells.shape
        order = np.argsort(places, kind="stable")
        ends = np.cumsum(np.bincount(places, minlength=math.prod(shape)))
        rows = np.arange(behind.rows)[row][order]
        blocks = [self._of(chosen) for chosen in np.split(rows, ends[:-1])]
        return np.stack(blocks).reshape(shape + blocks[0].shape)

    def _of(self, rows: Any) -> FloatArray:
        """The matrices of some rows."""
        X, Y = self.X[rows], None if self.Y is None else self.Y[rows]
        weights = None if self.weights is None else self.weights[rows]
        if weights is None or weights.ndim == 1:
            return _product(X, Y, weights)
        return np.stack([_product(X, Y, column) for column in weights.T])

    def persons(self, behind: Behind) -> IntArray:
        """The persons with a weight other than 0, for each matrix as a whole."""
        weights = self.weights
        marks = np.ones((behind.rows, 1), dtype=bool) if weights is None else weights != 0
        marks = marks[:, None] if marks.ndim == 1 else marks
        cells = self.cells or OneCell()
        persons = [_persons_of(cells, chosen, behind) for chosen in marks.T]
        stacked = np.stack(persons, axis=-1)
        return stacked if weights is not None and weights.ndim == 2 else stacked[..., 0]

    def sensitivity(self, norm: Norm, clip: float | None) -> float:
        of_x, of_rest = _gram_bounds(self.bound, clip)
        return of_x * of_rest * (of_x if self.Y is None else 1.0)

    def bounded(self, clip: float | None) -> Self:
        of_x, of_rest = _gram_bounds(self.bound, clip)
        X = bound_rows(_filled(self.X), of_x)
        Y = self.Y if self.Y is None else bound_rows(_filled(self.Y), of_rest)
        weights = self.weights
        if self.Y is None and weights is not None:
            weights = bound_rows(weights, of_rest)
        return type(self)(X, Y, weights, self.cells, self.bound, self.rows, self.part)


class Update(Contribution):
    """What rows gave not by addition: parameters after steps, and what is sent with them."""

    kind = "update"

    def __init__(self, tree: Any, bound: float | None, rows: IntArray | None, part: Part) -> None:
        super().__init__(rows, part)
        self.tree = tree
        self.bound = bound

    @property
    def parameters(self) -> int:
        """How many numbers these are."""
        return sum(int(np.size(leaf)) for leaf in _leaves(_map(_plain, self.tree)))

    def numbers(self, behind: Behind) -> Any:
        return _map(_plain, self.tree)

    def persons(self, behind: Behind) -> int:
        return behind.count_persons()

    def sensitivity(self, norm: Norm, clip: float | None) -> float:
        """One row may turn an update round, from one end of the ball of its bound to the other."""
        return 2 * float(np.max(_bound(self.bound, clip)))

    def bounded(self, clip: float | None) -> Self:
        most = float(np.max(_bound(self.bound, clip)))
        tree = _map(_plain, self.tree)
        leaves = list(_leaves(tree))
        length = math.sqrt(sum(float(np.square(leaf, dtype=np.float64).sum()) for leaf in leaves))
        scale = min(1.0, most / max(length, 1e-300)) if math.isfinite(length) else 0.0
        scaled = _map(lambda leaf: np.nan_to_num(leaf) * scale if scale < 1 else leaf, tree)
        return type(self)(scaled, self.bound, self.rows, self.part)


class Joint(Contribution):
    """Several sums to which a row gives once, with one bound of all together."""

    def __init__(self, sums: Sequence[Sums], bound: Bound) -> None:
        super().__init__(sums[0].rows, sums[0].part)
        self.sums = list(sums)
        self.bound = bound

    def numbers(self, behind: Behind) -> list[Any]:
        return [one.numbers(behind) for one in self.sums]

    def persons(self, behind: Behind) -> list[IntArray]:
        return [one.persons(behind) for one in self.sums]

    def sensitivity(self, norm: Norm, clip: float | None) -> float:
        numbers = sum(math.prod(one.values.shape[1:]) for one in self.sums)
        most = max(one.cells.most for one in self.sums)
        return _moved(_bound(self.bound, clip), numbers, most, norm)

    def bounded(self, clip: float | None) -> Self:
        """A bound per column is one of the lengths of the sums' columns, taken together."""
        bound = np.atleast_1d(np.asarray(_bound(self.bound, clip), dtype=np.float64))
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


def count_by(
    cell: Any,
    cells: int | Sequence[int] | None = None,
    *,
    rows: IntArray | None = None,
    part: Part = "train",
) -> Counts:
    """How many rows are in each cell.

    Parameters
    ----------
    cell: for every row the number of its cell, or of several (rows × numbers), −1 for none; marks,
        one column a cell; :func:`intervals`; a tuple of axes that broadcast; None: one cell.
    cells: how many there are, or the shape of a table where ``cell`` is a tuple.
    rows: the numbers of the rows these are; all of the part by default.
    part: which rows: "train", "validation" or "test".

    >>> kind = np.array([0, 2, 2, -1])
    >>> count_by(kind, cells=3).numbers(Behind(4)).tolist()
    [1, 0, 2]
    """
    return Counts(as_cells(cell, cells), rows, part)


def sum_by(
    cell: Any,
    values: Any,
    cells: Any = None,
    *,
    where: Any = None,
    bound: Bound = None,
    rows: IntArray | None = None,
    part: Part = "train",
) -> Sums | Joint:
    """Sums of ``values``, rows × …, over the rows of each cell.

    Parameters
    ----------
    cell, cells, rows, part: as for :func:`count_by`. Lists of cells and of values are one
        contribution with one bound of all together.
    where: the entries of ``values`` that give anything; all by default.
    bound: the longest that a row's values may be, or the largest of every column; with noise
        longer ones are scaled down. By default the ``clip`` of the learner's ``dp=``.

    >>> cluster = np.array([0, 1, 1])
    >>> sum_by(cluster, np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), 2).numbers(Behind(3))
    array([[ 1.,  2.],
           [ 8., 10.]])
    """
    if not isinstance(values, list):
        made = as_cells(cell, cells)
        values = values if hasattr(values, "tocsr") else np.asarray(values)
        return Sums(made, values, where, bound, rows, part)
    numbers = cells if isinstance(cells, list) else [cells] * len(values)
    given = where if isinstance(where, list) else [where] * len(values)
    sums = [
        Sums(as_cells(c, k), np.asarray(v), w, None, rows, part)
        for c, v, k, w in zip(cell, values, numbers, given, strict=True)
    ]
    return Joint(sums, bound)


def gram(
    X: Any,
    Y: Any = None,
    *,
    weights: Array | None = None,
    cell: Any = None,
    cells: int | Sequence[int] | None = None,
    bound: tuple[float, float] | None = None,
    rows: IntArray | None = None,
    part: Part = "train",
) -> Gram:
    """Xᵀ diag(w) Y; without Y, the upper triangle of Xᵀ diag(w) X (see :func:`symmetric`).

    Parameters
    ----------
    weights: one a row, or rows × outputs for a matrix of each; numbers or marks.
    cell, cells, rows, part: as for :func:`count_by`; a matrix of each cell.
    bound: how long a row of X may be, and its weights or its row of Y.

    >>> X = np.array([[1.0, 2.0], [1.0, 3.0]])
    >>> gram(X).numbers(Behind(2)).tolist()
    [2.0, 5.0, 13.0]
    """
    made = None if cell is None else as_cells(cell, cells)
    return Gram(X, Y, weights, made, bound, rows, part)


def update(
    tree: Any, rows: IntArray | None = None, *, bound: float | None = None, part: Part = "train"
) -> Update:
    """Parameters after steps over rows, or whatever else is no sum: arrays, clipped as one.

    >>> update({"coef": np.zeros(3), "loss": 0.5}).numbers(Behind(10))["loss"]
    0.5
    """
    return Update(tree, bound, rows, part)


def fact(value: Any) -> Fact:
    """A value that is the same whatever the rows are.

    >>> fact("softmax").numbers(Behind(10))
    'softmax'
    """
    return Fact(value)


def symmetric(triangle: Array) -> FloatArray:
    """The matrices whose upper triangles these are (:func:`gram`), along the last axis."""
    width = int((math.sqrt(8 * triangle.shape[-1] + 1) - 1) / 2)
    i, j = np.triu_indices(width)
    matrix = np.empty((*triangle.shape[:-1], width, width))
    matrix[..., i, j] = triangle
    matrix[..., j, i] = triangle
    return matrix


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


def _persons_of(cells: Cells, chosen: BoolArray, behind: Behind) -> IntArray:
    """The persons of each cell among some rows."""
    row, cell = cells.pairs(behind.rows)
    kept = chosen[row]
    units = np.arange(behind.rows) if behind.units is None else behind.units
    return count_distinct(units[row][kept], cell[kept], cells.size).reshape(cells.shape)


def _bound(bound: Bound, clip: float | None) -> Any:
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


def _gram_bounds(bound: tuple[float, float] | None, clip: float | None) -> tuple[float, float]:
    if bound is not None:
        return float(bound[0]), float(bound[1])
    return float(_bound(None, clip)), 1.0


def _product(X: Any, Y: Any, weights: Array | None) -> FloatArray:
    """Xᵀ diag(w) Y, or the upper triangle of Xᵀ diag(w) X."""
    product = X.T @ _weighted(X if Y is None else Y, weights)
    matrix = product.toarray() if hasattr(product, "toarray") else np.asarray(product)
    return matrix if Y is not None else matrix[np.triu_indices(len(matrix))]


def _weighted(Y: Any, weights: Array | None) -> Any:
    if weights is None:
        return Y
    return Y.multiply(weights[:, None]).tocsr() if hasattr(Y, "tocsr") else Y * weights[:, None]


def _times(values: FloatArray, scale: FloatArray) -> FloatArray:
    """Rows times a number each, or one for every column."""
    return np.asarray((_flat(values) * scale).reshape(values.shape))


def _flat(values: FloatArray) -> FloatArray:
    return values.reshape(len(values), math.prod(values.shape[1:]))


def _filled(X: Any) -> Any:
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

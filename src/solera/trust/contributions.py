"""What a task returns: which rows gave what to which number.

A task never says the same thing twice. From a contribution follow the numbers (:meth:`numbers`, for
one client or several at once), the persons behind each of them (:meth:`persons`), how far one row
can move them (:meth:`sensitivity`) and rows bounded for noise (:meth:`bounded`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike

from solera.core.clients import Array, BoolArray, FloatArray, IntArray, Part
from solera.core.errors import UsageError
from solera.trust.cells import Behind, Cells, OneCell, as_cells, count_distinct, sum_rows
from solera.trust.members import Members, count_pairs, packed
from solera.trust.members import symmetric as symmetric

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
    in_one_pass: ClassVar[bool] = True
    """Whether it is made with all others of the same :class:`Members`."""

    def __init__(
        self,
        X: Any,
        Y: Any,
        weights: Array | None,
        cells: Cells | None,
        marks: BoolArray | None,
        bound: tuple[float, float] | None,
        rows: IntArray | None,
        part: Part,
    ) -> None:
        super().__init__(rows, part)
        self.X = X
        self.Y = Y
        self.weights = weights
        self.cells = cells
        self.marks = marks
        self.bound = bound
        if isinstance(X, Members) and self.in_one_pass:
            X.add(self)

    def numbers(self, behind: Behind) -> Any:
        if isinstance(self.X, Members):
            return self.X.numbers(self)
        if behind.owners is None:
            return self.of(self.X, slice(None))
        order = np.argsort(behind.owners, kind="stable")
        ends = np.cumsum(np.bincount(behind.owners, minlength=behind.clients))
        return np.stack([self.of(self.X[rows], rows) for rows in np.split(order, ends[:-1])])

    def of(self, X: Any, rows: Any) -> FloatArray:
        """The matrices of some rows, by number, of which X are the columns."""
        blocks = [self._matrix(*part) for part in self._parts(X, rows)]
        together = blocks[0] if len(blocks) == 1 else np.stack(blocks)
        return together.reshape(self._each + blocks[0].shape)

    def halves(self, X: Any, rows: Any) -> list[Any]:
        """A with AᵀA = XᵀwX for every matrix of some rows; no weight may be negative."""
        return [_with_root(part, weights) for part, _, weights in self._parts(X, rows)]

    def _parts(self, X: Any, rows: Any) -> Iterator[tuple[Any, Any, Array | None]]:
        """The columns, numbers and weights of the rows of every matrix, in order."""
        for part, numbers in self._by_cell(X, rows):
            weights = self.weights
            if weights is None or weights.ndim == 1:
                yield part, numbers, None if weights is None else weights[numbers]
                continue
            by_output = (weights if len(weights) == 1 else weights[numbers]).T
            yield from ((part, numbers, one) for one in by_output)

    def _by_cell(self, X: Any, rows: Any) -> Iterator[tuple[Any, Any]]:
        if self.cells is None:
            yield X, rows
            return
        numbers = np.arange(len(self._inside))[rows]
        for inside in self._inside[rows].T:
            chosen = np.flatnonzero(inside)
            yield X[chosen], numbers[chosen]

    @cached_property
    def _inside(self) -> BoolArray:
        """Which rows are in which cell, rows × cells."""
        assert self.cells is not None
        rows = self.X.shape[0]
        inside = np.zeros((rows, self.cells.size), dtype=bool)
        row, cell = self.cells.pairs(rows)
        inside[np.arange(rows)[row], cell] = True
        return inside

    def _matrix(self, X: Any, rows: Any, weights: Array | None) -> FloatArray:
        if self.Y is not None:
            matrix = X.T @ _times_rows(self.Y[rows], weights)
            return np.asarray(matrix.toarray() if hasattr(matrix, "toarray") else matrix)
        if weights is None or weights.min(initial=0) >= 0:
            half = _with_root(X, weights)
            matrix = half.T @ half  # the same twice: half the work
        else:
            matrix = X.T @ _times_rows(X, weights)
        matrix = np.asarray(matrix.toarray() if hasattr(matrix, "toarray") else matrix)
        return np.asarray(packed(matrix))

    def persons(self, behind: Behind) -> IntArray:
        """The persons with a weight other than 0, for each matrix as a whole."""
        counts = [behind.among(rows).count_persons() for rows, _ in self._matrices(behind)]
        return np.array(counts, dtype=np.int64).reshape(self._form)

    def support(self, behind: Behind) -> tuple[IntArray, IntArray | None]:
        """The persons with a number other than 0 in both factors of an entry.

        With ``marks`` those who have the mark, and those who have not.
        """
        X = self.X.whole() if isinstance(self.X, Members) else _filled(self.X)
        marks = _filled(self.Y) != 0 if self.marks is None and self.Y is not None else self.marks
        having, lacking = [], []
        for rows, columns in self._matrices(behind):
            units = None if behind.units is None else behind.units[rows]
            left = X[np.ix_(rows, columns)] != 0
            right = left if marks is None else marks[rows]
            count = count_pairs(left, right, units)
            having.append(packed(count) if self.Y is None else count)
            if self.marks is not None:
                lacking.append(count_pairs(left, ~right, units))
        form = self._form + having[0].shape
        without = np.stack(lacking).reshape(form) if lacking else None
        return np.stack(having).reshape(form), without

    @property
    def _each(self) -> tuple[int, ...]:
        """How many matrices there are of the same rows: cells × outputs."""
        cells = () if self.cells is None else self.cells.shape
        return cells + (() if self.weights is None else self.weights.shape[1:])

    @property
    def _form(self) -> tuple[int, ...]:
        return ((self.X.members,) if isinstance(self.X, Members) else ()) + self._each

    def _matrices(self, behind: Behind) -> Iterator[tuple[IntArray, IntArray]]:
        """The rows with a weight and the columns of every matrix, in order."""
        everyone = np.ones((behind.rows, 1), dtype=bool)
        inside = everyone if self.cells is None else self._inside
        weighted = everyone
        if self.weights is not None:
            outputs = math.prod(self.weights.shape[1:])
            weighted = (self.weights != 0).reshape(len(self.weights), outputs) & everyone
        whole = np.arange(behind.rows), np.arange(self.X.shape[1])
        samples = self.X.samples() if isinstance(self.X, Members) else [whole]
        for rows, columns in samples:
            for chosen in inside[rows].T:
                for with_weight in weighted[rows].T:
                    yield rows[chosen & with_weight], columns

    @property
    def repeats_rows(self) -> bool:
        return super().repeats_rows or (isinstance(self.X, Members) and self.X.rows is not None)

    def sensitivity(self, norm: Norm, clip: float | None) -> float:
        of_x, of_rest = _gram_bounds(self.bound, clip)
        of_row = of_x * of_rest * (of_x if self.Y is None else 1.0)
        most = 1 if self.cells is None else self.cells.most
        if norm == "l2":
            return of_row * math.sqrt(most)
        width = self.X.shape[1]
        numbers = width * (width + 1) // 2 if self.Y is None else width * self.Y.shape[1]
        outputs = 1 if self.weights is None else math.prod(self.weights.shape[1:])
        return of_row * most * math.sqrt(numbers * outputs)

    def bounded(self, clip: float | None) -> Self:
        of_x, of_rest = _gram_bounds(self.bound, clip)
        if isinstance(self.X, Members):
            X: Any = Members(bound_rows(self.X.whole(), of_x))
        else:
            X = bound_rows(_filled(self.X), of_x)
        Y = self.Y if self.Y is None else bound_rows(_filled(self.Y), of_rest)
        weights = self.weights
        if self.Y is None and weights is not None:
            weights = bound_rows(weights, of_rest)
        return type(self)(X, Y, weights, self.cells, self.marks, self.bound, self.rows, self.part)


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
        radius = float(np.max(_bound(self.bound, clip)))
        return 2 * _moved(radius, self.parameters, 1, norm)

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

    Behind an owner's policy a cell of fewer than ``min_count`` persons is absent.

    Parameters
    ----------
    cell: for every row the number of its cell, or of several (rows × numbers), −1 for none; marks,
        one column a cell; :func:`intervals`; a tuple of axes that broadcast; None: one cell.
    cells: how many there are, or the shape of a table where ``cell`` is a tuple.
    rows: the numbers of the rows these are; all of the part by default.
    part: which rows: "train", "validation" or "test".

    >>> import numpy as np
    >>> import solera as so
    >>> @so.task("demo.visits", many=True)
    ... def visits(client, ask):
    ...     ward, age = client.data.X.astype(int).T
    ...     return {
    ...         "rows": so.count_by(None),
    ...         "by ward": so.count_by(ward, cells=3),
    ...         "by ward and age": so.count_by((ward, so.intervals(age, [65])), cells=(3, 2)),
    ...     }
    >>> patients = np.array([[0, 31], [2, 47], [2, 70], [0, 68], [1, 29], [2, 81]])
    >>> total = so.simulate(patients, clients=2, seed=0).ask(visits).fold(so.aggregations.Sum())
    >>> int(total["rows"]), total["by ward"].tolist(), total["by ward and age"].tolist()
    (6, [2, 1, 3], [[1, 1], [1, 0], [1, 2]])
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

    The mean of what is known of a column: what misses gives nothing, and is not counted.

    >>> import numpy as np
    >>> import solera as so
    >>> @so.task("demo.known", many=True)
    ... def known(client, ask):
    ...     X = client.data.X
    ...     there = np.isfinite(X)
    ...     return {"sums": so.sum_by(None, X, where=there), "rows": so.count_by(there)}
    >>> table = np.array([[1.0, 10.0], [2.0, np.nan], [3.0, 30.0], [6.0, 50.0]])
    >>> total = so.simulate(table, clients=2, seed=0).ask(known).fold(so.aggregations.Sum())
    >>> (total["sums"] / total["rows"]).tolist()
    [3.0, 30.0]
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
    marks: BoolArray | None = None,
    bound: tuple[float, float] | None = None,
    rows: IntArray | None = None,
    part: Part = "train",
) -> Gram:
    """Xᵀ diag(w) Y; without Y, the upper triangle of Xᵀ diag(w) X (see :func:`symmetric`).

    Parameters
    ----------
    X: rows × columns, or :class:`~solera.trust.members.Members` of them, a matrix of each.
    Y: rows × others; marks of cells that rows are in, or numbers.
    weights: one a row, or rows × outputs (1 × outputs: the same for all rows) for a matrix of
        each; numbers or marks.
    cell, cells, rows, part: as for :func:`count_by`; a matrix of each cell.
    marks: where Y has but two values: which of them. Then a sum tells how many rows have each.
    bound: how long a row of X may be, and its weights or its row of Y.

    Least squares in one ask, w = (Σ XᵀX)⁻¹ Σ Xᵀy:

    >>> import numpy as np
    >>> import solera as so
    >>> from solera.trust.members import symmetric
    >>> @so.task("demo.products", many=True)
    ... def products(client, ask):
    ...     X, y = client.data.X, client.data.y
    ...     return {"xx": so.gram(X), "xy": so.gram(X, y[:, None])}
    >>> X = np.random.default_rng(0).normal(size=(40, 2))
    >>> fed = so.simulate(X, X @ [2.0, -1.0], clients=4, seed=0)
    >>> total = fed.ask(products).fold(so.aggregations.Sum())
    >>> np.linalg.solve(symmetric(total["xx"]), total["xy"]).round(6).ravel().tolist()
    [2.0, -1.0]
    """
    made = None if cell is None else as_cells(cell, cells)
    return Gram(X, Y, weights, made, marks, bound, rows, part)


def update(
    tree: Any, rows: IntArray | None = None, *, bound: float | None = None, part: Part = "train"
) -> Update:
    """Parameters after steps over rows, or whatever else is no sum of what rows gave.

    Behind an owner's policy it leaves whole or not at all: with at most a third as many parameters
    as there are persons.

    Parameters
    ----------
    tree: an array, or a dict or list of arrays and numbers.
    rows, part: which rows it was made of, as for :func:`count_by`.
    bound: how long all of it together may be; with noise it is scaled down to that. By default the
        ``clip`` of the learner's ``dp=``.

    >>> import numpy as np
    >>> import solera as so
    >>> @so.task("demo.descend")
    ... def descend(client, ask):
    ...     X, y = client.data.X, client.data.y
    ...     w = ask["w"] - 0.1 * X.T @ (X @ ask["w"] - y) / len(X)
    ...     return {"rows": so.count_by(None), "model": so.update({"w": w})}
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> fed = so.simulate(X, X @ [2.0, -1.0], clients=3, seed=0, policy="training")
    >>> mean = so.aggregations.Mean(weight="rows")
    >>> fed.ask(descend, {"w": np.zeros(2)}).fold(mean)["model"]["w"].shape
    (2,)
    """
    return Update(tree, bound, rows, part)


def fact(value: Any) -> Fact:
    """A value that is the same whatever the rows are, such as a version or the ask's own words.

    It leaves under every policy. Nothing checks that it is one: that is for whoever reads the task.

    >>> import numpy as np
    >>> import solera as so
    >>> @so.task("demo.version")
    ... def version(client, ask):
    ...     return {"numpy": so.fact(np.__version__.split(".")[0])}
    >>> fed = so.simulate(np.ones((30, 1)), clients=2, seed=0, policy="evaluation")
    >>> len({reply["numpy"] for reply in fed.ask(version)})
    1
    """
    return Fact(value)


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


def _times_rows(Y: Any, weights: Array | None) -> Any:
    if weights is None:
        return Y.astype(np.float64) if Y.dtype == bool else Y
    return Y.multiply(weights[:, None]).tocsr() if hasattr(Y, "tocsr") else Y * weights[:, None]


def _with_root(X: Any, weights: Array | None) -> Any:
    """Rows whose products are those of X with weights."""
    if weights is None or (weights.dtype == bool and weights.all()):
        return X
    return X[weights] if weights.dtype == bool else _times_rows(X, np.sqrt(weights))


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

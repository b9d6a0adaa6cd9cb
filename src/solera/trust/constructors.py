"""Contributions as tasks make them: ``so.count_by``, ``so.sum_by``, ``so.gram``, ``so.update``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from solera.core.clients import Array, IntArray, Part
from solera.trust.cells import as_cells
from solera.trust.contributions import Bound, Counts, Fact, Joint, Sums, Update
from solera.trust.grams import Gram


def count_by(
    cell: Any,
    cells: int | Sequence[int] | None = None,
    *,
    rows: IntArray | None = None,
    part: Part = "train",
) -> Counts:
    """How many rows are in each cell.

    In a closed job counts are exact where every cell has enough persons; otherwise each carries
    noise of deviation 1, always the same for the same persons. Cells by marks may overlap, and are
    refused there.

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
    where: the entries of ``values`` that give anything; all by default. In a closed job a sum is
        told where all owners together have enough persons behind it.
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
    return Gram(X, Y, weights, made, bound, rows, part)


def update(
    tree: Any,
    rows: IntArray | None = None,
    *,
    bound: float | None = None,
    part: Part = "train",
    solves: int | None = None,
) -> Update:
    """Parameters after steps over rows, or whatever else is no sum of what rows gave.

    Exact sums of it leave where the owner's policy says ``exact_training``, or where they solve a
    model of few parameters at once; else it needs noise.

    Parameters
    ----------
    tree: an array, or a dict or list of arrays and numbers.
    rows, part: which rows it was made of, as for :func:`count_by`.
    bound: how long all of it together may be; with noise it is scaled down to that. By default the
        ``clip`` of the learner's ``dp=``.
    solves: how many parameters of one output the sums of all clients solve for, as in Newton's
        method: at most a sixth of all persons.

    >>> import numpy as np
    >>> import solera as so
    >>> @so.task("demo.descend")
    ... def descend(client, ask):
    ...     X, y = client.data.X, client.data.y
    ...     w = ask["w"] - 0.1 * X.T @ (X @ ask["w"] - y) / len(X)
    ...     return {"rows": so.count_by(None), "model": so.update({"w": w})}
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> fed = so.simulate(X, X @ [2.0, -1.0], clients=3, seed=0)
    >>> mean = so.aggregations.Mean(weight="rows")
    >>> fed.ask(descend, {"w": np.zeros(2)}).fold(mean)["model"]["w"].shape
    (2,)
    """
    return Update(tree, bound, rows, part, solves)


def fact(value: Any) -> Fact:
    """A value that is the same whatever the rows are, such as a version or the ask's own words.

    It needs no noise. Nothing checks that it is one: that is for whoever reads the task.

    >>> import numpy as np
    >>> import solera as so
    >>> @so.task("demo.version")
    ... def version(client, ask):
    ...     return {"numpy": so.fact(np.__version__.split(".")[0])}
    >>> fed = so.simulate(np.arange(30.0)[:, None], clients=3, seed=0, policy="noise")
    >>> len({reply["numpy"] for reply in fed.ask(version)})
    1
    """
    return Fact(value)

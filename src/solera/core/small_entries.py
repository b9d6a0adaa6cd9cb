"""Which entries of a Gram matrix rest on too few rows, whichever way they are computed.

An entry Σᵢ wᵢ zᵢⱼ zᵢₖ is one number; but whoever has the matrix also has its linear combinations.
Those that anybody would think of are judged with it:

- Most rows may share one value of a column, such as the 0 of a rare mark or the 1 of its opposite.
  The ones in the first column make every shift of a column known, so columns are judged less that
  value (:func:`usual`).
- Columns may add up, as the marks of one category do. Entries withheld in one line of the matrix
  are then known together: they rest on ``least`` rows together, or more are withheld.
- Two columns may be the same in all but a few rows; the second is withheld (:func:`too_near`).
"""

from __future__ import annotations

import numpy as np

from solera.core.clients import BoolArray, FloatArray
from solera.core.evidence import Persons

_NOTHING = 1e-9
"""Of the largest: what rounding leaves of a zero."""
_SAME = 1e-3
"""Of a column's spread: rows this near to its median are said to have one value."""


def usual(Z: FloatArray, used: BoolArray) -> FloatArray:
    """The value that at least half of the used rows have in every column, 0 where there is none."""
    rows = Z[used]
    if not len(rows):
        return np.zeros(Z.shape[1])
    median = np.median(rows, axis=0)
    apart = np.abs(rows - median)
    shared = 2 * (apart <= _SAME * apart.max(axis=0)).sum(axis=0) >= len(rows)
    return np.where(shared, median, 0.0)


def too_near(Z: FloatArray, others: FloatArray, least: int) -> BoolArray:
    """Columns of Z (rows × columns) that differ from one of the others in a few rows alone.

    Columns, :func:`at_one_scale`, are compared with either sign, by (Σd²)² / Σd⁴ of their
    difference d.
    """
    a, b = Z.astype(float), others.astype(float)
    near = np.zeros(Z.shape[1], dtype=bool)
    for sign in (1.0, -1.0):
        c = sign * b
        cross = a.T @ c
        square = (a**2).sum(axis=0)[:, None] + (c**2).sum(axis=0) - 2 * cross
        fourth = (
            (a**4).sum(axis=0)[:, None]
            + (c**4).sum(axis=0)
            - 4 * (a**3).T @ c
            - 4 * a.T @ c**3
            + 6 * (a**2).T @ c**2
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            rows = square**2 / fourth
        zero = _NOTHING * ((a**2).sum(axis=0)[:, None] + (b**2).sum(axis=0))
        near |= ((square > zero) & (rows < least)).any(axis=1)
    return near


def at_one_scale(Z: FloatArray) -> FloatArray:
    """Columns whose median size, of numbers other than 0, is 1: marks are 0 and ±1."""
    size = np.where(Z == 0, np.nan, np.abs(Z))
    known = ~np.isnan(size).all(axis=0)
    middle = np.ones(Z.shape[1])
    middle[known] = np.nanmedian(size[:, known], axis=0)
    return np.asarray(Z / middle)


def small_entries(
    Z: FloatArray,
    w: FloatArray,
    rows: FloatArray,
    least: int,
    persons: Persons,
    first: BoolArray,
) -> BoolArray:
    """Marks the entries of Σᵢ wᵢ zᵢzᵢᵀ that must be withheld, columns × columns.

    ``rows`` are their effective rows; ``first`` are withheld in any case. A column whose entry on
    the diagonal or with the ones (the first column) is withheld is so altogether. What
    :func:`moved` adds to a diagonal rests on ``least`` rows, too.
    """
    W = (rows < least) | first
    sums: FloatArray | None = None
    while True:
        dropped = W.diagonal() | W[0]
        W |= dropped[:, None] | dropped
        if not W.any() or dropped.all():
            return W
        before = W.copy()
        kept = np.flatnonzero(~dropped)
        sums = dependencies(Z[w != 0]) if sums is None else sums
        weighed = Z[:, kept] * w[:, None]
        W[kept] = not_by_sums(W[kept], weighed, Z, sums, rows[kept], least, persons)
        added, squares = persons.sums(_added(Z, w, W, dropped))
        few = (squares > 0) & (added**2 < least * squares)
        for j in np.flatnonzero(few & ~dropped).tolist():
            free = np.flatnonzero(~W[j])
            free = free[(free != j) & (free != 0)]
            W[j, free[rows[j, free].argmin()] if len(free) else j] = True
        W |= W.T
        if np.array_equal(W, before):
            return W


def moved(Z: FloatArray, w: FloatArray, W: BoolArray) -> FloatArray:
    """What keeps the matrix positive semidefinite when the entries W are set to 0.

    With g a withheld entry (j, k), a ≥ |g| is added to both diagonals: a(eⱼ ± eₖ)(eⱼ ± eₖ)ᵀ is
    positive semidefinite. a = Σᵢ wᵢ |zᵢⱼ zᵢₖ| is a sum over rows as every entry is.
    """
    return np.asarray(_added(Z, w, W, W.diagonal() | W[0]).sum(axis=0))


def _added(Z: FloatArray, w: FloatArray, W: BoolArray, dropped: BoolArray) -> FloatArray:
    size = np.abs(Z)
    inside = W & ~dropped[:, None] & ~dropped
    return np.asarray(w[:, None] * size * (size @ inside.astype(float)))


def dependencies(Z: FloatArray) -> FloatArray:
    """Vectors v with Z v = 0, a line for each column that is a sum of others."""
    from scipy.linalg import qr, solve_triangular

    length = np.sqrt((Z**2).sum(axis=0))
    length = np.where(length > 0, length, 1.0)
    R, order = qr(Z / length, mode="r", pivoting=True)
    size = np.abs(R.diagonal())
    rank = int((size > _NOTHING * size[0]).sum())
    shares = solve_triangular(R[:rank, :rank], R[:rank, rank:])
    vectors = np.zeros((Z.shape[1] - rank, Z.shape[1]))
    vectors[:, order[:rank]] = -shares.T
    vectors[np.arange(len(vectors)), order[rank:]] = 1.0
    vectors[np.abs(vectors) < _NOTHING] = 0.0
    return np.asarray(vectors / length)


def not_by_sums(
    W: BoolArray,
    right: FloatArray,
    Z: FloatArray,
    sums: FloatArray,
    rows: FloatArray,
    least: int,
    persons: Persons,
) -> BoolArray:
    """W with more entries, so that sums of columns do not give back what it withholds.

    W and ``rows``, the effective rows, are as ``right``ᵀ Z; every line of ``sums`` is a v with
    Z v = 0, so Σ vⱼ (right, zⱼ) over the withheld j is known from the others.
    """
    W = W.copy()
    for v in sums:
        told = right * (Z @ (W * v).T)
        told[np.abs(told) <= _NOTHING * np.abs(told).max(initial=0.0)] = 0.0
        absolute, squares = persons.sums(told)
        for r in np.flatnonzero((squares > 0) & (absolute**2 < least * squares)).tolist():
            free = np.flatnonzero((v != 0) & ~W[r])
            free = free[free != 0] if (free != 0).any() else free
            if len(free):
                W[r, free[rows[r, free].argmin()]] = True
    return W


def not_by_classes(
    W: BoolArray, absolute: FloatArray, squares: FloatArray, least: int
) -> BoolArray:
    """The same where the first axis are classes, whose sum over all of them is known.

    ``absolute`` and ``squares`` are Σ|c| and Σc² of every entry; no row is of two classes.
    """
    W = W.copy()
    with np.errstate(divide="ignore", invalid="ignore"):
        rows = np.where(squares > 0, absolute**2 / squares, np.inf)
    for _ in range(len(W)):
        total, square = (absolute * W).sum(axis=0), (squares * W).sum(axis=0)
        few = W.any(axis=0) & (square > 0) & (total**2 < least * square)
        free = np.where(W | (squares == 0), np.inf, rows)
        add = few & np.isfinite(free.min(axis=0))
        if not add.any():
            break
        smallest = free.argmin(axis=0)
        W |= (np.arange(len(W)).reshape(-1, *[1] * (W.ndim - 1)) == smallest) & add
    return W

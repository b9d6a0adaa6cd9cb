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

from solera.core.clients import BoolArray, FloatArray, IntArray
from solera.core.disclosure.evidence import Persons

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
    """Whether columns differ from others in a few rows alone: columns of Z × columns of others.

    Columns, :func:`at_one_scale`, are compared with either sign, by (Σd²)² / Σd⁴ of their
    difference d.
    """
    a, b = Z.astype(float), others.astype(float)
    a2, b2 = a * a, b * b
    square = a2.sum(axis=0)[:, None] + b2.sum(axis=0)
    fourth = (a2 * a2).sum(axis=0)[:, None] + (b2 * b2).sum(axis=0) + 6 * a2.T @ b2
    cross, odd = 2 * a.T @ b, 4 * ((a2 * a).T @ b + a.T @ (b2 * b))
    near = np.zeros(square.shape, dtype=bool)
    for sign in (1.0, -1.0):
        apart = square - sign * cross
        near |= (apart > _NOTHING * square) & (apart**2 < least * (fourth - sign * odd))
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
    weighed = Z * w[:, None]
    checked = np.zeros_like(W)
    while True:
        dropped = W.diagonal() | W[0]
        W |= dropped[:, None] | dropped
        if not W.any() or dropped.all():
            return W
        before = W.copy()
        sums = dependencies(Z[w != 0]) if sums is None else sums
        todo = np.flatnonzero(~dropped & (checked != W).any(axis=1))
        W = not_by_sums(W, weighed, Z, sums, rows, least, persons, todo)
        checked = W.copy()
        added, squares = persons.sums(_added(Z, w, W, dropped))
        few = (squares > 0) & (added**2 < least * squares)
        for j in np.flatnonzero(few & ~dropped).tolist():
            free = np.flatnonzero(~W[j] & np.isfinite(rows[j]))
            free = free[(free != j) & (free != 0)]
            W[j, _smallest(free, rows[j], least) if len(free) else j] = True
        W |= W.T
        if np.array_equal(W, before):
            return W


def moved(Z: FloatArray, w: FloatArray, W: BoolArray) -> FloatArray:
    """What keeps the matrix positive semidefinite when the entries W are set to 0.

    With g a withheld entry (j, k), a sⱼ/sₖ and a sₖ/sⱼ, a ≥ |g|, are added to the diagonals: the
    sum, a(√(sⱼ/sₖ) eⱼ ± √(sₖ/sⱼ) eₖ)(…)ᵀ, is positive semidefinite. a = Σᵢ wᵢ |zᵢⱼ zᵢₖ| is a sum
    over rows as every entry is; s are powers of two near the sizes of the columns.
    """
    return np.asarray(_added(Z, w, W, W.diagonal() | W[0]).sum(axis=0))


def _added(Z: FloatArray, w: FloatArray, W: BoolArray, dropped: BoolArray) -> FloatArray:
    kept = ~dropped
    inside = (W & kept[:, None] & kept)[kept][:, kept]
    size = np.abs(Z[:, kept])
    mean = (w @ size**2) / max(w.sum(), 1e-300)
    scale = 2.0 ** np.rint(np.log2(np.where(mean > 0, mean, 1.0)) / 2)
    added = np.zeros_like(Z)
    added[:, kept] = w[:, None] * (size * scale) * ((size / scale) @ inside.astype(float))
    return added


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
    todo: IntArray | None = None,
) -> BoolArray:
    """W with more entries, so that sums of columns do not give back what it withholds.

    W and ``rows``, the effective rows, are as ``right``ᵀ Z; every line of ``sums`` is a v with
    Z v = 0, so Σ vⱼ (right, zⱼ) over the withheld j is known from the others. ``todo`` are the
    lines that may have to change, all by default.
    """
    W = W.copy()
    todo = np.flatnonzero(W.any(axis=1)) if todo is None else todo
    while len(todo):
        changed = set()
        for v in sums:
            inside = np.flatnonzero(v)
            lines = todo[W[np.ix_(todo, inside)].any(axis=1)]
            withheld = inside[W[np.ix_(lines, inside)].any(axis=0)]
            some = np.flatnonzero((Z[:, withheld] != 0).any(axis=1))
            known = Z[np.ix_(some, withheld)] @ (W[np.ix_(lines, withheld)] * v[withheld]).T
            told = right[np.ix_(some, lines)] * known
            told[np.abs(told) <= _NOTHING * np.abs(told).max(initial=0.0)] = 0.0
            absolute, squares = persons.among(some).sums(told)
            for r in lines[(squares > 0) & (absolute**2 < least * squares)].tolist():
                free = np.flatnonzero((v != 0) & ~W[r] & np.isfinite(rows[r]))
                free = free[free != 0] if (free != 0).any() else free
                if len(free):
                    W[r, _smallest(free, rows[r], least)] = True
                    changed.add(r)
        todo = np.array(sorted(changed), dtype=np.int64)
    return W


def _smallest(free: IntArray, rows: FloatArray, least: int) -> IntArray:
    """The smallest of the free entries that rest on ``least`` rows together."""
    order = free[np.argsort(rows[free], kind="stable")]
    enough = int(np.searchsorted(np.cumsum(rows[order]), least)) + 1
    return order[:enough]


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

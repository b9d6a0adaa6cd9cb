"""Rules merged, and the tree grown out of them, as the program of the trees thesis does it.

Of two merged rules CART has the intersection and half the sum of the probabilities, ID3 the later
rule's conditions and the mean weighted by rows. Pure rules are set aside once there are 2,400, and
3,000 are kept except in the middle of the way. The benchmark ``published_trees.py`` compares the
predictions with those of the authors' own classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from solera.core.clients import BoolArray, FloatArray, IntArray
from solera.learn.trees.id3 import entropy

PURE, EXCLUDED_FROM = 0.9, 2
_GAP = 1e-3


class Way(NamedTuple):
    """How rules are merged: as the program does it, unless another way is tried."""

    most: float = 3000
    """Rules kept of a merge."""
    largest: bool = False
    """Whether those of most rows are kept instead of the purest."""
    pure_from: float = 2400
    """Rules from which on pure ones are set aside."""
    unite: bool = False
    """Whether ID3 rules have the conditions of both, as the text says, not the later rule's."""


PROGRAM = Way()


# --- merging ---


@dataclass
class Rules:
    """Conditions that the global tree reads, those that must not contradict, classes and rows.

    Conditions are lower and upper bounds (CART), or one code per column, −1 for any (ID3).
    """

    shown: FloatArray
    checked: FloatArray
    shares: FloatArray
    rows: FloatArray

    def take(self, chosen: Any) -> Rules:
        return Rules(
            self.shown[:, chosen], self.checked[:, chosen], self.shares[chosen], self.rows[chosen]
        )

    def __len__(self) -> int:
        return len(self.rows)

    def padded(self, width: int) -> Rules:
        """The same rules over more columns, which they do not mention."""
        more = [(0, 0), (0, 0), (0, width - self.shown.shape[2])]
        free = {"constant_values": -1.0}
        return Rules(
            np.pad(self.shown, more, **free),  # type: ignore[call-overload]
            np.pad(self.checked, more, **free),  # type: ignore[call-overload]
            self.shares,
            self.rows,
        )


def merged(trees: list[Rules], way: Way = PROGRAM) -> Rules:
    """The chain of merges, without doubles."""
    if trees[0].shown.shape[0] == 1:
        width = max(rules.shown.shape[2] for rules in trees)
        trees = [rules.padded(width) for rules in trees]
    found, aside = trees[0], []
    for i, following in enumerate(trees[1:]):
        found = _pairs(found, following, way.unite) if len(found) else following
        if i != len(trees) - 1 - i and len(found) > way.most:
            worst = -found.rows if way.largest else entropy(found.shares)
            limit = np.sort(worst)[int(way.most) - 1]
            found = found.take(np.flatnonzero(worst <= limit)[: int(way.most)])
        if i >= EXCLUDED_FROM and len(found) > way.pure_from:
            pure = found.shares.max(axis=1) > PURE
            aside.append(found.take(pure))
            found = found.take(~pure)
    return _distinct([found, *aside])


def _pairs(a: Rules, b: Rules, unite: bool) -> Rules:
    """Every pair that does not contradict itself, merged."""
    i, k = np.nonzero(_agree(a.checked, b.checked))
    if a.shown.shape[0] == 1:
        checked = np.maximum(a.checked[:, i], b.checked[:, k])
        n, m = a.rows[i, None], b.rows[k, None]
        shares = (a.shares[i] * n + b.shares[k] * m) / (n + m)
        shown = checked if unite else b.shown[:, k]
    else:
        lower = np.maximum(a.shown[0, i], b.shown[0, k])
        checked = shown = np.stack([lower, np.minimum(a.shown[1, i], b.shown[1, k])])
        shares = (a.shares[i] + b.shares[k]) / 2
    return Rules(shown, checked, shares, np.rint(np.sqrt(a.rows[i] * b.rows[k])))


def _agree(a: FloatArray, b: FloatArray) -> BoolArray:
    fit = np.ones((a.shape[1], b.shape[1]), dtype=bool)
    for j in range(a.shape[2]):
        if len(a) == 1:
            x, y = a[0, :, j, None], b[0, None, :, j]
            fit &= (x < 0) | (y < 0) | (x == y)
            continue
        if not (np.isfinite(a[:, :, j]).any() and np.isfinite(b[:, :, j]).any()):
            continue
        low_a, up_a, low_b, up_b = (
            a[0, :, j, None],
            a[1, :, j, None],
            b[0, None, :, j],
            b[1, None, :, j],
        )
        fit &= (up_a > low_b + _GAP) & (low_a + _GAP < up_b)
        upper = np.minimum(up_a, up_b)
        part = np.where(np.isfinite(upper), upper, 0.0) % 1 > 0
        fit &= ~(part & (upper - np.maximum(low_a, low_b) < 1))  # no whole number between
    return fit


def _distinct(parts: list[Rules]) -> Rules:
    """Rules of the same conditions as one, their classes weighted by rows."""
    shown = np.concatenate([part.shown for part in parts], axis=1)
    shares = np.concatenate([part.shares for part in parts])
    rows = np.concatenate([part.rows for part in parts])
    keys = np.round(np.concatenate(list(shown), axis=1), 3)
    _, first, which = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    which = which.ravel()
    total: FloatArray = np.asarray(np.bincount(which, rows), dtype=np.float64)
    mixed = np.column_stack([np.bincount(which, rows * share) for share in shares.T])
    return Rules(shown[:, first], shown[:, first], mixed / total[:, None], total)


# --- the global tree ---


def predicted(rules: Rules, X: FloatArray) -> IntArray:
    """The classes that the global tree of the rules gives; only what rows reach is grown.

    A row whose category has no branch gets what the row before it got.
    """
    answer = np.full(len(X), -1)
    columns = np.arange(rules.shown.shape[2])
    stack = [(np.arange(len(rules)), np.arange(len(X)), columns)]
    split = _by_category if rules.shown.shape[0] == 1 else _by_threshold
    while stack:
        here, rows, free = stack.pop()
        if not len(rows):
            continue
        children = split(rules, X, here, rows, free) if len(here) > 1 else None
        if children is None:
            answer[rows] = rules.shares[here].mean(axis=0).argmax()
        else:
            stack += children
    known = np.flatnonzero(answer >= 0)
    if not len(known):
        return answer
    before = np.maximum(np.searchsorted(known, np.arange(len(X)), side="right") - 1, 0)
    return np.asarray(answer[known[before]])


Node = tuple[IntArray, IntArray, IntArray]
"""Rules, rows and the columns that may still be split."""


def _by_category(
    rules: Rules, X: FloatArray, here: IntArray, rows: IntArray, free: IntArray
) -> list[Node] | None:
    codes = rules.shown[0][here]
    best: tuple[float, int, FloatArray] | None = None
    for j in free[(codes[:, free] >= 0).all(axis=0)]:
        values = np.unique(codes[:, j])
        groups = [rules.shares[here[codes[:, j] == value]] for value in values]
        score = sum(len(g) * float(entropy(g.mean(axis=0))) for g in groups) / len(values)
        if best is None or score < best[0]:
            best = (score, int(j), values)
    if best is None or len(best[2]) == 1:
        return None
    _, column, values = best
    left = free[free != column]
    if not len(left):
        left = np.arange(X.shape[1])  # as the program does when it has used them all
    return [
        (here[codes[:, column] == value], rows[X[rows, column] == value], left) for value in values
    ]


def _by_threshold(
    rules: Rules, X: FloatArray, here: IntArray, rows: IntArray, free: IntArray
) -> list[Node] | None:
    lower, upper = rules.shown[0][here], rules.shown[1][here]
    shares = rules.shares[here]
    best = (np.inf, 0, 0.0)
    for j in np.flatnonzero(np.isfinite(lower).any(axis=0) | np.isfinite(upper).any(axis=0)):
        values = np.unique(np.concatenate([lower[:, j], upper[:, j]]))
        values = values[np.isfinite(values)]
        left = _summed(lower[:, j], shares, values, "left")
        right = shares.sum(axis=0) - _summed(upper[:, j], shares, values, "right")
        n = np.searchsorted(np.sort(lower[:, j]), values, "left")
        m = len(here) - np.searchsorted(np.sort(upper[:, j]), values, "right")
        score = np.where((n > 0) & (m > 0), n * entropy(left) + m * entropy(right), np.inf)
        place = int(score.argmin())
        if score[place] < best[0]:
            best = (float(score[place]), int(j), float(values[place]))
    if not np.isfinite(best[0]):
        return None
    _, column, cut = best
    below, above = lower[:, column] < cut, upper[:, column] > cut
    if below.all() or above.all():
        return None
    small = X[rows, column] <= cut
    return [(here[below], rows[small], free), (here[above], rows[~small], free)]


def _summed(bounds: FloatArray, shares: FloatArray, values: FloatArray, side: Any) -> FloatArray:
    """Class shares of the rules whose bound is below each value, or at most it."""
    order = np.argsort(bounds, kind="stable")
    total = np.concatenate([np.zeros((1, shares.shape[1])), np.cumsum(shares[order], axis=0)])
    return np.asarray(np.maximum(total[np.searchsorted(bounds[order], values, side)], 0.0))

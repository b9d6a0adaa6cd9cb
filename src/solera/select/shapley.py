"""Shapley values of the clients of a round: what each adds to the average of their updates.

With the utility U(S) of the average over a subset S of the M clients, the value of client i is

    φ_i = Σ_{S ⊆ N∖i} |S|! (M − |S| − 1)! / M! · (U(S ∪ i) − U(S)),      Σ_i φ_i = U(N) − U(∅)

Up to ten clients every subset is evaluated once and the value is exact. Beyond that it is
estimated from permutations with truncation (GTG-Shapley, Liu et al. 2022).
"""

from __future__ import annotations

from collections.abc import Callable
from math import comb

import numpy as np
from numpy.random import Generator

from solera.core.clients import BoolArray, FloatArray

Subsets = BoolArray
Utility = Callable[[Subsets], FloatArray]
"""The utility of every row of a matrix (subsets, clients)."""
MOST_EXACT = 10
EPSILON = 1e-4
CONVERGED = 0.01
LAST = 20
PERMUTATIONS = 30
"""At most so many permutations per client."""


def all_subsets(clients: int) -> Subsets:
    """Every subset, the empty one first and the whole last; bit i of the number is client i."""
    return (np.arange(2**clients)[:, None] >> np.arange(clients) & 1).astype(bool)


def exact_shapley(utility: Utility, clients: int) -> FloatArray:
    """Exact values; every subset is evaluated once, all in one call."""
    subsets = all_subsets(clients)
    utilities = utility(subsets)
    size = subsets.sum(axis=1)
    weight = np.array([1 / (clients * comb(clients - 1, s)) for s in range(clients)])
    values = np.empty(clients)
    for i in range(clients):
        without = np.flatnonzero(~subsets[:, i])
        gain = utilities[without + (1 << i)] - utilities[without]
        values[i] = weight[size[without]] @ gain
    return values


def truncated_shapley(
    utility: Utility, clients: int, rng: Generator, *, epsilon: float = EPSILON
) -> FloatArray:
    """Values estimated from permutations, each client leading in turn (GTG-Shapley).

    A round in which |U(N) − U(∅)| < ε gives zero to all. A permutation is cut off where the
    utility of what came so far is within ε of U(N). It ends when the running means of the last 20
    permutations differ from the last by less than 1 % on average, or after 30·M permutations. No
    subset is evaluated twice, and the permutations of one turn are evaluated side by side.
    """
    memo = _Memo(utility)
    none, everyone = np.zeros((1, clients), dtype=bool), np.ones((1, clients), dtype=bool)
    nothing, whole = memo(np.concatenate([none, everyone]))
    if abs(whole - nothing) < epsilon:
        return np.zeros(clients)
    total = np.zeros(clients)
    running: list[FloatArray] = []
    while len(running) < PERMUTATIONS * clients:
        for gains in _turn(memo, clients, rng, nothing, whole, epsilon):
            total = total + gains
            running.append(total / (len(running) + 1))
        if _has_converged(running):
            break
    return running[-1]


def _turn(
    memo: _Memo, clients: int, rng: Generator, nothing: float, whole: float, eps: float
) -> FloatArray:
    """Gains (permutations, clients) along one permutation per leading client."""
    orders = np.stack(
        [np.append(i, rng.permutation(np.delete(np.arange(clients), i))) for i in range(clients)]
    )
    gains = np.zeros((clients, clients))
    before = np.full(clients, nothing)
    inside = np.zeros((clients, clients), dtype=bool)
    active = np.arange(clients)
    for place in range(clients):
        active = active[np.abs(whole - before[active]) >= eps]
        if not len(active):
            break
        who = orders[active, place]
        inside[active, who] = True
        now = memo(inside[active])
        gains[active, who] = now - before[active]
        before[active] = now
    return gains


def _has_converged(running: list[FloatArray]) -> bool:
    if len(running) < LAST + 1:
        return False
    recent = np.array(running[-LAST - 1 : -1])
    last = running[-1]
    return bool((np.abs(recent - last) / (np.abs(last) + 1e-12)).mean() < CONVERGED)


class _Memo:
    """A utility that evaluates every subset once; new ones of a call are evaluated together."""

    def __init__(self, utility: Utility) -> None:
        self._utility = utility
        self._known: dict[bytes, float] = {}

    def __call__(self, subsets: Subsets) -> FloatArray:
        keys = [subset.tobytes() for subset in subsets]
        fresh = {key: i for i, key in enumerate(keys) if key not in self._known}
        if fresh:
            utilities = self._utility(subsets[list(fresh.values())])
            self._known.update(zip(fresh, utilities.tolist(), strict=True))
        return np.array([self._known[key] for key in keys])

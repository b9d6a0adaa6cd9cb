"""Rules that look at how far updates lie from one another.

All of them work on the matrix of products G = X Xᵀ, clients × clients, which one pass over the
columns gives: the squared distance of xᵢ to any Σ αₖ xₖ is Gᵢᵢ − 2 (G α)ᵢ + αᵀ G α.
"""

from __future__ import annotations

import numpy as np

from solera.core.clients import Array, FloatArray, IntArray
from solera.core.constraints import Count, Positive
from solera.robust.rules import (
    Attackers,
    Rule,
    Vectors,
    Verdict,
    column_blocks,
    weighted_sum,
)

_LEAST = 1e-150
"""Distances below this count as this: its square and its inverse are numbers still."""


def products(updates: Vectors) -> FloatArray:
    """G = X Xᵀ in double precision."""
    gram = np.zeros((len(updates), len(updates)))
    for _, block in column_blocks(updates):
        numbers = block.astype(np.float64)
        gram += numbers.T @ numbers
    return gram


def squared_distances(gram: FloatArray) -> FloatArray:
    """‖xᵢ − xₖ‖² for all i, k."""
    squares = np.diag(gram)
    return np.maximum(squares[:, None] + squares[None] - 2 * gram, 0)


def distances_to(gram: FloatArray, alpha: FloatArray) -> FloatArray:
    """‖xᵢ − Σ αₖ xₖ‖ for all i."""
    squares = np.diag(gram) - 2 * gram @ alpha + alpha @ gram @ alpha
    return np.asarray(np.sqrt(np.maximum(squares, 0)))


def krum_scores(squares: FloatArray, f: int) -> FloatArray:
    """s(i) = Σ ‖xᵢ − xₖ‖² over the n − f − 2 updates nearest to xᵢ."""
    others = np.sort(squares + np.diag(np.full(len(squares), np.inf)), axis=1)
    return np.asarray(others[:, : max(1, len(squares) - f - 2)].sum(axis=1))


class MultiKrum(Rule):
    """The mean of the m updates with the smallest scores; m = n − f unless ``chosen`` says so.

    Blanchard, El Mhamdi, Guerraoui & Stainer (2017), "Machine learning with adversaries: Byzantine
    tolerant gradient descent", section 4: s(i) = Σ ‖xᵢ − xₖ‖² over the n − f − 2 updates nearest
    to xᵢ. Holds against f of n ≥ 2f + 3 clients.
    """

    def __init__(self, f: Attackers = 0.2, *, chosen: Count | None = None) -> None:
        self.f = f
        self.chosen = chosen

    def judge(self, updates: Vectors) -> Verdict:
        clients = len(updates)
        f = self.number(self.f, clients)
        self.require(2 * f + 3, clients)
        scores = krum_scores(squared_distances(products(updates)), f)
        order = np.argsort(scores, kind="stable")
        chosen = order[: min(clients, self.wanted(clients, f))]
        trust = np.zeros(clients)
        trust[chosen] = 1.0
        suspects = np.zeros(clients, dtype=bool)
        suspects[order[clients - f :]] = True
        spread = np.sqrt(scores / max(1, clients - f - 2))
        typical = np.median(spread)
        reasons = [
            f"its nearest updates are {far:.3g} away, those of others {typical:.3g}"
            for far in spread
        ]
        value = weighted_sum(trust / len(chosen), updates)
        return Verdict(value, trust, suspects, reasons)

    def wanted(self, clients: int, f: int) -> int:
        """How many updates are averaged."""
        return clients - f if self.chosen is None else self.chosen


class Krum(MultiKrum):
    """The one update with the smallest score s(i): :class:`MultiKrum` that chooses one."""

    def __init__(self, f: Attackers = 0.2) -> None:
        super().__init__(f, chosen=1)


class Bulyan(Rule):
    """Choose θ = n − 2f updates by Krum, one after the other; of these, at every coordinate, the
    mean of the θ − 2f numbers nearest to their median.

    El Mhamdi, Guerraoui & Rouault (2018), "The hidden vulnerability of distributed learning in
    Byzantium", section 4. Holds against f of n ≥ 4f + 3 clients, also where an attacker
    hides a large change of few coordinates in a small distance.
    """

    def __init__(self, f: Attackers = 0.1) -> None:
        self.f = f

    def judge(self, updates: Vectors) -> Verdict:
        clients = len(updates)
        f = self.number(self.f, clients)
        self.require(4 * f + 3, clients)
        chosen = _chosen_by_krum(squared_distances(products(updates)), f, clients - 2 * f)
        kept = len(chosen) - 2 * f
        value = np.empty(len(updates[0]), np.asarray(updates[0]).dtype)
        used = np.zeros(clients)
        for columns, block in column_blocks([updates[i] for i in chosen]):
            near = _near_median(block, kept)
            value[columns] = near.mean(axis=1)
            low, high = near[:, :1], near[:, -1:]
            used[chosen] += ((block >= low) & (block <= high)).sum(axis=0)
        trust = used / max(1, len(value))
        reasons = ["Krum did not choose it"] * clients
        for i in chosen.tolist():
            reasons[i] = f"{1 - trust[i]:.0%} of its numbers were far from the median"
        return Verdict(value, trust, trust < np.median(trust[chosen]) / 2, reasons)


def _chosen_by_krum(squares: FloatArray, f: int, wanted: int) -> IntArray:
    left = np.arange(len(squares))
    chosen: list[int] = []
    while len(chosen) < wanted:
        best = int(np.argmin(krum_scores(squares[np.ix_(left, left)], f)))
        chosen.append(int(left[best]))
        left = np.delete(left, best)
    return np.array(sorted(chosen), dtype=np.int64)


def _near_median(block: Array, kept: int) -> Array:
    """At every place the ``kept`` numbers nearest to the median, in order.

    Sorted, they lie side by side: of all windows of that length it is the one whose farther end is
    nearest to the median.
    """
    ordered = np.sort(block, axis=1).astype(np.float64)
    median = np.median(ordered, axis=1)
    windows = ordered.shape[1] - kept + 1
    far = [
        np.maximum(median - ordered[:, first], ordered[:, first + kept - 1] - median)
        for first in range(windows)
    ]
    first = np.argmin(far, axis=0)
    taken = first[:, None] + np.arange(kept)
    return np.asarray(np.take_along_axis(ordered, taken, axis=1))


class GeometricMedian(Rule):
    """The point with the least sum of distances to the updates: argmin_z Σ ‖z − xᵢ‖.

    Smoothed Weiszfeld steps, z ← Σ βᵢ xᵢ / Σ βᵢ with βᵢ = 1/max(ν, ‖z − xᵢ‖), from the mean
    (Pillutla, Kakade & Harchaoui 2022, "Robust aggregation for federated learning", Algorithm 2).
    Holds against fewer than half of the clients. ν is ``smoothing`` times the median distance at
    the start; it ends when z moves less than that, or after ``steps``.
    """

    def __init__(self, *, smoothing: Positive = 1e-6, steps: Count = 200) -> None:
        self.smoothing = smoothing
        self.steps = steps

    def judge(self, updates: Vectors) -> Verdict:
        clients = len(updates)
        gram = products(updates)
        alpha = np.full(clients, 1 / clients)
        apart = distances_to(gram, alpha)
        least = max(self.smoothing * float(np.median(apart)), _LEAST)
        for _ in range(self.steps):
            beta = 1 / np.maximum(apart, least)
            before, alpha = alpha, beta / beta.sum()
            apart = distances_to(gram, alpha)
            moved = alpha - before
            if moved @ gram @ moved <= least**2:
                break
        near = float(np.median(apart))
        trust = _drawn_in(apart, near)
        reasons = [f"{far:.3g} away, half of the updates within {near:.3g}" for far in apart]
        return Verdict(weighted_sum(alpha, updates), trust, trust < 0.5, reasons)


class CentredClipping(Rule):
    """What lies far from the centre is drawn in: v ← v + 1/n Σ (xᵢ − v) min(1, τ/‖xᵢ − v‖).

    Karimireddy, He & Jaggi (2021), "Learning from history for Byzantine robust optimization",
    Algorithm 2. The centre begins at v = 0, the model as it is, and moves ``steps`` times. τ is
    ``radius``, or the median distance to the centre at every step.
    """

    def __init__(self, radius: Positive | None = None, *, steps: Count = 5) -> None:
        self.radius = radius
        self.steps = steps

    def judge(self, updates: Vectors) -> Verdict:
        clients = len(updates)
        gram = products(updates)
        alpha = np.zeros(clients)
        for _ in range(self.steps):
            apart = distances_to(gram, alpha)
            radius = float(np.median(apart)) if self.radius is None else self.radius
            trust = _drawn_in(apart, radius)
            alpha = alpha * (1 - trust.mean()) + trust / clients
        reasons = [f"{far:.3g} from the centre, drawn in to {radius:.3g}" for far in apart]
        return Verdict(weighted_sum(alpha, updates), trust, trust < 0.5, reasons)


class NormBound(Rule):
    """The mean of the updates, those longer than C shortened: 1/n Σ xᵢ min(1, C/‖xᵢ‖).

    Sun, Kairouz, Suresh & McMahan (2019), "Can you really backdoor federated learning?", section 4.
    C is ``norm``, or the median norm of the round. Under secure aggregation clients
    shorten their updates themselves: ``update_steps=[so.updates.Clip(norm)]``.
    """

    def __init__(self, norm: Positive | None = None) -> None:
        self.norm = norm

    def judge(self, updates: Vectors) -> Verdict:
        norms = np.array([float(np.linalg.norm(np.asarray(x, np.float64))) for x in updates])
        bound = float(np.median(norms)) if self.norm is None else self.norm
        trust = _drawn_in(norms, bound)
        reasons = [f"its norm is {norm:.3g}, the bound {bound:.3g}" for norm in norms]
        return Verdict(weighted_sum(trust / len(norms), updates), trust, trust < 0.5, reasons)


def _drawn_in(lengths: FloatArray, bound: float) -> FloatArray:
    """By which factor vectors of these lengths are shortened to the bound."""
    return np.where(lengths <= bound, 1.0, bound / np.maximum(lengths, _LEAST))

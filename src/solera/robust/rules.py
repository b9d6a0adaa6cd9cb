"""Rules that make one update of many, some of which may lie.

A rule sees the updates of a round as vectors of the same length, one for each client, and gives
every client one vote: a client that says it has more rows does not count more. Rules look at the
matrix (clients × parameters) some columns at a time, so that beside the updates themselves they
need a few megabytes. Everything is a function of the updates in client order: no draws, ties go to
the client with the smaller number.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from solera.core.clients import Array, BoolArray, FloatArray
from solera.core.component import Component
from solera.core.constraints import NonNegativeInt, ProperFraction
from solera.core.errors import NotEnoughReplies

Vectors = Sequence[Array]
"""The updates, one vector for each client; a matrix will do."""
Attackers = NonNegativeInt | ProperFraction
"""How many of the updates may be wrong: a number, or below 1 a share of them, rounded up."""

_AT_ONCE = 1 << 22
"""Numbers of the matrix that are looked at together."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a rule made of the updates, and how much it trusted each of them.

    ``trust`` is 1 for an update that counted in full and 0 for one that did not count;
    ``suspects`` marks those that are worth a report, each with its ``reasons``.
    """

    value: Array
    trust: FloatArray
    suspects: BoolArray
    reasons: Sequence[str]


class Rule(Component, abstract=True):
    """How the updates of a round become one."""

    @abstractmethod
    def judge(self, updates: Vectors) -> Verdict:
        """One update in place of all."""

    def number(self, attackers: int | float, updates: int) -> int:
        """How many of so many updates may be wrong."""
        if isinstance(attackers, float) and attackers < 1:
            return math.ceil(round(attackers * updates, 9))
        return int(attackers)

    def require(self, least: int, updates: int) -> None:
        """Raise an error where there are too few updates for the rule's promise."""
        if updates < least:
            raise NotEnoughReplies(
                f"{self!r} needs at least {least} updates, {updates} came",
                hint="ask more clients in a round, or expect fewer attackers",
            )


def column_blocks(updates: Vectors) -> Iterator[tuple[slice, Array]]:
    """Some columns at a time: where they are, and their numbers, columns × clients."""
    width = max(1, _AT_ONCE // len(updates))
    for first in range(0, len(updates[0]), width):
        columns = slice(first, first + width)
        yield columns, np.stack([update[columns] for update in updates], axis=1)


def weighted_sum(weights: FloatArray, updates: Vectors) -> Array:
    """Σ wᵢ xᵢ, in the type of the updates."""
    total = np.empty(len(updates[0]), np.float64)
    for columns, block in column_blocks(updates):
        total[columns] = block @ weights
    return total.astype(np.asarray(updates[0]).dtype)


class _ByCoordinate(Rule, abstract=True):
    """Every number of the result comes from the sorted numbers of the clients at that place."""

    def judge(self, updates: Vectors) -> Verdict:
        clients = len(updates)
        outside = self.cut(clients)
        value = np.empty(len(updates[0]), np.asarray(updates[0]).dtype)
        inside = np.zeros(clients)
        for columns, block in column_blocks(updates):
            ordered = np.sort(block, axis=1)
            value[columns] = self.middle(ordered)
            low, high = ordered[:, outside, None], ordered[:, clients - 1 - outside, None]
            inside += ((block >= low) & (block <= high)).sum(axis=0)
        trust = inside / max(1, len(value))
        reasons = [f"{1 - share:.0%} of its numbers were among the outermost" for share in trust]
        return Verdict(value, trust, trust < np.median(trust) / 2, reasons)

    @abstractmethod
    def cut(self, clients: int) -> int:
        """How many of the smallest and of the largest numbers count as outermost."""

    @abstractmethod
    def middle(self, ordered: Array) -> Array:
        """The result at each place, of sorted numbers, places × clients."""


class Median(_ByCoordinate):
    """The median of every coordinate: zⱼ = medianᵢ xᵢⱼ.

    Yin, Chen, Kannan & Bartlett (2018), "Byzantine-robust distributed learning: towards optimal
    statistical rates", Definition 1. Holds against fewer than half of the clients. A client's trust
    is the share of its numbers that lie in the middle half.
    """

    def cut(self, clients: int) -> int:
        return clients // 4

    def middle(self, ordered: Array) -> Array:
        return np.asarray(np.median(ordered, axis=1))


class TrimmedMean(_ByCoordinate):
    """The mean of every coordinate without its f smallest and its f largest numbers.

    Yin et al. (2018), Definition 2: zⱼ = 1/(n − 2f) Σ of x₍f+1₎ⱼ … x₍n−f₎ⱼ. Holds against f of
    n > 2f clients. A client's trust is the share of its numbers that were not cut off.
    """

    def __init__(self, f: Attackers = 0.2) -> None:
        self.f = f

    def cut(self, clients: int) -> int:
        f = self.number(self.f, clients)
        self.require(2 * f + 1, clients)
        return f

    def middle(self, ordered: Array) -> Array:
        f = self.cut(ordered.shape[1])
        return np.asarray(ordered[:, f : ordered.shape[1] - f].mean(axis=1, dtype=np.float64))

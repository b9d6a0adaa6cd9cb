"""Horizontal partitions: which client gets which rows.

A partition is a rule configured by its constructor; ``assign`` applies it. Every rule shuffles
first, gives no row to two clients unless asked to, and counts the rows it gives to nobody
(``Assignment.left_over``). Here are the rules that look at numbers of rows only; those that look at
labels are in :mod:`solera.data.partition_labels`, those that keep given rows together in
:mod:`solera.data.partition_groups`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from numbers import Integral
from typing import Annotated, Any

import numpy as np
from msgspec import Meta
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray

from solera.core.clients import FloatArray, IntArray
from solera.core.component import Component
from solera.core.constraints import Count, Fraction, NonNegativeInt, check_arguments
from solera.core.errors import DataError, UsageError
from solera.core.rng import generator
from solera.data.dealing import (
    at_least,
    divide,
    even,
    group,
    hand_out,
    missing_from,
    offsets_of,
)
from solera.data.federated import Assignment

_ROUNDING = 1e-9
Clients = Count | list[str] | tuple[str, ...] | None
"""How many clients, or their names."""
Concentration = Annotated[float, Meta(gt=0, le=1e100)]
"""The parameter of a Dirichlet distribution; :class:`IID` is its limit."""


class Partition(Component, abstract=True):
    """A rule for dividing rows among clients."""

    def assign(
        self, rows: int, y: Any = None, *, X: Any = None, clients: Clients = None, seed: int
    ) -> Assignment:
        """Divide ``rows`` rows; the same seed gives the same assignment.

        ``clients`` is how many there are, or what they are called; None where the rule itself
        says.
        """
        if rows < 1:
            raise DataError(f"{type(self).__name__}: there are no rows to divide")
        self.check_params()
        check_arguments(Partition.assign, owner=self, clients=clients)
        names = clients if isinstance(clients, Sequence) else ()
        if len(set(names)) < len(names):
            raise self._refused(f"clients={list(names)} names one twice", "give each its own name")
        count = len(clients) if isinstance(clients, Sequence) else clients
        dealt = self._split(int(rows), y, X, count, generator(seed, "partition"))
        return replace(dealt, names=tuple(names)) if names else dealt

    @abstractmethod
    def _split(self, rows: int, y: Any, X: Any, clients: int | None, rng: Generator) -> Assignment:
        """The rule itself."""

    def _refused(self, problem: str, way_out: str) -> UsageError:
        return UsageError(f"{type(self).__name__}: {problem}", hint=way_out)

    def _count(self, clients: int | None, implied: int | None = None, what: str = "") -> int:
        """The number of clients, given or implied by the rule; the two must agree."""
        count = clients if implied is None else implied
        if count is None:
            raise self._refused("the number of clients is missing", "pass clients=")
        if clients not in (None, count):
            raise self._refused(
                f"clients={clients} but there are {count} {what}",
                f"leave clients out or make it {count}",
            )
        return int(count)

    def _check_enough(self, rows: int, clients: int, min_rows: int = 1) -> None:
        if clients * min_rows > rows:
            raise self._refused(
                f"{rows} rows are too few for {clients} clients with at least {min_rows} each",
                f"use at most {rows // min_rows} clients"
                + (" or a smaller min_rows" if "min_rows" in self.parameters() else ""),
            )

    def _fractions(
        self, weights: ArrayLike, dimensions: int, replacement: bool, normalise: bool
    ) -> FloatArray:
        """Weights per client (and label) as fractions that can be handed out."""
        try:
            fractions = np.asarray(weights, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise self._refused(
                f"weights are not an array of numbers: {error}", "give a number for every client"
            ) from None
        if fractions.ndim != dimensions or fractions.size == 0:
            wanted = "one weight per client" if dimensions == 1 else "a row of weights per client"
            raise self._refused(f"weights have shape {fractions.shape}", f"give {wanted}")
        wrong = fractions[~((fractions >= 0) & (fractions <= (1 if replacement else np.inf)))]
        if wrong.size:
            rule = "must be fractions between 0 and 1" if replacement else "must be >= 0"
            raise UsageError.of(self, "weights", float(wrong[0]), rule)
        if replacement:
            return fractions
        total = fractions.sum(axis=0)
        if normalise and (total > 1).any():
            return np.asarray(fractions / np.where(total > 0, total, 1))
        if (total > 1 + _ROUNDING).any():
            raise self._refused(
                f"weights sum to {float(total.max()):g}, more than all rows",
                "set normalise=True to divide them by their sum over the clients, or "
                "replacement=True",
            )
        return np.asarray(fractions / np.maximum(total, 1))


class IID(Partition):
    """Rows at random, in numbers that differ by at most one."""

    def _split(self, rows: int, y: Any, X: Any, clients: int | None, rng: Generator) -> Assignment:
        count = self._count(clients)
        self._check_enough(rows, count)
        return Assignment(rng.permutation(rows), offsets_of(even(rows, count)))


class ClientWeights(Partition):
    """Client k gets the fraction ``weights[k]`` of all rows, at random.

    Weights that sum to less than 1 leave rows over; those that sum to more are an error, or are
    divided by their sum with ``normalise``. Numbers of rows are rounded so that their sum is exact,
    or down with ``floor``. Both are FLEX's ways. With ``replacement`` the numbers of rows stay
    the same but clients draw independently: a row may go to several of them, never twice to one.
    """

    def __init__(
        self,
        weights: ArrayLike,
        *,
        replacement: bool = False,
        normalise: bool = False,
        floor: bool = False,
    ) -> None:
        self.weights = weights
        self.replacement = replacement
        self.normalise = normalise
        self.floor = floor

    def _split(self, rows: int, y: Any, X: Any, clients: int | None, rng: Generator) -> Assignment:
        fractions = self._fractions(self.weights, 1, self.replacement, self.normalise)
        self._count(clients, len(fractions), "weights")
        index, sizes = hand_out(
            rng.permutation(rows), fractions, self.replacement, rng, floor=self.floor
        )
        return Assignment(index, offsets_of(sizes), missing_from(index, rows))


class QuantitySkew(Partition):
    """Rows at random, in numbers drawn from Dirichlet(alpha, …, alpha).

    The smaller alpha, the less equal. Clients below ``min_rows`` are filled up by the others, in
    proportion to what these have above it.
    """

    def __init__(self, alpha: Concentration = 1.0, *, min_rows: NonNegativeInt = 1) -> None:
        self.alpha = alpha
        self.min_rows = min_rows

    def _split(self, rows: int, y: Any, X: Any, clients: int | None, rng: Generator) -> Assignment:
        count = self._count(clients)
        self._check_enough(rows, count, self.min_rows)
        sizes = divide(rows, rng.dirichlet(np.full(count, self.alpha)), rng)
        return Assignment(rng.permutation(rows), offsets_of(at_least(sizes, self.min_rows, rng)))


class Overlap(Partition):
    """Another partition whose clients share rows.

    Of each client's rows a random ``fraction`` is given to one more client as well, each row to a
    client of its own choosing. What is not a whole number of rows is rounded at random.
    """

    def __init__(self, partition: Partition, *, fraction: Fraction = 0.1) -> None:
        self.partition = partition
        self.fraction = fraction

    def _split(self, rows: int, y: Any, X: Any, clients: int | None, rng: Generator) -> Assignment:
        base = self.partition._split(rows, y, X, clients, rng)
        if base.clients < 2:
            raise self._refused("one client has nobody to share with", "use at least two clients")
        if len(base.index) + base.left_over > rows:
            raise self._refused(
                f"clients of {type(self.partition).__name__} share rows already",
                "use that partition alone, or without replacement and overlap",
            )
        owners = np.repeat(np.arange(base.clients), base.sizes)
        index = collect(base.index, owners, base.clients, rows, rng).index
        copies = np.floor(self.fraction * base.sizes + rng.random(base.clients)).astype(np.int64)
        shared = np.arange(len(index)) - base.offsets[owners] < copies[owners]
        steps = rng.integers(1, base.clients, size=int(copies.sum()))
        receivers = (owners[shared] + steps) % base.clients
        return collect(
            np.concatenate([index, index[shared]]),
            np.concatenate([owners, receivers]),
            base.clients,
            rows,
            rng,
        )


class Unlabelled(Partition):
    """Another partition, some of whose ``clients`` (by number) hold no labels.

    Learners of clusters and transformers use their rows; learners of a target refuse them by name,
    and go without them: ``federation.without(…)``.
    """

    def __init__(self, partition: Partition, *, clients: Sequence[NonNegativeInt]) -> None:
        self.partition = partition
        self.clients = clients

    def _split(self, rows: int, y: Any, X: Any, clients: int | None, rng: Generator) -> Assignment:
        base = self.partition._split(rows, y, X, clients, rng)
        outside = [client for client in self.clients if client >= base.clients]
        if outside:
            rule = f"names client {outside[0]} of 0 … {base.clients - 1}"
            raise UsageError.of(self, "clients", list(self.clients), rule)
        return replace(base, unlabelled=tuple(sorted(set(self.clients))))


def collect(
    index: IntArray, owners: IntArray, clients: int, rows: int, rng: Generator
) -> Assignment:
    """The assignment of row ``index[i]`` to client ``owners[i]``, each client's in random order."""
    order = rng.permutation(len(index))
    return Assignment(*group(index[order], owners[order], clients), missing_from(index, rows))


def encode(owner: object, name: str, values: Any, rows: int) -> tuple[IntArray, NDArray[Any]]:
    """One value per row as codes 0, 1, … into the sorted distinct values."""
    kind = type(owner).__name__
    values = np.asarray(values)
    if values.shape != (rows,):
        raise DataError(f"{kind}: {name} has shape {values.shape}, not one value for {rows} rows")
    if values.dtype.kind in "iu" and rows and values.min() >= 0 and values.max() <= rows:
        present = np.bincount(values) > 0
        return (np.cumsum(present) - 1)[values], np.flatnonzero(present).astype(values.dtype)
    try:
        missing = np.flatnonzero(values != values)
        found, codes = np.unique(values, return_inverse=True)
    except TypeError:
        raise DataError(
            f"{kind}: {name} mixes values that cannot be compared",
            hint="fill missing values and use one type, for example text",
        ) from None
    if len(missing):
        raise DataError(
            f"{kind}: {name} is missing in {len(missing)} rows, the first is row {missing[0]}",
            hint="drop or fill these rows first",
        )
    return codes.astype(np.int64), found


def is_whole(value: Any) -> bool:
    """Whether it is an integer of Python or NumPy, and no truth value."""
    return isinstance(value, Integral) and not isinstance(value, bool)

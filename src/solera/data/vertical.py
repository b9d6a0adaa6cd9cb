"""Vertical partitions: which client holds which columns of which rows, and who holds the labels."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Literal

import numpy as np
from numpy.random import Generator

from solera.core.clients import IntArray
from solera.core.component import Component
from solera.core.constraints import Count, NonNegativeInt, check_values
from solera.core.errors import DataError, UsageError
from solera.core.rng import generator
from solera.data.dealing import even, missing_from, offsets_of
from solera.data.partition import is_whole

Columns = Sequence[Sequence[int | str]]
Held = tuple[IntArray, ...]
"""For every client the numbers of what it holds."""


@dataclass(frozen=True, slots=True)
class VerticalAssignment:
    """Client k holds ``columns[k]`` of ``rows[k]``; ``label_owners`` hold y of their rows as well.

    Columns and rows are in ascending order, so what two clients share is in the same order at both.
    ``left_over`` counts the columns that no client holds.
    """

    columns: Held
    rows: Held
    label_owners: tuple[int, ...]
    left_over: int = 0

    @property
    def clients(self) -> int:
        return len(self.columns)


class VerticalPartition(Component, abstract=True):
    """A rule for dividing columns among clients."""

    label_owner: int | Sequence[int]

    def assign(
        self, rows: int, features: int | Sequence[str], *, clients: int | None = None, seed: int
    ) -> VerticalAssignment:
        """Divide a table of ``rows`` rows and ``features`` columns (their number or names).

        ``clients`` may be None where the rule itself says how many there are.
        """
        self.check_params()
        given: Any = features
        names = range(given) if is_whole(given) else given
        if rows < 1 or not len(names):
            raise DataError(
                f"{type(self).__name__}: a table of {rows} rows and {len(names)} columns is empty"
            )
        count = self._count(clients)
        rng = generator(seed, "partition")
        columns, held = self._split(rows, names, count, rng)
        left_over = missing_from(np.concatenate(columns), len(names))
        return VerticalAssignment(columns, held, self._owners(count), left_over)

    @abstractmethod
    def _split(
        self, rows: int, names: Sequence[Any], clients: int, rng: Generator
    ) -> tuple[Held, Held]:
        """Columns and rows of every client."""

    def _count(self, clients: int | None) -> int:
        check_values(self, {"clients": Count}, {"clients": clients})
        assert clients is not None
        return int(clients)

    def _owners(self, clients: int) -> tuple[int, ...]:
        given: Any = self.label_owner
        owners = list(given) if hasattr(given, "__len__") else [given]
        known = all(is_whole(owner) and 0 <= owner < clients for owner in owners)
        if not owners or not known or len(set(owners)) < len(owners):
            rule = f"must be one or more different clients of 0 … {clients - 1}"
            raise UsageError.of(self, "label_owner", given, rule)
        return tuple(int(owner) for owner in owners)

    def _shared(self, name: str, what: str, order: IntArray, clients: int) -> Held:
        """The first things of ``order`` for everyone, the others divided evenly."""
        shared = getattr(self, name)
        own = len(order) - shared
        if own < clients:
            raise UsageError.of(
                self,
                name,
                shared,
                f"leaves {max(own, 0)} of {len(order)} {what} to divide among {clients} clients",
                hint=f"share at most {max(len(order) - clients, 0)} or use fewer clients",
            )
        cuts = offsets_of(even(own, clients))[1:-1]
        common, parts = order[:shared], np.split(order[shared:], cuts)
        return tuple(np.sort(np.concatenate([common, part])) for part in parts)


class VerticalSplit(VerticalPartition):
    """All clients hold all rows, each its own columns.

    ``columns`` is ``"even"`` (neighbouring columns in equal numbers), ``"random"`` (random columns
    in equal numbers) or the columns of every client, by number or name. ``overlap`` columns, the
    first or random ones, are held by everyone. A number, or a range ``(low, high)`` from which
    each client's number is drawn, is how many columns a client draws at random, whatever the
    others hold (FLEX's features per node). ``label_owner`` is the client, or the clients, that
    hold the labels.
    """

    def __init__(
        self,
        columns: Literal["even", "random"] | Count | tuple[Count, Count] | Columns = "even",
        *,
        overlap: NonNegativeInt = 0,
        label_owner: int | Sequence[int] = 0,
    ) -> None:
        self.columns = columns
        self.overlap = overlap
        self.label_owner = label_owner

    @property
    def _range(self) -> tuple[int, int] | None:
        """The least and the most columns that a client draws, where it draws some."""
        given: Any = (self.columns, self.columns) if is_whole(self.columns) else self.columns
        return tuple(given) if len(given) == 2 and all(map(is_whole, given)) else None

    def _count(self, clients: int | None) -> int:
        if isinstance(self.columns, str) or self._range is not None:
            return super()._count(clients)
        listed: Any = self.columns
        if clients not in (None, len(listed)):
            raise UsageError(
                f"VerticalSplit: clients={clients} but columns are listed for {len(listed)}",
                hint=f"leave clients out or make it {len(listed)}",
            )
        return super()._count(len(listed))

    def _split(
        self, rows: int, names: Sequence[Any], clients: int, rng: Generator
    ) -> tuple[Held, Held]:
        everyone = tuple(repeat(np.arange(rows), clients))
        if self._range is not None:
            return self._drawn(*self._range, len(names), clients, rng), everyone
        if not isinstance(self.columns, str):
            return self._listed(self.columns, names), everyone  # type: ignore[arg-type]
        order = np.arange(len(names))
        if self.columns == "random":
            order = rng.permutation(order)
        return self._shared("overlap", "columns", order, clients), everyone

    def _drawn(self, low: int, high: int, columns: int, clients: int, rng: Generator) -> Held:
        self._check_no_overlap("drawn")
        if not 1 <= low <= high <= columns:
            rule = f"must be between 1 and the {columns} columns"
            raise UsageError.of(self, "columns", self.columns, rule)
        sizes = rng.integers(low, high, size=clients, endpoint=True)
        return tuple(np.sort(rng.choice(columns, size, replace=False)) for size in sizes)

    def _check_no_overlap(self, how: str) -> None:
        if self.overlap:
            raise UsageError(
                f"VerticalSplit: overlap={self.overlap} contradicts columns {how} by client",
                hint="list the shared columns for every client that holds them",
            )

    def _listed(self, columns: Columns, names: Sequence[Any]) -> Held:
        self._check_no_overlap("listed")
        number = {name: i for i, name in enumerate(names)} | {i: i for i in range(len(names))}
        for client, own in enumerate(columns):
            unknown = [column for column in own if column not in number]
            if unknown:
                raise UsageError.of(self, "columns", unknown[0], f"of client {client} is unknown")
            if not 0 < len(own) == len({number[column] for column in own}):
                raise UsageError(
                    f"VerticalSplit: client {client} has the columns {list(own)}",
                    hint="list every column of it once",
                )
        return tuple(
            np.array(sorted(number[column] for column in own), dtype=np.int64) for own in columns
        )


class TransferSplit(VerticalPartition):
    """Clients that have few rows and few columns in common, as in federated transfer learning.

    Every client holds the same random ``shared_rows`` rows and ``shared_columns`` columns; the
    other rows and columns are divided evenly, at random, so that no two clients share them.
    """

    def __init__(
        self,
        shared_rows: NonNegativeInt,
        *,
        shared_columns: NonNegativeInt,
        label_owner: int | Sequence[int] = 0,
    ) -> None:
        self.shared_rows = shared_rows
        self.shared_columns = shared_columns
        self.label_owner = label_owner

    def _split(
        self, rows: int, names: Sequence[Any], clients: int, rng: Generator
    ) -> tuple[Held, Held]:
        columns = rng.permutation(len(names))
        return (
            self._shared("shared_columns", "columns", columns, clients),
            self._shared("shared_rows", "rows", rng.permutation(rows), clients),
        )

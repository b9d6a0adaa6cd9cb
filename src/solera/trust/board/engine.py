"""The engine ``board``: a learner's asks become sums over all owners, in a process without rows.

It carries no ask to anybody. Every owner runs the same learner, so all come to the same ask; each
works out its own terms, and what comes back is the total of all (:mod:`.run`). There is one answer
for all owners: nothing to read one by one, and nobody to choose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn, Protocol

import numpy as np

from solera.core.aggregation import Aggregation
from solera.core.clients import IntArray, Part
from solera.core.engine import OUTSIDE, Ask, Block, Fit, PerClient
from solera.core.errors import UsageError
from solera.core.payload import encode, encoded_size
from solera.core.schema import Schema
from solera.trust.board.hashing import digest
from solera.trust.board.sums import Total
from solera.trust.epoch.atoms import Atoms
from solera.trust.epoch.bases import Base


class NotClosed(UsageError):
    """Something that a closed job cannot carry."""


class Exchange(Protocol):
    """How totals come about: over a board, or among owners that are simulated."""

    def total(self, question: bytes, ask: Ask, aggregation: Aggregation) -> Total:
        """What all owners come to."""

    def keeps(self, fit: Fit) -> bool:
        """Whether owners keep anything of a fit."""


class BoardEngine:
    """Carries asks of all owners whose answers add up; everything else is refused by name.

    ``schema`` is what the dictionary says of the rows, and ``gaps`` are the columns in which it
    allows values to be missing. ``names`` are the owners in the epoch's order, ``atoms`` gives
    the cells of its columns, ``bases`` are the base models that the dictionary lists.
    """

    closed = True
    """Whether only sums over all owners come back."""

    def __init__(
        self,
        exchange: Exchange,
        schema: Schema,
        owners: int,
        *,
        gaps: tuple[str, ...] = (),
        names: tuple[str, ...] = (),
        atoms: Callable[[], Atoms | None] = lambda: None,
        bases: tuple[Base, ...] = (),
    ) -> None:
        self.exchange = exchange
        self.gaps = gaps
        self.bases = bases
        self._atoms = atoms
        self.client_names = names
        self.scored: dict[Any, Any] = {}
        """What models scored on parts: each is scored once."""
        self.persons: Mapping[Part, int] = {}
        """What the first sum of a job has told."""
        self._schema = schema
        self._owners = owners

    @property
    def clients(self) -> int:
        return self._owners

    @property
    def atoms(self) -> Atoms | None:
        """The cells of the dictionary's columns, in an epoch."""
        return self._atoms()

    @property
    def schema(self) -> Schema:
        return self._schema

    def run(self, ask: Ask, aggregation: Aggregation | None) -> Iterator[Block]:
        """One block: the total over all owners."""
        self._check(ask, aggregation)
        assert aggregation is not None
        total = self.exchange.total(question_of(ask), ask, aggregation)
        up = np.full(self._owners, encoded_size(total.partial), dtype=np.int64)
        for entry in total.absent:
            if not aggregation.adds(entry.partition(".")[0]):
                why = (
                    f"too few persons are behind some numbers of {entry!r}, and it is no plain sum"
                )
                _refuse(ask, why, ".fold(so.aggregations.Sum())")
        yield Block(
            ask.clients, up, [], partial=total.partial, absent=total.absent, noised=total.noised
        )

    def sizes(self, part: Part) -> IntArray | None:
        """Nobody knows how many rows an owner has."""
        return None

    def keeps(self, fit: Fit) -> bool:
        """Whether owners still have what they kept for a fit."""
        return self.exchange.keeps(fit)

    def states(self, fit: Fit = OUTSIDE) -> dict[int, Any]:
        """What owners keep stays with them."""
        return {}

    def restore(self, states: Mapping[int, Any], fit: Fit = OUTSIDE) -> None:
        """What owners keep stays with them."""

    def checkpoint_store(self) -> None:
        """Owners keep every sum, from which a run goes on."""

    def close(self) -> None:
        """Nothing to give back."""

    def _check(self, ask: Ask, aggregation: Aggregation | None) -> None:
        if len(ask.clients) != self._owners:
            _refuse(ask, "it asks some owners only", "ask all of them: no to=, select= or without")
        if isinstance(ask.payload, PerClient):
            _refuse(ask, "it has a payload for each owner", "the same payload for all")
        if aggregation is None:
            _refuse(ask, "its replies are read one by one", ".fold(so.aggregations.Sum())")
        if not aggregation.additive:
            how = f"its replies are folded by {aggregation!r}, which is no sum"
            _refuse(ask, how, ".fold(so.aggregations.Sum()), or Mean(weight=…)")
        if aggregation.protocol is not None:
            _refuse(ask, "it has a secure sum of its own", "leave so.SecureSum out")
        if ask.deadline is not None:
            _refuse(ask, "it has a deadline", "leave deadline= out: owners are waited for")


def question_of(ask: Ask) -> bytes:
    """q = H(task, version, payload, preparation, seed, round)."""
    prepared = [step.digest for step in ask.prepare]
    about = [ask.task, ask.version, ask.payload, prepared, ask.seed, ask.round]
    return digest("q", encode(about))


def _refuse(ask: Ask, why: str, instead: str) -> NoReturn:
    raise NotClosed(
        f"a closed job cannot carry the ask {ask.task!r}: {why}, and only sums over all owners are "
        "shared",
        hint=f"{instead}; or the policy 'trusted'",
    )

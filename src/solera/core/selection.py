"""Who takes part in a round, and how long it takes: selectors, what they know, and clocks."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.random import Generator

from solera.core.clients import IntArray
from solera.core.component import Component
from solera.core.engine import Engine
from solera.core.errors import UsageError
from solera.core.federation import Federation
from solera.core.replies import Failure, Reply
from solera.core.state import Stateful
from solera.core.task import Task

if TYPE_CHECKING:
    from solera.core.rounds import Round


@dataclass(frozen=True, slots=True)
class Roster:
    """What a selector knows about the clients, and how it may ask them more.

    ``budget`` is how many to choose, ``sizes`` their rows where the engine knows them, and
    ``available`` who can be reached now; None means everybody.
    """

    clients: int
    budget: int
    sizes: IntArray | None
    available: IntArray | None = None
    seed: int = 0
    federation: Federation | None = None
    learner: Any = None

    @property
    def ids(self) -> IntArray:
        """The clients to choose from."""
        return np.arange(self.clients) if self.available is None else self.available

    def ask(self, task: str | Task, payload: Any, to: IntArray, round: int) -> list[Reply]:
        """The replies of those who give one; clients may decline."""
        if self.federation is None:
            raise UsageError("this selector asks clients, and the roster has no federation")
        return self.federation.ask(task, payload, to=to, quorum=0, round=round).collect()


class Selector(Stateful, Component, abstract=True):
    """Decides which clients take part in a round.

    What it remembers between rounds is in attributes that end in an underscore.
    """

    needs_updates: ClassVar[bool] = False
    """Whether :meth:`observe` looks at what each client replied: :attr:`Round.updates`."""

    asks_clients: ClassVar[bool] = False
    """Whether it asks clients for rows, counts or losses, which they tell without noise."""

    @abstractmethod
    def choose(self, round: int, roster: Roster, rng: Generator) -> IntArray:
        """Ids of the clients of this round."""

    def coordinator_rows(self) -> Engine | None:
        """One more client for this round, at the coordinator itself: rows that were sent to it."""
        return None

    def observe(self, round: Round) -> None:
        """Learn from what the chosen clients reported."""


class Uniform(Selector):
    """Every client with the same probability, without replacement."""

    def choose(self, round: int, roster: Roster, rng: Generator) -> IntArray:
        if roster.available is None:  # a million ids are not listed to draw a hundred
            pool: Any = roster.clients
            reachable = roster.clients
        else:
            pool = roster.available
            reachable = len(roster.available)
        if roster.budget >= reachable:
            return roster.ids
        return np.asarray(rng.choice(pool, size=roster.budget, replace=False, shuffle=False))


class Poisson(Selector):
    """Every client by itself, with the probability budget / clients: as many as chance wants."""

    def choose(self, round: int, roster: Roster, rng: Generator) -> IntArray:
        ids = roster.ids
        return np.asarray(ids[rng.random(len(ids)) < roster.budget / max(1, len(ids))])


@dataclass(frozen=True, slots=True)
class Work:
    """What a round asks of its clients: bits of the model, passes over the rows, and the rows."""

    bits: int
    epochs: float
    rows: IntArray


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a round takes, and who does not come back in time."""

    seconds: float
    missed: list[Failure]

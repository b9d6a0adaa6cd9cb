"""Who may send to whom, and which aggregator folds whose replies."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from enum import Flag, auto
from typing import ClassVar, Literal

import numpy as np

from solera.core.clients import IntArray
from solera.core.component import Component
from solera.core.constraints import Count
from solera.core.errors import ForbiddenMessage, UsageError

Actor = int | str
"""A client is known by its number, every other actor by its name."""

Exchange = Literal["cyclic", "random", "parallel"]


class Role(Flag):
    """What an actor does; an actor may have several roles."""

    CLIENT = auto()
    AGGREGATOR = auto()
    SERVER = auto()

    def __str__(self) -> str:
        return "-".join(role.name.lower() for role in Role if role in self and role.name)


_MAY_SEND = {
    Role.CLIENT: Role.AGGREGATOR,
    Role.AGGREGATOR: Role.AGGREGATOR | Role.SERVER,
    Role.SERVER: Role.CLIENT,
}


def may_send(sender: Role, receiver: Role) -> bool:
    """Whether the role matrix lets ``sender`` write to ``receiver``.

    ========== ====== ========== ======
    from \\ to  client aggregator server
    ========== ====== ========== ======
    client            yes
    aggregator        yes        yes
    server     yes
    ========== ====== ========== ======

    Combined roles may do what any of their parts may.
    """
    return any(role in sender and bool(_MAY_SEND[role] & receiver) for role in Role)


class Topology(Component, abstract=True):
    """The shape of a federation; ``client_role`` is what its clients do."""

    client_role: ClassVar[Role] = Role.CLIENT

    @abstractmethod
    def others(self) -> Mapping[str, Role]:
        """The actors besides the clients, and what they do."""

    def role(self, actor: Actor) -> Role:
        """What this actor does."""
        if isinstance(actor, int):
            return self.client_role
        others = self.others()
        if actor not in others:
            raise UsageError(f"{type(self).__name__} has no actor {actor!r}")
        return others[actor]

    def groups(self, clients: IntArray) -> list[IntArray]:
        """The clients asked, grouped by the aggregator that folds their replies."""
        return [clients]

    def check(self, sender: Actor, receiver: Actor) -> None:
        """Raise :class:`ForbiddenMessage` unless ``sender`` may write to ``receiver``."""
        sending, receiving = self.role(sender), self.role(receiver)
        if not may_send(sending, receiving):
            allowed = [str(role) for role in Role if may_send(sending, role)]
            raise ForbiddenMessage(
                f"{sending} {sender!r} may not send to {receiving} {receiver!r}",
                hint=f"a {sending} may send to: {', '.join(allowed)}",
            )


class Star(Topology):
    """Client–server: one actor is server and aggregator for everybody."""

    def others(self) -> Mapping[str, Role]:
        return {"server": Role.SERVER | Role.AGGREGATOR}


class Hierarchy(Topology):
    """Clients answer to one of several aggregators, and these to the server.

    Client k belongs to aggregator k mod ``aggregators``.
    """

    def __init__(self, aggregators: Count) -> None:
        self.aggregators = aggregators

    def others(self) -> Mapping[str, Role]:
        names = [f"aggregator-{i}" for i in range(self.aggregators)]
        return {**dict.fromkeys(names, Role.AGGREGATOR), "server": Role.SERVER}

    def groups(self, clients: IntArray) -> list[IntArray]:
        owner = clients % self.aggregators
        return [clients[owner == i] for i in np.unique(owner)]


class Peers(Topology):
    """No server: every client has all roles, and models travel from peer to peer.

    ``cyclic``: along the chain 0 → 1 → … → K−1 → 0. ``random``: from each holder to another client
    drawn uniformly. ``parallel``: everybody to everybody.
    """

    client_role = Role.CLIENT | Role.AGGREGATOR | Role.SERVER

    def __init__(self, exchange: Exchange = "cyclic") -> None:
        self.exchange = exchange

    def others(self) -> Mapping[str, Role]:
        return {}

    def route(self, clients: int, rng: np.random.Generator) -> list[IntArray]:
        """One round of exchange: who holds the model at each step, one after the other.

        In a parallel exchange all clients hold one at the same single step.
        """
        everybody = np.arange(clients, dtype=np.int64)
        if self.exchange == "parallel":
            return [everybody]
        if self.exchange == "cyclic":
            return list(everybody.reshape(-1, 1))
        hops = [int(rng.integers(clients))]
        while len(hops) < clients:  # the next of the K−1 others, counted from the holder
            hops.append((hops[-1] + 1 + int(rng.integers(clients - 1))) % clients)
        return [np.array([hop], dtype=np.int64) for hop in hops]


class Custom(Topology):
    """Roles as given: ``roles`` names the actors besides the clients and what they do.

    ``aggregator_of`` lists for every client the name of the aggregator it answers to; without it
    all replies are folded together.
    """

    def __init__(
        self, roles: Mapping[str, str], *, aggregator_of: Sequence[str] | None = None
    ) -> None:
        self.roles = roles
        self.aggregator_of = aggregator_of

    def others(self) -> Mapping[str, Role]:
        return {actor: self._parsed(actor, words) for actor, words in self.roles.items()}

    def _parsed(self, actor: str, words: str) -> Role:
        role = Role(0)
        for part in words.split("-"):
            if part.upper() not in Role.__members__:
                raise UsageError(
                    f"Custom: {part!r} is no role of {actor!r}",
                    hint="roles are client, aggregator, server, joined by '-'",
                )
            role |= Role[part.upper()]
        return role

    def groups(self, clients: IntArray) -> list[IntArray]:
        if self.aggregator_of is None:
            return [clients]
        owners = np.asarray(self.aggregator_of)
        if len(owners) <= clients.max():
            raise UsageError(
                f"Custom: aggregator_of has no entry for client {clients.max()}, only {len(owners)}"
            )
        for actor in np.unique(owners):
            self.check(0, str(actor))
        asked = owners[clients]
        return [clients[asked == actor] for actor in np.unique(asked)]

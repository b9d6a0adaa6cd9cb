"""The research playground: Python functions over the actors of a simulated federation.

    pool = so.pool(fed)
    pool.servers.map(initialise)
    for _ in range(10):
        chosen = pool.clients.select(5)
        pool.servers.map(deploy, chosen)
        chosen.map(train)
        pool.aggregators.map(collect, chosen)
        pool.aggregators.map(aggregate)
        pool.aggregators.map(set_model, pool.servers)

Every actor has a ``model``, a dict of whatever you like, and clients have ``data``. Messages go
only where the roles of the topology let them. When a method works, make it a task and a learner:
then it runs on every engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any

from numpy.random import Generator

from solera.core.clients import ClientData
from solera.core.errors import UsageError
from solera.core.rng import generator
from solera.core.topology import Role, Topology
from solera.simulate.simulation import Simulation

Model = dict[str, Any]
Step = Callable[..., None]


class Actor:
    """A client, aggregator or server with a model of its own; ``data`` is None without rows."""

    def __init__(self, id: int | str, role: Role, data: ClientData | None, rng: Generator) -> None:
        self.id = id
        self.role = role
        self.data = data
        self.rng = rng
        self.model: Model = {}

    def __repr__(self) -> str:
        return f"Actor({self.id!r}, {self.role})"


class Actors:
    """Some actors of a pool."""

    def __init__(self, actors: Iterable[Actor], topology: Topology, rng: Generator) -> None:
        self._actors = list(actors)
        self._topology = topology
        self._rng = rng

    def __len__(self) -> int:
        return len(self._actors)

    def __iter__(self) -> Iterator[Actor]:
        return iter(self._actors)

    def __getitem__(self, i: int) -> Actor:
        return self._actors[i]

    def select(self, which: int | Callable[[Actor], bool]) -> Actors:
        """That many of them at random, or those for which a function says yes."""
        if callable(which):
            chosen = [actor for actor in self if which(actor)]
        elif not 0 <= which <= len(self):
            raise UsageError.of("select", "which", which, f"must be between 0 and {len(self)}")
        else:
            places = self._rng.choice(len(self), size=which, replace=False)
            chosen = [self._actors[i] for i in sorted(places)]
        return Actors(chosen, self._topology, self._rng)

    def map(
        self, function: Callable[..., Any], others: Actors | None = None, **options: Any
    ) -> list[Any]:
        """Call ``function(actor, **options)`` for each, or ``function(actor, others, **options)``.

        With others, each actor sends to all of them, or, for a function made with
        :func:`collect`, receives from all of them; the topology must allow it.
        """
        if others is None:
            return [function(actor, **options) for actor in self]
        receives = getattr(function, "receives", False)
        for actor in self:
            for other in others:
                sender, receiver = (other, actor) if receives else (actor, other)
                self._topology.check(sender.id, receiver.id)
        return [function(actor, others, **options) for actor in self]

    def __repr__(self) -> str:
        return f"Actors({len(self)})"


class Pool:
    """All actors of a simulated federation, by role."""

    def __init__(self, federation: Simulation) -> None:
        if not isinstance(federation, Simulation):
            raise UsageError(
                "a pool runs arbitrary functions on the data and exists in simulation only",
                hint="use so.simulate(…), or tasks and federation.ask over the network",
            )
        self.topology = federation.topology
        self._rng = generator(federation.seed, "pool")
        ids: list[int | str] = [*federation.clients.tolist(), *self.topology.others()]
        self.actors = Actors(
            (
                Actor(
                    id,
                    self.topology.role(id),
                    ClientData(federation.data, id) if isinstance(id, int) else None,
                    generator(federation.seed, f"pool/{id}"),
                )
                for id in ids
            ),
            self.topology,
            self._rng,
        )

    def _with(self, role: Role) -> Actors:
        return self.actors.select(lambda actor: role in actor.role)

    @property
    def clients(self) -> Actors:
        return self._with(Role.CLIENT)

    @property
    def aggregators(self) -> Actors:
        return self._with(Role.AGGREGATOR)

    @property
    def servers(self) -> Actors:
        return self._with(Role.SERVER)


def pool(federation: Simulation) -> Pool:
    """A pool of the actors of a simulated federation."""
    return Pool(federation)


# --- decorators for the usual steps ---


def initialise(function: Callable[[], Model]) -> Step:
    """``pool.servers.map(f)``: the dict that f returns becomes the actor's model."""

    @wraps(function)
    def step(actor: Actor, **options: Any) -> None:
        actor.model.update(function(**options))

    return step


def deploy(function: Callable[..., Model]) -> Step:
    """``pool.servers.map(f, clients)``: what f makes of the server's model goes to each client."""

    @wraps(function)
    def step(server: Actor, clients: Actors, **options: Any) -> None:
        for client in clients:
            client.model.update(function(server.model, **options))

    return step


def collect(function: Callable[..., Any]) -> Step:
    """``pool.aggregators.map(f, clients)``: what f makes of each client's model is gathered."""

    @wraps(function)
    def step(aggregator: Actor, clients: Actors, **options: Any) -> None:
        aggregator.model["collected"] = [function(c.model, **options) for c in clients]

    step.receives = True  # type: ignore[attr-defined]
    return step


def aggregate(function: Callable[..., Any]) -> Step:
    """``pool.aggregators.map(f)``: f turns the list that was gathered into one."""

    @wraps(function)
    def step(aggregator: Actor, **options: Any) -> None:
        aggregator.model["aggregated"] = function(aggregator.model.pop("collected"), **options)

    return step


def set_aggregated(function: Callable[..., Model]) -> Step:
    """``pool.aggregators.map(f, servers)``: what f makes of the aggregate updates each model."""

    @wraps(function)
    def step(aggregator: Actor, receivers: Actors, **options: Any) -> None:
        for receiver in receivers:
            receiver.model.update(function(aggregator.model["aggregated"], **options))

    return step


def evaluate(function: Callable[..., Any]) -> Callable[..., Any]:
    """``pool.clients.map(f)``: f sees the actor's model and data."""

    @wraps(function)
    def step(actor: Actor, **options: Any) -> Any:
        return function(actor.model, actor.data, **options)

    return step

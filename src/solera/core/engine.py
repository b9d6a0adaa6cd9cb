"""How asks travel: what an ask is, what comes back, and what carries it."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Protocol

from solera.core.aggregation import Aggregation
from solera.core.clients import IntArray, Part
from solera.core.component import Component, describe_fitted
from solera.core.errors import UsageError
from solera.core.payload import encode, encoded_size
from solera.core.replies import Batch, Failure
from solera.core.schema import Schema

_ENGINES = "solera.engines"


@dataclass(frozen=True, slots=True)
class PerClient:
    """A payload of its own for each client asked."""

    payloads: Mapping[int, Any]


@dataclass(frozen=True, slots=True)
class Preparation:
    """A fitted transformer through which clients pass their rows before a task sees them."""

    description: dict[str, Any]
    digest: str

    @classmethod
    def by(cls, transformer: Component) -> Preparation:
        description = describe_fitted(transformer)
        return cls(description, blake2b(encode(description), digest_size=16).hexdigest())


class Fit:
    """One fit of a learner: what clients keep from task to task is kept for it alone.

    It lasts as long as the model that holds it.
    """


OUTSIDE = Fit()
"""For what is asked outside of any fit."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One message to chosen clients, as an engine carries it."""

    task: str
    version: int
    payload: Any
    clients: IntArray
    seed: int
    round: int = 0
    deadline: float | None = None
    prepare: tuple[Preparation, ...] = ()
    known_size: int | None = None
    """Encoded size of the payload (the largest of a PerClient), where somebody took it already."""
    cover: Mapping[str, Any] | None = None
    """What the released reply passes through: the description of a ``solera.core.cover.Cover``."""
    secret: bytes | None = None
    """What the client draws its protection from, added by its agent; it never travels."""
    fit: Fit = OUTSIDE
    """Whose client states the task sees; it never travels."""

    def payload_for(self, client: int) -> Any:
        if isinstance(self.payload, PerClient):
            return self.payload.payloads[client]
        return self.payload

    @property
    def size(self) -> int:
        """Encoded size of the payload, or of the largest."""
        return payload_size(self.payload) if self.known_size is None else self.known_size


@dataclass(frozen=True, slots=True)
class Block:
    """What came back from one block of the clients asked.

    Either the replies themselves, or their ``partial`` under the aggregation given to the engine.
    ``replied`` and ``up`` tell who answered with how many bytes; ``virtual`` is the simulated time
    of the slowest of them. In a closed job ``absent`` marks numbers that are not told, by entry,
    and ``noised`` are the entries whose counts carry noise by cell.
    """

    replied: IntArray
    up: IntArray
    failures: list[Failure]
    virtual: float = 0.0
    batch: Batch | None = None
    partial: Any = None
    absent: Mapping[str, Any] = field(default_factory=dict)
    noised: tuple[str, ...] = ()


class CheckpointStore(Protocol):
    """Something that keeps the state of a loop, to go on from after an interruption."""

    def read(self) -> bytes | None:
        """What was kept last, or None."""

    def write(self, content: Callable[[], bytes]) -> None:
        """Keep new content, or decide that what is kept will do for now."""


class Engine(Protocol):
    """How messages travel."""

    @property
    def clients(self) -> int:
        """How many clients can be asked; their ids are 0 … clients − 1."""

    @property
    def schema(self) -> Schema | None:
        """What the rows look like, where the engine knows without asking."""

    def run(self, ask: Ask, aggregation: Aggregation | None) -> Iterator[Block]:
        """Carry the ask and yield the blocks of :func:`solera.core.aggregation.blocks`, in order.

        With an aggregation each block comes back folded.
        """

    def sizes(self, part: Part) -> IntArray | None:
        """Rows per client, where the engine knows without asking."""

    def states(self, fit: Fit = OUTSIDE) -> dict[int, Any]:
        """What clients keep between tasks, for checkpoints of a simulation."""

    def restore(self, states: Mapping[int, Any], fit: Fit = OUTSIDE) -> None:
        """Put back what :meth:`states` returned."""

    def checkpoint_store(self) -> CheckpointStore | None:
        """Where the state of a loop that begins now is kept, if the engine keeps it."""

    def close(self) -> None:
        """Give back processes and memory."""


def find_engine(name: str) -> type[Any]:
    """The class of an engine by its name, among all that are installed."""
    installed = installed_engines()
    if name not in installed:
        raise UsageError(
            f"there is no engine {name!r}", hint=f"installed are {', '.join(sorted(installed))}"
        )
    engine: type[Any] = installed[name].load()
    return engine


@cache
def installed_engines() -> dict[str, EntryPoint]:
    """The entry points ``solera.engines`` of all packages, by name."""
    engines = {entry.name: entry for entry in entry_points(group=_ENGINES)}
    file = Path(__file__).parents[3] / "pyproject.toml"
    if file.is_file():  # a source tree, which may have more of them than when it was installed
        project = tomllib.loads(file.read_text())
        for name, value in project["project"]["entry-points"][_ENGINES].items():
            engines[name] = EntryPoint(name, value, _ENGINES)
    return engines


def payload_size(payload: Any) -> int:
    """Encoded size of a payload, the largest of those for each client."""
    if isinstance(payload, PerClient):
        return max(map(encoded_size, payload.payloads.values()))
    return encoded_size(payload)

"""What a task sees: one client, or a group of clients at once.

Rows of all simulated clients lie in one array, each client's next to each other; a client or a
group is a set of (start, size) pairs into it. Nothing is copied until a task asks for it.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray

from solera.core import rng as random
from solera.core.schema import Schema

Part = Literal["train", "validation", "test"]
PARTS: tuple[Part, ...] = ("train", "validation", "test")
Array = NDArray[Any]
IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Rows:
    """Features and target of some rows; ``y`` is None where there is no target."""

    X: Any
    y: Any

    def __len__(self) -> int:
        return int(self.X.shape[0])


def take_rows(X: Any, y: Any, rows: Any) -> Rows:
    """Some of the rows, by a slice, numbers or marks, and their target where there is one."""
    return Rows(X[rows], None if y is None else y[rows])


@dataclass(frozen=True, slots=True)
class Segments:
    """The rows of several clients: client i has ``X[starts[i] : starts[i] + sizes[i]]``."""

    X: Any
    y: Any
    starts: IntArray
    sizes: IntArray

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, i: int) -> Rows:
        rows = slice(int(self.starts[i]), int(self.starts[i] + self.sizes[i]))
        return take_rows(self.X, self.y, rows)

    @property
    def owners(self) -> IntArray:
        """For each row of :meth:`joined`, the position of the client it belongs to."""
        return np.repeat(np.arange(len(self)), self.sizes)

    @property
    def index(self) -> Any:
        """Row numbers of all clients, one after the other; a slice when they lie in that order."""
        ends = self.starts + self.sizes
        if len(self) and np.array_equal(self.starts[1:], ends[:-1]):
            return slice(int(self.starts[0]), int(ends[-1]))
        before = np.cumsum(self.sizes) - self.sizes
        return np.arange(int(self.sizes.sum())) + np.repeat(self.starts - before, self.sizes)

    def joined(self) -> Rows:
        """All rows, client after client; a view where possible."""
        return take_rows(self.X, self.y, self.index)


class Source(Protocol):
    """Where the rows of a set of clients come from."""

    @property
    def clients(self) -> int:
        """How many clients there are; their ids are 0 … clients − 1."""

    @property
    def schema(self) -> Schema:
        """What the rows look like."""

    def segments(self, clients: IntArray, part: Part) -> Segments:
        """The rows of one part of the data of these clients."""

    def sizes(self, part: Part) -> IntArray | None:
        """Rows per client of that part, or None when only generating them would tell."""

    def prepared(self, steps: Sequence[Any]) -> Source:
        """The same clients with every row passed through fitted transformers."""


class RowParts(ABC):
    """Rows in parts, the training rows at hand."""

    __slots__ = ()

    @abstractmethod
    def part(self, name: Part) -> Rows:
        """The rows of a part."""

    @property
    def X(self) -> Any:
        return self.part("train").X

    @property
    def y(self) -> Any:
        return self.part("train").y

    @property
    def validation(self) -> Rows:
        return self.part("validation")

    @property
    def test(self) -> Rows:
        return self.part("test")

    def __len__(self) -> int:
        return len(self.part("train"))


class ClientData(RowParts):
    """One client's rows: ``X`` and ``y`` to train on, ``validation`` and ``test`` to judge by."""

    __slots__ = ("_id", "_parts", "_source")

    def __init__(self, source: Source, client: int) -> None:
        self._source = source
        self._id = np.array([client], dtype=np.int64)
        self._parts: dict[str, Rows] = {}

    def part(self, name: Part) -> Rows:
        if name not in self._parts:
            self._parts[name] = self._source.segments(self._id, name)[0]
        return self._parts[name]

    @property
    def schema(self) -> Schema:
        own = getattr(self._source, "schema_of", None)  # where clients hold different columns
        return self._source.schema if own is None else own(int(self._id[0]))

    def identifiers(self, part: Part) -> Array | None:
        """By what other clients know these rows, as text, where the source has such a column."""
        known = getattr(self._source, "identifiers_of", None)
        return None if known is None else known(int(self._id[0]), part)

    def samples(self, part: Part) -> Any:
        """These rows as samples of a data set, where they come from one."""
        known = getattr(self._source, "samples_of", None)
        return None if known is None else known(int(self._id[0]), part)

    def labelled(self, part: Part) -> BoolArray:
        """Which rows have a target; all of them where the source does not say otherwise."""
        known = getattr(self._source, "labelled_of", None)
        marks = None if known is None else known(int(self._id[0]), part)
        return np.ones(len(self.part(part)), dtype=bool) if marks is None else marks

    def units(self, part: Part) -> IntArray | None:
        """Whose row each row is, as codes 0, 1, …, where the source knows."""
        known = getattr(self._source, "units", None)
        return None if known is None else known(int(self._id[0]), part)

    def keys(self, part: Part) -> IntArray | None:
        """In an epoch: a number of every row, the same for all rows of a person in all jobs."""
        known = getattr(self._source, "keys_of", None)
        return None if known is None else known(int(self._id[0]), part)


@dataclass(frozen=True, slots=True)
class Draws:
    """Where the random numbers of one ask come from; ``secret`` is the client's own."""

    seed: int
    purpose: str
    round: int
    secret: bytes | None = None

    def keys(self, clients: ArrayLike) -> random.Bits:
        """One stream key per client; see :func:`solera.core.rng.stream_keys`."""
        return random.stream_keys(self.seed, self.purpose, self.round, clients)


class Client:
    """A data owner, as a task running at its side sees it.

    ``draws`` are seed, purpose and round of the task's random numbers.
    """

    __slots__ = ("_rng", "_secret", "data", "draws", "id", "state")

    def __init__(
        self, id: int, source: Source, draws: Draws, state: MutableMapping[str, Any]
    ) -> None:
        self.id = id
        self.state = state
        self.data = ClientData(source, id)
        self.draws = draws
        self._rng: Generator | None = None
        self._secret = draws.secret

    @property
    def secret(self) -> bytes:
        """32 bytes of the system's randomness for this ask, to draw noise and masks from.

        Nobody else knows them, whoever knows the seed. At an agent they were on disk before the
        task began and are the same when the ask is tried or asked again, so that no average over
        several draws takes noise away.
        """
        if self._secret is None:
            self._secret = secrets.token_bytes(32)
        return self._secret

    @property
    def rng(self) -> Generator:
        """This client's generator for this task and round."""
        if self._rng is None:
            d = self.draws
            self._rng = random.generator(d.seed, d.purpose, d.round, self.id)
        return self._rng

    @property
    def resources(self) -> Any:
        """What a simulated client can do, :class:`solera.Resources`; None at a real one."""
        return getattr(self.data._source, "resources", None)

    @property
    def key(self) -> random.Bits:
        """This client's stream key, as an array of one; see :func:`solera.core.rng.stream_keys`."""
        return self.draws.keys([self.id])

    @property
    def alone(self) -> ClientGroup:
        """This client as a group of one."""
        return ClientGroup(self.data._id, self.data._source, self.draws, [self.state])


class ClientGroup:
    """Several simulated clients of one process, served by one call of a ``many=`` task."""

    def __init__(
        self,
        ids: IntArray,
        source: Source,
        draws: Draws,
        states: Sequence[MutableMapping[str, Any]],
        adds: Callable[[str], bool] | None = None,
    ) -> None:
        self.ids = ids
        self.states = states
        self._adds = adds
        self._source = source
        self._draws = draws

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[Client]:
        for i, state in zip(self.ids.tolist(), self.states, strict=True):
            yield Client(i, self._source, self._draws, state)

    def adds(self, entry: str) -> bool:
        """Whether the sum of an entry over all these clients is enough of it.

        A ``many=`` task may then give it in :attr:`Stacked.sums` in place of every client's own. It
        must be one of whole numbers, which add up to the same in any order.
        """
        return self._adds is not None and self._adds(entry)

    def part(self, name: Part) -> Segments:
        return self._source.segments(self.ids, name)

    @cached_property
    def data(self) -> Segments:
        """The training rows."""
        return self.part("train")

    @property
    def schema(self) -> Schema:
        return self._source.schema

    @property
    def keys(self) -> random.Bits:
        """One stream key per client; see :func:`solera.core.rng.stream_keys`."""
        return self._draws.keys(self.ids)

    def uniforms(self) -> FloatArray:
        """A number in [0, 1) for every training row, as each client's first draw would be."""
        d = self._draws
        return random.generator_uniforms(d.seed, d.purpose, d.round, self.ids, self.data.sizes)

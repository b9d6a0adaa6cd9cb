"""One verb crosses the border: ``federation.ask(task, payload, to=clients)``."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from solera.core.answers import Replies, UnsentAsk, Updates
from solera.core.clients import PARTS, IntArray, Part
from solera.core.component import Component, build_fitted
from solera.core.constraints import Positive, check_arguments
from solera.core.cover import find_secure
from solera.core.engine import (
    OUTSIDE,
    Ask,
    Engine,
    Fit,
    PerClient,
    Preparation,
    payload_size,
)
from solera.core.errors import PayloadTooLarge, UsageError
from solera.core.html import html_table
from solera.core.meter import Meter, Record, same_for_all
from solera.core.payload import DEFAULT_LIMITS, Limits, encoded_size, read_only
from solera.core.schema import Schema
from solera.core.task import Task, find_task
from solera.core.topology import Star, Topology

__all__ = ["Configuration", "Federation", "Replies", "UnsentAsk", "Updates"]


@dataclass(frozen=True, slots=True)
class Configuration:
    """What makes a federation what it is, whoever carries its asks; see :func:`solera.simulate`.

    Whatever is derived from a federation (some of its rows or clients, prepared rows) shares it.
    """

    seed: int = 0
    topology: Any = None
    limits: Limits = DEFAULT_LIMITS
    secure: Any = None
    clock: Any = None
    names: tuple[str, ...] = ()
    positive: Any = None
    policy: Any = None
    epoch: Any = None
    selection: Any = None
    owners: Any = None
    secrets: tuple[bytes, ...] = ()
    attack: Any = None
    attackers: tuple[int, ...] = ()
    failures: Any = None
    engine: str = ""
    engine_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.topology is None:
            object.__setattr__(self, "topology", Star())
        object.__setattr__(self, "secure", find_secure(self.secure))


class Federation:
    """The clients a learner can ask, whatever engine carries the messages.

    ``options`` are fields of the :class:`Configuration`.
    """

    _prepare: tuple[Preparation, ...] = ()
    _left_out: IntArray = np.empty(0, dtype=np.int64)
    noise: Any = None
    """What adds noise to asks and counts it, if any does: :class:`solera.privacy.dp.sums.Noise`."""
    current_fit: Fit = OUTSIDE
    """The fit for which clients keep what they keep."""
    scored_parts: Sequence[Part] = PARTS
    """The parts of clients' rows that ``score`` counts."""

    def __init__(
        self, engine: Engine, configuration: Configuration | None = None, **options: Any
    ) -> None:
        self.engine = engine
        self.configuration = replace(configuration or Configuration(), **options)
        self.meter = Meter()

    @property
    def seed(self) -> int:
        """What fixes all random draws."""
        return self.configuration.seed

    @property
    def topology(self) -> Topology:
        """Who folds whose replies."""
        topology: Topology = self.configuration.topology
        return topology

    @property
    def limits(self) -> Limits:
        """The largest payload that may be sent."""
        return self.configuration.limits

    @property
    def secure(self) -> Any:
        """How sums are folded so that nobody sees a single reply; None where each may be read."""
        return self.configuration.secure

    @property
    def clock(self) -> Any:
        """Virtual time, where there is any."""
        return self.configuration.clock

    @property
    def names(self) -> tuple[str, ...]:
        """What the clients are called, in their order, where they have names."""
        return self.configuration.names

    def ask(
        self,
        task: str | Task,
        payload: Any = None,
        *,
        to: ArrayLike | None = None,
        deadline: Positive | None = None,
        quorum: int | float | None = None,
        round: int = 0,
    ) -> Replies:
        """Ask clients to run a task on their data.

        Parameters
        ----------
        task: name of an installed task.
        payload: what the task receives; a :class:`PerClient` gives each client its own.
        to: ids of the clients to ask; all of them by default.
        deadline: seconds after which a client counts as failed. Simulated engines count simulated
            time, so that the outcome does not depend on the machine.
        quorum: fewest replies that will do, as a number or, below 1, as a fraction of the clients
            asked; fewer raise :class:`NotEnoughReplies`. By default one.
        round: which round this is; together with the seed it fixes all random draws.
        """
        installed = task if isinstance(task, Task) else find_task(task)
        if open_job := getattr(self.engine, "open_job", None):
            open_job()  # which fixes who takes part
        clients = self._chosen(to)
        if self.noise is not None:
            payload = self.noise.added_to(installed, payload)
        size = self._check_payload(payload, clients)
        if deadline is not None:
            check_arguments(Federation.ask, deadline=deadline)
        ask = Ask(
            installed.name,
            installed.version,
            read_only(payload),
            clients,
            self.seed,
            round,
            deadline,
            self._prepare,
            size,
            fit=self.current_fit,
        )
        return Replies(self, ask, _needed(quorum, len(clients)))

    @property
    def clients(self) -> IntArray:
        """The ids of all clients."""
        everyone = np.arange(self.engine.clients, dtype=np.int64)
        return everyone if not len(self._left_out) else np.setdiff1d(everyone, self._left_out)

    @property
    def numbers(self) -> IntArray:
        """The number by which each client knows itself: its id, or that of its enrolment."""
        given = getattr(self.engine, "numbers", None)
        own = np.arange(self.engine.clients) if given is None else given
        return np.asarray(own, dtype=np.int64)

    def __len__(self) -> int:
        return self.engine.clients - len(self._left_out)

    def without(self, *clients: int | str) -> Self:
        """The same federation as if these clients, by id or name, had never been in it.

        The others keep their ids, and with them their draws.
        """
        ids = [self.find_client(client) for client in clients]
        return self._view(_left_out=np.union1d(self._left_out, np.array(ids, dtype=np.int64)))

    def find_client(self, client: int | str) -> int:
        """The id of a client."""
        if isinstance(client, str) and client in self.names:
            return self.names.index(client)
        if isinstance(client, str) or not 0 <= client < self.engine.clients:
            known = ", ".join(self.names[:20]) or f"ids are 0 to {self.engine.clients - 1}"
            raise UsageError(f"there is no client {client!r}", hint=known)
        return int(client)

    def names_of(self, clients: IntArray) -> list[str]:
        """What these clients are called."""
        names = self.names or getattr(self.engine, "client_names", ())
        return [names[client] if names else f"client {client}" for client in clients.tolist()]

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns, of a simulation: cross-validation asks for them first."""
        raise _no_rows()

    def __getitem__(self, rows: Any) -> Self:
        """Some rows of a simulation."""
        raise _no_rows()

    def closed_job(self, learner: str) -> Self:
        """The same clients as a learner meets them in a closed job, where their policy wants one.

        Its name fixes the draws of an epoch's jobs.
        """
        return self

    def over(self, engine: Any) -> Self:
        """The same clients, reached by another engine."""
        return self._view(engine=engine)

    def fitting(self, fit: Fit, before: Fit = OUTSIDE) -> Self:
        """The same clients, who keep what they keep for this fit.

        They begin with what they kept for the one ``before``, where they still have it.
        """
        if before is not OUTSIDE:
            self.engine.restore(self.engine.states(before), fit)
        return self._view(current_fit=fit)

    def noised(self, noise: Any) -> Self:
        """The same clients, whose replies carry this noise; None for none."""
        return self if noise is self.noise else self._view(noise=noise)

    def states(self) -> dict[int, Any]:
        """What simulated clients keep for the fit."""
        return self.engine.states(self.current_fit)

    @property
    def schema(self) -> Schema | None:
        """What the rows look like, where that is known without asking."""
        schema = self.engine.schema
        for step in self._prepare:
            if schema is not None:
                schema = build_fitted(step.description).transform_schema(schema)
        return schema

    @property
    def gaps(self) -> tuple[str, ...]:
        """The columns in which values may be missing, where a dictionary says so."""
        gaps: tuple[str, ...] = getattr(self.engine, "gaps", ())
        schema = self.engine.schema
        for step in self._prepare if gaps and schema is not None else ():
            transformer = build_fitted(step.description)
            schema = transformer.transform_schema(schema)
            names = () if transformer.fills_missing else [f.name for f in schema.features]
            gaps = tuple(name for name in gaps if name in names)
        return gaps

    @property
    def atoms(self) -> Any:
        """In a closed job the cells of the dictionary's columns, :class:`solera.epochs.Atoms`."""
        return getattr(self.engine, "atoms", None)

    def is_complete(self) -> bool:
        """Whether it is known without asking that all clients have rows and no value is missing."""
        knows = getattr(self.engine, "is_complete", None)
        if knows is None or self._prepare or not knows():
            return False
        return len(self.topology.groups(self.clients)) == 1

    def record(self, task: Task, reply: Any) -> None:
        """Account for an ask that need not be made, since all clients would give this reply."""
        clients = self.clients
        down = same_for_all(payload_size(None), clients)
        up = same_for_all(encoded_size(reply), clients)
        began = time.perf_counter()
        self.meter.add(Record(0, task.name, clients, down, clients, up, began, 0.0, 0.0))

    def prepared(self, transformer: Component) -> Self:
        """The same clients, who pass their rows through a fitted transformer before every task."""
        return self._view(_prepare=(*self._prepare, Preparation.by(transformer)))

    def unprepared(self) -> Self:
        """The same clients with rows as they are and no noise, whose replies are read singly."""
        alone = replace(self.configuration, secure=None)
        return self._view(configuration=alone, _prepare=(), noise=None)

    def _view(self, **changed: Any) -> Self:
        view = copy(self)
        vars(view).update(changed)
        return view

    @contextmanager
    def announced(self, learner: Component) -> Iterator[None]:
        """Everything that is asked inside is for this learner.

        In a real federation it becomes a job whose description says so, which owners approve. What
        is announced inside is part of the same job.
        """
        announce = getattr(self.engine, "announced", None)
        with nullcontext() if announce is None else announce(learner):
            yield

    def close(self) -> None:
        """Give back the engine's processes and memory."""
        self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _repr_html_(self) -> str:
        """What notebooks show: who can be asked, and what their rows look like."""
        return html_table(self._facts(), title=type(self).__name__)

    def _facts(self) -> list[tuple[str, str]]:
        facts = [("clients", f"{len(self):,}"), ("engine", type(self.engine).__name__)]
        if self.names:
            shown = ", ".join(self.names[:20])
            facts.append(("names", f"{shown}{', …' if len(self.names) > 20 else ''}"))
        if (schema := self.schema) is not None:
            facts.append(("columns", f"{schema.width:,}"))
            facts.append(("target", f"{schema.outputs} {schema.target}"))
        return facts

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self):,} clients, {type(self.engine).__name__})"

    def _chosen(self, to: ArrayLike | None) -> IntArray:
        if to is None:
            if not len(self):
                raise UsageError("the federation has no clients")
            return self.clients
        ids = np.atleast_1d(np.asarray(to))
        if not ids.size:
            raise UsageError("ask(to=[]): no client to ask")
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise UsageError(f"ask(to={to!r}): client ids are whole numbers")
        ids = ids.astype(np.int64)
        if (ids[1:] <= ids[:-1]).any():
            ids = np.unique(ids)
        if ids[0] < 0 or ids[-1] >= self.engine.clients:
            wrong = ids[0] if ids[0] < 0 else ids[-1]
            last = self.engine.clients - 1
            raise UsageError(f"ask(to=…): no client {wrong}; ids are 0 to {last}")
        if len(self._left_out):
            ids = np.setdiff1d(ids, self._left_out)
            if not ids.size:
                raise UsageError(f"ask(to={to!r}): these clients were left out")
        return ids

    def _check_payload(self, payload: Any, clients: IntArray) -> int:
        """The size of the payload, unless it is too large."""
        if isinstance(payload, PerClient):
            missing = [c for c in clients.tolist() if c not in payload.payloads]
            if missing:
                raise UsageError(f"PerClient has no payload for client {missing[0]}")
        size = payload_size(payload)
        if size > self.limits.size:
            raise PayloadTooLarge(
                f"payload of {size:,} bytes exceeds the limit of {self.limits.size:,}",
                hint="send less, or raise it with limits=so.messages.Limits(size=…)",
            )
        return size


def _no_rows() -> UsageError:
    return UsageError(
        "cross-validation chooses rows, which over a network nobody can, and each of its fits "
        "would be a job that every owner approves",
        hint="fit(so.connect(…, validation=0.1)) with EarlyStopping; or search in so.simulate and "
        "fit what it chooses",
    )


def _needed(quorum: int | float | None, asked: int) -> int:
    if quorum is None:
        return 1
    if isinstance(quorum, float) and 0 < quorum < 1:
        return math.ceil(quorum * asked)
    if quorum != int(quorum) or not 0 <= quorum <= asked:
        raise UsageError.of(
            "ask", "quorum", quorum, f"must be a fraction below 1 or a number up to {asked}"
        )
    return int(quorum)

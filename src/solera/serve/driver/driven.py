"""What a program asks through a coordinator: jobs of its own, each described before it begins."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

from msgspec.structs import replace

from solera.core.aggregation import Aggregation
from solera.core.clients import IntArray, Part
from solera.core.component import Component
from solera.core.constraints import Count, check_arguments
from solera.core.engine import OUTSIDE, Ask, Block, Fit
from solera.core.errors import GateRefusal, UsageError
from solera.core.federation import Federation
from solera.core.schema import Schema
from solera.core.topology import Topology
from solera.learn.base import Learner
from solera.serve import wire
from solera.serve.connection import Connection
from solera.serve.description import Description, learner_table
from solera.serve.driver.closed.driver import ClosedDriver
from solera.serve.driver.closed.epochs import policies_of, policies_so_far
from solera.serve.driver.closed.researcher import Researcher
from solera.serve.driver.engine import CoordinatorCheckpointStore, HttpEngine
from solera.serve.driver.published import fetch, publish
from solera.serve.peers import KnownKeys
from solera.serve.provenance import Provenance
from solera.trust.epoch.selection import Selection
from solera.trust.open_asks import FIT_INSTEAD, NO_OPEN_ASKS


class DrivenEngine:
    """The engine of a program that asks: what it announces is a job of its own.

    The job has the ``name``, the next one ``name.2`` and so on; a program that is run again finds
    them in the same order. What was not announced, such as an ask outside of a fit, goes into a job
    whose description names no learner.
    """

    def __init__(
        self,
        connection: Connection,
        described: Description,
        engine: Callable[[str], HttpEngine],
        closed_driver: Callable[[], ClosedDriver] | None = None,
        *,
        closed: bool = False,
    ) -> None:
        self.connection = connection
        self._described = described
        self._engine = engine
        self._opened = 0
        self._current: HttpEngine | None = None
        self._last: HttpEngine | None = None
        self._announced = False
        self._members: list[int] | None = None
        self._jobs: WeakKeyDictionary[Fit, str] = WeakKeyDictionary()
        self._closed_driver = closed_driver
        self._closed = closed
        self._made: ClosedDriver | None = None
        _ = self.clients  # a wrong address or token is found out now

    @property
    def closed(self) -> bool:
        """Whether owners run jobs themselves: unless the policy of all is "trusted"."""
        return self._closed or self._policies != {"trusted"}

    @cached_property
    def _policies(self) -> set[str]:
        if self._closed_driver is None:
            return {"trusted"}
        return policies_of(self.connection, self._described.federation)

    @cached_property
    def _answers_nobody(self) -> bool:
        """Whether all owners refuse open asks, as far as is known: an ask waits for nobody."""
        if self._closed_driver is None:
            return False
        return policies_so_far(self.connection, self._described.federation) == ({"sums"}, [])

    @property
    def owners(self) -> ClosedDriver | None:
        """Who runs closed jobs; None where this program asks."""
        if not self.closed or self._closed_driver is None:
            return None
        if self._made is None:
            self._made = self._closed_driver()
        return self._made

    @contextmanager
    def announced(self, learner: Component) -> Iterator[None]:
        """Ask in a job that is described so, unless it is part of one already."""
        if self._announced:
            yield
            return
        known = self._jobs.get(getattr(learner, "_client_fit", OUTSIDE), "")
        self._open(learner=learner_table(learner), parts_of=known)
        self._announced = True
        try:
            yield
        finally:
            self._announced = False
            self._current = self._members = None

    def publish(self, learner: Learner, out: str | os.PathLike[str]) -> Provenance:
        """Make a fitted learner the model of the last job, and save it at ``out``.

        Beside it goes the coordinator's signed statement about where the model comes from, which
        ``solera model verify`` checks. Publish before you evaluate: that is a job of its own.
        """
        if self._last is None:
            raise UsageError("nothing was asked yet", hint="fit the learner before you publish it")
        publish(self.connection, self._last.job, learner)
        return fetch(self.connection, self._last.job, out)

    def open_job(self) -> HttpEngine:
        """The job in which is asked now; where nothing is announced, one of no learner.

        Refused before anything is sent where no owner answers a driver.
        """
        if self._answers_nobody:
            raise GateRefusal(NO_OPEN_ASKS, hint=FIT_INSTEAD)
        return self._current or self._open()

    def _open(self, **described: Any) -> HttpEngine:
        self._opened += 1
        name = self._described.job if self._opened == 1 else f"{self._described.job}.{self._opened}"
        description = replace(self._described, job=name, **described)
        spec = self.connection.upload(description.to_bytes())
        new = wire.NewJob.of(description, id=name, spec=spec)
        path = f"/v1/federations/{description.federation}/jobs"
        self.connection.request("POST", path, json=new)
        self._current = self._last = self._engine(name)
        return self._current

    @property
    def job(self) -> str:
        """The name of the job in which was asked last; without any, one is opened."""
        return (self._last or self.open_job()).job

    @property
    def numbers(self) -> list[int]:
        return self.open_job().numbers

    @property
    def client_names(self) -> tuple[str, ...]:
        return (self._last or self.open_job()).client_names

    @property
    def replayed(self) -> bool:
        return self.open_job().replayed

    @property
    def clients(self) -> int:
        if self._current is not None:
            return self._current.clients
        if self._members is None:
            path = f"/v1/federations/{self._described.federation}"
            members = self.connection.call("GET", path, wire.Members).clients
            self._members = [member.id for member in members if member.status == "active"]
        return len(self._members)

    @property
    def schema(self) -> Schema | None:
        return None

    def sizes(self, part: Part) -> IntArray | None:
        return None

    def states(self, fit: Any = None) -> dict[int, Any]:
        return self.open_job().states(fit)

    def restore(self, states: Mapping[int, Any], fit: Any = None) -> None:
        self.open_job().restore(states, fit)

    def checkpoint_store(self) -> CoordinatorCheckpointStore:
        return self.open_job().checkpoint_store()

    def run(self, ask: Ask, aggregation: Aggregation | None) -> Iterator[Block]:
        engine = self.open_job()
        if ask.fit is not OUTSIDE:
            self._jobs.setdefault(ask.fit, engine.job)
        return engine.run(ask, aggregation)

    def keeps(self, fit: Fit) -> bool:
        """Whether clients keep something of a fit: of one of this program's jobs."""
        return fit in self._jobs

    def close(self) -> None:
        self.connection.close()


def connect(
    url: str,
    *,
    federation: str,
    token: str | None = None,
    ca: str | None = None,
    job: str | None = None,
    seed: int = 0,
    owner: str = "",
    deadline: float | None = None,
    topology: Topology | None = None,
    known_keys: str | os.PathLike[str] | None = None,
    secure: Any = False,
    positive: Any = None,
    closed: bool = False,
    columns: Sequence[str] | None = None,
    target: str | Sequence[str] | None = None,
    population: str | None = None,
    validation: float = 0.0,
    test: float = 0.0,
    patience: Count = 7,
    researcher_key: str | os.PathLike[str] | None = None,
) -> Federation:
    """A real federation, to be asked like a simulated one.

    Parameters
    ----------
    url: the coordinator's address.
    federation: which of its federations.
    token: the driver's token, by default ``$SOLERA_TOKEN``.
    ca: file of the certificate authority to trust, by default ``$SOLERA_CA`` or the system's.
    job: a name for what is asked from here on. Connecting again with the same name goes through the
        same asks and gets the stored replies back, so a driver that died may simply be run again.
        Every ``fit`` and every evaluation is a job of its own, which owners approve: the first has
        this name, the others are ``name.2``, ``name.3``, …
    seed, owner: fix all random draws; say who asks, for the clients' policies and logs.
    deadline: seconds after which the job as a whole is over, by default a week.
    known_keys: a file of clients' keys, by default ``$SOLERA_KNOWN_KEYS``; see
        :mod:`solera.serve.peers`. Replies count only with the signature of the client's key. Keys
        that are not in the file are believed at first sight and added; without a file they are
        forgotten when this program ends.
    secure: True, or a :class:`SecureSum`: whatever adds up is folded so that neither coordinator
        nor driver sees a single reply; see :mod:`solera.privacy.secure_sum`.
    positive: which of two classes counts as positive, the second one by default.
    closed: let the owners run jobs themselves although all of their policies are "trusted". Under
        other policies they always do: ``fit``, ``evaluate`` and ``so.describe`` then register a
        text, wait until all owners have approved and ended it, and open its result. A call that is
        made again is the same job, so that a program may be interrupted and run again; ``seed`` is
        its repeat, 0 to 9.
    columns, target, population, validation, test: which of the epoch's rows closed jobs are about,
        as in :func:`solera.simulate`.
    patience: days that closed jobs wait for an owner who is away.
    researcher_key: the file of the key that opens results of closed jobs, by default
        ``$SOLERA_RESEARCHER_KEY`` or one in the user's data folder; it is made the first time.
    """
    token = token or os.environ.get("SOLERA_TOKEN", "")
    if not token:
        raise UsageError("connect: no token", hint="pass token= or set SOLERA_TOKEN")
    check_arguments(connect, patience=patience)
    authorised = {"Authorization": f"Bearer {token}"}
    connection = Connection(url, lambda *_: authorised, ca=ca or os.environ.get("SOLERA_CA"))
    name = job or f"job-{secrets.token_hex(8)}"
    known = KnownKeys(known_keys or os.environ.get("SOLERA_KNOWN_KEYS"))
    description = Description(
        job=name,
        federation=federation,
        kind="driven",
        owner=owner,
        seed=seed,
        seconds=wire.DEFAULT_SECONDS if deadline is None else deadline,
    )
    parts = {"population": population, "validation": validation, "test": test}
    selection = Selection.of(columns, target, **parts)  # type: ignore[arg-type]

    def closed_driver() -> ClosedDriver:
        researcher = Researcher.load(owner, researcher_key)
        return ClosedDriver(connection, federation, researcher, seed, selection, patience, positive)

    engine = DrivenEngine(
        connection,
        description,
        lambda job: HttpEngine(connection, job, known),
        closed_driver,
        closed=closed,
    )
    return Federation(engine, seed=seed, topology=topology, secure=secure, positive=positive)

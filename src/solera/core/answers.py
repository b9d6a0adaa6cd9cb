"""The answers to one ask: read, folded, metered, once."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from solera.core.aggregation import Aggregation
from solera.core.clients import IntArray
from solera.core.cover import SecureFold
from solera.core.engine import Ask, Block, Engine, PerClient
from solera.core.errors import NotASum, NotEnoughReplies, UsageError
from solera.core.meter import Record, compact, same_for_all
from solera.core.payload import encoded_size
from solera.core.replies import Failure, Reply
from solera.core.task import find_task

if TYPE_CHECKING:
    from solera.core.federation import Federation

log = logging.getLogger("solera")


class UnsentAsk(RuntimeWarning):
    """Replies were never read, so the ask was never sent."""


@dataclass(frozen=True, slots=True)
class Updates:
    """The replies to an ask as the aggregation took them in: one partial per client."""

    aggregation: Aggregation
    clients: IntArray
    partials: list[Any]


class Replies:
    """The answers to one ask: iterate, :meth:`collect` or :meth:`fold` them, once.

    The ask is sent when its replies are read, so that the engine knows how they will be combined
    and can fold them where they arise. ``failures`` is complete once they have been read.
    """

    def __init__(self, federation: Federation, ask: Ask, quorum: int) -> None:
        self.ask = ask
        self.quorum = quorum
        self.failures: list[Failure] = []
        self.coordinator_rows: Engine | None = None
        self.keeps_updates = False
        self.updates: Updates | None = None
        self.absent: Mapping[str, Any] = {}
        """In a closed job, by entry: which numbers of what was folded are not told, 0 there."""
        self.noised: frozenset[str] = frozenset()
        """In a closed job: the entries whose counts carry noise of deviation 1 in every cell."""
        self.secure = False
        self.federation = federation
        self._sent = False
        self._replied: list[IntArray] = []
        self._up: list[IntArray] = []
        self._virtual = 0.0

    def __iter__(self) -> Iterator[Reply]:
        """Replies in client order, as their blocks arrive."""
        self._send()
        self._protocol(None)
        for block in self.blocks(self.ask, None):
            assert block.batch is not None
            yield from block.batch
        self._close()

    def collect(self) -> list[Reply]:
        """All replies in client order."""
        return list(self)

    def fold(self, aggregation: Aggregation) -> Any:
        """The finished result of the aggregation over all replies."""
        partial = self.partial(aggregation)
        return aggregation.result(partial)

    def partial(self, aggregation: Aggregation) -> Any:
        """The partial over all replies, to be merged with others later; None without replies.

        Every aggregator of the topology folds the replies of its own clients; their partials are
        merged in order. A secure sum has no aggregators in between: masks cancel in all together.
        """
        self._send()
        if not isinstance(aggregation, Aggregation):
            raise UsageError(
                f"fold needs an aggregation, not {aggregation!r}",
                hint="for example fold(so.aggregations.Sum())",
            )
        protocol = self._protocol(aggregation)
        total = None
        groups = self.federation.topology.groups(self.ask.clients)
        if protocol is not None:
            groups, self.secure = [], True
            total = protocol.partial(self, aggregation)
        for group in groups:
            whole = group is self.ask.clients
            ask = self.ask if whole else replace(self.ask, clients=group)
            parts = self._partials(ask, aggregation)
            partial = aggregation.merge_all(parts)
            if len(groups) > 1:
                self.federation.meter.relayed += encoded_size(partial)
            total = aggregation.merge(total, partial)
        if self.coordinator_rows is not None and not isinstance(self.ask.payload, PerClient):
            ask = replace(self.ask, clients=np.zeros(1, np.int64), prepare=())
            for block in self.coordinator_rows.run(ask, aggregation):
                total = aggregation.merge(total, block.partial)
        self._close()
        return total

    def _protocol(self, aggregation: Aggregation | None) -> SecureFold | None:
        """By what the replies are folded in secret; None where each may be read."""
        given = None if aggregation is None else aggregation.protocol
        protocol: SecureFold | None = given or self.federation.secure
        if protocol is None:
            return None
        if aggregation is not None and aggregation.additive and not self.keeps_updates:
            return protocol
        if given is None and find_task(self.ask.task, self.ask.version).alone:
            return None
        what = "read one by one" if aggregation is None else f"folded by {aggregation!r}"
        if self.keeps_updates:
            what = "shown to the selector one by one"
        raise NotASum(
            f"the replies to {self.ask.task!r} are {what}, which is no sum: "
            "in a secure federation the coordinator sees sums only",
            hint="use a rule whose partials add, or a federation without secure=",
        )

    def _partials(self, ask: Ask, aggregation: Aggregation) -> Iterator[Any]:
        """The partial of every block; each client's own is kept as well where that is wanted."""
        if not self.keeps_updates:
            yield from (block.partial for block in self.blocks(ask, aggregation))
            return
        if self.updates is None:
            self.updates = Updates(aggregation, ask.clients[:0], [])
        for block in self.blocks(ask, None):
            assert block.batch is not None
            batch, failed = block.batch.liftable(aggregation.lift)
            self.failures += failed
            if find_task(ask.task, ask.version).finite:
                batch, failed = batch.only_finite(aggregation.sound_reply)
                self.failures += failed
            clients = np.concatenate([self.updates.clients, batch.clients])
            lifted = self.updates.partials + [aggregation.lift(reply) for reply in batch]
            self.updates = Updates(aggregation, clients, lifted)
            yield aggregation.fold(batch)

    def _send(self) -> None:
        if self._sent:
            raise UsageError(
                f"the replies to {self.ask.task!r} were read already",
                hint="keep the list from collect() to use them twice",
            )
        self._sent = True
        self._began = time.perf_counter()

    def blocks(self, ask: Ask, aggregation: Aggregation | None) -> Iterator[Block]:
        """What the engine brings back for an ask, taken account of."""
        for block in self.federation.engine.run(ask, aggregation):
            self.failures += block.failures
            self.absent, self.noised = block.absent, frozenset(block.noised)
            self._replied.append(block.replied)
            self._up.append(block.up)
            self._virtual = max(self._virtual, block.virtual)
            yield block

    def count_only(self, clients: IntArray) -> None:
        """Of those who have replied so far, only these count as having done so."""
        replied, up = np.concatenate(self._replied), np.concatenate(self._up)
        counts = np.isin(replied, clients)
        self._replied, self._up = [replied[counts]], [up[counts]]

    def _close(self) -> None:
        """Account for what travelled, and judge whether enough clients replied."""
        ask = self.ask
        none = ask.clients[:0]
        replied = np.concatenate([none, *self._replied])
        up = compact(np.concatenate([none, *self._up]))
        self.federation.meter.add(
            Record(
                ask.round,
                ask.task,
                ask.clients,
                _payload_sizes(ask),
                replied,
                up,
                began=self._began,
                wall=time.perf_counter() - self._began,
                virtual=self._virtual,
                absent=self.absent,
            )
        )
        if self.federation.noise is not None:
            self.federation.noise.charge(self)
        self._check_quorum(len(replied))

    def _check_quorum(self, replied: int) -> None:
        if self.failures:
            self._log_failures()
        if replied < self.quorum:
            asked = len(self.ask.clients)
            error = NotEnoughReplies(
                f"{replied} of {asked} clients replied to {self.ask.task!r}, "
                f"{self.quorum} are needed: {_first(self.failures)}",
                self.failures,
            )
            raise error from next((f.error for f in self.failures if f.error is not None), None)

    def _log_failures(self) -> None:
        unexpected = any(f.kind in ("failed", "invalid", "corrupt") for f in self.failures)
        log.log(
            logging.WARNING if unexpected else logging.INFO,
            "%s: %d of %d clients did not reply: %s",
            self.ask.task,
            len(self.failures),
            len(self.ask.clients),
            _first(self.failures),
        )

    def __del__(self) -> None:
        if not getattr(self, "_sent", True):
            warnings.warn(
                f"the ask {self.ask.task!r} was never sent: iterate, collect() or fold() it",
                UnsentAsk,
                stacklevel=2,
            )


def _payload_sizes(ask: Ask) -> IntArray:
    if isinstance(ask.payload, PerClient):
        sizes = [encoded_size(ask.payload.payloads[c]) for c in ask.clients.tolist()]
        return np.array(sizes, dtype=np.int64)
    return same_for_all(ask.size, ask.clients)


def _first(failures: Sequence[Failure]) -> str:
    if not failures:
        return "no failures reported"
    more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
    return f"{failures[0]}{more}"

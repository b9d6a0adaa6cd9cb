"""Running a task on one block of simulated clients: what every simulating engine has in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from solera.core.aggregation import Aggregation
from solera.core.clients import (
    Client,
    ClientGroup,
    Draws,
    IntArray,
    Part,
    Source,
)
from solera.core.component import build_fitted
from solera.core.cover import build_cover
from solera.core.engine import OUTSIDE, Ask, Block, Fit, PerClient
from solera.core.errors import PayloadError, Refusal, SoleraError, TaskError
from solera.core.payload import (
    check_payload,
    decode,
    encode,
    encoded_size,
    is_finite,
    read_only,
)
from solera.core.replies import Batch, Checked, Failure, FailureKind, Stacked
from solera.core.schema import Schema
from solera.core.sealing import Sealer, open_ask, seal_reply
from solera.core.task import Task, find_task
from solera.engines.faults import FaultModel, Faults, remove_unreachable
from solera.engines.folds import fold_all, validate_and_fold
from solera.engines.states import FitStates, State, States
from solera.trust.joined import run_on_joined_rows
from solera.trust.noise import Ledger, StateLedger, noise_table
from solera.trust.open_asks import answer, check_open_ask
from solera.trust.policy import Policy

Adds = Callable[[str], bool]
"""Whether the sum of an entry of the replies is enough of it."""

_SCOPE = ("", "simulation")
"""Federation and job for which simulated clients seal."""
MEMORY = 256 << 20
"""Bytes of rows and updates that a ``many=`` call may hold at once, unless told otherwise."""


class Runner:
    """Runs asks on the data of simulated clients, block by block."""

    def __init__(
        self,
        source: Source,
        fault_model: FaultModel | None = None,
        memory: int = MEMORY,
        policy: Policy | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        self.source = source
        self.fault_model = fault_model
        self.memory = memory
        self.policy = policy
        self.ledger = ledger
        self.sealer: Sealer | None = None
        """Seals messages between simulated clients; an agent does it for a real one."""
        self._prepared: dict[str, Source] = {}

    def block(
        self, ask: Ask, clients: IntArray, states: States, aggregation: Aggregation | None
    ) -> Block:
        """Run the task for these clients; ``states`` is updated in place."""
        (block,) = self.blocks(ask, [clients], states, aggregation)
        return block

    def blocks(
        self,
        ask: Ask,
        spans: Sequence[IntArray],
        states: States,
        aggregation: Aggregation | None,
        first: bool = False,
    ) -> Iterator[Block]:
        """Run the task for the clients of several blocks at once; every block is folded alone.

        Before the ``first`` of them nothing of this ask was folded: what they become one after the
        other may then come as one block.
        """
        task = find_task(ask.task, ask.version)
        clients = np.concatenate(spans)
        failures: list[Failure] = []
        virtual = 0.0
        faults = None if self.fault_model is None else self.fault_model.faults(ask, clients)
        if faults is not None:
            clients, failures, virtual, faults = remove_unreachable(ask, clients, faults)
        adds = None
        if aggregation is not None and faults is None and ask.cover is None:
            adds = aggregation.adds
        batch, failed = self._replies(task, ask, clients, states, adds)
        failures += failed
        if faults is not None and self.fault_model is not None:
            batch, failed = self._tamper(ask, batch, clients, faults)
            failures += failed
        whole = isinstance(batch.payloads, Stacked) and len(batch) == sum(map(len, spans))
        if len(spans) > 1 or whole:
            batch = Batch(batch.clients, batch.payloads, batch.sizes())
        if whole and adds is not None and aggregation is not None:
            bounds = [0, *accumulate(map(len, spans))]
            partials = fold_all(task, batch, bounds, aggregation, merged=first)
            if partials is not None:
                up = batch.sizes()
                edges = bounds[:: len(spans)] if first else bounds
                for (a, b), partial in zip(pairwise(edges), partials, strict=True):
                    yield Block(clients[a:b], up[a:b], [], virtual, None, partial)
                return
        ends = [(int(span[0]), int(span[-1]) + 1) for span in spans]
        places = np.searchsorted(batch.clients, ends).tolist()
        for span, (start, stop) in zip(spans, places, strict=True):
            part = batch.between(start, stop) if len(spans) > 1 else batch
            failed = [f for f in failures if span[0] <= f.client <= span[-1]]
            yield validate_and_fold(task, ask, part, failed, virtual, aggregation)

    def group_spans(self, ask: Ask, spans: Sequence[IntArray]) -> Iterator[list[IntArray]]:
        """Runs of blocks that one ``many=`` call can serve within the memory."""
        task = find_task(ask.task, ask.version)
        if task.many is None or not self._at_once(task, ask):
            yield from ([span] for span in spans)
            return
        costs = self._costs(ask, np.concatenate(spans))
        if costs.sum() <= self.memory:
            yield list(spans)
            return
        sizes = _ints([len(span) for span in spans])
        for run in self._runs(np.add.reduceat(costs, np.cumsum(sizes) - sizes)):
            yield list(spans[run])

    def _at_once(self, task: Task, ask: Ask) -> bool:
        """Whether one call may serve many clients: nothing is judged or noised for each."""
        if task.stacks is not None and not task.stacks(ask.payload):
            return False
        judged = self.policy is not None and not self.policy.trusts_the_driver
        noised = task.spends is None and noise_table(ask.payload) is not None
        return not (judged or noised or isinstance(ask.payload, PerClient))

    # --- the task itself ---

    def _replies(
        self,
        task: Task,
        ask: Ask,
        clients: IntArray,
        states: States,
        adds: Adds | None = None,
    ) -> Checked:
        if task.many is None or not self._at_once(task, ask):
            return self._one_by_one(task, ask, clients, states)
        parts: list[Batch] = []
        failures: list[Failure] = []
        runs = list(self._runs(self._costs(ask, clients)))
        for run in runs:
            wanted = adds if len(runs) == 1 else None
            part, failed = self._in_one_call(task, ask, clients[run], states, wanted)
            parts.append(part)
            failures += failed
        return _join(parts), failures

    def _in_one_call(
        self,
        task: Task,
        ask: Ask,
        clients: IntArray,
        states: States,
        adds: Adds | None = None,
    ) -> Checked:
        """One call for some clients. If it fails, each is asked alone to find out who."""
        assert task.many is not None
        own_states: list[dict[str, Any]] = [{} for _ in range(len(clients))]
        if states:
            own_states = [_state_of(states, client) for client in clients.tolist()]
        try:
            group = ClientGroup(clients, self._source_for(ask), _draws(ask), own_states, adds)
            many = run_on_joined_rows(task) if task.many is True else task.many
            payloads = many(group, ask.payload)
            if isinstance(payloads, Stacked) and payloads.sums:
                known = payloads.fields, payloads.sums
                if task.finite and not is_finite(list(known)):  # ask anew, to find out whose
                    return self._in_one_call(task, ask, clients, states)
            if ask.cover is not None:
                cover = build_cover(ask.cover).cover
                payloads = [cover(c, ask, reply) for c, reply in zip(group, payloads, strict=True)]
            if len(payloads) != len(clients):
                raise TaskError(
                    f"task {task.name!r}: many= gave {len(payloads)} replies "
                    f"for {len(clients)} clients"
                )
            for state in own_states:
                if state:
                    check_payload(state)
        except Exception as error:
            batch, failures = self._one_by_one(task, ask, clients, states)
            if not failures:
                raise TaskError(
                    f"task {task.name!r}: many= failed where one by one succeeded: {error}"
                ) from error
            return batch, failures
        if states or any(own_states):
            for client, state in zip(clients.tolist(), own_states, strict=True):
                _keep(states, client, state)
        return Batch(clients, payloads), []

    def _one_by_one(self, task: Task, ask: Ask, clients: IntArray, states: States) -> Checked:
        payloads: list[Any] = []
        failures: list[Failure] = []
        answered: list[int] = []
        sizes: list[int] = []
        for client in clients.tolist():
            state = _state_of(states, client)
            try:
                reply = self._reply(task, ask, client, state)
                size = encoded_size(reply)
                encoded_size(state)
            except SoleraError as error:
                kind: FailureKind = "refused" if isinstance(error, Refusal) else "failed"
                failures.append(Failure(client, kind, str(error), error))
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
                failures.append(Failure(client, "failed", reason, error))
            else:
                answered.append(client)
                payloads.append(reply)
                sizes.append(size)
                _keep(states, client, state)
        return Batch(_ints(answered), payloads, _ints(sizes)), failures

    def _reply(self, task: Task, ask: Ask, client: int, state: dict[str, Any]) -> Any:
        """The reply of one client, as its policy lets it out."""
        check_open_ask(self.policy, task)
        seals = self.sealer if task.sealed else None
        if task.sealed and seals is None:
            raise Refusal(f"task {task.name!r} exchanges messages, and clients here have no keys")
        if seals is not None:
            payload = ask.payload_for(client)
            payload = open_ask(task, payload, ask.round, client, _SCOPE, seals)
            ask = replace(ask, payload=payload)
        asked = Client(client, self._source_for(ask), _draws(ask), state)
        payload = ask.payload_for(client)
        ledger = StateLedger(state) if self.ledger is None else self.ledger
        reply = answer(self.policy, task, asked, payload, task.one(asked, payload), ledger)
        if ask.cover is not None:
            reply = build_cover(ask.cover).cover(asked, ask, reply)
        return reply if seals is None else seal_reply(task, reply, client, _SCOPE, seals)

    def _source_for(self, ask: Ask) -> Source:
        """The rows as the task of an ask sees them, prepared as the ask says."""
        if not ask.prepare:
            return self.source
        key = "/".join(step.digest for step in ask.prepare)
        if key not in self._prepared:
            steps = [build_fitted(step.description) for step in ask.prepare]
            self._prepared[key] = self.source.prepared(steps)
        return self._prepared[key]

    def _runs(self, costs: IntArray) -> Iterator[slice]:
        """Positions, one after the other, whose costs fit the memory together; at least one."""
        taken = np.cumsum(costs)
        if len(costs) and taken[-1] <= self.memory:
            yield slice(0, len(costs))
            return
        start = 0
        while start < len(costs):
            before = taken[start - 1] if start else 0
            end = int(np.searchsorted(taken, before + self.memory, side="right"))
            run = slice(start, max(end, start + 1))
            yield run
            start = run.stop

    def _costs(self, ask: Ask, clients: IntArray) -> IntArray:
        """Bytes that the rows and the update of each client take."""
        source = self._source_for(ask)
        update = 3 * ask.size
        sizes = source.sizes("train")
        row = 8 * (source.schema.width + source.schema.outputs)
        if sizes is None:
            return np.full(clients.shape, update)
        return sizes[clients] * row + update

    # --- what goes wrong on the way ---

    def _tamper(self, ask: Ask, batch: Batch, clients: IntArray, faults: Faults) -> Checked:
        """Damage the frames of corrupted replies and read them as a coordinator would."""
        assert self.fault_model is not None
        corrupted = set(clients[faults.corrupted].tolist())
        if corrupted.isdisjoint(batch.clients.tolist()):
            return batch, []
        kept: list[int] = []
        payloads: list[Any] = []
        failures: list[Failure] = []
        for reply in batch:
            payload = reply.payload
            if reply.client in corrupted:
                frame = self.fault_model.damage(encode(payload), ask, reply.client)
                try:
                    payload = decode(frame)
                except PayloadError as error:
                    failures.append(Failure(reply.client, "corrupt", error.message))
                    continue
            kept.append(reply.client)
            payloads.append(payload)
        return Batch(_ints(kept), payloads), failures


class Simulated:
    """What engines share whose clients live on this machine: their rows and what they keep."""

    simulated = True
    """Whatever protects is seeded, and protects nobody."""

    def __init__(
        self,
        source: Source,
        fault_model: FaultModel | None,
        memory: int,
        policy: Policy | None,
    ) -> None:
        self.source = source
        self._runner = Runner(source, fault_model, memory, policy)
        self._lasting: dict[int, State] = {}
        self._fits: WeakKeyDictionary[Fit, dict[int, State]] = WeakKeyDictionary()

    @property
    def clients(self) -> int:
        return self.source.clients

    @property
    def schema(self) -> Schema:
        return self.source.schema

    def sizes(self, part: Part) -> IntArray | None:
        return self.source.sizes(part)

    def is_complete(self) -> bool:
        """Whether every client would reply, has rows to train on, and misses no value."""
        knows = getattr(self.source, "is_complete", None)
        undisturbed = self._runner.fault_model is None
        return undisturbed and knows is not None and bool(knows())

    def seal_with(self, sealer: Sealer) -> None:
        """Seal messages between clients; without it no task may ask for that."""
        self._runner.sealer = sealer

    def keeps(self, fit: Fit) -> bool:
        """Whether clients still have what they kept for a fit."""
        return fit in self._fits

    def states(self, fit: Fit = OUTSIDE) -> dict[int, Any]:
        return dict(FitStates(self._fits.get(fit, {}), self._lasting))

    def restore(self, states: Mapping[int, Any], fit: Fit = OUTSIDE) -> None:
        kept = self._states_of(fit)
        kept.clear()
        kept.update(states)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_fits": dict(self._fits)}  # weak references stay in this process

    def _check(self, ask: Ask) -> None:
        """Refuse before anything runs what no client would answer."""
        check_open_ask(self._runner.policy, find_task(ask.task, ask.version))

    def _states_of(self, fit: Fit) -> States:
        return FitStates(self._fits.setdefault(fit, {}), self._lasting)

    def checkpoint_store(self) -> None:
        """Simulations are kept only where their user says."""


def _draws(ask: Ask) -> Draws:
    return Draws(ask.seed, ask.task, ask.round, ask.secret)


def _state_of(states: States, client: int) -> dict[str, Any]:
    """The client's state to read and replace; its arrays cannot be changed in place."""
    state: dict[str, Any] = read_only(states[client]) if client in states else {}
    return state


def _keep(states: States, client: int, state: MutableMapping[str, Any]) -> None:
    if state:
        states[client] = dict(state)
    else:
        states.pop(client, None)


def _ints(values: Sequence[int]) -> IntArray:
    return np.array(values, dtype=np.int64)


def _join(parts: Sequence[Batch]) -> Batch:
    if len(parts) == 1:
        return parts[0]
    clients = np.concatenate([part.clients for part in parts]) if parts else np.empty(0, np.int64)
    stacks = [part.payloads for part in parts if isinstance(part.payloads, Stacked)]
    if parts and len(stacks) == len(parts):
        return Batch(clients, Stacked.joined(stacks))
    return Batch(clients, [payload for part in parts for payload in part.payloads])

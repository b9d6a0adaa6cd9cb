"""The worker of one owner in a closed job: its rows, its secret, and what its client keeps."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from solera.core.absent import split_gaps
from solera.core.accounting import Event
from solera.core.aggregation import Aggregation
from solera.core.clients import PARTS, Client, ClientData, Draws, Source
from solera.core.component import build_fitted
from solera.core.engine import Ask, Fit
from solera.core.errors import DataError, GateRefusal
from solera.core.payload import decode, encode, read_only
from solera.core.replies import Reply, map_leaves
from solera.core.task import Task, find_task
from solera.trust.board.hashing import mac
from solera.trust.board.judge import Judged, Persons, blinds, judge
from solera.trust.board.persons import PERSONS
from solera.trust.board.sums import ENOUGH, TERMS
from solera.trust.noise import check_budget, noise_table, spent_at_sum
from solera.trust.policy import Policy
from solera.trust.randomness import row_digests


class OwnerWorker:
    """Runs the tasks of a closed job on the rows of one owner, client 0 of ``source``.

    Draws follow from the owner's ``secret`` and the run's seed: nobody else can tell which rows
    were drawn, and a task that is run again draws the same.
    """

    def __init__(self, source: Source, policy: Policy, secret: bytes, owners: int) -> None:
        self.source = source
        known = ClientData(source, 0).units("train") is not None
        unit = "person" if known else None  # as the dictionary says
        self.policy = replace(policy, unit=unit, honest_peers=policy.peers_of_noise(owners))
        self.secret = secret
        self.owners = owners
        self.persons: Persons | None = None
        """What the first sum of the job has told."""
        self._prepared: dict[str, Source] = {}
        self._spent: WeakKeyDictionary[Fit, list[Event]] = WeakKeyDictionary()
        self._states: WeakKeyDictionary[Fit, dict[str, Any]] = WeakKeyDictionary()

    def answer(
        self, question: bytes, ask: Ask, aggregation: Aggregation, *, keep: bool = True
    ) -> OwnerAnswer:
        """This owner's answer to an ask; nothing runs yet.

        Unless it is to ``keep`` what the client keeps, nobody asks for the state as bytes.
        """
        return OwnerAnswer(self, question, ask, aggregation, keep)

    def state(self, fit: Fit) -> bytes:
        """What the client keeps for a fit."""
        return encode(self._states.get(fit, {}))

    def restore(self, state: bytes, fit: Fit) -> None:
        """Put back what :meth:`state` gave."""
        self._states[fit] = decode(state)

    def keeps(self, fit: Fit) -> bool:
        """Whether the client keeps anything of a fit."""
        return fit in self._states

    def run(self, question: bytes, ask: Ask) -> Judged:
        """Run a task on the own rows and judge what it gives."""
        task = find_task(ask.task, ask.version)
        state = read_only(self._states.get(ask.fit, {}))
        seed = int.from_bytes(mac(self.secret, "draws", ask.seed)[:8], "little")
        secret = mac(self.secret, "ask", question)
        if noise_table(ask.payload) is not None:
            secret = mac(secret, "noise", self._digest, encode(state))
        draws = Draws(seed, ask.task, ask.round, secret)
        client = Client(0, self._source_for(ask), draws, state)
        payload = ask.payload
        persons = None if ask.task == PERSONS else self.persons
        if noise_table(payload) is not None:
            self._charge(ask.fit, task, client, payload)
        reply = (task.fast or task.one)(client, payload)
        judged = judge(task, client, payload, reply, self.policy, persons)
        self._states[ask.fit] = dict(state)
        return judged

    def _charge(self, fit: Fit, task: Task, client: Client, payload: Any) -> None:
        """Refuse noise beyond what the job may spend, whoever wrote the table."""
        if self.policy.budget is None:
            raise GateRefusal(
                f"task {task.name!r} asks with noise, and this job has no budget for that",
                hint="[privacy] of the policy, and so.DP(…) as dp= of the learner",
            )
        events = spent_at_sum(task, client, payload)
        spent = self._spent.setdefault(fit, [])
        check_budget(spent, events, *self.policy.budget)
        spent += events

    @cached_property
    def _digest(self) -> bytes:
        """Of all that noise is drawn anew for: with the same noise, differences would be exact."""
        data = ClientData(self.source, 0)
        parts = [data.part(part) for part in PARTS]
        return encode([row_digests(rows.X, rows.y) for rows in parts if len(rows)])

    def _source_for(self, ask: Ask) -> Source:
        """The rows as the ask's transformers make them."""
        if not ask.prepare:
            return self.source
        key = "/".join(step.digest for step in ask.prepare)
        if key not in self._prepared:
            steps = [build_fitted(step.description) for step in ask.prepare]
            self._prepared[key] = self.source.prepared(steps)
        return self._prepared[key]


class OwnerAnswer:
    """One owner's answer to one ask (:class:`solera.trust.board.sums.OwnAnswer`)."""

    def __init__(
        self,
        worker: OwnerWorker,
        question: bytes,
        ask: Ask,
        aggregation: Aggregation,
        keep: bool,
    ) -> None:
        self._worker = worker
        self._question = question
        self._ask = ask
        self._aggregation = aggregation
        self._keep = keep
        self._before = self._state()
        self._judged: Judged | None = None

    def first(self) -> tuple[Any, bytes]:
        """The terms, or marks of what rests on enough persons here, blinded."""
        enough = self._result.enough
        if not enough:
            return self.told({})
        worker = self._worker
        size = sum(np.size(mark) for entry in enough.values() for mark in _leaves(entry))
        stream = iter(blinds(worker.secret, self._question, size, worker.owners).tolist())
        blinded = map_leaves(
            lambda mark: _drawn(mark, stream), {entry: enough[entry] for entry in sorted(enough)}
        )
        return {ENOUGH: blinded}, self._before

    def told(self, absent: dict[str, Any]) -> tuple[Any, bytes]:
        """The terms, 0 where they are absent."""
        numbers = self._result.numbers
        for entry, marks in absent.items():
            numbers = _without(numbers, entry.split("."), marks)
        aggregation, task = self._aggregation, find_task(self._ask.task, self._ask.version)
        partial = split_gaps(aggregation.take(Reply(0, numbers, absent)))[0]
        if task.finite and not aggregation.sound(partial):
            raise DataError(
                f"task {task.name!r} gave numbers that are not finite, or far too large",
                hint="training that diverged: lower lr, or scale the columns before",
            )
        return {TERMS: aggregation.terms(partial)}, self._state()

    def conclude(self, terms: Any) -> None:
        """Keep what the first sum of the job tells."""
        if self._ask.task == PERSONS:
            self._worker.persons = terms

    def _state(self) -> bytes:
        return self._worker.state(self._ask.fit) if self._keep else b""

    @property
    def _result(self) -> Judged:
        if self._judged is None:
            self._judged = self._worker.run(self._question, self._ask)
        return self._judged


def _leaves(marks: Any) -> list[Any]:
    return marks if isinstance(marks, list) else [marks]


def _drawn(mark: Any, stream: Any) -> Any:
    """A number of the stream where there is a mark, 0 elsewhere."""
    drawn = np.array([next(stream) for _ in range(np.size(mark))]).reshape(np.shape(mark))
    return np.where(mark, drawn, 0)


def _without(tree: Any, keys: list[str], absent: Any) -> Any:
    """The tree with 0 where an entry is absent."""
    if keys and keys[0]:
        return {**tree, keys[0]: _without(tree[keys[0]], keys[1:], absent)}
    return map_leaves(
        lambda leaf, mark: np.where(mark, np.zeros((), np.asarray(leaf).dtype), leaf)[()],
        tree,
        absent,
    )

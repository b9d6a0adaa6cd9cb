"""The worker of one owner in a closed job: its rows, its secret, and what its client keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from solera.core.accounting import Event
from solera.core.aggregation import Aggregation
from solera.core.clients import PARTS, Client, ClientData, Draws, Part, Source
from solera.core.component import build_fitted
from solera.core.engine import Ask, Fit
from solera.core.errors import DataError, GateRefusal
from solera.core.payload import decode, encode, read_only
from solera.core.replies import Reply, map_leaves
from solera.core.task import find_task
from solera.trust.board.cell_keys import KEY_BITS
from solera.trust.board.hashing import mac
from solera.trust.board.judge import Judged, Persons, judge
from solera.trust.board.persons import PERSONS
from solera.trust.board.sums import ABSENT, NOISED, SUPPORTS, TERMS
from solera.trust.noise import check_budget, noise_table, spent_at_sum
from solera.trust.open_asks import with_entry
from solera.trust.policy import Policy
from solera.trust.randomness import numbered_rows, row_digests


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
        self._spent: WeakKeyDictionary[Fit, dict[bytes, Sequence[Event]]] = WeakKeyDictionary()
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
        noised = noise_table(ask.payload) is not None
        if noised:
            secret = mac(secret, "noise", self._digest, encode(dict(state)))
        draws = Draws(seed, ask.task, ask.round, secret)
        client = Client(0, self._source_for(ask), draws, state)
        payload = ask.payload
        persons = None if ask.task == PERSONS else self.persons
        if noised:
            self._charge(ask.fit, secret, spent_at_sum(task, client, payload))
        reply = (task.fast or task.one)(client, payload)
        judged = judge(task, client, payload, reply, self.policy, persons, self)
        self._states[ask.fit] = dict(state)
        return judged

    def _charge(self, fit: Fit, draw: bytes, events: Sequence[Event]) -> None:
        """Refuse noise beyond what the job may spend, by whatever table; a draw counts once."""
        if self.policy.budget is None:
            raise GateRefusal(
                "the job asks with noise that nobody has priced, and there is no budget for it",
                hint="[privacy] of the policy, and so.DP(…) as dp= of the learner",
            )
        spent = self._spent.setdefault(fit, {})
        others = [event for known in spent.values() for event in known]
        check_budget(others, () if draw in spent else events, *self.policy.budget)
        spent[draw] = events

    @cached_property
    def _digest(self) -> bytes:
        """Of all rows; noise on others is drawn anew, or their difference would be told exactly."""
        data = ClientData(self.source, 0)
        parts = [data.part(part) for part in PARTS]
        return encode([row_digests(rows.X, rows.y) for rows in parts if len(rows)])

    def keys(self, client: Client, part: Part) -> Any:
        """The keys of the rows of a part; without an epoch they follow from the rows alone."""
        keys = client.data.keys(part)
        if keys is None:
            rows = ClientData(self.source, 0).part(part)
            keys = numbered_rows(rows.X, rows.y) & ((1 << KEY_BITS) - 1)
        return keys

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
        """The terms, or the supports of what rests on some rows."""
        supports = self._result.supports
        if not supports:
            return {TERMS: self._terms(self._result.numbers)}, self._after
        return {SUPPORTS: _of_each(supports, lambda one: one.share)}, self._before

    def told(self, supports: dict[str, Any]) -> tuple[Any, bytes]:
        """The terms, 0 where they are absent, and what is told of them."""
        numbers, min_count = self._result.numbers, self._worker.policy.min_count
        judged = {
            entry: map_leaves(
                lambda one, total, own: one.told(own, np.asarray(total), min_count),
                support,
                supports[entry],
                _at(numbers, entry),
            )
            for entry, support in self._result.supports.items()
        }
        for entry, of_entry in judged.items():
            numbers = with_entry(numbers, entry, map_leaves(lambda one: one.numbers, of_entry))
        absent = _of_each(judged, lambda one: one.absent)
        noised = {entry: int(any(one.noised for one in _leaves(v))) for entry, v in judged.items()}
        terms = {TERMS: self._terms(numbers), ABSENT: absent, NOISED: noised}
        return terms, self._after

    def conclude(self, terms: Any) -> None:
        """Keep what the first sum of the job tells."""
        if self._ask.task == PERSONS:
            self._worker.persons = terms

    def _terms(self, numbers: Any) -> Any:
        aggregation, task = self._aggregation, find_task(self._ask.task, self._ask.version)
        partial = aggregation.lift(Reply(0, numbers))
        if task.finite and not aggregation.sound(partial):
            raise DataError(
                f"task {task.name!r} gave numbers that are not finite, or far too large",
                hint="training that diverged: lower lr, or scale the columns before",
            )
        return aggregation.terms(partial)

    def _state(self) -> bytes:
        return self._worker.state(self._ask.fit) if self._keep else b""

    @property
    def _result(self) -> Judged:
        if self._judged is None:
            self._judged = self._worker.run(self._question, self._ask)
            self._after = self._state()
        return self._judged


def _of_each(entries: dict[str, Any], part: Callable[[Any], Any]) -> dict[str, Any]:
    return {entry: map_leaves(part, tree) for entry, tree in entries.items()}


def _leaves(tree: Any) -> list[Any]:
    return tree if isinstance(tree, list) else [tree]


def _at(tree: Any, entry: str) -> Any:
    """What is at an entry, ``"a.b"`` for nested tables."""
    for key in entry.split(".") if entry else ():
        tree = tree[key]
    return tree

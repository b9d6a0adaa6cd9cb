"""A standing job: clients contribute whenever they can, the model is published again each time.

Answers are folded in blocks of members in the order in which they joined, and the blocks in order.
A new answer changes its own block only, and the model depends on what clients said, not on when
they said it: every order of arrival, with whatever crashes in between, gives the same bytes. Of a
client that left and had everything deleted nothing remains: the others move up by one, and the
model is that of a federation that never had it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import UNSET

from solera.core.engine import Ask
from solera.core.errors import PayloadError
from solera.core.federation import Federation
from solera.core.payload import decode, encode
from solera.core.replies import Batch, Failure
from solera.core.task import Task
from solera.engines.folds import validate_and_fold
from solera.learn.base import Additive
from solera.serve import wire
from solera.serve.connection import Connection
from solera.serve.driver.engine import CoordinatorCheckpointStore, HttpEngine, report

log = logging.getLogger("solera.driver")

_BLOCK = 16
_WAIT = 20
Answers = list[tuple[int, wire.Queued]]


class Standing:
    """Folds what clients contribute to a job, and publishes the model when all is folded."""

    def __init__(
        self, connection: Connection, job: str, learner: Additive, federation: Federation
    ) -> None:
        self.connection = connection
        self.path = f"/v1/jobs/{job}"
        self.learner = learner
        self.federation = federation
        assert isinstance(federation.engine, HttpEngine)
        self.engine = federation.engine
        self._task: Task
        self._payload: Any = None
        self._call: wire.Call
        self._answers: Mapping[int, wire.Queued] = {}
        self._members: list[int] = []
        self._dealt: dict[int, Answers] = {}
        self._partials: dict[int, Any] = {}
        self._unsound: dict[int, wire.Queued] = {}
        """Answers that were turned away."""

    def run(self) -> None:
        """Fold and publish until the job ends."""
        self._begin()
        known, published = "", ""
        while True:
            wait = _WAIT if published == known else 0
            query = f"{self.path}/queue?known={known}&wait={wait}"
            queue = self.connection.call("GET", query, wire.Queue)
            if queue.running is False:
                return
            if queue.answers is not UNSET and queue.state != known:
                known = queue.state
                self._fold(queue.answers)
            elif published != known:  # nothing came meanwhile: the queue is empty
                self._publish()
                published = known

    def _begin(self) -> None:
        """Agree on everything once; what is asked stays the same for all who come later."""
        store = CoordinatorCheckpointStore(self.engine)
        kept = store.read()
        if kept is None:
            self.learner.history_ = []
            self.learner.schema_ = self.learner.agree_on_rows(self.federation)
            self.learner.prepare(self.federation)
            store.save(encode(self.learner.get_state()))
        else:
            self.learner.set_state(decode(kept))
            self.learner.history_ = []
        self._task, self._payload = self.learner.question()
        digest = self.connection.upload(encode(self._payload))
        self._call = wire.Call(task=self._task.name, version=self._task.version, payload=digest)
        self.connection.request("PUT", f"{self.path}/question", json=self._call)

    def _fold(self, answers: Mapping[int, wire.Queued]) -> None:
        """Take over the latest answers: the blocks in which one has changed are folded anew."""
        dealt = self._deal(answers)
        self._answers = answers
        aggregation = self.learner.aggregation()
        for block in sorted({*dealt, *self._dealt}):
            if dealt.get(block) == self._dealt.get(block):
                continue
            partial = None
            for client, answer in dealt.get(block, []):
                if self._unsound.get(client) != answer:
                    folded = self._folded(client, answer)
                    try:
                        partial = aggregation.merge(partial, folded)
                    except Exception as error:
                        reason = f"does not fit those of the others: {error}"
                        self._turn_away(answer, Failure(client, "invalid", reason))
            self._partials[block] = partial
        self._dealt = dealt

    def _deal(self, answers: Mapping[int, wire.Queued]) -> dict[int, Answers]:
        """The answers of every block."""
        if not set(answers) <= set(self._members) or set(self._answers) - set(answers):
            federation = self.connection.call("GET", self.path, wire.Job).federation
            path = f"/v1/federations/{federation}"
            found = self.connection.call("GET", path, wire.Members).clients
            self._members = sorted({*(member.id for member in found), *answers})
        dealt: dict[int, Answers] = {}
        for place, client in enumerate(self._members):
            if client in answers:
                dealt.setdefault(place // _BLOCK, []).append((client, answers[client]))
        return dealt

    def _folded(self, client: int, answer: wire.Queued) -> Any:
        """The partial of one answer; None if it is not sound, which everyone is then told."""
        self.engine.signatures.check(
            client, answer.sequence, self.federation.seed, answer.round, self._call, answer
        )
        clients = np.array([client])
        failures: list[Failure] = []
        try:
            frame = self.connection.download(answer.digest)
            batch = Batch(clients, [decode(frame)], np.array([len(frame)]))
        except PayloadError as error:
            failures.append(Failure(client, "corrupt", error.message))
            batch = Batch(clients[:0], [], clients[:0])
        ask = Ask(self._task.name, self._task.version, self._payload, clients, 0)
        block = validate_and_fold(self._task, ask, batch, failures, 0.0, self.learner.aggregation())
        for failure in block.failures:
            self._turn_away(answer, failure)
        return block.partial

    def _turn_away(self, answer: wire.Queued, failure: Failure) -> None:
        """An answer does not count; everyone may know why."""
        log.warning("%s", failure)
        self._unsound[failure.client] = answer
        report(self.connection, f"{self.path}/asks/{answer.sequence}", failure.client, failure)

    def _publish(self) -> None:
        aggregation = self.learner.aggregation()
        total = None
        for block in sorted(self._partials):
            total = aggregation.merge(total, self._partials[block])
        if total is None:
            return
        self.learner.conclude(aggregation.result(total))
        digest = self.connection.upload(self.learner.to_bytes())
        used = {
            client: answer.sequence
            for client, answer in self._answers.items()
            if self._unsound.get(client) != answer
        }
        self.connection.request("PUT", f"{self.path}/model", json=wire.NewModel(digest, used))

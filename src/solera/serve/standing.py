"""A standing job: clients contribute whenever they can, the model is published again each time.

Answers are folded in blocks of client numbers, and the blocks in order. A new answer changes its
own block only, and the model depends on what clients said, not on when they said it: every order
of arrival, with whatever crashes in between, gives the same bytes.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from solera.core.errors import PayloadError
from solera.core.federation import Federation
from solera.core.payload import decode, encode
from solera.core.replies import Batch
from solera.data.agreement import agree
from solera.engines.connection import Connection
from solera.engines.http import CoordinatorCheckpointStore, HttpEngine
from solera.learn.base import Additive

log = logging.getLogger("solera.manager")

_BLOCK = 16
_WAIT = 20


class Standing:
    """Folds what clients contribute to a job, and publishes the model when all is folded."""

    def __init__(
        self, connection: Connection, job: str, learner: Additive, federation: Federation
    ) -> None:
        self.connection = connection
        self.path = f"/v1/jobs/{job}"
        self.learner = learner
        self.federation = federation
        self._answers: dict[str, dict[str, Any]] = {}
        self._partials: dict[int, Any] = {}

    def run(self) -> None:
        """Fold and publish until the job ends."""
        self._begin()
        known, published = "", ""
        while True:
            wait = _WAIT if published == known else 0
            query = f"{self.path}/queue?known={known}&wait={wait}"
            told = self.connection.request("GET", query).json()
            if told.get("running") is False:
                return
            if told["state"] != known:
                known = told["state"]
                self._fold(told["answers"])
            elif published != known:  # nothing came meanwhile: the queue is empty
                self._publish()
                published = known

    def _begin(self) -> None:
        """Agree on everything once; what is asked stays the same for all who come later."""
        engine = self.federation.engine
        assert isinstance(engine, HttpEngine)
        store = CoordinatorCheckpointStore(engine)
        kept = store.read()
        if kept is None:
            self.learner.history_ = []
            self.learner.schema_ = agree(self.federation, allow_missing=self.learner.allows_missing)
            self.learner.prepare(self.federation)
            store.save(encode(self.learner.get_state()))
        else:
            self.learner.set_state(decode(kept))
            self.learner.history_ = []
        task, payload = self.learner.question()
        asked = {"task": task.name, "version": task.version}
        digest = self.connection.upload(encode(payload))
        self.connection.request("PUT", f"{self.path}/question", json={**asked, "payload": digest})

    def _fold(self, answers: dict[str, dict[str, Any]]) -> None:
        """Take over the latest answers: the blocks in which one has changed are folded anew."""
        changed = {
            int(client) // _BLOCK
            for client in {*answers, *self._answers}
            if answers.get(client) != self._answers.get(client)
        }
        self._answers = answers
        aggregation = self.learner.aggregation()
        for block in sorted(changed):
            partial = None
            for client in range(block * _BLOCK, (block + 1) * _BLOCK):
                answer = answers.get(str(client))
                if answer is None:
                    continue
                try:
                    reply = decode(self.connection.download(answer["digest"]))
                    batch = Batch(np.array([client]), [reply], np.array([0]))
                    partial = aggregation.merge(partial, aggregation.fold(batch))
                except PayloadError as error:
                    self._complain(client, answer["sequence"], error.message)
            self._partials[block] = partial

    def _complain(self, client: int, sequence: int, reason: str) -> None:
        log.warning("client %d: %s", client, reason)
        found = {"client": client, "reason": reason[:2000]}
        self.connection.request("POST", f"{self.path}/asks/{sequence}/problems", json=found)

    def _publish(self) -> None:
        aggregation = self.learner.aggregation()
        total = None
        for block in sorted(self._partials):
            total = aggregation.merge(total, self._partials[block])
        if total is None:
            return
        self.learner.conclude(aggregation.result(total))
        digest = self.connection.upload(self.learner.to_bytes())
        used = {int(client): answer["sequence"] for client, answer in self._answers.items()}
        new = {"digest": digest, "contributions": used}
        self.connection.request("PUT", f"{self.path}/model", json=new)

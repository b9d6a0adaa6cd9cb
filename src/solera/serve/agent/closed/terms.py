"""What this owner's rows add to the sums of one job, asked of the worker's process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from solera.core.errors import DataError, WorkerDied
from solera.core.payload import decode, encode
from solera.serve.agent.attempts import AskKey, Attempts
from solera.serve.agent.closed.connection import Interrupted
from solera.serve.agent.worker import Worker
from solera.trust.board.persons import PERSONS

NOTHING = encode({})


class OwnTerms:
    """The worker as one job uses it; ``job`` is the text, the epoch, the secret and which owner."""

    def __init__(
        self, worker: Worker, attempts: Attempts, jid: str, job: Mapping[str, Any], seconds: float
    ) -> None:
        self._worker, self._attempts = worker, attempts
        self._jid, self._job, self._seconds = jid, job, seconds
        self.states: dict[int, bytes] = {}
        """What the client keeps for each fit of the job, as of its last sum."""
        self.fit = 0
        self.persons: Any = None

    @property
    def state(self) -> bytes:
        """What the client keeps for the fit."""
        return self.states.get(self.fit, NOTHING)

    def restore(self, state: bytes) -> None:
        """What the client keeps for the fit from here on."""
        self.states[self.fit] = state

    def check(self) -> None:
        """An error unless the rows are those of the epoch."""
        self.order("start", method="check")

    def order(self, key: str, **order: Any) -> tuple[Any, bytes]:
        """Terms, and the client's state; a task that keeps ending its process has failed."""
        attempt = AskKey(self._jid, 0, key)
        whole = {**self._job, "persons": self.persons, "fit": self.fit, **order}
        whole["state"] = {"state": self.state}
        while not self._attempts.begin(attempt).hopeless:
            try:
                outcome = self._worker.add_up(whole, self._seconds)
            except (DataError, WorkerDied, OSError) as error:
                self._attempts.undo(attempt)
                raise Interrupted(f"the rows cannot be read: {error}") from None
            if outcome.kind == "crashed":
                self._attempts.crashed(attempt)
                continue
            self._attempts.end(attempt)
            if outcome.reply is None:
                raise DataError(f"{outcome.kind}: {outcome.reason}")
            return (decode(outcome.reply) if outcome.reply else None), outcome.state["state"]
        raise DataError("the task ends the process that works on it, again and again")


class OwnAnswer:
    """One ask, as :func:`~solera.trust.board.sums.sums_of` takes its steps."""

    def __init__(self, terms: OwnTerms, said: Mapping[str, Any]) -> None:
        self._terms, self._said = terms, said

    def first(self) -> tuple[Any, bytes]:
        """See :class:`~solera.trust.board.sums.OwnAnswer`."""
        return self._order("first")

    def told(self, supports: dict[str, Any]) -> tuple[Any, bytes]:
        """See :class:`~solera.trust.board.sums.OwnAnswer`."""
        return self._order("told", supports=supports)

    def conclude(self, terms: Any) -> None:
        """See :class:`~solera.trust.board.sums.OwnAnswer`."""
        if self._said["ask"]["task"] == PERSONS:
            self._terms.persons = terms

    def _order(self, method: str, **more: Any) -> tuple[Any, bytes]:
        asked = {"ask": self._said["ask"], "aggregation": self._said["aggregation"]}
        question = self._said["total"]
        key = f"{method} {question.hex()}"
        return self._terms.order(key, method=method, question=question, **asked, **more)

"""The driver's side of vertical learning: who the parties are, and messages between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from solera.core.engine import PerClient
from solera.core.errors import NotEnoughReplies, SoleraError
from solera.core.federation import Federation
from solera.core.replies import Failure
from solera.core.sealing import SEALED, deliver
from solera.core.task import Task


class PartyLeft(NotEnoughReplies):
    """A party of vertical learning did not answer; nobody can go on without it."""


class Parties:
    """All clients of a vertical federation and the messages that wait for them.

    ``numbers[k]`` is what the other parties call client k of the federation: payloads and messages
    name clients by it. A reply's messages wait here until the ask that they are for.
    """

    def __init__(self, federation: Federation, *, deadline: float | None = None) -> None:
        self.federation = federation
        self.deadline = deadline
        self.numbers: list[int] = federation.numbers[federation.clients].tolist()
        self.names = tuple(federation.names_of(federation.clients))
        self._waiting: dict[tuple[str, int, int], list[dict[str, Any]]] = {}

    def __len__(self) -> int:
        return len(self.numbers)

    def ask(
        self,
        task: Task,
        payload: Mapping[str, Any] | None,
        *,
        to: Sequence[int] | None = None,
        round: int = 0,
        own: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> dict[int, Any]:
        """Ask parties (0, 1, … of the federation) and hand them the messages that are for this ask.

        All must answer, or :class:`PartyLeft` says who did not and why. ``own`` are entries of the
        payload for single parties. The replies come back by party, without their messages.
        """
        asked = list(range(len(self))) if to is None else sorted(to)
        payloads: dict[int, Any] = {}
        for party in asked:
            if payload is None:
                payloads[party] = None
                continue
            mail = self._waiting.pop((task.name, round, self.numbers[party]), [])
            sealed = {SEALED: deliver(mail)} if mail else {}
            payloads[party] = {**payload, **(own or {}).get(party, {}), **sealed}
        found: dict[int, Any] = {}
        while asked:
            replies = self.federation.ask(
                task,
                PerClient({party: payloads[party] for party in asked}),
                to=np.array(asked),
                deadline=self.deadline,
                quorum=0,
                round=round,
            )
            for reply in replies.collect():
                found[reply.client] = self._without_messages(reply)
            asked = sorted(failure.client for failure in replies.failures)
            if asked and not self._may_ask_again(replies.failures):
                raise self._left(task, replies.failures)
        return dict(sorted(found.items()))

    def _may_ask_again(self, failures: Sequence[Failure]) -> bool:
        """Whether these parties were late when an earlier driver asked: they may be back now."""
        replayed = getattr(self.federation.engine, "replayed", False)
        return replayed and all(failure.kind == "late" for failure in failures)

    def _without_messages(self, reply: Any) -> Any:
        payload = reply.payload
        if not isinstance(payload, Mapping) or SEALED not in payload:
            return payload
        sender = self.numbers[reply.client]
        for m in payload[SEALED]:
            key = (m["task"], int(m["round"]), int(m["to"]))
            self._waiting.setdefault(key, []).append({"sender": sender, SEALED: m[SEALED]})
        return {name: value for name, value in payload.items() if name != SEALED}

    def _left(self, task: Task, failures: Sequence[Failure]) -> SoleraError:
        failure = failures[0]
        if isinstance(failure.error, SoleraError) and failure.kind == "failed":
            return failure.error  # what is wrong with the data, in its own words
        name = self.names[failure.client]
        return PartyLeft(
            f"{name} did not answer {task.name!r} ({failure.kind}): {failure.reason}",
            failures,
            hint="nothing is lost: once it is back, run the same again and it goes on",
        )

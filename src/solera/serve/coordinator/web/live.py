"""News of a job for open pages: found out once for all that look at it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.concurrency import run_in_threadpool

from solera.serve.coordinator.service import Coordinator
from solera.serve.coordinator.web import words

PAUSE = 1.0
"""Seconds between two looks, however many pages are open."""
_SILENCE = 20.0
_MOST_TOLD = 120
"""Rounds of which is kept what clients told: a page that comes later has read the others."""
MOST = 200
"""Pages that may be open at once; more are told to come back."""


MOST_LINES = 24
"""Of more clients the losses of a round are told by three of them, in words instead of names."""


def spread(facts: dict[str, Any]) -> dict[str, Any]:
    """What clients told in a round; of many the lowest, the middle and the highest loss."""
    losses = sorted(facts["loss"].values())
    if len(losses) <= MOST_LINES:
        return facts
    three = {"lowest": losses[0], "middle": losses[len(losses) // 2], "highest": losses[-1]}
    return {"round": facts["round"], "loss": three}


@dataclass
class _Seen:
    """What was found out last about a job."""

    at: float
    rounds: list[dict[str, Any]]
    told: list[tuple[int, dict[str, Any]]]
    words: str
    ended: bool


class Live:
    """Looks after the jobs whose pages are open."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._seen: dict[str, _Seen] = {}
        self._turns: dict[str, asyncio.Lock] = {}
        self.open = 0

    async def news(self, job: str, known: int, told: int) -> AsyncIterator[bytes]:
        """Server-sent events: rounds after the first ``known`` ones, and the state in words.

        With rounds comes what clients told in them, after event number ``told``.
        """
        self.open += 1
        last, spoke = "", time.monotonic()
        try:
            while True:
                seen = await self._look(job)
                if len(seen.rounds) > known or seen.words != last or seen.ended:
                    rounds = seen.rounds[known:]
                    clients = [facts for number, facts in seen.told if number > told]
                    told = seen.told[-1][0] if seen.told else told
                    facts = {"words": seen.words, "rounds": rounds, "first": known,
                             "told": clients, "ended": seen.ended}  # fmt: skip
                    yield (
                        b"event: job\ndata: " + msgspec.json.encode(facts, enc_hook=float) + b"\n\n"
                    )
                    known, last, spoke = len(seen.rounds), seen.words, time.monotonic()
                    if seen.ended:
                        return
                elif time.monotonic() - spoke > _SILENCE:
                    yield b": still here\n\n"
                    spoke = time.monotonic()
                await asyncio.sleep(PAUSE)
        finally:
            self.open -= 1
            if not self.open:
                self._seen.clear()
                self._turns.clear()

    async def _look(self, job: str) -> _Seen:
        async with self._turns.setdefault(job, asyncio.Lock()):
            seen = self._seen.get(job)
            if seen is None or time.monotonic() - seen.at >= PAUSE:
                seen = await run_in_threadpool(self._find_out, job, seen)
                self._seen[job] = seen
            return seen

    def _find_out(self, name: str, before: _Seen | None) -> _Seen:
        store = self._coordinator.store
        rounds = [] if before is None else before.rounds
        rounds = rounds + store.rounds(name, len(rounds))
        told = [] if before is None else before.told
        since = store.told(name, _MOST_TOLD, told[-1][0] if told else 0)
        told = [*told, *((number, spread(facts)) for number, facts in since)][-_MOST_TOLD:]
        job = store.job(name)
        going_on = job.state in words.GOING_ON
        awaited = store.awaited(job.federation, name) if going_on else []
        names, doing = store.client_names(job.federation), store.doing(job.federation)
        said = words.of_job(job, awaited, names, doing)
        return _Seen(time.monotonic(), rounds, told, said, not going_on)

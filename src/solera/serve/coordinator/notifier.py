"""Who waits for what: requests that are answered when there is news, or when their time is up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from typing import Any

LONGEST_WAIT = 30.0
_LOOK_AGAIN = 0.25
"""Seconds after which who waits for several pieces of news looks whether they are there anyway."""


class _Waiting:
    """A request that waits for its topic: how much news came, and how much it takes to go on."""

    def __init__(self) -> None:
        self.came = 0
        self.wanted: int | None = None
        self.enough: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def hear(self, news: int = 1) -> None:
        self.came += news
        if self.wanted is not None and self.came >= self.wanted:
            self.go_on()

    def go_on(self) -> None:
        if not self.enough.done():
            self.enough.set_result(None)


class Notifier:
    """Wakes those who wait for news of a topic: of a client's work, or of a job.

    ``tell`` passes topics on to other processes.
    """

    def __init__(self, tell: Callable[[tuple[Hashable, ...]], None] = lambda topics: None) -> None:
        self._waiting: dict[Hashable, list[_Waiting]] = {}
        """Of the event loop alone."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tell = tell
        self.waiting = 0
        """How many wait now."""

    def notify(self, *topics: Hashable) -> None:
        """There is news of these topics; without any, of all. Any thread may say so."""
        self.wake(*topics)
        self._tell(topics)

    def wake(self, *topics: Hashable) -> None:
        """The same for those who wait in this process."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended, and nobody waits any more
                self._loop.call_soon_threadsafe(self._wake, topics)

    def _wake(self, topics: tuple[Hashable, ...]) -> None:
        for topic in topics or list(self._waiting):
            for one in self._waiting.get(topic, ()):
                one.hear(1 if topics else one.wanted or 1)

    async def until(
        self,
        topic: Hashable,
        ready: Callable[[], Awaitable[Any]],
        seconds: float,
        *,
        known: Callable[[], Any] = lambda: None,
        missing: Callable[[], int] = lambda: 1,
    ) -> Any:
        """The first true result of ``ready``, or its last one when time is up.

        What ``known`` returns, unless it is None, is what ``ready`` would: it costs no query.
        ``missing`` tells after a look how many pieces of news it takes until another is worth
        while; what is not told one by one is found a moment later.
        """
        self._loop = asyncio.get_running_loop()
        end = time.monotonic() + (min(seconds, LONGEST_WAIT) if seconds > 0 else 0.0)
        while True:
            one = _Waiting()
            self._waiting.setdefault(topic, []).append(one)  # before the look: no news is missed
            try:
                result = known()
                if result is None:
                    result = await ready()
                left = end - time.monotonic()
                if result or left <= 0:
                    return result
                await self._wait(one, missing(), left)
            finally:
                self._forget(topic, one)
            if time.monotonic() >= end:
                return await ready()

    async def _wait(self, one: _Waiting, wanted: int, seconds: float) -> None:
        """Until so much news has come since before the last look."""
        one.wanted = wanted
        one.hear(0)
        pause = seconds if wanted <= 1 else min(seconds, _LOOK_AGAIN)
        timer = asyncio.get_running_loop().call_later(pause, one.go_on)
        self.waiting += 1
        try:
            await one.enough
        finally:
            self.waiting -= 1
            timer.cancel()

    def _forget(self, topic: Hashable, one: _Waiting) -> None:
        same = self._waiting[topic]
        same.remove(one)
        if not same:
            del self._waiting[topic]

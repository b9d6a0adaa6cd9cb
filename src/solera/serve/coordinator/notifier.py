"""Who waits for what: requests that are answered when there is news, or when their time is up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any

from starlette.concurrency import run_in_threadpool

LONGEST_WAIT = 30.0


class Notifier:
    """Wakes those who wait for news of a topic: of a client's work, or of a job.

    ``tell`` passes topics on to other processes.
    """

    def __init__(self, tell: Callable[[tuple[Hashable, ...]], None] = lambda topics: None) -> None:
        self._news: dict[Hashable, Future[None]] = {}
        self._tell = tell
        self.waiting = 0
        """How many wait now."""

    def notify(self, *topics: Hashable) -> None:
        """There is news of these topics; without any, of all. Any thread may say so."""
        self.wake(*topics)
        self._tell(topics)

    def wake(self, *topics: Hashable) -> None:
        """The same for those who wait in this process."""
        for topic in topics or list(self._news):
            news = self._news.pop(topic, None)
            if news is not None:
                news.set_result(None)

    async def until(
        self,
        topic: Hashable,
        ready: Callable[[], Any],
        seconds: float,
        *,
        known: Callable[[], Any] = lambda: None,
    ) -> Any:
        """The first true result of ``ready`` (run in a thread), or its last one when time is up.

        What ``known`` returns, unless it is None, is what ``ready`` would: it costs no thread.
        """
        end = time.monotonic() + (min(seconds, LONGEST_WAIT) if seconds > 0 else 0.0)
        while True:
            news = self._news.setdefault(topic, Future())
            result = known()
            if result is None:
                result = await run_in_threadpool(ready)
            left = end - time.monotonic()
            if result or left <= 0:
                return result
            self.waiting += 1
            try:
                await asyncio.wait([asyncio.wrap_future(news)], timeout=left)
            finally:
                self.waiting -= 1
            if not news.done():
                self.wake(topic)  # nothing is kept for those who are gone
                return await run_in_threadpool(ready)

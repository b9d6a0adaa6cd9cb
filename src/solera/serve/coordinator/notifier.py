"""Who waits for what: requests that are answered when there is news, or when their time is up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from typing import Any

from starlette.concurrency import run_in_threadpool

LONGEST_WAIT = 30.0


class Notifier:
    """Wakes those who wait for news of a topic: of a client's work, or of a job."""

    def __init__(self) -> None:
        self._events: dict[Hashable, asyncio.Event] = {}
        self.waiting = 0
        """How many wait now."""

    def notify(self, *topics: Hashable) -> None:
        """There is news of these topics; without any, of all."""
        for topic in topics or list(self._events):
            event = self._events.pop(topic, None)
            if event is not None:
                event.set()

    async def until(self, topic: Hashable, ready: Callable[[], Any], seconds: float) -> Any:
        """The first true result of ``ready`` (run in a thread), or its last one when time is up."""
        end = time.monotonic() + (min(seconds, LONGEST_WAIT) if seconds > 0 else 0.0)
        while True:
            event = self._events.setdefault(topic, asyncio.Event())
            news = await run_in_threadpool(ready)
            left = end - time.monotonic()
            if news or left <= 0:
                return news
            self.waiting += 1
            try:
                await asyncio.wait_for(event.wait(), left)
            except TimeoutError:
                self.notify(topic)  # no event is kept for those who are gone
                return await run_in_threadpool(ready)
            finally:
                self.waiting -= 1

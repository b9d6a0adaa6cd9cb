"""Calls that are made together: while one batch is under way in a thread, the next one gathers.

A thousand clients that want the same thing at the same time cost a few queries and transactions
then, not a thousand; one alone waits for nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from starlette.concurrency import run_in_threadpool

T = TypeVar("T")
R = TypeVar("R")
_MOST = 128
"""Calls of one batch."""


class Batches(Generic[T, R]):
    """``run`` gives one result, or one error, for each of several arguments, in their order."""

    def __init__(self, run: Callable[[Sequence[T]], Sequence[R | Exception]]) -> None:
        self._run = run
        self._gathered: list[tuple[T, asyncio.Future[R]]] = []
        self._running: asyncio.Task[None] | None = None

    async def __call__(self, argument: T) -> R:
        """The result for one argument."""
        loop = asyncio.get_running_loop()
        result: asyncio.Future[R] = loop.create_future()
        self._gathered.append((argument, result))
        if self._running is None or self._running.done():
            self._running = loop.create_task(self._go_on())
        return await result

    async def _go_on(self) -> None:
        while self._gathered:
            batch, self._gathered = self._gathered[:_MOST], self._gathered[_MOST:]
            try:
                results = await run_in_threadpool(self._run, [argument for argument, _ in batch])
            except Exception as error:
                results = [error] * len(batch)
            for (_, waiting), result in zip(batch, results, strict=True):
                if waiting.done():  # whoever asked has gone
                    continue
                if isinstance(result, Exception):
                    waiting.set_exception(result)
                else:
                    waiting.set_result(result)

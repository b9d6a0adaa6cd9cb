"""Tiles of clients, and blocks of their updates, side by side: one thread each.

A tile is trained by one thread from its first step to its last, and tiles are cut whatever the
number of threads, so that this number changes no bit. Products of a few clients are too small for
PyTorch's own threads to share; whole tiles are not.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController

from solera.learn.averaging.training.devices import torch

_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}
_outside = threading.local()


def in_threads(
    work: Callable[[Any], Any], items: Iterable[Any], device: str = "cpu", *, small: bool = False
) -> list[Any]:
    """``work`` of every item, on a CPU in as many threads as PyTorch may use.

    These are the cores of the machine, unless ``torch.set_num_threads``, ``OMP_NUM_THREADS`` or
    ``so.simulate(workers=…)`` says otherwise. Products inside are computed by one thread each. What
    is ``small`` is done by this thread: to wake another takes longer than a tenth of a millisecond.
    """
    if device != "cpu":
        with torch().no_grad():
            return [work(item) for item in items]
    with one_thread():
        helpers = 0 if small else _outside.threads - 1
        return _shared(work, list(items), helpers)


@contextmanager
def one_thread() -> Iterator[None]:
    """Products of PyTorch and of NumPy are computed by this thread alone."""
    libraries = _libraries()
    before = [library.get_num_threads() for library in libraries]
    with own_threads():
        try:
            for library in libraries:
                library.set_num_threads(1)
            yield
        finally:
            for library, threads in zip(libraries, before, strict=True):
                library.set_num_threads(threads)


def _shared(work: Callable[[Any], Any], items: list[Any], helpers: int) -> list[Any]:
    """``work`` of every item, by this thread and by helpers as soon as they are awake."""
    results: list[Any] = [None] * len(items)
    left = deque(enumerate(items))

    def some() -> None:
        t = torch()
        t.set_num_threads(1)  # which holds for a thread, and so does the next
        with t.no_grad():
            while left:
                try:
                    place, item = left.popleft()
                except IndexError:  # another thread took the last one
                    return
                try:
                    results[place] = work(item)
                except BaseException:
                    left.clear()
                    raise

    helpers = min(helpers, len(items) - 1)
    others = [_pool(helpers).submit(some) for _ in range(helpers)]
    try:
        some()
    finally:
        late = [other for other in others if not other.cancel()]
        wait(late)
    for other in late:
        other.result()
    return results


@contextmanager
def own_threads() -> Iterator[None]:
    """PyTorch computes in this thread alone; :func:`in_threads` has all that it might use.

    PyTorch's own threads wait for its next call by spinning, for milliseconds and on the cores that
    ours need.
    """
    t = torch()
    if hasattr(_outside, "threads"):
        yield
        return
    _outside.threads = t.get_num_threads()
    t.set_num_threads(1)
    try:
        yield
    finally:
        t.set_num_threads(_outside.threads)
        del _outside.threads


@cache
def _libraries() -> list[Any]:
    """The libraries behind NumPy's products; to look for them takes milliseconds."""
    return list(ThreadpoolController().select(user_api="blas").lib_controllers)


def _pool(threads: int) -> ThreadPoolExecutor:
    """The threads of this process; a forked one has none of its parent's."""
    key = (os.getpid(), threads)
    if key not in _pools:
        pool = _pools[key] = ThreadPoolExecutor(threads, "solera-tile")
        all_there = threading.Barrier(threads)  # later it might take a busy thread for an idle one
        list(pool.map(lambda _: all_there.wait(), range(threads)))
    return _pools[key]

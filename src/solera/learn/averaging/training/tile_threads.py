"""Tiles of clients trained side by side, one thread each.

A tile is trained by one thread from its first step to its last, and tiles are cut whatever the
number of threads, so that this number changes no bit. Products of a few clients are too small for
PyTorch's own threads to share; whole tiles are not.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from solera.learn.averaging.training.devices import torch

_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}


def train_tiles(tiles: Iterable[Any], train: Callable[[Any], None], device: str) -> None:
    """Call ``train`` for every tile, on a CPU in as many threads as PyTorch may use.

    These are the cores of the machine, unless ``torch.set_num_threads``, ``OMP_NUM_THREADS`` or
    ``so.simulate(workers=…)`` says otherwise.
    """
    threads = torch().get_num_threads() if device == "cpu" else 1
    if threads == 1:
        with torch().no_grad():
            for tile in tiles:
                train(tile)
        return

    def alone(tile: Any) -> None:
        torch().set_num_threads(1)  # which holds for a thread, and so does the next
        with torch().no_grad():
            train(tile)

    for _ in _pool(threads).map(alone, tiles):
        pass


def _pool(threads: int) -> ThreadPoolExecutor:
    """The threads of this process; a forked one has none of its parent's."""
    key = (os.getpid(), threads)
    if key not in _pools:
        _pools[key] = ThreadPoolExecutor(threads, "solera-tile")
    return _pools[key]

"""PyTorch, the device it computes on, and memory that is used again."""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from solera.core.clients import Array
from solera.core.errors import MissingExtra, UsageError


def torch() -> Any:
    """The library, or an error that names the extra."""
    try:
        import torch
    except ImportError as error:
        raise MissingExtra.of("training a neural network", "torch") from error
    return torch


GENERATOR = threading.RLock()
"""One thread at a time draws from the generator that PyTorch has for the whole process."""


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draws of PyTorch follow from the seed inside, and nobody's change outside."""
    t = torch()
    with GENERATOR, t.random.fork_rng(devices=[]):
        t.manual_seed(seed)
        yield


def find_device(name: str | None) -> Any:
    """The device of that name; by default a GPU where there is one."""
    t = torch()
    if name is None:
        name = "cuda" if t.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not t.cuda.is_available():
        raise UsageError(f"device={name!r}: this process sees no GPU", hint="use device='cpu'")
    device = t.device(name)
    if device.type == "cuda" and (device.index or 0) >= (seen := t.cuda.device_count()):
        raise UsageError(
            f"device={name!r}: this process sees {seen} GPUs", hint="use device='cuda'"
        )
    return device


def is_gpu(device: Any) -> bool:
    return bool(device.type != "cpu")


def check_precision(precision: str, compiled: bool, device: Any) -> None:
    """Raise an error where the device cannot compute so."""
    for argument in (f"precision={precision!r}", f"compile={compiled}"):
        if argument not in ("precision='float32'", "compile=False") and not is_gpu(device):
            hint = "a machine with a GPU, or float32 without compile"
            raise UsageError(f"{argument} is for simulated clients on a GPU", hint=hint)


@contextmanager
def tensor_cores(precision: str) -> Iterator[None]:
    """Let products of float32 use the GPU's tensor cores, in the precision "tf32"."""
    t = torch()
    before = t.get_float32_matmul_precision()
    if precision == "tf32":
        t.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        if precision == "tf32":
            t.set_float32_matmul_precision(before)


def to_host(values: Any) -> Array:
    """A tensor as an array; from a GPU by way of memory that is not paged, ten times faster."""
    if not is_gpu(values.device):
        return np.asarray(values.numpy())
    held = torch().empty(values.shape, dtype=values.dtype, pin_memory=True)
    return np.asarray(held.copy_(values).numpy())


_LINE = 64
"""Bytes of a cache line: products of rows that begin with one are a tenth faster."""


_spare: dict[Any, list[Any]] = {}


class _Lent(np.ndarray[Any, Any]):
    """Memory on loan; everything made of it keeps it alive."""


def borrow(clients: int, size: int, like: Any) -> Any:
    """A matrix whose memory is used again once nothing refers to it any more.

    Large memory fresh from the system costs more than the arithmetic on it. On a GPU PyTorch does
    the same by itself.
    """
    t = torch()
    if like.device.type != "cpu":
        return t.empty(clients, size, dtype=like.dtype, device=like.device)
    per_line = _LINE // like.element_size()
    stride = -(-size // per_line) * per_line
    spare = _spare.setdefault(like.dtype, [])
    try:
        memory = spare.pop()
    except IndexError:
        memory = None
    if memory is None or memory.numel() < clients * stride:
        memory = t.empty(clients * stride, dtype=like.dtype)
    lent = memory[: clients * stride].view(clients, stride).numpy().view(_Lent)
    weakref.finalize(lent, _give_back, spare, memory)
    return t.from_numpy(lent)[:, :size]


def _give_back(spare: list[Any], memory: Any) -> None:
    """Keep the largest spare memory only."""
    if not spare or spare[0].numel() < memory.numel():
        spare[:] = [memory]


def as_tensor(array: Array) -> Any:
    """A tensor that shares the memory of an array nobody will write to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")
        return torch().from_numpy(np.ascontiguousarray(array))

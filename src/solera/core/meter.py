"""How much travelled and how long it took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from solera.core.clients import IntArray


@dataclass(frozen=True, slots=True)
class Record:
    """One ask. ``down`` and ``up`` are bytes per client of ``clients`` (of ``replied`` for ``up``).

    Sizes are those of the encoded payloads, whether or not the engine had to encode them.
    ``virtual`` is simulated time; ``wall`` is the time this process waited, from ``began`` on (a
    reading of :func:`time.perf_counter`).
    """

    round: int
    task: str
    clients: IntArray
    down: IntArray
    replied: IntArray
    up: IntArray
    began: float
    wall: float
    virtual: float
    absent: Mapping[str, Any] = field(default_factory=dict)
    """In a closed job, by entry: which numbers of the total are not told."""


@dataclass(slots=True)
class Total:
    """Sums over some asks."""

    asks: int = 0
    down: int = 0
    up: int = 0
    wall: float = 0.0
    virtual: float = 0.0


@dataclass(slots=True)
class Meter:
    """Bytes and seconds of every ask of a federation.

    ``relayed`` counts the bytes of partials sent from aggregators to the server of a hierarchy.
    """

    records: list[Record] = field(default_factory=list)
    relayed: int = 0

    def add(self, record: Record) -> None:
        self.records.append(record)

    def total(self, *, since: int = 0, task: str | None = None) -> Total:
        """Sums over all asks, or over those after the first ``since``, or those of one task."""
        total = Total()
        for r in self.records[since:]:
            if task is None or r.task == task:
                total.asks += 1
                total.down += int(r.down.sum())
                total.up += int(r.up.sum())
                total.wall += r.wall
                total.virtual += r.virtual
        return total

    def per_client(self, clients: int) -> tuple[IntArray, IntArray]:
        """Bytes sent to and received from each client."""
        down = np.zeros(clients, dtype=np.int64)
        up = np.zeros(clients, dtype=np.int64)
        for r in self.records:
            np.add.at(down, r.clients, r.down)
            np.add.at(up, r.replied, r.up)
        return down, up

    def clear(self) -> None:
        self.records.clear()
        self.relayed = 0


def same_for_all(value: int, clients: IntArray) -> IntArray:
    """One number for every client, stored once."""
    once = np.array([value], dtype=np.int64)
    once.flags.writeable = False
    return np.ndarray(clients.shape, np.int64, once, strides=(0,))


def compact(values: IntArray) -> IntArray:
    """The same numbers, stored once when they are all equal."""
    if len(values) and (values == values[0]).all():
        return same_for_all(int(values[0]), values)
    return values


def size(nbytes: float) -> str:
    """``1.2 MB``."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if nbytes < 999.5:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.3g} TB"

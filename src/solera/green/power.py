"""The power model that stands in where a machine has no energy counters.

The FedHEONN thesis (eq. 3.4, after Lannelongue et al. 2021, *Green Algorithms*) estimates

    E = t · (n_c · P_c · u_c + n_m · P_m) · PUE

with t hours on n_c cores of P_c watts used to the share u_c, and n_m gigabytes of memory of P_m
watts each. Here t · n_c · u_c is the CPU time that this process and its children really used, and
n_m the memory they hold, so that several processes on one machine add up and count nothing twice.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from solera.core.clients import FloatArray

JOULES_PER_KWH = 3.6e6
_PROC = Path("/proc/self")
_GIGABYTE = 1e9


@dataclass(frozen=True)
class PowerModel:
    """Watts of a busy core and of a gigabyte of memory, and the overhead of the building.

    The defaults are those of Lannelongue et al. (2021) for an unknown processor outside a data
    centre. ``pue`` is the power usage effectiveness: 1.67 in an average data centre.
    """

    core_watts: float = 12.0
    memory_watts: float = 0.3725
    pue: float = 1.0

    def joules(self, cpu_seconds: float, gigabyte_seconds: float) -> float:
        """Energy of that much computing and that much memory over time."""
        busy = cpu_seconds * self.core_watts + gigabyte_seconds * self.memory_watts
        return busy * self.pue


class Load(NamedTuple):
    """CPU seconds used so far and gigabytes held now."""

    cpu_seconds: float
    gigabytes: float


def load(*, children: bool = True) -> Load:
    """The load of this process and, unless told otherwise, its children.

    Running children are seen on Linux; elsewhere their CPU time counts when they have ended.
    """
    cpu = time.process_time()
    memory = _gigabytes(_PROC) if _PROC.exists() else _peak_gigabytes()
    if not children:
        return Load(cpu, memory)
    ended = os.times()
    cpu += ended.children_user + ended.children_system
    for child in _children():
        used, held = _child(child)
        cpu += used
        memory += held
    return Load(cpu, memory)


def _children() -> list[int]:
    """Processes started by any thread of this one that have not ended."""
    children: list[int] = []
    for listing in _PROC.glob("task/*/children"):
        try:
            children += map(int, listing.read_text().split())
        except OSError:  # the thread has ended meanwhile
            continue
    return children


def _child(process: int) -> tuple[float, float]:
    """CPU seconds and gigabytes of another process; nothing when it has just ended."""
    folder = Path(f"/proc/{process}")
    try:
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK"), _gigabytes(folder)
    except OSError:
        return 0.0, 0.0


def _gigabytes(folder: Path) -> float:
    """Memory that only this process holds: resident without what is shared with others."""
    _, resident, shared, *_ = (folder / "statm").read_text().split()
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE") / _GIGABYTE


def _peak_gigabytes() -> float:
    import resource
    import sys

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / _GIGABYTE


@dataclass
class Sampler:
    """Joules since it was started, read every ``every`` seconds by a thread of its own.

    ``times`` and ``joules`` hold the curve; :meth:`read` adds a point now. ``mark`` is until when
    the energy is accounted for. With ``from_birth`` what the process used before counts too;
    ``children`` says whether its children do.
    """

    model: PowerModel = field(default_factory=PowerModel)
    every: float = 0.2
    from_birth: bool = False
    children: bool = True
    times: list[float] = field(default_factory=list, init=False)
    joules: list[float] = field(default_factory=list, init=False)
    mark: float = field(default=0.0, init=False)

    def __enter__(self) -> Self:
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._last = load(children=self.children)
        self.times, self.joules = [time.perf_counter()], [0.0]
        self.mark = self.times[0]
        if self.from_birth:
            self._last = self._last._replace(cpu_seconds=0.0)
            self.read()
        self._thread = threading.Thread(target=self._watch, name="solera-energy", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self.read()

    def read(self) -> float:
        """Joules until now."""
        with self._lock:
            now, current = time.perf_counter(), load(children=self.children)
            busy = max(current.cpu_seconds - self._last.cpu_seconds, 0.0)
            held = (current.gigabytes + self._last.gigabytes) / 2 * (now - self.times[-1])
            self.times.append(now)
            self.joules.append(self.joules[-1] + self.model.joules(busy, held))
            self._last = current
            return self.joules[-1]

    def at(self, moments: ArrayLike) -> FloatArray:
        """Joules until some moments in the past."""
        with self._lock:  # the thread adds to both, one after the other
            joules: FloatArray = np.interp(np.asarray(moments), self.times, self.joules)
        return joules

    def _watch(self) -> None:
        while not self._ended.wait(self.every):
            self.read()

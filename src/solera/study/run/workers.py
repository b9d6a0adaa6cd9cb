"""Cells in worker processes: whoever is free takes the next one.

A worker stores what it finishes by itself and then says so. It ends when the process that started
it ends, however that happens, because the pipe between them closes.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

from solera.core.errors import SoleraError
from solera.data import datasets
from solera.data.dataset import Dataset
from solera.green.energy import EnergyOptions
from solera.green.power import Sampler
from solera.study.files.tables import DataSpec
from solera.study.run.cells import Cell, CellFiles
from solera.study.run.results import Result
from solera.study.run.schemes import train


@dataclass(frozen=True)
class Outcome:
    """What became of a cell: a result, or why there is none."""

    cell: Cell
    result: Result | None
    error: str = ""
    warnings: tuple[str, ...] = ()


Next = Callable[[], Cell | None]
"""The next cell to run; None when there is none."""


def run_cell(cell: Cell, files: CellFiles, energy: Meter) -> Outcome:
    """Train, store, and tell. What a cell does wrong is its own matter; others go on."""
    result, problem = None, ""
    with _warnings_kept() as warnings:
        try:
            result = train(
                cell.training,
                lambda: load(cell.training.spec.data),
                checkpoint=files.checkpoint(cell),
                energy=energy.options,
                sampler=energy.sampler,
                save=files.model(cell),
            )
            files.write(cell, result)
        except SoleraError as error:
            problem = str(error)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
    return Outcome(cell, result, problem, tuple(dict.fromkeys(warnings)))


class Meter(NamedTuple):
    """How the cells of a process are measured, if at all."""

    options: EnergyOptions | None
    sampler: Sampler | None


@contextmanager
def _workplace(energy: EnergyOptions | None, *, from_birth: bool) -> Iterator[Meter]:
    """One thread for numerical libraries, so that the number of workers changes no bit, and one
    energy meter for all cells of this process."""
    from threadpoolctl import threadpool_limits

    metered = nullcontext() if energy is None else Sampler(energy.power(), from_birth=from_birth)
    with metered as sampler, threadpool_limits(1):
        yield Meter(energy, sampler)


@contextmanager
def _warnings_kept() -> Iterator[list[str]]:
    """What Solera warns of, instead of one line on the screen for every cell."""
    kept: list[str] = []
    log, handler = logging.getLogger("solera"), logging.Handler(logging.WARNING)
    handler.emit = lambda record: kept.append(record.getMessage())  # type: ignore[method-assign]
    before, log.propagate = log.propagate, False
    log.addHandler(handler)
    try:
        yield kept
    finally:
        log.removeHandler(handler)
        log.propagate = before


@lru_cache(maxsize=2)
def _dataset(name: str, options: tuple[tuple[str, Any], ...]) -> Dataset:
    return datasets.load(name, **dict(options))


def load(data: DataSpec) -> Dataset:
    """The data set of a run, kept for the next cells that need it."""
    return _dataset(data.name, tuple(sorted(data.options.items())))


def here(take: Next, folder: Path, energy: EnergyOptions | None) -> Iterator[Outcome]:
    """Run cells in this process, one after the other."""
    files = CellFiles(folder)
    with _workplace(energy, from_birth=False) as meter:
        while (cell := take()) is not None:
            yield run_cell(cell, files, meter)


def in_processes(
    take: Next, folder: Path, energy: EnergyOptions | None, workers: int
) -> Iterator[Outcome]:
    """Run cells in other processes; outcomes come as they are finished.

    A worker that dies takes its cell with it: the outcome says so, and another takes its place.
    """
    crew: list[_Worker] = []
    try:
        busy: dict[Any, _Worker] = {}
        cell = take()
        while busy or cell is not None:
            while cell is not None and len(busy) < workers:
                free = next((w for w in crew if w.cell is None), None)
                if free is None:
                    free = _Worker(folder, energy)
                    crew.append(free)
                free.start(cell)
                busy[free.pipe] = free
                cell = take()
            for pipe in wait(list(busy)):
                worker = busy.pop(pipe)
                outcome = worker.finish()
                if not worker.alive:
                    crew.remove(worker)
                yield outcome
            if cell is None:
                cell = take()
    finally:
        for worker in crew:
            worker.close()


class _Worker:
    def __init__(self, folder: Path, energy: EnergyOptions | None) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(
            target=_work, args=(theirs, folder, energy), daemon=False
        )
        self.process.start()
        theirs.close()
        self.cell: Cell | None = None
        self.alive = True

    def start(self, cell: Cell) -> None:
        self.cell = cell
        with suppress(BrokenPipeError):  # it has died; finish() will tell
            self.pipe.send(cell)

    def finish(self) -> Outcome:
        assert self.cell is not None
        cell, self.cell = self.cell, None
        try:
            outcome: Outcome = self.pipe.recv()
            return outcome
        except (EOFError, ConnectionResetError):
            self.alive = False
            self.process.join()
            return Outcome(cell, None, f"its process died with code {self.process.exitcode}")

    def close(self) -> None:
        """Let an idle worker go; end one that is at work, whose cell keeps its checkpoint."""
        self.pipe.close()
        if self.cell is not None:
            self.process.terminate()
        self.process.join()


def _work(pipe: Connection, folder: Path, energy: EnergyOptions | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started us decides
    files, gone = CellFiles(folder), (EOFError, BrokenPipeError, ConnectionResetError)
    with _workplace(energy, from_birth=True) as meter, suppress(*gone):
        while True:
            pipe.send(run_cell(pipe.recv(), files, meter))
    os._exit(0)  # everything is stored; taking Python down in order costs half a second

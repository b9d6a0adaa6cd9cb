"""Cells in worker processes: whoever is free takes the next one.

A worker stores what it finishes by itself and then reports it. It ends when the process that
started it ends, however that happens, because the pipe between them closes.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

from solera.core.errors import SoleraError
from solera.green.energy import EnergyOptions
from solera.green.power import Sampler
from solera.study.run.cells import Cell, CellStore
from solera.study.run.progress import SILENT, Progress
from solera.study.run.record import told
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


class Meter(NamedTuple):
    """How the cells of a process are measured, if at all."""

    options: EnergyOptions | None
    sampler: Sampler | None


def run_cell(cell: Cell, store: CellStore, meter: Meter, progress: Progress = SILENT) -> Outcome:
    """Train, store, and report. An error ends its own cell only; others go on.

    With SOLERA_TRACEBACK in the environment it ends everything, and shows where it comes from.
    """
    result, problem = None, ""
    with _warnings_kept() as warnings:
        try:
            result = train(
                cell,
                checkpoint=store.checkpoint(cell),
                callbacks=[progress.watch(cell.title)],
                energy=meter.options,
                sampler=meter.sampler,
                stage=lambda text: progress.stage(f"{cell.title}: {text}"),
                save=store.model(cell),
            )
            store.write(cell, result)
        except Exception as error:
            if os.environ.get("SOLERA_TRACEBACK"):
                raise
            kind = "" if isinstance(error, SoleraError) else f"{type(error).__name__}: "
            problem = f"{kind}{error}"
    return Outcome(cell, result, problem, told(warnings))


@contextmanager
def metered(
    energy: EnergyOptions | None, *, from_birth: bool, threads: int | None = 1
) -> Iterator[Meter]:
    """Threads for numerical libraries, and one energy meter for all cells of this process.

    One thread, unless the number of workers is known to be one, so that it changes no bit.
    """
    from threadpoolctl import threadpool_limits

    measured = nullcontext() if energy is None else Sampler(energy.power(), from_birth=from_birth)
    with measured as sampler, threadpool_limits(threads):
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


def in_this_process(
    take: Next,
    folder: Path,
    energy: EnergyOptions | None,
    *,
    progress: Progress = SILENT,
    threads: int | None = 1,
) -> Iterator[Outcome]:
    """Run cells one after the other, and show the rounds of each."""
    store = CellStore(folder)
    with metered(energy, from_birth=False, threads=threads) as meter:
        while (cell := take()) is not None:
            yield run_cell(cell, store, meter, progress)


def in_processes(
    take: Next, folder: Path, energy: EnergyOptions | None, workers: int, threads: int = 1
) -> Iterator[Outcome]:
    """Run cells in other processes; outcomes come as they are finished.

    A worker that dies takes its cell with it: the outcome says so, and another takes its place.
    """
    pool: list[_Worker] = []
    try:
        busy: dict[Any, _Worker] = {}
        cell = take()
        while busy or cell is not None:
            while cell is not None and len(busy) < workers:
                free = next((w for w in pool if w.cell is None), None)
                if free is None:
                    free = _Worker(folder, energy, threads)
                    pool.append(free)
                free.start(cell)
                busy[free.pipe] = free
                cell = take()
            for pipe in wait(list(busy)):
                worker = busy.pop(pipe)
                outcome = worker.finish()
                if not worker.alive:
                    pool.remove(worker)
                yield outcome
            if cell is None:
                cell = take()
    finally:
        for worker in pool:
            worker.close()


class _Worker:
    def __init__(self, folder: Path, energy: EnergyOptions | None, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(
            target=_work, args=(theirs, folder, energy, threads), daemon=False
        )
        self.process.start()
        theirs.close()
        self.cell: Cell | None = None
        self.alive = True

    def start(self, cell: Cell) -> None:
        self.cell = cell
        with suppress(BrokenPipeError):  # it has died; finish() says so
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


def _work(pipe: Connection, folder: Path, energy: EnergyOptions | None, threads: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started us decides
    store, gone = CellStore(folder), (EOFError, BrokenPipeError, ConnectionResetError)
    with metered(energy, from_birth=True, threads=threads) as meter, suppress(*gone):
        while True:
            pipe.send(run_cell(pipe.recv(), store, meter))
    os._exit(0)  # everything is stored; taking Python down in order costs half a second

"""Cells of a study spread over a Ray cluster: each is a task of Ray, run again if its node dies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from solera.core.errors import MissingExtra
from solera.green.energy import EnergyOptions
from solera.study.run.cells import Cell, CellStore
from solera.study.run.workers import Outcome, metered, run_cell

_RETRIES = 3


def on_ray(
    take: Callable[[], Cell | None],
    folder: Path,
    energy: EnergyOptions | None,
    *,
    address: str,
    workers: int | None = None,
    threads: int = 1,
) -> Iterator[Outcome]:
    """Run cells on a cluster, ``workers`` at a time; by default one for every core it has.

    ``address`` is that of the cluster, or ``"local"`` for one on this machine. Results are written
    by whoever runs a cell, so that every node must see ``folder``.
    """
    try:
        import ray
    except ImportError:
        raise MissingExtra.of("cells on a Ray cluster", "ray") from None
    starts = not ray.is_initialized()
    if starts:
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    try:
        remote = ray.remote(_run).options(num_cpus=threads, max_retries=_RETRIES)
        most = workers or max(1, int(ray.cluster_resources().get("CPU", 1)) // threads)
        busy: dict[Any, Cell] = {}
        cell = take()
        while busy or cell is not None:
            while cell is not None and len(busy) < most:
                busy[remote.remote(cell, folder.resolve(), energy, threads)] = cell
                cell = take()
            ready, _ = ray.wait(list(busy), num_returns=1)
            for reference in ready:
                yield _outcome(ray, reference, busy.pop(reference))
            if cell is None:
                cell = take()
    finally:
        if starts:
            ray.shutdown()


def _outcome(ray: Any, reference: Any, cell: Cell) -> Outcome:
    try:
        outcome: Outcome = ray.get(reference)
        return outcome
    except ray.exceptions.RayError as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        return Outcome(cell, None, f"its worker died {_RETRIES + 1} times: {reason}")


def _run(cell: Cell, folder: Path, energy: EnergyOptions | None, threads: int) -> Outcome:
    with metered(energy, from_birth=False, threads=threads) as meter:
        return run_cell(cell, CellStore(folder), meter)

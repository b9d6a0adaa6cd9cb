"""What measuring energy costs, and whether its parts add up.

Bars: measuring takes under 3 % of the run time; the kWh of all tasks of all cells add up to what
one meter around the whole study reads, within 1 %.

The same short training runs many times in one process, in pairs, once measured and once not; who
goes first alternates. What counts is the median of the ratios of CPU seconds inside the pairs, with
its 95 % interval: seconds on the clock depend on what else the machine does, the CPU seconds of two
runs next to each other less. They are those of all threads and of ended children. Pairs go on until
the interval is narrow enough for a verdict, or there are ``MOST``. The training takes about half a
second of CPU; longer ones pay less: what it takes to begin and to end is printed apart.

    python benchmarks/energy.py
"""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np

import solera as so
from sizes import sized
from solera.green import carbon
from solera.green.power import load
from solera.study.files.reader import parse
from solera.study.run.runner import run_study
from solera.study.statistics import Interval, bootstrap_interval

STUDY = f"""\
seeds = {sized([0, 1], tiny=[0])}
schemes = ["alone", "federated"]
[data]
name = "digits"
clients = 10
client_test = 0.2
[learner]
kind = "FedLinear"
rounds = {sized(60, tiny=2)}
epochs = 3
lr = {sized([1e-3, 1e-2], tiny=[1e-3])}
"""
ROUNDS, READINGS, STARTS = sized((100, 2000, 50), tiny=(2, 10, 2))
FEWEST, MOST = sized((40, 250), tiny=(2, 2))
HALF_WIDTH = 1.0
BAR = 3.0


def cpu_seconds() -> float:
    """Of all threads of this process and of the children that have ended."""
    used = os.times()
    return time.process_time() + used.children_user + used.children_system


def train(source: str | None) -> tuple[float, float]:
    """CPU and wall seconds of one training."""
    X, y, _, _ = so.datasets.digits()
    fed = so.simulate(X, y, clients=10, seed=0)
    model = so.FedLinear(rounds=ROUNDS, epochs=2, lr=0.001)
    gc.collect()
    began, used = time.perf_counter(), cpu_seconds()
    if source is None:
        model.fit(fed)
    else:
        with so.energy.track_energy(fed, source=source):
            model.fit(fed)
    return cpu_seconds() - used, time.perf_counter() - began


def overhead(source: str) -> None:
    train(source)  # CodeCarbon takes two seconds to start, once per process
    pairs: list[list[tuple[float, float]]] = []
    while len(pairs) < MOST:
        runs = {w: train(w) for w in ((source, None) if len(pairs) % 2 else (None, source))}
        pairs.append([runs[source], runs[None]])
        if len(pairs) >= FEWEST and len(pairs) % 10 == 0:
            found = extra(pairs, 0)
            if found.high - found.low < 2 * HALF_WIDTH:
                break
    for i, what in enumerate(("CPU", "wall")):
        measured, bare = np.median(np.array(pairs)[:, :, i], axis=0)
        found = extra(pairs, i)
        print(
            f"  {source:<11}{what:>5} {measured:7.3f} s measured {bare:7.3f} s not   "
            f"{found.estimate:+5.2f} % [{found.low:+5.2f}, {found.high:+5.2f}]   {len(pairs)} pairs"
        )
    kept = extra(pairs, 0).high < BAR
    print(f"  {source:<11} under {BAR:g} % of the CPU seconds: {'yes' if kept else 'not shown'}")


def extra(pairs: list[list[tuple[float, float]]], which: int) -> Interval:
    """Per cent that measuring adds to CPU (0) or wall (1) seconds."""
    seconds = np.array(pairs)[:, :, which]
    return bootstrap_interval(100 * (seconds[:, 0] / seconds[:, 1] - 1), statistic=np.median)


def begin_and_end(source: str) -> None:
    """What does not grow with the training: starting, and sharing out at the end."""
    taken = []
    for _ in range(STARTS):
        began = cpu_seconds()
        with so.energy.track_energy(source=source):
            pass
        taken.append(cpu_seconds() - began)
    print(f"  {source:<11} beginning and ending take {1000 * np.median(taken):.1f} ms of CPU")


def sample() -> None:
    """The power model reads the load five times a second."""
    began = time.process_time()
    for _ in range(READINGS):
        load()
    each = (time.process_time() - began) / READINGS
    print(f"  one reading takes {1e6 * each:.0f} µs of CPU, five a second {100 * 5 * each:.3f} %")


def sums(workers: int) -> None:
    study = parse(STUDY + '[energy]\nsource = "model"\n', file="study.toml", name="study")
    folder = Path(tempfile.mkdtemp())
    try:
        run = run_study(study, folder, workers=workers)
    finally:
        shutil.rmtree(folder)
    assert run.energy is not None
    uses = [r.energy for _, r in run.finished if r.energy is not None]
    parts = sum(sum(use.tasks.values()) for use in uses) + run.coordination_kwh
    whole = run.energy.kwh
    print(
        f"  {workers} workers: tasks of {len(uses)} cells {parts:.5e} kWh, one meter around "
        f"{whole:.5e} kWh   {100 * (parts / whole - 1):+6.2f} %"
    )


if __name__ == "__main__":
    print(f"What measuring costs ({ROUNDS} rounds of FedLinear, medians and 95 % intervals)")
    sample()
    for source in ("model", "codecarbon") if carbon.installed() else ("model",):
        begin_and_end(source)
        overhead(source)
    print("Whether parts add up")
    for workers in sized((1, 2), tiny=(1,)):
        sums(workers)

"""What measuring energy costs, and whether its parts add up.

Bars: measuring takes under 3 % of the run time; the kWh of all tasks of all cells add up to what
one meter around the whole study reads, within 1 %. The two runs that are compared alternate, so
that what else the machine does hits both.

    python benchmarks/energy.py
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from statistics import median

import solera as so
from solera.green import carbon
from solera.green.power import load
from solera.study.execute import run_study
from solera.study.plan import Study, parse

STUDY = """\
seeds = [0, 1]
schemes = ["alone", "federated"]
[data]
name = "digits"
clients = 10
client_test = 0.2
[learner]
kind = "FedLinear"
rounds = 60
epochs = 3
lr = [1e-3, 1e-2]
"""
PAIRS = 15


def train(source: str | None) -> tuple[float, float]:
    """Wall and CPU seconds of one training."""
    X, y, _, _ = so.datasets.digits()
    fed = so.simulate(X, y, clients=10, seed=0)
    model = so.FedLinear(rounds=100, epochs=2, lr=0.001)
    began, used = time.perf_counter(), time.process_time()
    if source is None:
        model.fit(fed)
    else:
        with so.track_energy(fed, source=source):
            model.fit(fed)
    return time.perf_counter() - began, time.process_time() - used


def overhead(source: str) -> None:
    train(source)  # CodeCarbon takes two seconds to start, once per process
    measured, bare = [], []
    for turn in range(PAIRS):  # who goes first alternates too
        for way in (source, None) if turn % 2 else (None, source):
            (bare if way is None else measured).append(train(way))
    for what, i in (("wall", 0), ("CPU", 1)):
        with_it, without = (median(run[i] for run in runs) for runs in (measured, bare))
        print(
            f"  {source:<11}{what:>5} {with_it:8.3f} s measured {without:8.3f} s not   "
            f"{100 * (with_it / without - 1):+6.2f} %"
        )


def sample() -> None:
    """The power model reads the load five times a second."""
    began = time.process_time()
    for _ in range(2000):
        load()
    each = (time.process_time() - began) / 2000
    print(f"  one reading takes {1e6 * each:.0f} µs of CPU, five a second {100 * 5 * each:.3f} %")


def sums(workers: int) -> None:
    study = parse(STUDY + '[energy]\nsource = "model"\n', file="study.toml", name="study")
    assert isinstance(study, Study)
    folder = Path(tempfile.mkdtemp())
    try:
        run = run_study(study, folder, workers=workers)
    finally:
        shutil.rmtree(folder)
    assert run.energy is not None
    uses = [r.energy for _, r in run.finished if r.energy is not None]
    parts = sum(sum(use.tasks.values()) for use in uses) + run.handing_out
    whole = run.energy.kwh
    print(
        f"  {workers} workers: tasks of {len(uses)} cells {parts:.5e} kWh, one meter around "
        f"{whole:.5e} kWh   {100 * (parts / whole - 1):+6.2f} %"
    )


if __name__ == "__main__":
    print("What measuring costs (100 rounds of FedLinear, medians of 15 each)")
    sample()
    overhead("model")
    if carbon.installed():
        overhead("codecarbon")
    print("Whether parts add up")
    sums(1)
    sums(2)

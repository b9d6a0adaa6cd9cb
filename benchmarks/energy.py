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
    pairs = [(train(source), train(None)) for _ in range(PAIRS)]
    for what, i in (("wall", 0), ("CPU", 1)):
        ours, bare = median(a[i] for a, _ in pairs), median(b[i] for _, b in pairs)
        ratio = median(a[i] / b[i] for a, b in pairs)
        print(
            f"  {source:<11}{what:>5} {ours:8.3f} s measured {bare:8.3f} s not   "
            f"{100 * (ratio - 1):+6.2f} %"
        )


def sums() -> None:
    study = parse(STUDY + '[energy]\nsource = "model"\n', file="study.toml", name="study")
    assert isinstance(study, Study)
    folder = Path(tempfile.mkdtemp())
    try:
        run_study(study, folder)  # imports and pictures are warm
        with so.track_energy(source="model") as report:
            run_study(study, folder)  # nothing left to train: the report alone
        with so.track_energy(source="model") as meter:
            run = run_study(study, folder, fresh=True)
    finally:
        shutil.rmtree(folder)
    uses = [r.energy for _, r in run.finished if r.energy is not None]
    parts, whole = sum(sum(use.tasks.values()) for use in uses), meter.use.kwh - report.use.kwh
    print(f"  tasks of {len(uses)} cells             {parts:.6e} kWh")
    print(f"  one meter around, less report {whole:.6e} kWh   {100 * (parts / whole - 1):+6.2f} %")


if __name__ == "__main__":
    print("What measuring costs (100 rounds of FedLinear, medians of 15 pairs)")
    overhead("model")
    if carbon.installed():
        overhead("codecarbon")
    print("Whether parts add up")
    sums()

"""Two cores against one, with the engine that users get by default; the bytes are the same.

W1, W2 and W3 are those of ``simulation.py``. Claims: at least 1.6× on W1, 1.4× on W2, never slower
on W3. Runs with one and with two threads take turns, and the fastest of each count.

    cores.py [--repeats 5] [--rounds 20] [--only W1,W2]
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

os.environ.pop("OMP_NUM_THREADS", None)  # simulation.py sets it for peers

import numpy as np
import torch

import simulation
import solera as so
from sizes import sized

BARS = {"W1": 1.6, "W2": 1.4, "W3": 1.0}


def processor_times() -> dict[str, int]:
    """Nanoseconds that each thread of this process has run."""
    tasks = Path("/proc/self/task").iterdir()
    return {task.name: int((task / "schedstat").read_text().split()[0]) for task in tasks}


def longest_path(before: dict[str, int], after: dict[str, int]) -> float:
    """Seconds of the busiest thread."""
    return max(end - before.get(thread, 0) for thread, end in after.items()) / 1e9


def fit(work: Any, rows: Any, workers: int, rounds: int) -> tuple[float, float, Any]:
    """Seconds from the first round to the last, along the longest path, and the parameters."""
    X, y = rows[:2]
    model = so.nn.mlp(*work.sizes) if work.hidden else so.nn.linear(*work.sizes)
    marks = []

    class Clock(so.callbacks.Callback):
        def on_round(self, learner: Any, round: Any) -> None:
            marks.append((time.perf_counter(), processor_times()))

    every = work.rows
    shards = so.partitions.Explicit(
        [range(k * every, (k + 1) * every) for k in range(work.clients)]
    )
    fed = so.simulate(X, y, partition=shards, seed=0, workers=workers)
    learner = so.FedAvg(
        model,
        rounds=rounds + 1,
        per_round=work.per_round,
        lr=work.lr,
        batch_size=work.batch,
        device="cpu",
    )
    learner.fit(fed, callbacks=[Clock()])
    (began, before), (ended, after) = marks[0], marks[-1]
    return ended - began, longest_path(before, after), learner.weights_


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=sized(5, tiny=1))
    parser.add_argument("--rounds", type=int, default=sized(20, tiny=2))
    parser.add_argument("--only", default="W1,W2,W3")
    options = parser.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    for name in options.only.split(","):
        work = simulation.WORKLOADS[name]
        rows = simulation.rows_of(work)
        times: dict[int, list[tuple[float, float]]] = {1: [], 2: []}
        learned: dict[int, Any] = {}
        for _ in range(options.repeats):
            for workers, measured in times.items():
                clock, path, learned[workers] = fit(work, rows, workers, options.rounds)
                measured.append((clock, path))
        one, two = np.min(times[1], axis=0), np.min(times[2], axis=0)
        same = "same bytes" if np.array_equal(learned[1], learned[2]) else "OTHER BYTES"
        print(
            f"{name}: clock {one[0]:.3f} s, {two[0]:.3f} s, {one[0] / two[0]:.2f}×; longest path "
            f"{one[1]:.3f} s, {two[1]:.3f} s, {one[1] / two[1]:.2f}× (bar {BARS[name]}), {same}",
            flush=True,
        )


if __name__ == "__main__":
    main()

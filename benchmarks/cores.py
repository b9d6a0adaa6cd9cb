"""Two cores against one, with the engine that users get by default; the bytes are the same.

W1, W2 and W3 are those of ``simulation.py``. Claims: at least 1.6× on W1, 1.4× on W2, never slower
on W3. Runs with one and with two threads take turns, and the fastest of each count: the machine may
be shared.

    cores.py [--repeats 5] [--rounds 20] [--only W1,W2]
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

os.environ.pop("OMP_NUM_THREADS", None)  # simulation.py sets it for peers

import numpy as np
import torch

import simulation
import solera as so
from sizes import sized

BARS = {"W1": 1.6, "W2": 1.4, "W3": 1.0}


def fit(work: Any, rows: Any, workers: int, rounds: int) -> tuple[float, Any]:
    """Seconds from the first round to the last, and the parameters."""
    X, y = rows[:2]
    model = so.nn.mlp(*work.sizes) if work.hidden else so.nn.linear(*work.sizes)
    marks = []

    class Clock(so.callbacks.Callback):
        def on_round(self, learner: Any, round: Any) -> None:
            marks.append(time.perf_counter())

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
    return marks[-1] - marks[0], learner.weights_


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
        times: dict[int, list[float]] = {1: [], 2: []}
        learned: dict[int, Any] = {}
        for _ in range(options.repeats):
            for workers, measured in times.items():
                seconds, learned[workers] = fit(work, rows, workers, options.rounds)
                measured.append(seconds)
        one, two = min(times[1]), min(times[2])
        same = "same bytes" if np.array_equal(learned[1], learned[2]) else "OTHER BYTES"
        print(
            f"{name}: one core {one:.3f} s, two {two:.3f} s, {one / two:.2f}× "
            f"(bar {BARS[name]}), {same}",
            flush=True,
        )


if __name__ == "__main__":
    main()

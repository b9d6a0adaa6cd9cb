"""What the progress bar of ``fit`` costs: its own time within W1 of ``simulation.py``.

The bar draws on a real terminal (a pseudo-terminal that is read all the time), as often as for a
user but from the first round on; every call of it is timed in the process that trains. Claim: under
1 % of W1.
"""

from __future__ import annotations

import argparse
import os
import pty
import sys
import threading
from time import perf_counter
from typing import Any

import torch

import solera as so
from simulation import WORKLOADS, Rows, Workload, rows_of
from sizes import sized
from solera.learn import progress


class TimedBar(progress.RoundBar):
    """The bar, and the seconds that its calls take."""

    spent = 0.0
    draws = 0

    def on_start(self, learner: Any, rounds: int, start: int) -> None:
        began = perf_counter()
        super().on_start(learner, rounds, start)
        TimedBar.spent += perf_counter() - began

    def on_round(self, learner: Any, round: Any) -> None:
        began = perf_counter()
        super().on_round(learner, round)
        TimedBar.spent += perf_counter() - began

    def on_end(self, learner: Any) -> None:
        began = perf_counter()
        super().on_end(learner)
        TimedBar.spent += perf_counter() - began

    def _draw(self, now: float) -> None:
        super()._draw(now)
        TimedBar.draws += 1


def train(work: Workload, rows: Rows) -> float:
    """Seconds of one fit of the workload with the bar."""
    X, y, _, _ = rows
    shards = so.partitions.Explicit(
        [range(k * work.rows, (k + 1) * work.rows) for k in range(work.clients)]
    )
    with so.simulate(X, y, partition=shards, seed=0) as fed:
        learner = so.FedAvg(
            so.nn.mlp(*work.sizes),
            rounds=work.rounds,
            per_round=work.per_round,
            lr=work.lr,
            batch_size=work.batch,
            device="cpu",
        )
        began = perf_counter()
        learner.fit(fed, callbacks=[TimedBar()], progress=False)
        return perf_counter() - began


def read(terminal: int) -> None:
    """Take everything off the terminal until it is closed."""
    try:
        while os.read(terminal, 1 << 16):
            pass
    except OSError:
        return


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=sized(5, tiny=1))
    options = parser.parse_args()
    torch.set_num_threads(1)
    progress._PATIENCE = progress._PAUSE  # W1 may be over within the first second
    work = WORKLOADS["W1"]
    rows = rows_of(work)
    ours, theirs = pty.openpty()
    reader = threading.Thread(target=read, args=(ours,), daemon=True)
    reader.start()
    stderr, sys.stderr = sys.stderr, os.fdopen(theirs, "w")
    try:
        total = sum(train(work, rows) for _ in range(options.repeats))
    finally:
        sys.stderr.close()
        sys.stderr = stderr
    share = TimedBar.spent / total
    print(
        f"W1 {total / options.repeats:.3f} s, {TimedBar.draws} pictures in {options.repeats} fits"
    )
    print(f"bar {1000 * TimedBar.spent / options.repeats:.3f} ms a fit, ratio {share:.5f}")
    if share >= sized(0.01, tiny=1.0):
        raise SystemExit(f"the bar takes {share:.2%} of the time, 1 % is claimed")


if __name__ == "__main__":
    main()

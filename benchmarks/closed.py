"""What a closed job costs: a sum over a real network beside an ask that a driver sends.

Both are seconds of one round more: a fit of many rounds less one of few, so that approvals, start
and the first sum of persons do not count. Claims: a no-op round (a linear model of four columns,
ten rows an owner) takes at most 2 times a driver-run ask with 4 agents, 4 times with 10; a network
784-128-10 with 4 agents at most 2 times the same rounds with ``secure=True``.

    python benchmarks/closed.py [noop] [network] [--tiny] 2> /dev/null
"""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "serve"))

import closed_network
from closed_network import ClosedNetwork
from network import Network

import solera as so
from sizes import sized

FEW, MANY, ROWS, REPEATS = sized((5, 25, 60, 3), tiny=(2, 4, 10, 1))
AGENTS = sized((4, 10), tiny=(4,))

Make = Callable[[int], Any]
"""A learner of so many rounds."""


def linear(rounds: int) -> Any:
    """A round of it computes next to nothing."""
    return so.FedLinear(rounds=rounds, batch_size=None)


def network(rounds: int) -> Any:
    """784-128-10, an epoch a round."""
    return so.FedAvg(so.nn.mlp(784, 128, 10), rounds=rounds, batch_size=10, lr=0.1)


def frame_of(columns: int, classes: int, rows: int) -> pd.DataFrame:
    """Made-up rows, the last column the class."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, columns))
    y = np.argmax(X[:, :classes], axis=1) if classes > 2 else (X[:, 0] > 0).astype(int)
    frame = pd.DataFrame(X.round(6), columns=[f"x{j}" for j in range(columns)])
    return frame.assign(target=[f"c{label}" for label in y])


def seconds_a_round(fit: Callable[[int], Any]) -> float:
    """The median over some repeats of a long fit less a short one, for each round."""
    fit(1)  # processes are there
    rounds = []
    for repeat in range(REPEATS):
        times = []
        for count in (FEW, MANY):
            began = time.perf_counter()
            fit(count + repeat)
            times.append(time.perf_counter() - began)
        rounds.append((times[1] - times[0]) / (MANY - FEW))
    return float(np.median(rounds))


def closed(frame: pd.DataFrame, agents: int, make: Make) -> float:
    """Seconds of a round in a closed job."""
    closed_network.NAMES = tuple(f"owner{k}" for k in range(agents))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        owners = ClosedNetwork(Path(folder), frame, signed=agents)
        try:
            federation = owners.closed()
            return seconds_a_round(lambda rounds: make(rounds).fit(federation, progress=False))
        finally:
            owners.close()


def driven(frame: pd.DataFrame, agents: int, make: Make, **options: Any) -> float:
    """Seconds of a round that a driver asks for, under the policy ``trusted``."""
    X, y = frame.iloc[:, :-1].to_numpy(), np.unique(frame["target"], return_inverse=True)[1]
    bounds = np.linspace(0, len(X), agents + 1).astype(np.int64)
    data = so.data.FederatedData(X, y, bounds)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        clients = Network(Path(folder))
        try:
            clients.start()
            for k in range(agents):
                clients.enrol(f"client-{k}")
                clients.give(f"client-{k}", data, k)
                clients.work(f"client-{k}")
            federation = clients.connect(**options)
            return seconds_a_round(lambda rounds: make(rounds).fit(federation, progress=False))
        finally:
            clients.close()


def compare(what: str, ours: float, other: str, theirs: float, bar: float) -> None:
    """Print both and their ratio."""
    print(
        f"{what}: closed {ours * 1e3:.0f} ms, {other} {theirs * 1e3:.0f} ms, "
        f"ratio {ours / theirs:.2f} (bar {bar:g})",
        flush=True,
    )


def noop() -> None:
    for agents in AGENTS:
        frame = frame_of(4, 2, 10 * agents)
        ours, theirs = closed(frame, agents, linear), driven(frame, agents, linear)
        bar = 2 if agents == 4 else 4
        compare(f"no-op round, {agents} agents", ours, "driver-run", theirs, bar)


def networks() -> None:
    frame = frame_of(784, 10, 4 * ROWS)
    ours = closed(frame, 4, network)
    theirs = driven(frame, 4, network, secure=True)
    compare("784-128-10, 4 agents", ours, "secure=True", theirs, 2)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    chosen = sys.argv[1:] or ["noop", "network"]
    for part in chosen:
        {"noop": noop, "network": networks}[part]()

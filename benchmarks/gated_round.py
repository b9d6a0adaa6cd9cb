"""A no-op round of real agents behind the gate, and the time that each spends in its checks.

Every agent is a process with a worker process, as an owner runs them, and counts the seconds inside
the gate, the comparison with the job's description and the policy, and the meter on its disk: in
the processes in which they pass, while the round goes on. ``gate.py`` runs it.
"""

from __future__ import annotations

import os
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "serve"))

from network import AGENT, Network, Program

import solera as so
from sizes import sized
from solera.core.plan import planned
from solera.engines import gates
from solera.serve.agent import agent, attempts, policy
from solera.trust.release import Facts

AGENTS, ROUNDS = sized((10, 50), tiny=(2, 2))
POLICY = 'policy = "training"\n'
CLOCKED = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import gated_round
gated_round.clock(sys.argv.pop())
"""
_SECONDS = struct.Struct("<d")


@so.task("benchmark.gated-round", ask=None, release=[Facts("one")])
def noop(client: Any, ask: Any) -> dict[str, Any]:
    return {"one": 1}


def clock(path: str) -> None:
    """From now on, write the seconds of each check of this process and its children to a file."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    inside = [False]

    def clocked(owner: Any, name: str) -> None:
        call: Callable[..., Any] = getattr(owner, name)

        def run(*arguments: Any, **options: Any) -> Any:
            if inside[0]:  # counted by whoever called
                return call(*arguments, **options)
            inside[0] = True
            began = time.perf_counter()
            try:
                return call(*arguments, **options)
            finally:
                inside[0] = False
                os.write(file, _SECONDS.pack(time.perf_counter() - began))

        setattr(owner, name, run)

    for owner, names in {
        agent: ("check_said", "check_planned"),
        policy.Policy: ("check_ask", "check_reply"),
        attempts.Attempts: ("begin", "count", "end"),
        gates.Gates: ("admit", "release"),
    }.items():
        for name in names:
            clocked(owner, name)


class Clocked(Network):
    """Agents that count the seconds of their checks."""

    def work(self, name: str) -> None:
        files = [str(self.folder / f"{name}.{end}") for end in ("rows", "toml", "seconds")]
        self.agents[name] = Program(CLOCKED + AGENT, str(self.folder / name), *files)

    def seconds(self) -> list[float]:
        """What each agent has counted so far."""
        counted = []
        for name in self.agents:
            path = self.folder / f"{name}.seconds"
            data = path.read_bytes() if path.exists() else b""
            counted.append(sum(seconds for (seconds,) in _SECONDS.iter_unpack(data)))
        return counted


def measure(agents: int = AGENTS, rounds: int = ROUNDS) -> tuple[float, list[float]]:
    """Seconds of a round, the median, and of all rounds the share of each agent's checks."""
    rows = 60
    X = np.random.default_rng(0).normal(size=(rows * agents, 4))
    data = so.data.FederatedData(X, X[:, 0] > 0, np.arange(0, rows * agents + 1, rows))
    with tempfile.TemporaryDirectory() as folder:
        network = Clocked(Path(folder))
        try:
            network.start()
            for k in range(agents):
                network.enrol(f"client-{k}")
                network.give(f"client-{k}", data, k, POLICY)
                network.work(f"client-{k}")
            network.driven("rounds", [planned(noop, rounds + 1)])
            fed = network.drive("rounds")
            assert len(list(fed.ask(noop).collect())) == agents
            before = np.array(network.seconds())
            times = []
            for _ in range(rounds):
                began = time.perf_counter()
                assert len(list(fed.ask(noop).collect())) == agents
                times.append(time.perf_counter() - began)
            spent = np.array(network.seconds()) - before
        finally:
            network.close()
    return statistics.median(times), list(spent / sum(times))


def show() -> None:
    median, shares = measure()
    print(
        f"no-op round of {len(shares)} real agents behind the gate: {1e3 * median:.0f} ms in the "
        f"median, in the gate and the checks {statistics.mean(shares):.1%} of it at an agent "
        f"(most {max(shares):.1%})"
    )

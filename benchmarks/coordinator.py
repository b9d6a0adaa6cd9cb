"""Latency of a round over a real coordinator: TLS on loopback, real agents, everything stored.

Claim: a no-op round with 10 agents takes under 0.25 s in the median.

    python benchmarks/coordinator.py [agents]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "serve"))

from network import Network

import solera as so


def main(agents: int) -> None:
    rows = np.random.default_rng(0).normal(size=(20 * agents, 4))
    data = so.FederatedData(rows, (rows[:, 0] > 0).astype(int), np.arange(0, 20 * agents + 1, 20))
    with tempfile.TemporaryDirectory() as folder:
        network = Network(Path(folder))
        network.start()
        try:
            for k in range(agents):
                name = f"client-{k}"
                network.enrol(name)
                network.give(name, data, k)
                network.work(name)
            fed = network.connect()
            fed.ask("data.flaws").collect()
            times = []
            for _ in range(15):
                began = time.perf_counter()
                fed.ask("data.flaws").collect()
                times.append(time.perf_counter() - began)
        finally:
            network.close()
    print(f"no-op round, {agents} agents, median of 15: {statistics.median(times):.3f} s")
    print(f"fastest {min(times):.3f} s, slowest {max(times):.3f} s")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)

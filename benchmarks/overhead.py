"""What asking costs: a no-op task over many clients, beside the bare Python loop it stands for.

Claim: at most 20 µs per client in ``local`` for 1,000 clients.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import solera as so
from sizes import sized
from solera.core.clients import Client, Draws

CLIENTS, REPEATS = sized((1000, 15), tiny=(50, 2))


@so.task("benchmark.noop")
def noop(client: Client, ask: Any) -> dict[str, Any]:
    return {"one": 1}


def _noop_many(group: Any, ask: Any) -> so.messages.Stacked:
    return so.messages.Stacked({"one": np.ones(len(group), dtype=np.int64)})


@so.task("benchmark.noop-many", many=_noop_many)
def noop_many(client: Client, ask: Any) -> dict[str, Any]:
    return {"one": 1}


def microseconds(run: Callable[[], Any], clients: int, repeats: int = REPEATS) -> float:
    run()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return statistics.median(times) / clients * 1e6


def main(clients: int = CLIENTS) -> None:
    X, y = np.zeros((clients, 3)), np.arange(clients) % 2
    fed = so.simulate(X, y, clients=clients)
    draws = Draws(0, "benchmark.noop", 0)

    def bare() -> int:
        total = 0
        for i in range(clients):
            total += noop(Client(i, fed.data, draws, {}), None)["one"]
        return total

    floor = microseconds(bare, clients)
    print(f"no-op over {clients:,} clients, median of {REPEATS}, µs per client")
    print(f"{'bare Python loop':<34}{floor:8.2f}")
    cases: dict[str, Callable[[], Any]] = {
        "local, fold": lambda: fed.ask("benchmark.noop").fold(so.aggregations.Sum()),
        "local, collect": lambda: fed.ask("benchmark.noop").collect(),
        "local, fold, many=": lambda: fed.ask("benchmark.noop-many").fold(so.aggregations.Sum()),
    }
    for name, run in cases.items():
        cost = microseconds(run, clients)
        print(f"{name:<34}{cost:8.2f}   {cost / floor:5.1f}× the loop")
    with so.simulate(X, y, clients=clients, engine="processes", workers=2) as workers:
        cost = microseconds(
            lambda: workers.ask("benchmark.noop").fold(so.aggregations.Sum()), clients
        )
        print(f"{'processes (2 workers), fold':<34}{cost:8.2f}   {cost / floor:5.1f}× the loop")


if __name__ == "__main__":
    main()

"""How the cost of every learner grows: more clients of the same rows, more rows, more columns.

Prints CPU seconds and the exponent between neighbouring sizes, log(t₂/t₁) / log(n₂/n₁). Claims: no
exponent above 1.1 in clients or rows; the same 100,000 rows take FedKMeans (10 rounds) under 15 s
with 100,000 clients, FedHistGBDT (20 rounds) with 1,000 clients at most 3 times as long as with 10,
and FederatedTree (CART, depth 5) under 12 s with 400.

    python benchmarks/growth.py [clients|rows|columns] [LEARNER …]
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import solera as so
from sizes import TINY, sized

ROWS, COLUMNS, CLIENTS = sized((100_000, 10, 100), tiny=(4000, 4, 4))


@dataclass(frozen=True)
class Case:
    """A learner, and with how many clients it is tried."""

    make: Callable[[], Any]
    clients: tuple[int, ...] = (100, 1000)
    most: int | None = None
    """Seconds that it may take with the most clients."""


CASES: dict[str, Case] = {
    "FedScaler": Case(lambda: so.FedScaler(), (100, 1000, 10_000)),
    "FedLinear": Case(lambda: so.FedLinear(rounds=10), (100, 1000, 10_000)),
    "FedHEONN": Case(lambda: so.FedHEONN()),
    "FedGLM": Case(lambda: so.FedGLM("binomial")),
    "FedKMeans": Case(
        lambda: so.FedKMeans(5, rounds=10, tolerance=0.0), (1000, 10_000, 100_000), 15
    ),
    "FedHistGBDT": Case(lambda: so.FedHistGBDT(rounds=20), (10, 100, 1000)),
    "FedID3": Case(lambda: so.Pipeline(so.FedBins(4), so.FedID3(max_depth=3))),
    "FedForest": Case(lambda: so.FedForest(trees=2), (100, 400)),
    "FederatedTree": Case(lambda: so.FederatedTree(max_depth=5), (100, 200, 400), 12),
    "FedAvg": Case(lambda: so.FedAvg(so.nn.mlp(COLUMNS, 16, 2), rounds=3)),
}


def rows_of(rows: int, columns: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, columns))
    y = X[:, 0] + X[:, 1] * X[:, 2] + rng.normal(size=rows) / 2 > 0
    return X, y.astype(int)


def seconds(make: Callable[[], Any], rows: int, columns: int, clients: int) -> float:
    """CPU time of one fit: the machine may be shared."""
    X, y = rows_of(rows, columns)
    federation = so.simulate(X, y, clients=clients)
    began = time.process_time()
    make().fit(federation)
    return time.process_time() - began


def show(name: str, axis: str, sizes: list[int], times: list[float]) -> None:
    steps = zip(sizes, sizes[1:], times, times[1:], strict=False)
    exponents = [math.log(t2 / t1) / math.log(n2 / n1) for n1, n2, t1, t2 in steps]
    cells = "".join(f"{n:>10,}: {t:7.2f} s" for n, t in zip(sizes, times, strict=True))
    print(f"{name:<14}{axis:<9}{cells}   exponent {max(exponents):5.2f}", flush=True)


def main(axes: list[str], names: list[str]) -> None:
    print(f"{ROWS:,} rows × {COLUMNS} columns, {CLIENTS} clients unless it says otherwise")
    for name in names:
        case = CASES[name]
        seconds(case.make, 200, COLUMNS, 2)  # imports
        if "clients" in axes:
            sizes = [2, 4] if TINY else list(case.clients)
            times = [seconds(case.make, ROWS, COLUMNS, n) for n in sizes]
            show(name, "clients", sizes, times)
        if "rows" in axes:
            sizes = [ROWS // 10, ROWS]
            show(name, "rows", sizes, [seconds(case.make, n, COLUMNS, CLIENTS) for n in sizes])
        if "columns" in axes and name != "FedAvg":  # its network has so many inputs
            sizes = [COLUMNS, 4 * COLUMNS]
            times = [seconds(case.make, ROWS // 10, n, CLIENTS) for n in sizes]
            show(name, "columns", sizes, times)


if __name__ == "__main__":
    asked = sys.argv[1:]
    some_axes = [a for a in asked if a in ("clients", "rows", "columns")]
    some_names = [a for a in asked if a in CASES]
    main(some_axes or ["clients", "rows", "columns"], some_names or list(CASES))

"""Robust rules on 100 updates of a million numbers each: seconds, memory, and against NumPy.

    python benchmarks/robust.py [--tiny]

The straightforward version of each rule works on the whole matrix at once, in double precision.
Ratios are of seconds from one run; memory is the peak beside the updates themselves.
"""

from __future__ import annotations

import argparse
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np

import solera as so

R = so.robust


def straightforward() -> dict[str, Callable[[Any], Any]]:
    """The rules as one would write them down."""

    def distances(X: Any) -> Any:
        return np.array([[np.sum((a - b) ** 2) for b in X] for a in X])

    def krum(X: Any) -> Any:
        apart = np.sort(distances(X.astype(np.float64)), axis=1)
        return X[apart[:, 1 : len(X) - 22].sum(axis=1).argmin()]

    def geometric(X: Any) -> Any:
        X = X.astype(np.float64)
        z = X.mean(axis=0)
        for _ in range(10):
            beta = 1 / np.maximum(np.linalg.norm(X - z, axis=1), 1e-9)
            z = beta @ X / beta.sum()
        return z

    return {
        "Median": lambda X: np.median(X, axis=0),
        "TrimmedMean": lambda X: np.sort(X, axis=0)[20:80].mean(axis=0),
        "Krum": krum,
        "GeometricMedian": geometric,
    }


def measure(function: Callable[[], Any]) -> tuple[float, float]:
    """Seconds of one call, and megabytes at its peak in another."""
    began = time.perf_counter()
    function()
    seconds = time.perf_counter() - began
    tracemalloc.start()
    function()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return seconds, peak / 1e6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tiny", action="store_true")
    tiny = parser.parse_args().tiny
    width = 2_000 if tiny else 1_000_000
    draw = np.random.default_rng(0)
    X = draw.standard_normal((100, width), dtype=np.float32)
    X[:20] = -5 * X[:20]
    rules = [
        R.Median(),
        R.TrimmedMean(20),
        R.Krum(20),
        R.MultiKrum(20),
        R.Bulyan(20),
        R.GeometricMedian(),
        R.CentredClipping(),
        R.NormBound(),
    ]
    slow = straightforward()
    print(f"100 clients × {width:,} numbers, {X.nbytes / 1e6:,.0f} MB of updates")
    print(f"{'rule':<18}{'seconds':>9}{'MB more':>9}{'NumPy s':>9}{'NumPy MB':>10}{'ratio':>7}")
    for rule in rules:
        name = type(rule).__name__
        seconds, memory = measure(lambda rule=rule: rule.judge(X))
        line = f"{name:<18}{seconds:>9.2f}{memory:>9.0f}"
        if name in slow and (tiny or name != "Krum"):
            theirs, more = measure(lambda name=name: slow[name](X))
            line += f"{theirs:>9.2f}{more:>10.0f}{theirs / seconds:>7.1f}"
        elif name in slow:  # 10,000 distances of a million numbers each: a tenth of them
            theirs, more = measure(lambda: slow["Krum"](np.ascontiguousarray(X[:, ::10])))
            line += f"{10 * theirs:>9.2f}{10 * more:>10.0f}{10 * theirs / seconds:>7.1f}"
        print(line, flush=True)


if __name__ == "__main__":
    main()

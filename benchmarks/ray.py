"""The engine ``ray`` beside ``processes`` with as many workers, on one machine.

Claims: W1 and W2 of ``simulation.py`` at least 0.8 times as fast as with ``processes``; a no-op ask
of 1,000 clients under 30 ms. Start-up is excluded. This script has the name of the library: its
folder is taken off the path until that is imported.

    ray.py [--repeats 5] [--rounds 20] [--workers 2] [--only W1,W2]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

HERE = str(Path(__file__).parent)
sys.path = [place for place in sys.path if place != HERE]

import ray  # noqa: E402

sys.path.append(HERE)

import numpy as np  # noqa: E402

import simulation  # noqa: E402
import solera as so  # noqa: E402
from sizes import sized  # noqa: E402

STORE = sized(1 << 30, tiny=80 << 20)


@so.task("benchmark.ray-noop")
def noop(client: Any, ask: Any) -> dict[str, Any]:
    return {"one": 1}


def noop_ms(engine: str, workers: int, repeats: int) -> float:
    """The fastest of some no-op asks of 1,000 clients."""
    X = np.zeros((1000, 2))
    times = []
    with so.simulate(X, clients=1000, engine=engine, workers=workers) as fed:
        for _ in range(2 + 5 * repeats):
            began = time.perf_counter()
            fed.ask("benchmark.ray-noop").fold(so.aggregations.Sum())
            times.append(time.perf_counter() - began)
    return min(times) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=sized(5, tiny=1))
    parser.add_argument("--rounds", type=int, default=sized(20, tiny=2))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", default=sized("W1,W2", tiny="W2"))
    options = parser.parse_args()
    ray.init(
        address="local",
        num_cpus=options.workers,
        object_store_memory=STORE,
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
    )
    engines = ("processes", "ray")
    asks = {engine: noop_ms(engine, options.workers, options.repeats) for engine in engines}
    print(f"no-op, 1,000 clients: processes {asks['processes']:.1f} ms, ray {asks['ray']:.1f} ms")
    for name in options.only.split(","):
        work = simulation.WORKLOADS[name]
        work = type(work)(**{**vars(work), "rounds": options.rounds})
        rows = simulation.rows_of(work)
        times: dict[str, list[float]] = {engine: [] for engine in engines}
        for _ in range(options.repeats):
            for engine in engines:
                seconds, _ = simulation.solera(work, rows, engine=engine, workers=options.workers)
                times[engine].append(float(seconds[0]) / options.rounds * 1e3)
        for what, of in (("fastest", min), ("median", statistics.median)):
            theirs, ours = (of(times[engine]) for engine in engines)
            print(
                f"{name}, ms a round, {what}: processes {theirs:.1f}, ray {ours:.1f}, "
                f"{theirs / ours:.2f}×",
                flush=True,
            )
    ray.shutdown()


if __name__ == "__main__":
    main()

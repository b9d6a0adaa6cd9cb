"""Whether a change made Solera slower: pairs of runs with the code before and after it.

    python benchmarks/before_after.py OLD/src NEW/src [--pairs 15] [--only W1,trees] [--tiny]

Each workload runs in a process of its own, with the old code and with the new, in turn; who goes
first alternates. What counts is CPU time, user and system, of the process and of everything it
started, without imports and the making of rows. The ratio is the median of new / old over the
pairs, with its 95 % interval by bootstrap. A claim of "not slower" holds where the lower end of the
interval is at most 1.03.

Workloads are the parts of ``simulation.py``, ``heonn.py``, ``trees.py`` and ``coordinator.py`` that
are ours. They use public names, the old ones where they are still there, so that one script runs
both trees; the coordinator is that of each tree's own benchmark.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import numpy as np  # noqa: E402

from sizes import TINY, sized  # noqa: E402

BAR = 1.03
PAIRS = sized(15, tiny=1)
NAMESPACES = ("partitions", "selectors", "updates", "aggregations", "data", "simulation")
RENAMED = {"HistGBDT": "FedHistGBDT"}
MB = 1 << 20
Run = Callable[[], Any]


def public(so: Any, name: str) -> Any:
    """Something of Solera by its old name, wherever it lives now."""
    for candidate in (name, RENAMED.get(name, name)):
        for space in ("", *NAMESPACES):
            with contextlib.suppress(ImportError):
                place = importlib.import_module(f"solera.{space}") if space else so
                if hasattr(place, candidate):
                    return getattr(place, candidate)
    raise AttributeError(f"solera has no {name}")


# --- workloads: each makes its rows and returns what is measured ---


def simulation(clients: int, rows: int, hidden: int, per_round: int, rounds: int) -> Run:
    import torch

    import solera as so

    torch.set_num_threads(1)
    if TINY:
        X = np.random.default_rng(0).random((clients * rows, 784), dtype=np.float32)
        y = np.arange(clients * rows) % 10
    else:
        X, y, _, _ = so.datasets.mnist()
    parts = [range(k * rows, (k + 1) * rows) for k in range(clients)]
    fed = so.simulate(X, y, partition=public(so, "Explicit")(parts), seed=0)
    net = so.nn.mlp(784, hidden, 10) if hidden else so.nn.linear(784, 10)

    def fit(rounds: int) -> Any:
        options = {"per_round": per_round, "lr": 0.05, "batch_size": 20, "device": "cpu"}
        return so.FedAvg(net, rounds=rounds, **options).fit(fed)

    fit(1)
    return lambda: fit(rounds)


def heonn() -> Run:
    import solera as so

    X, y, _, _ = so.datasets.digits()
    fed = so.simulate(X / 16, y, clients=10, seed=0)
    patches = so.RandomPatches(sized(50, tiny=2), rows=0.2, features=0.8)
    so.FedHEONN(lam=0.01).fit(fed)

    def fit() -> None:
        for _ in range(sized(40, tiny=1)):
            so.FedHEONN(lam=0.01).fit(fed)
            so.FedHEONN(lam=0.01, ensemble=patches, representation="gram").fit(fed)

    return fit


def trees() -> Run:
    import solera as so

    data = so.datasets.load(sized("adult", tiny="wine"))
    X, y, _, _ = data
    boosting, rounds = public(so, "HistGBDT"), sized(60, tiny=2)
    few = so.simulate(X, y, clients=sized(10, tiny=3), seed=0, schema=data.schema)
    many = so.simulate(X, y, clients=sized(50, tiny=3), test=0.1, seed=0, schema=data.schema)
    boosting(rounds=1, max_depth=2).fit(few)

    def fit() -> None:
        boosting(rounds=rounds, max_depth=5).fit(few)
        so.FederatedTree("cart", max_depth=5).fit(many)

    return fit


def classes(score: Any) -> Any:
    return (score[:, 0] > 0).astype(np.int64)


def numbers(score: Any) -> Any:
    return score[:, 0]


def labels(score: Any) -> Any:
    return (score > 0).astype(np.int8)


def tables(
    learner: Callable[[Any, np.random.Generator], Any],
    times: int,
    target: Callable[[Any], Any] = classes,
    sizes: tuple[int, int, int] = (100, 200, 20),
) -> Callable[[], Run]:
    """Fits of a learner on clients × rows × columns of numbers, by default 100 × 200 × 20."""

    def workload() -> Run:
        import solera as so

        rng = np.random.default_rng(0)
        clients, rows, width = sized(sizes, tiny=(3, 30, 4))
        X = rng.normal(size=(clients * rows, width))
        noise = rng.normal(size=len(X))
        fed = so.simulate(X, target(X + noise[:, None]), clients=clients, seed=0)
        made = learner(so, rng)

        def fit() -> None:
            for _ in range(sized(times, tiny=1)):
                made.fit(fed)

        made.fit(fed)
        return fit

    return workload


def ensemble(so: Any, rng: np.random.Generator) -> Any:
    patches = so.RandomPatches(sized(30, tiny=2), rows=0.5, features=0.8)
    return so.FedHEONN(lam=0.01, ensemble=patches, representation="gram")


def labels_network(so: Any, rng: np.random.Generator) -> Any:
    import torch

    torch.set_num_threads(1)
    width = sized(20, tiny=4)
    network = so.nn.mlp(width, 32, width)
    return so.FedAvg(network, rounds=sized(20, tiny=1), device="cpu")


def coordinator() -> Run:
    """No-op rounds of real agents, and rounds of simulated ones with small and large replies."""
    import solera as so

    folder = Path(so.__file__).parents[2] / "benchmarks"
    sys.path.insert(0, str(folder))
    module = importlib.import_module("coordinator")
    module.SIZES = sized([(50, 10_000, 10), (20, MB, 4)], tiny=[(2, 10_000, 1)])

    def rounds() -> None:
        module.latency(sized(5, tiny=1), sized(60, tiny=1))
        module.load()

    return rounds


WORKLOADS: dict[str, Callable[[], Run]] = {
    "W1": lambda: simulation(*sized((100, 600, 128, 10, 40), tiny=(4, 20, 8, 2, 1))),
    "W2": lambda: simulation(*sized((1000, 60, 128, 100, 30), tiny=(8, 20, 8, 4, 1))),
    "W3": lambda: simulation(*sized((1000, 20, 0, 100, 400), tiny=(8, 20, 0, 4, 1))),
    "heonn": heonn,
    "trees": trees,
    "FedKMeans": tables(lambda so, rng: so.FedKMeans(8, rounds=20, tolerance=0.0), 6),
    "FedGLM": tables(lambda so, rng: so.FedGLM("binomial"), 12),
    "FedScaler": tables(lambda so, rng: so.FedScaler(), 300),
    "FedBins": tables(lambda so, rng: so.FedBins(16), 60),
    "ensemble": tables(ensemble, 20),
    "numbers": tables(lambda so, rng: so.FedHistGBDT(rounds=20, max_depth=4), 8, numbers),
    "few rows": tables(lambda so, rng: so.FedHEONN(lam=0.01), 100, sizes=(500, 4, 20)),
    "labels": tables(labels_network, 8, labels),
    "coordinator": coordinator,
}


# --- measuring ---


def child(name: str) -> None:
    """Runs one workload; the CPU seconds before it began are told on the last line."""
    run = WORKLOADS[name]()
    used = os.times()
    print(f"\nSETUP {used.user + used.system + used.children_user + used.children_system}")
    sys.stdout.flush()
    run()


def adopt_orphans() -> None:
    """Processes whose parents end before them become children of this one, so that they count."""
    set_child_subreaper = 36
    ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)


def cpu_seconds(name: str, source: Path) -> float:
    """CPU time of a workload and of all its processes."""
    read, write = os.pipe()
    process = os.fork()
    if process == 0:
        os.dup2(write, 1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        environment = {**os.environ, "PYTHONPATH": str(source.resolve())}
        arguments = [sys.executable, __file__, "--child", name, *(["--tiny"] if TINY else [])]
        os.execve(sys.executable, arguments, environment)
    os.close(write)
    with os.fdopen(read) as output:
        printed = output.read()
    total = 0.0
    failed = False
    while True:
        try:
            ended, status, used = os.wait4(-1, 0)
        except ChildProcessError:
            break
        total += used.ru_utime + used.ru_stime
        failed |= ended == process and status != 0
    set_up = [line.split()[1] for line in printed.splitlines() if line.startswith("SETUP ")]
    if failed or not set_up:
        command = f"PYTHONPATH={source} python {__file__} --child {name}"
        raise SystemExit(f"{name} failed with {source}: {command}")
    return total - float(set_up[-1])


def compare(name: str, old: Path, new: Path, pairs: int) -> bool:
    """Print the ratio of one workload; whether it is not slower."""
    seconds = np.empty((pairs, 2))
    for pair in range(pairs):
        for which in (0, 1) if pair % 2 else (1, 0):
            seconds[pair, which] = cpu_seconds(name, (old, new)[which])
    ratios = seconds[:, 1] / seconds[:, 0]
    draws = np.random.default_rng(0).choice(ratios, (10_000, pairs))
    low, high = np.quantile(np.median(draws, axis=1), [0.025, 0.975])
    before, after = np.median(seconds, axis=0)
    verdict = "not slower" if low <= BAR else "SLOWER"
    print(
        f"{name:<12}{before:9.3f}{after:9.3f}{np.median(ratios):9.3f} "
        f"[{low:.3f}, {high:.3f}]  {verdict}",
        flush=True,
    )
    return bool(low <= BAR)


def main() -> int:
    here = Path(__file__).resolve().parents[1] / "src"
    parser = argparse.ArgumentParser(description="Pairs of runs before and after a change.")
    parser.add_argument("old", nargs="?", type=Path, default=here)
    parser.add_argument("new", nargs="?", type=Path, default=here)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    every = sized(",".join(WORKLOADS), tiny="heonn")
    parser.add_argument("--only", default=every)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child)
        return 0
    adopt_orphans()
    print(f"{options.pairs} pairs, CPU seconds, medians and the 95 % interval of the ratio")
    print(f"{'':<12}{'old':>9}{'new':>9}{'ratio':>9}")
    names = options.only.split(",")
    kept = [compare(name, options.old, options.new, options.pairs) for name in names]
    return 0 if all(kept) or TINY else 1


if __name__ == "__main__":
    sys.exit(main())

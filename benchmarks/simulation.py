"""FedAvg on simulated clients, side by side with a floor, a plain PyTorch loop and the peers.

W1: 100 clients × 600 rows, MLP 784-128-10, 10 per round. W2: 1,000 × 60, 100 per round. W3: 1,000 ×
20, logistic regression, 100 per round. All: MNIST, batch 20, one epoch, SGD 0.05, 20 rounds, one
core. Claims: floor / ours at least 0.8; at least 1.5× / 1.5× / 8× faster than FedJAX, 3× / 4× /
12× than pfl and FLEXible, 8× / 60× / 250× than Flower; with two cores at least 1.6× more on W1 and
W2. Peers take part when ``make bench-peers`` has set them up.

    simulation.py [--repeats 3] [--only W1,W2] [--peers fedjax,pfl] [--cores 2] [--rounds 20]

Most of a peer's time is spent on its start: ``--peers-once`` runs each of them once.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import numpy as np  # noqa: E402
import torch  # noqa: E402
from numpy.typing import NDArray  # noqa: E402

import solera as so  # noqa: E402
from sizes import TINY, sized  # noqa: E402

HERE = Path(__file__).parent
PEERS = HERE.parent / ".peers"
BARS = {
    "floor": (0.8,) * 3,
    "fedjax": (1.5, 1.5, 8),
    "pfl": (3, 4, 12),
    "flexible": (3, 4, 12),
    "flower": (8, 60, 250),
}


@dataclass(frozen=True)
class Workload:
    """Equal clients and what is trained on them."""

    clients: int
    rows: int
    hidden: int
    per_round: int
    rounds: int = 20
    batch: int = 20
    lr: float = 0.05

    @property
    def sizes(self) -> list[int]:
        return [784, self.hidden, 10] if self.hidden else [784, 10]


WORKLOADS = {
    "W1": Workload(100, 600, 128, 10),
    "W2": Workload(1000, 60, 128, 100),
    "W3": Workload(1000, 20, 0, 100),
}
if TINY:
    WORKLOADS = {
        "W1": Workload(4, 40, 128, 2),
        "W2": Workload(20, 20, 128, 10),
        "W3": Workload(20, 20, 0, 10),
    }
Rows = tuple[Any, Any, Any, Any]


def now() -> NDArray[np.float64]:
    """Seconds of the clock and of the processor; on a busy machine the latter say more."""
    return np.array([time.perf_counter(), time.process_time()])


Result = tuple[Any, float]
"""Seconds of both kinds, and the accuracy."""


def rows_of(work: Workload) -> Rows:
    """MNIST; tiny: the digits of scikit-learn, in the corner of an image as large."""
    if TINY:
        X, y, X_test, y_test = so.datasets.digits()
        X, X_test = (np.pad(part / 16, ((0, 0), (0, 784 - 64))) for part in (X, X_test))
        X, X_test = X.astype(np.float32), X_test.astype(np.float32)
    else:
        X, y, X_test, y_test = so.datasets.mnist()
    count = work.clients * work.rows
    return X[:count], y[:count], X_test, y_test


def solera(work: Workload, rows: Rows, **engine: Any) -> Result:
    """The learner as users call it; the clock runs from the first round to the last."""
    X, y, X_test, y_test = rows
    model = so.nn.mlp(*work.sizes) if work.hidden else so.nn.linear(*work.sizes)
    marks = []

    class Clock(so.callbacks.Callback):
        def on_round(self, learner: Any, round: Any) -> None:
            marks.append(now())

    every = work.rows
    shards = so.partitions.Explicit(
        [range(k * every, (k + 1) * every) for k in range(work.clients)]
    )
    with so.simulate(X, y, partition=shards, seed=0, **engine) as fed:
        learner = so.FedAvg(
            model,
            rounds=work.rounds + 1,
            per_round=work.per_round,
            lr=work.lr,
            batch_size=work.batch,
            device="cpu",
        )
        learner.fit(fed, callbacks=[Clock()])
    return marks[-1] - marks[0], learner.score(X_test, y_test)


def floor(work: Workload, rows: Rows) -> Result:
    """Nothing but the arithmetic: products batched over a few clients, updates fused into them."""
    X, y, X_test, y_test = (torch.from_numpy(np.ascontiguousarray(part)) for part in rows)
    draw = np.random.default_rng(0)
    pairs = list(zip(work.sizes, work.sizes[1:], strict=False))
    # Layers with ten outputs are (out, in), wide ones (in, out): the faster layout of each.
    shapes = [(a, b) if b >= 32 else (b, a) for a, b in pairs]
    total = sum(a * b + b for a, b in pairs)
    start = torch.from_numpy(
        np.concatenate(
            [draw.uniform(-1, 1, a * b + b).astype(np.float32) / np.sqrt(a) for a, b in pairs]
        )
    )
    tile = max(1, (2 << 20) // (4 * total + 4 * work.batch * 784))
    matrix = torch.empty(work.per_round, total)
    steps = range(0, work.rows, work.batch)
    began = now()
    with torch.no_grad():
        for round in range(work.rounds + 1):
            if round == 1:
                began = now()
            chosen = np.sort(draw.choice(work.clients, work.per_round, replace=False))
            for first in range(0, work.per_round, tile):
                mine = chosen[first : first + tile]
                P = matrix[first : first + tile]
                P.copy_(start.expand_as(P))
                layers, at = [], 0
                for (a, b), shape in zip(pairs, shapes, strict=True):
                    W = P[:, at : at + a * b].view(-1, *shape)
                    layers.append((W, P[:, at + a * b : at + a * b + b].unsqueeze(1), b >= 32))
                    at += a * b + b
                order = draw.random((len(mine), work.rows)).argsort(axis=1)
                index = torch.from_numpy(order + mine[:, None] * work.rows)
                for step in steps:
                    take = index[:, step : step + work.batch]
                    x = X.index_select(0, take.reshape(-1)).view(*take.shape, -1)
                    target = y.index_select(0, take.reshape(-1)).view(*take.shape, 1)
                    _step(layers, x, target, work.lr / take.shape[1])
            start = matrix.mean(dim=0)
        seconds = now() - began
        h, at = X_test, 0
        for i, ((a, b), shape) in enumerate(zip(pairs, shapes, strict=True)):
            W = start[at : at + a * b].view(shape)
            h = h @ (W if b >= 32 else W.T) + start[at + a * b : at + a * b + b]
            h = h.relu() if i < len(pairs) - 1 else h
            at += a * b + b
    return seconds, float((h.argmax(dim=1) == y_test).float().mean())


def _step(layers: list[Any], x: Any, target: Any, lr: float) -> None:
    inputs, h = [x], x
    for i, (W, b, wide) in enumerate(layers):
        if wide:
            h = torch.baddbmm(b, h, W)
        else:
            h = torch.bmm(W, h.transpose(1, 2)).transpose(1, 2).contiguous().add_(b)
        if i < len(layers) - 1:
            inputs.append(h.relu_())
    error = h.softmax(dim=-1)
    error.scatter_add_(-1, target, torch.full((1, 1, 1), -1.0).expand(target.shape))
    for i in range(len(layers) - 1, -1, -1):
        W, b, wide = layers[i]
        before = torch.bmm(error, W.transpose(1, 2) if wide else W) if i else None
        if wide:
            W.baddbmm_(inputs[i].transpose(1, 2), error, alpha=-lr)
        else:
            W.baddbmm_(error.transpose(1, 2), inputs[i], alpha=-lr)
        b.add_(error.sum(dim=1, keepdim=True), alpha=-lr)
        if before is not None:
            error = torch.ops.aten.threshold_backward(before, inputs[i], 0)


def loop(work: Workload, rows: Rows) -> Result:
    """A lean PyTorch loop: one client after the other, autograd, updates without an optimiser."""
    X, y, X_test, y_test = (torch.from_numpy(np.ascontiguousarray(part)) for part in rows)
    torch.manual_seed(0)
    draw = np.random.default_rng(0)
    linear = torch.nn.Linear
    net: Any = linear(784, 10)
    if work.hidden:
        net = torch.nn.Sequential(
            linear(784, work.hidden), torch.nn.ReLU(), linear(work.hidden, 10)
        )
    parameters = list(net.parameters())
    start = [p.detach().clone() for p in parameters]
    began = now()
    for round in range(work.rounds + 1):
        if round == 1:
            began = now()
        mean = [torch.zeros_like(p) for p in start]
        for k in draw.choice(work.clients, work.per_round, replace=False).tolist():
            with torch.no_grad():
                for p, w in zip(parameters, start, strict=True):
                    p.copy_(w)
            order = torch.from_numpy(draw.permutation(work.rows)) + k * work.rows
            for step in range(0, work.rows, work.batch):
                take = order[step : step + work.batch]
                loss = torch.nn.functional.cross_entropy(net(X[take]), y[take])
                gradients = torch.autograd.grad(loss, parameters)
                with torch.no_grad():
                    for p, g in zip(parameters, gradients, strict=True):
                        p.sub_(g, alpha=work.lr)
            with torch.no_grad():
                for m, p in zip(mean, parameters, strict=True):
                    m.add_(p, alpha=1 / work.per_round)
        start = mean
    seconds = now() - began
    with torch.no_grad():
        for p, w in zip(parameters, start, strict=True):
            p.copy_(w)
        return seconds, float((net(X_test).argmax(dim=1) == y_test).float().mean())


def peer(name: str, work: Workload, file: str, rounds: int) -> Result | None:
    """A peer in its own environment; seconds are scaled to the rounds of the workload."""
    python = PEERS / name / "bin" / "python"
    params = json.dumps({**asdict(work), "rounds": rounds})
    command = [str(python), str(HERE / "peers" / f"{name}_peer.py"), file, params]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    try:
        run = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900)
    except subprocess.TimeoutExpired:
        print(f"   {name}: no result within 900 s")
        return None
    found = [line for line in run.stdout.splitlines() if line.startswith("RESULT ")]
    if not found:
        print(f"   {name} failed: {(run.stderr or run.stdout).strip().splitlines()[-1:]}")
        return None
    result = json.loads(found[-1].removeprefix("RESULT "))
    seconds = np.array([result["seconds"], result["cpu"]]) * work.rounds / rounds
    return seconds, result["accuracy"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=sized(3, tiny=1))
    parser.add_argument("--rounds", type=int, default=sized(20, tiny=2))
    parser.add_argument("--only", default="W1,W2,W3")
    parser.add_argument("--peers", default="fedjax,pfl,flexible,flower")
    parser.add_argument("--peers-once", action="store_true")
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    torch.set_num_threads(1)
    everywhere = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(everywhere)})  # threads of XLA do not obey its flags
    peers = [p for p in options.peers.split(",") if (PEERS / p / ".installed").exists()]
    for name in options.only.split(","):
        work = WORKLOADS[name]
        work = Workload(**{**asdict(work), "rounds": options.rounds})
        rows = rows_of(work)
        with tempfile.TemporaryDirectory() as folder:
            file = f"{folder}/rows.npz"
            np.savez(file, **dict(zip(("X", "y", "X_test", "y_test"), rows, strict=True)))
            _compare(name, work, rows, file, peers, options, everywhere)


def _compare(
    name: str,
    work: Workload,
    rows: Rows,
    file: str,
    peers: list[str],
    options: Any,
    everywhere: set[int],
) -> None:
    short = min(3, work.rounds)
    cases: dict[str, Callable[[], Result | None]] = {
        "solera": lambda: solera(work, rows),
        "floor": lambda: floor(work, rows),
        "loop": lambda: loop(work, rows),
        **{
            p: lambda p=p: peer(p, work, file, short if p == "flower" else work.rounds)  # type: ignore[misc]
            for p in peers
        },
    }
    several = f"solera, {options.cores} cores"
    if options.cores > 1:
        cases[several] = lambda: solera(work, rows, engine="processes", workers=options.cores)
    times: dict[str, list[Any]] = {case: [] for case in cases}
    scores: dict[str, float] = {}
    for repeat in range(options.repeats):
        for case, run in cases.items():
            if repeat and (case == "flower" or (case in peers and options.peers_once)):
                continue
            pinned = os.sched_getaffinity(0)
            if case == several:
                os.sched_setaffinity(0, everywhere)
            result = run()
            os.sched_setaffinity(0, pinned)
            if result is not None:
                times[case].append(result[0])
                scores[case] = result[1]
    ours = np.median(times["solera"], axis=0)
    print(f"\n{name}: {work.rounds} rounds, medians of {options.repeats}, one core")
    print(f"{'':<18}{'clock s':>9}{'/ ours':>8}{'CPU s':>9}{'/ ours':>8}{'bar':>7}{'accuracy':>10}")
    column = list(WORKLOADS).index(name)
    for case, measured in times.items():
        if measured:
            clock, cpu = np.median(measured, axis=0)
            bar = f"{BARS[case][column]:.2f}" if case in BARS else ""
            print(
                f"{case:<18}{clock:>9.3f}{clock / ours[0]:>8.2f}{cpu:>9.3f}{cpu / ours[1]:>8.2f}"
                f"{bar:>7}{scores[case]:>10.4f}"
            )
    sys.stdout.flush()


if __name__ == "__main__":
    main()

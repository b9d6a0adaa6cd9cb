"""FedAvg on one GPU: milliseconds per round in each precision, and what each costs in accuracy.

Claims on an H200: ComplexCNN on CIFAR-shaped rows, 100 clients × 50 images per round, batch 10, one
epoch, takes at most 65 ms in float32, 40 in TF32 and 30 in bfloat16; W2 of ``simulation.py`` at
most 6 ms. Beside it a lean loop of PyTorch that trains one client after the other. Needs PyTorch
with CUDA; rows are random, so that no data set is needed, but for ``--accuracy``.

    gpu.py [--rounds 10] [--only ComplexCNN,"W2 MLP"] [--precision float32,tf32,bfloat16]
           [--compile no,yes] [--no-loop] [--accuracy] [--kernels] [--host] [--tiny]

``--compile yes`` translates steps by ``torch.compile``. ``--accuracy`` trains a convolutional
network on MNIST (``$SOLERA_DATA``), ``--kernels`` and ``--host`` print where the card's
and Python's time goes. ``--peak`` is
the card's peak in TFLOP/s without tensor cores: about 60 for an H100 or H200.
"""

from __future__ import annotations

import argparse
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

import solera as so
from sizes import TINY, sized
from solera.learn.averaging.training import recorded
from solera.learn.averaging.training.architecture import Architecture
from solera.learn.averaging.training.layers import Convolution, Dense, Image

CASES: dict[str, tuple[Any, int, int, int, int, int]] = {
    # model, classes of rows: clients, rows each, per round, batch, width
    "ComplexCNN": (so.nn.complex_cnn(), 200, 50, 100, 10, 3072),
    "W1 MLP": (so.nn.mlp(784, 128, 10), 100, 600, 10, 20, 784),
    "W2 MLP": (so.nn.mlp(784, 128, 10), 1000, 60, 100, 20, 784),
    "W3 logistic": (so.nn.linear(784, 10), 1000, 20, 100, 20, 784),
}
if TINY:
    CASES = {name: (case[0], 2, 10, 1, 5, case[5]) for name, case in CASES.items()}


def multiplications(model: Any) -> int:
    """Floating-point operations of one row forward; training costs about three times as many."""
    total, side = 0, (1, 1)
    for layer in Architecture(model).layers or ():
        if isinstance(layer, Image):
            side = (layer.height, layer.width)
        elif isinstance(layer, Convolution):
            grow = 2 * layer.padding - layer.kernel + 1
            side = (side[0] + grow, side[1] + grow)
            total += 2 * layer.inputs * layer.outputs * layer.kernel**2 * side[0] * side[1]
        elif isinstance(layer, Dense):
            total += 2 * layer.inputs * layer.outputs
        elif type(layer).__name__ == "Pooling":
            side = (side[0] // 2, side[1] // 2)
    return total


def wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


WARM = 3
"""Rounds before the clock: the first one copies rows, the second one records."""


def solera(
    case: str, rounds: int, device: str, precision: str, compile: bool, profiler: Any = None
) -> tuple[float, float]:
    """Seconds per round of the learner as users call it, and of its first rounds together."""
    model, clients, rows, per_round, batch, width = CASES[case]
    draw = np.random.default_rng(0)
    X = draw.random((clients * rows, width), dtype=np.float32)
    y = draw.permutation(np.arange(clients * rows) % 10)
    marks = [time.perf_counter()]

    class Clock(so.callbacks.Callback):
        def on_round(self, learner: Any, round: Any) -> None:
            wait(device)
            marks.append(time.perf_counter())
            if profiler is not None and len(marks) == WARM + 1:
                profiler.start()

    fed = so.simulate(X, y, clients=clients, seed=0, memory=64 << 30)
    learner = so.FedAvg(
        model,
        rounds=rounds + WARM,
        per_round=per_round,
        lr=0.01,
        batch_size=batch,
        device=device,
        precision=precision,
        compile=compile,
    )
    learner.fit(fed, callbacks=[Clock()])
    if profiler is not None:
        profiler.stop()
    return float(np.median(np.diff(marks[WARM:]))), marks[WARM] - marks[0]


def loop(case: str, rounds: int, device: str) -> float:
    """Seconds per round of a lean PyTorch loop: one client after the other on the same device."""
    model, clients, rows, per_round, batch, width = CASES[case]
    draw = np.random.default_rng(0)
    X = torch.rand(clients * rows, width, device=device)
    y = torch.from_numpy(draw.integers(0, 10, clients * rows)).to(device)
    net = model.module().to(device).train()
    parameters = list(net.parameters())
    start = [p.detach().clone() for p in parameters]
    began = 0.0
    for round in range(rounds + 1):
        if round == 1:
            wait(device)
            began = time.perf_counter()
        mean = [torch.zeros_like(p) for p in start]
        for k in draw.choice(clients, per_round, replace=False).tolist():
            with torch.no_grad():
                torch._foreach_copy_(parameters, start)
            order = torch.from_numpy(draw.permutation(rows) + k * rows).to(device)
            for step in range(0, rows, batch):
                take = order[step : step + batch]
                loss = torch.nn.functional.cross_entropy(net(X[take]), y[take])
                gradients = torch.autograd.grad(loss, parameters)
                with torch.no_grad():
                    torch._foreach_sub_(parameters, gradients, alpha=0.01)
            with torch.no_grad():
                torch._foreach_add_(mean, parameters, alpha=1 / per_round)
        start = mean
    wait(device)
    return (time.perf_counter() - began) / rounds


def kernels(case: str, device: str, precision: str, compile: bool) -> None:
    """Where the time of three rounds goes, on the card and in Python."""
    from torch.profiler import ProfilerActivity, profile

    on_card = device.startswith("cuda")
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_card else [])]
    profiler = profile(activities=activities)
    solera(case, 3, device, precision, compile, profiler)
    spent = "self_device_time_total" if on_card else "self_cpu_time_total"
    events = [e for e in profiler.key_averages() if getattr(e, spent, 0) > 0]
    if on_card:  # operators repeat the time of their kernels
        events = [e for e in events if not e.key.startswith(("aten::", "autograd::", "Optimizer"))]
    events.sort(key=lambda e: -getattr(e, spent))
    busy = sum(getattr(e, spent) for e in events)
    print(f"    {busy / 3e3:>9.3f} ms/round busy; {recorded.plays()} recordings played so far")
    for event in events[:14]:
        print(
            f"    {getattr(event, spent) / 3e3:>9.3f} ms/round {event.count / 3:>7.0f} × "
            f"{event.key[:150]}"
        )


def host(case: str, device: str, precision: str, compile: bool) -> None:
    """Where Python's own time of ten rounds goes; waiting for the card is part of it."""
    import cProfile
    import pstats

    profiler = cProfile.Profile()
    starter = SimpleNamespace(start=profiler.enable, stop=profiler.disable)
    solera(case, 10, device, precision, compile, starter)
    table = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    lines = sorted(table.items(), key=lambda item: -item[1][2])
    for (file, line, name), (_, calls, own, total, _) in lines[:16]:
        place = f"{file.rsplit('/', 1)[-1]}:{line} {name}"
        print(
            f"    {own * 100:>8.3f} own {total * 100:>8.3f} ms/round {calls / 10:>6.0f} × {place}"
        )


def accuracy(device: str, precisions: list[str]) -> None:
    """Test accuracy on MNIST after 15 rounds of 20 of 100 clients, and how far weights are off."""
    from solera.core.errors import DataError

    try:
        X, y, X_test, y_test = so.datasets.mnist()
    except DataError as error:
        print(f"accuracy not measured: {error}")
        return
    rows = sized(20_000, tiny=200)
    clients = sized(100, tiny=4)
    fed = so.simulate(X[:rows], y[:rows], clients=clients, seed=0, memory=64 << 30)
    reference = None
    for precision in precisions:
        learner = so.FedAvg(
            so.nn.conv_net((28, 28, 1)),
            rounds=sized(15, tiny=1),
            per_round=clients // 5 or 1,
            lr=0.1,
            batch_size=20,
            device=device,
            precision=precision,
        ).fit(fed)
        reference = learner.weights_ if reference is None else reference
        off = np.linalg.norm(learner.weights_ - reference) / np.linalg.norm(reference)
        score = learner.score(X_test, y_test)
        print(
            f"accuracy on MNIST, {precision}: {score:.4f}, weights {off:.2%} from {precisions[0]}"
        )


def against_cpu(case: str, device: str, precisions: list[str]) -> None:
    """How far the weights after a round of few clients are from those of float32 on a CPU."""
    model, _, rows, _, batch, width = CASES[case]
    draw = np.random.default_rng(0)
    X = draw.random((4 * rows, width), dtype=np.float32)
    y = np.arange(4 * rows) % 10

    def change(device: str, precision: str) -> Any:
        fed = so.simulate(X, y, clients=4, seed=0)
        options = {"rounds": 3, "lr": 0.01, "batch_size": batch, "precision": precision}
        learner = so.FedAvg(model, device=device, **options).fit(fed)
        return learner.weights_ - Architecture(model).start(0, "float32")

    wanted = change("cpu", "float32")
    for precision in precisions:
        off = np.linalg.norm(change(device, precision) - wanted) / np.linalg.norm(wanted)
        print(
            f"{case:<13}{precision:<10}{off:.1e} of the change of 3 rounds from a CPU", flush=True
        )


def measure(case: str, options: argparse.Namespace, theirs: float | None) -> None:
    """Print a line per precision, translated or not."""
    model, _, rows, per_round, _, _ = CASES[case]
    work = 3 * multiplications(model) * rows * per_round
    for precision in options.precision.split(","):
        for compile in options.compile.split(","):
            how = (options.device, precision, compile == "yes")
            ours, first = solera(case, options.rounds, *how)
            ratio = "" if theirs is None else f"{theirs / ours:>8.1f}×"
            print(
                f"{case:<13}{precision:<10}{'compiled' if compile == 'yes' else '':<9}"
                f"{ours * 1e3:>9.2f}{per_round / ours:>11,.0f}"
                f"{work / ours / (options.peak * 1e12):>9.1%}{first:>9.1f}{ratio}",
                flush=True,
            )
            if options.host:
                host(case, *how)
            if options.kernels:
                kernels(case, *how)
            if options.device.startswith("cuda"):
                print(f"{'':<13}peak memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")
                torch.cuda.reset_peak_memory_stats()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peak", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=sized(10, tiny=1))
    parser.add_argument("--device", default=sized("cuda", tiny="cpu"))
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--precision", default=sized("float32,tf32,bfloat16", tiny="float32"))
    parser.add_argument("--compile", default="no")
    parser.add_argument("--no-loop", action="store_true")
    parser.add_argument("--accuracy", action="store_true")
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--host", action="store_true")
    options = parser.parse_args()
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        print("no GPU here; nothing measured")
        return
    named = torch.cuda.get_device_name() if options.device.startswith("cuda") else "CPU"
    print(f"{named}, PyTorch {torch.__version__}, median of {options.rounds} rounds")
    print(f"{'':<32}{'ms/round':>9}{'clients/s':>11}{'of peak':>9}{'first s':>9}{'loop':>9}")
    for case in options.only.split(","):
        theirs = None
        if not options.no_loop:
            theirs = loop(case, max(1, options.rounds // 5), options.device)
            print(f"{case:<13}{'loop of clients':<19}{theirs * 1e3:>9.1f}", flush=True)
        measure(case, options, theirs)
        if options.accuracy:
            against_cpu(case, options.device, options.precision.split(","))
    if options.accuracy:
        accuracy(options.device, options.precision.split(","))


if __name__ == "__main__":
    main()

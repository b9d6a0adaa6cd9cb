"""FedAvg on one GPU: milliseconds per round in each precision, and what each costs in accuracy.

Claims on an H200: ComplexCNN on CIFAR-shaped rows, 100 clients × 50 images per round, batch 10, one
epoch, takes at most 65 ms in float32, 40 in TF32 and 30 in bfloat16, a tenth of FedJAX and a 45th
of pfl; W2 of ``simulation.py`` at most 6 ms. Beside it a lean loop of PyTorch that trains one
client after the other. Needs PyTorch with CUDA; rows are random, so that no data set is needed, but
for ``--accuracy``.

    gpu.py [--rounds 10] [--only ComplexCNN,"W2 MLP"] [--precision float32,tf32,bfloat16]
           [--compile no,yes] [--peers fedjax,pfl] [--module] [--lora] [--no-loop] [--accuracy]
           [--kernels] [--host] [--tiny]

``--compile yes`` translates steps by ``torch.compile``. ``--peers`` are run from where ``make
bench-peers`` has put them, or else from this environment; beside float32 they compute in float32,
beside the others in TF32. ``--module`` times the same network as a user's ``nn.Module``, ``--lora``
FedLoRA on a small transformer. ``--accuracy`` trains a convolutional network on MNIST
(``$SOLERA_DATA``), ``--kernels`` and ``--host`` print where the card's and Python's time goes.
``--peak`` is the card's peak in TFLOP/s without tensor cores: about 60 for an H100 or H200.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

import solera as so
from sizes import TINY, sized
from solera.learn.averaging.training import recorded
from solera.learn.averaging.training.architecture import Architecture
from solera.learn.averaging.training.layers import Convolution, Dense, Image

HERE = Path(__file__).parent
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


PEER_PRECISION = {"float32": "float32", "tf32": "tf32", "bfloat16": "tf32"}
"""What peers compute in beside our precisions; they have no bfloat16 of their own."""
WARM = 3
"""Rounds before the clock: the first one copies rows, the second one records."""


def solera(
    case: str, rounds: int, device: str, precision: str, compile: bool, profiler: Any = None
) -> tuple[float, float, float]:
    """Seconds per round of the learner as users call it, of its first rounds, and its last loss."""
    model, clients, _, per_round, batch, _ = CASES[case]
    options = {"lr": 0.01, "batch_size": batch, "precision": precision, "compile": compile}
    learner = so.FedAvg(model, rounds=rounds + WARM, per_round=per_round, device=device, **options)
    return timed(learner, clients, *random_rows(case), profiler)


def random_rows(case: str) -> tuple[Any, Any]:
    _, clients, rows, _, _, width = CASES[case]
    draw = np.random.default_rng(0)
    X = draw.random((clients * rows, width), dtype=np.float32)
    return X, draw.permutation(np.arange(clients * rows) % 10)


def timed(
    learner: Any, clients: int, X: Any, y: Any, profiler: Any = None
) -> tuple[float, float, float]:
    """Seconds per round of any learner, of its first rounds together, and the loss of the last."""
    marks = [time.perf_counter()]

    class Clock(so.callbacks.Callback):
        def on_round(self, learner: Any, round: Any) -> None:
            wait(learner.device)
            marks.append(time.perf_counter())
            if profiler is not None and len(marks) == WARM + 1:
                profiler.start()

    fed = so.simulate(X, y, clients=clients, seed=0, memory=64 << 30)
    learner.fit(fed, callbacks=[Clock()])
    if profiler is not None:
        profiler.stop()
    loss = float(learner.history_[-1]["loss"])
    return float(np.median(np.diff(marks[WARM:]))), marks[WARM] - marks[0], loss


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


def peer(name: str, case: str, rounds: int, precision: str) -> float | None:
    """Seconds per round of FedJAX or pfl on the same work, in a process of its own."""
    _, clients, rows, per_round, batch, _ = CASES[case]
    work = {"clients": clients, "rows": rows, "per_round": per_round, "rounds": rounds}
    work |= {"batch": batch, "lr": 0.01, "precision": precision}
    work |= {"network": "complex_cnn"} if case == "ComplexCNN" else {}
    work["hidden"] = 128 if "MLP" in case else 0
    own = HERE.parent / ".peers" / name / "bin" / "python"
    python = str(own) if own.exists() else sys.executable
    X, y = random_rows(case)
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/rows.npz"
        np.savez(file, X=X, y=y, X_test=X[:100], y_test=y[:100])
        run = subprocess.run(
            [python, str(HERE / "peers" / f"{name}_peer.py"), file, json.dumps(work)],
            capture_output=True,
            text=True,
            env={**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
        )
    found = [line for line in run.stdout.splitlines() if line.startswith("RESULT ")]
    if not found:
        print(f"{name} failed: {(run.stderr or run.stdout).strip().splitlines()[-1:]}")
        return None
    return float(json.loads(found[-1].removeprefix("RESULT "))["seconds"]) / rounds


def module_learner(rounds: int, device: str, precision: str, compile: bool) -> Any:
    """FedAvg of a convolutional network that a user wrote."""
    nn = torch.nn
    layers = [nn.Unflatten(1, (3, 32, 32))]
    for inputs, outputs in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    network = nn.Sequential(*layers, nn.Flatten(), nn.Linear(2048, 10))
    per_round, options = CASES["ComplexCNN"][3], {"precision": precision, "compile": compile}
    return so.FedAvg(
        network, rounds=rounds + WARM, per_round=per_round, batch_size=10, device=device, **options
    )


def lora_learner(rounds: int, device: str, precision: str) -> Any:
    """FedLoRA on a transformer of eight layers of 512, made on the spot."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    wide, deep = sized((512, 8), tiny=(32, 1))
    base = BertModel(
        BertConfig(
            vocab_size=1000,
            hidden_size=wide,
            num_hidden_layers=deep,
            num_attention_heads=8,
            intermediate_size=4 * wide,
            max_position_embeddings=64,
        )
    )
    return so.FedLoRA(
        base,
        rounds=rounds + WARM,
        per_round=sized(10, tiny=2),
        batch_size=16,
        device=device,
        precision=precision,
    )


def lora_rows() -> tuple[int, Any, Any]:
    """Clients, and texts of 64 tokens, 64 for each of them."""
    clients, each = sized((20, 64), tiny=(2, 8))
    draw = np.random.default_rng(0)
    return clients, draw.integers(1, 1000, (clients * each, 64)), np.arange(clients * each) % 2


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


def measure(case: str, options: argparse.Namespace, theirs: dict[str, float]) -> None:
    """Print a line per precision, translated or not; ``theirs`` are seconds of others."""
    model, _, rows, per_round, _, _ = CASES[case]
    work = 3 * multiplications(model) * rows * per_round
    for precision in options.precision.split(","):
        beside = {name: s for name, s in theirs.items() if name.endswith(PEER_PRECISION[precision])}
        for compile in options.compile.split(","):
            how = (options.device, precision, compile == "yes")
            ours, first, loss = solera(case, options.rounds, *how)
            ratio = "".join(f"{s / ours:>9.1f}× {name.split()[0]}" for name, s in beside.items())
            print(
                f"{case:<13}{precision:<10}{'compiled' if compile == 'yes' else '':<9}"
                f"{ours * 1e3:>9.2f}{per_round / ours:>11,.0f}"
                f"{work / ours / (options.peak * 1e12):>9.1%}{first:>9.1f}{loss:>9.4f}{ratio}",
                flush=True,
            )
            if options.host:
                host(case, *how)
            if options.kernels:
                kernels(case, *how)
            if options.device.startswith("cuda"):
                print(f"{'':<13}peak memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")
                torch.cuda.reset_peak_memory_stats()


def others(case: str, options: argparse.Namespace) -> dict[str, float]:
    """Seconds per round of the loop and of peers, in the precisions that are asked for."""
    theirs: dict[str, float] = {}
    precisions = sorted({PEER_PRECISION[p] for p in options.precision.split(",")})
    if not options.no_loop:
        seconds = loop(case, max(1, options.rounds // 5), options.device)
        theirs |= {f"loop {precision}": seconds for precision in precisions}
        print(f"{case:<13}{'loop of clients':<19}{seconds * 1e3:>9.1f}", flush=True)
    for name in filter(None, options.peers.split(",")):
        for precision in precisions:
            found = peer(name, case, max(1, options.rounds // 3), precision)
            if found is not None:
                theirs[f"{name} {precision}"] = found
                print(f"{case:<13}{name:<10}{precision:<9}{found * 1e3:>9.1f}", flush=True)
    return theirs


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peak", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=sized(10, tiny=1))
    parser.add_argument("--device", default=sized("cuda", tiny="cpu"))
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--precision", default=sized("float32,tf32,bfloat16", tiny="float32"))
    parser.add_argument("--compile", default="no")
    parser.add_argument("--peers", default="")
    parser.add_argument("--module", action="store_true")
    parser.add_argument("--lora", action="store_true")
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
    columns = ("ms/round", "  clients/s", "of peak", "first s", "loss")
    print(" " * 32 + "".join(f"{column:>9}" for column in columns) + "  others / ours")
    for case in options.only.split(","):
        measure(case, options, others(case, options))
        if options.accuracy:
            against_cpu(case, options.device, options.precision.split(","))
    for precision in options.precision.split(","):
        for compile in options.compile.split(",") if options.module else []:
            clients = CASES["ComplexCNN"][1]
            learner = module_learner(options.rounds, options.device, precision, compile == "yes")
            ours, first, loss = timed(learner, clients, *random_rows("ComplexCNN"))
            how = f"{'nn.Module':<13}{precision:<10}{'compiled' if compile == 'yes' else '':<9}"
            print(f"{how}{ours * 1e3:>9.2f}{first:>29.1f}{loss:>9.4f}")
        if options.lora:
            learner = lora_learner(options.rounds, options.device, precision)
            ours, first, loss = timed(learner, *lora_rows())
            print(f"{'FedLoRA':<13}{precision:<19}{ours * 1e3:>9.2f}{first:>29.1f}{loss:>9.4f}")
    if options.accuracy:
        accuracy(options.device, options.precision.split(","))


if __name__ == "__main__":
    main()

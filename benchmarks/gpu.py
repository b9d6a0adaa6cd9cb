"""FedAvg on one GPU: clients per second, and the fraction of the card's peak.

Claim: ComplexCNN on CIFAR-shaped rows, 100 clients × 50 images per round, batch 10, one epoch, is
at least 10× faster than one client after the other on the same GPU. W1 to W3 of ``simulation.py``
are timed beside it. Needs PyTorch with CUDA; rows are random, so that no data set is needed.

    gpu.py [--peak 60] [--rounds 10] [--device cuda] [--tiny]

``--peak`` is the card's peak in TFLOP/s for the arithmetic used (float32 without tensor cores:
about 60 for an H100 or H200); with ``--tf32`` products use tensor cores.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import torch

import solera as so
from sizes import TINY, sized
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


def solera(case: str, rounds: int, device: str) -> float:
    """Seconds per round of the learner as users call it, after two rounds to warm up."""
    model, clients, rows, per_round, batch, width = CASES[case]
    draw = np.random.default_rng(0)
    X = draw.random((clients * rows, width), dtype=np.float32)
    y = draw.permutation(np.arange(clients * rows) % 10)
    marks = []

    class Clock(so.callbacks.Callback):
        def on_round(self, learner: Any, round: Any) -> None:
            wait(device)
            marks.append(time.perf_counter())

    fed = so.simulate(X, y, clients=clients, seed=0, memory=64 << 30)
    learner = so.FedAvg(
        model, rounds=rounds + 2, per_round=per_round, lr=0.01, batch_size=batch, device=device
    )
    learner.fit(fed, callbacks=[Clock()])
    return (marks[-1] - marks[1]) / rounds


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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peak", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=sized(10, tiny=1))
    parser.add_argument("--device", default=sized("cuda", tiny="cpu"))
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--tf32", action="store_true")
    options = parser.parse_args()
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        print("no GPU here; nothing measured")
        return
    torch.backends.cuda.matmul.allow_tf32 = options.tf32
    torch.backends.cudnn.allow_tf32 = options.tf32
    named = torch.cuda.get_device_name() if options.device.startswith("cuda") else "CPU"
    print(f"{named}, {options.rounds} rounds, tensor cores {'on' if options.tf32 else 'off'}")
    print(f"{'':<14}{'ms/round':>10}{'clients/s':>12}{'of peak':>9}{'loop ms':>10}{'ratio':>8}")
    for case in options.only.split(","):
        model, _, rows, per_round, _, _ = CASES[case]
        ours = solera(case, options.rounds, options.device)
        theirs = loop(case, max(1, options.rounds // 5), options.device)
        work = 3 * multiplications(model) * rows * per_round
        print(
            f"{case:<14}{ours * 1e3:>10.2f}{per_round / ours:>12,.0f}"
            f"{work / ours / (options.peak * 1e12):>9.1%}{theirs * 1e3:>10.1f}"
            f"{theirs / ours:>8.1f}",
            flush=True,
        )
        if options.device.startswith("cuda"):
            print(f"{'':<14}peak memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")
            torch.cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    main()

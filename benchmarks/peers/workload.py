"""What every peer's script shares: the workload it is given and the line it answers with."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

started = time.perf_counter()
WIDTHS = (32, 64, 128)
"""Channels of the pairs of convolutions of ``so.nn.complex_cnn()``."""


@dataclass
class Work:
    """A workload: rows of equal clients, some of them trained per round.

    ``network`` is "mlp" with ``hidden`` units, or "complex_cnn"; ``precision`` is of products on a
    GPU, "float32" or "tf32".
    """

    X: Any
    y: Any
    X_test: Any
    y_test: Any
    clients: int
    rows: int
    hidden: int
    per_round: int
    rounds: int
    batch: int
    lr: float
    network: str = "mlp"
    precision: str = "float32"

    def client(self, k: int) -> tuple[Any, Any]:
        part = slice(k * self.rows, (k + 1) * self.rows)
        return self.X[part], self.y[part]

    def chosen(self, round: int) -> list[int]:
        draw = np.random.default_rng(round)
        return sorted(draw.choice(self.clients, self.per_round, replace=False).tolist())


def read() -> Work:
    """The workload named on the command line: a file of rows and the numbers as JSON."""
    rows = np.load(sys.argv[1])
    return Work(**{name: rows[name] for name in rows.files}, **json.loads(sys.argv[2]))


def answer(seconds: float, accuracy: float) -> None:
    """Seconds of all rounds after the first, and the accuracy at the end.

    ``cpu`` are seconds of the processor: on a busy machine they say more than those of the clock.
    """
    cpu = time.process_time() - _cpu
    line = {"seconds": seconds, "cpu": cpu, "accuracy": accuracy, "start": _ready - started}
    print("RESULT " + json.dumps(line), flush=True)


_ready, _cpu = started, 0.0


def ready() -> float:
    """Mark the end of start-up; the time."""
    global _ready, _cpu
    _ready, _cpu = time.perf_counter(), time.process_time()
    return _ready


def torch_net(work: Work) -> Any:
    """The network of the workload as PyTorch users write it."""
    from torch import nn

    if work.network == "complex_cnn":
        layers: list[Any] = [nn.Unflatten(1, (32, 32, 3)), _ChannelsFirst(nn)]
        channels = 3
        for wide in WIDTHS:
            for inputs in (channels, wide):
                layers += [nn.Conv2d(inputs, wide, 3, padding=1), nn.ReLU(), nn.BatchNorm2d(wide)]
            layers.append(nn.MaxPool2d(2))
            channels = wide
        dense = [nn.Flatten(), nn.Linear(16 * WIDTHS[-1], 512), nn.ReLU(), nn.Linear(512, 10)]
        return nn.Sequential(*layers, *dense)
    if not work.hidden:
        return nn.Linear(work.X.shape[1], 10)
    return nn.Sequential(
        nn.Linear(work.X.shape[1], work.hidden), nn.ReLU(), nn.Linear(work.hidden, 10)
    )


def _ChannelsFirst(nn: Any) -> Any:
    class ChannelsFirst(nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return x.permute(0, 3, 1, 2)

    return ChannelsFirst()


def torch_accuracy(net: Any, work: Work) -> float:
    import torch

    net = net.cpu().eval()
    with torch.no_grad():
        guessed = net(torch.from_numpy(work.X_test)).argmax(dim=1).numpy()
    return float((guessed == work.y_test).mean())

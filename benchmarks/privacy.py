"""What protection costs, one section per claim; each prints ours, the peer's and the ratio.

dpsgd: DP-SGD on the network of W1 (MLP 784-128-10, 101,770 parameters) against Opacus: the same
rows per step, noise and clipping, one core. Ours is timed in a simulation, whose noise is seeded,
and as at an agent, whose noise is AES-256; Opacus draws from PyTorch's generator. Claim: at least
3× faster.

    privacy.py [--only dpsgd] [--repeats 5]
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Callable
from typing import Any

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import numpy as np  # noqa: E402

import solera as so  # noqa: E402
from sizes import sized  # noqa: E402

ROWS = 600
STEPS = sized(30, tiny=2)
BATCHES = sized((20, 64, 256), tiny=(20,))
SECTIONS: dict[str, Callable[[int], None]] = {}


def section(run: Callable[[int], None]) -> Callable[[int], None]:
    """Make a section known by the name of its function."""
    SECTIONS[run.__name__] = run
    return run


def best(run: Callable[[], Any], repeats: int) -> float:
    """Seconds of the processor of the fastest of several runs."""
    run()
    times = []
    for _ in range(repeats):
        began = time.process_time()
        run()
        times.append(time.process_time() - began)
    return min(times)


@section
def dpsgd(repeats: int) -> None:
    print(f"DP-SGD, MLP 784-128-10, {STEPS} steps: milliseconds per step")
    print(f"{'rows':>6}{'ours':>10}{'at agents':>11}{'Opacus':>10}{'ratio':>8}{'at agents':>11}")
    for batch in BATCHES:
        ours = 1e3 * best(_ours(batch, None), repeats) / STEPS
        secret = 1e3 * best(_ours(batch, b"secret" * 5 + b"32"), repeats) / STEPS
        line = f"{batch:>6}{ours:>10.2f}{secret:>11.2f}"
        theirs = _opacus(batch)
        if theirs is None:
            print(f"{line}   Opacus is not installed, no ratio")
            continue
        peer = 1e3 * best(theirs, repeats) / STEPS
        print(f"{line}{peer:>10.2f}{peer / ours:>8.1f}{peer / secret:>11.1f}")


def _rows() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(ROWS, 784)).astype(np.float32), rng.integers(0, 10, ROWS)


def _ours(batch: int, secret: bytes | None) -> Callable[[], Any]:
    """The task of a client, as it is asked for; with a secret its noise is that of an agent."""
    from solera.core.clients import Client, Draws
    from solera.learn.averaging.learner import train_and_send

    X, y = _rows()
    fed = so.simulate(X, y, clients=1, seed=0)
    rate = batch / ROWS
    dp = so.DP(noise_multiplier=1.0, delta=1e-5, clip=1.0, level="record", rate=rate)
    learner = so.FedAvg(so.nn.mlp(784, 128, 10), weight=None, lr=0.05, local_steps=STEPS, dp=dp)
    learner.schema_ = fed.schema
    learner.begin(fed)
    ask = learner.round_ask(0)
    client = Client(0, fed.engine.source, Draws(0, "averaging.train", 0, secret), {})
    return lambda: train_and_send(client, ask)


def _opacus(batch: int) -> Callable[[], Any] | None:
    """The same steps by Opacus; rows are drawn by Poisson sampling too."""
    try:
        import torch
        from opacus import GradSampleModule
        from opacus.optimizers import DPOptimizer
    except ImportError:
        return None
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    X, y = (torch.as_tensor(part) for part in _rows())
    nn = torch.nn
    network = GradSampleModule(nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10)))
    optimiser = DPOptimizer(
        torch.optim.SGD(network.parameters(), lr=0.05),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=batch,
    )

    def run() -> None:
        for _ in range(STEPS):
            chosen = torch.rand(ROWS) < batch / ROWS
            optimiser.zero_grad()
            outputs = network(X[chosen])
            nn.functional.cross_entropy(outputs, y[chosen]).backward()
            optimiser.step()

    return run


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default=",".join(SECTIONS))
    parser.add_argument("--repeats", type=int, default=sized(5, tiny=1))
    options, _ = parser.parse_known_args()
    for name in options.only.split(","):
        SECTIONS[name](options.repeats)


if __name__ == "__main__":
    main()

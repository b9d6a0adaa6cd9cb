"""A loop of one's own, federated: lines that change, and time beside the same loop without Solera.

Claims: at most 6 lines of a tutorial's network, a Hugging Face script and a Lightning module change
(``loops/*_alone.py`` and ``*_federated.py``, which run; NVFlare's client API and Flower's app stand
beside them, written after their quickstarts and not run). On W1 (100 clients × 600 rows, MLP
784-128-10, 10 per round, batch 20, one epoch, SGD 0.05) ``so.FedTorch`` takes at most 1.2 × the
time of the same loop over the same clients one after the other, ``threads=1``, after a warm-up.

    own_loops.py [--repeats 3] [--rounds 5]
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
import time
from difflib import SequenceMatcher
from pathlib import Path

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import solera as so  # noqa: E402
from sizes import TINY, sized  # noqa: E402

LOOPS = Path(__file__).parent / "loops"
MOST_LINES, MOST_TIME = 6, 1.2
CLIENTS, ROWS, WIDTH = sized((100, 600, 784), tiny=(10, 40, 8))


def code_lines(program: Path) -> list[str]:
    """Lines of code; those that are only indented otherwise are the same, and one-line docstrings
    are no code."""
    lines = [line.strip() for line in program.read_text().splitlines()]
    return [line for line in lines if line and not line.startswith(('"""', "#"))]


def changed(before: Path, after: Path) -> int:
    """Lines that are new in a program or stand in the place of others."""
    matcher = SequenceMatcher(None, code_lines(before), code_lines(after), autojunk=False)
    spans = [(j1, j2) for kind, _, _, j1, j2 in matcher.get_opcodes() if kind != "equal"]
    return sum(j2 - j1 for j1, j2 in spans)


def model() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
    )


def train(network, loader, context):
    optimiser = torch.optim.SGD(network.parameters(), lr=0.05)
    for X, y in loader:
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(network(X), y).backward()
        optimiser.step()


def plain(parts: list[TensorDataset], rounds: int) -> None:
    """The same loop over the clients of every round, one after the other, and the mean."""
    network = model()
    for round in range(rounds):
        start = {n: v.clone() for n, v in network.state_dict().items()}
        total = {n: torch.zeros_like(v) for n, v in start.items()}
        for k in range(10):
            network.load_state_dict(start)
            part = parts[(10 * round + k) % len(parts)]
            train(network, DataLoader(part, batch_size=20, shuffle=True), None)
            for n, v in network.state_dict().items():
                total[n] += v / 10
        network.load_state_dict(total)


def federated(fed: so.Federation, rounds: int) -> None:
    so.FedTorch(model, train=train, rounds=rounds, per_round=10, batch_size=20).fit(
        fed, progress=False
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=sized(3, tiny=1))
    parser.add_argument("--rounds", type=int, default=sized(5, tiny=1))
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    sys.path.insert(0, str(LOOPS))
    for name in ("cnn", "hugging_face", "lightning"):
        lines = changed(LOOPS / f"{name}_alone.py", LOOPS / f"{name}_federated.py")
        print(f"{name}: {lines} lines change, at most {MOST_LINES}")
        assert lines <= MOST_LINES
        if not TINY:
            runpy.run_path(str(LOOPS / f"{name}_federated.py"), run_name="__main__")
    for peer in ("nvflare", "flower"):
        lines = changed(LOOPS / "cnn_alone.py", LOOPS / f"cnn_{peer}.py")
        print(f"cnn by {peer}: {lines} lines change (written after its quickstart, not run)")

    torch.set_num_threads(1)
    draw = np.random.default_rng(0)
    X = draw.normal(size=(CLIENTS * ROWS, WIDTH)).astype(np.float32)
    y = draw.integers(0, 10, CLIENTS * ROWS)
    parts = [
        TensorDataset(
            torch.from_numpy(X[first : first + ROWS]), torch.from_numpy(y[first : first + ROWS])
        )
        for first in range(0, len(X), ROWS)
    ]
    fed = so.simulate(X, y, clients=CLIENTS, seed=0)
    plain(parts, 1)
    federated(fed, 1)
    ratios = []
    for _ in range(options.repeats):
        began = time.process_time()
        plain(parts, options.rounds)
        middle = time.process_time()
        federated(fed, options.rounds)
        ours, theirs = time.process_time() - middle, middle - began
        ratios.append(ours / theirs)
        print(f"W1: FedTorch {ours:.3f} s, the loop alone {theirs:.3f} s, ratio {ratios[-1]:.2f}")
    median = float(np.median(ratios))
    print(f"W1: median ratio {median:.2f}, at most {MOST_TIME}; on a GPU: not run")
    assert TINY or median <= MOST_TIME


if __name__ == "__main__":
    main()

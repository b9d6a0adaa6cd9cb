"""What a secure sum costs one client, beside Flower's SecAgg+ with as many neighbours.

    python benchmarks/secure_sum.py [--repeats 3]

For 10², 10³ and 10⁴ clients and 10⁵ and 10⁶ parameters (float32, |x| ≤ 8, a precision of 2⁻¹⁸ as
Flower's default quantisation has): seconds of CPU of keys and shares, and of encoding and masking
the update. One client is there; of the others only the keys. In the last column no range is
declared, and a number takes 16 bytes. Flower takes part where it is installed: ``make
bench-peers``, or an environment named by ``$SOLERA_FLOWER``. Ours and Flower's runs alternate, and
the least of each counts.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import time
from pathlib import Path

import numpy as np

import solera as so
from sizes import sized
from solera.core.clients import Client, Draws
from solera.core.engine import Ask
from solera.privacy.secure_sum import tasks
from solera.privacy.secure_sum.graph import degree
from solera.privacy.secure_sum.keys import KEY

HERE = Path(__file__).parent
CLIENTS = sized([100, 1000, 10_000], tiny=[5, 120])
PARAMETERS = sized([10**5, 10**6], tiny=[100])
SHARE = 2 / 3
RANGE, PRECISION = 8.0, 2.0**-18


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=sized(3, tiny=1))
    repeats = parser.parse_args().repeats
    flower = find_flower()
    print("seconds of one client   keys and shares            masks")
    print("clients  k   parameters   ours  Flower  ratio    ours  Flower  ratio   no range")
    for clients in CLIENTS:
        k = degree(clients, SHARE)
        for parameters in PARAMETERS:
            ours, theirs, wide = [], [], []
            for _ in range(repeats):
                ours.append(seconds(clients, parameters, RANGE, PRECISION))
                if flower is not None:
                    theirs.append(peer_seconds(flower, clients, k, parameters))
                wide.append(seconds(clients, parameters, None, None))
            show(clients, k, parameters, np.min(ours, axis=0), theirs, np.min(wide, axis=0))
    if flower is None:
        print("Flower is not installed: make bench-peers")


def show(clients, k, parameters, ours, theirs, wide) -> None:
    line = f"{clients:7,} {k:3} {parameters:11,}"
    for step, own in enumerate(ours):
        peer = min(found[step] for found in theirs) if theirs else float("nan")
        line += f" {own:7.3f} {peer:7.3f} {own / peer:6.2f}"
    print(f"{line} {wide[1]:10.3f}", flush=True)


def seconds(clients: int, parameters: int, range, precision) -> tuple[float, float]:
    """CPU time of a client's keys and shares, and of its masks."""
    values = np.random.default_rng(0).normal(size=parameters).astype(np.float32)
    source = so.data.FederatedData(np.zeros((1, 1)), None, np.array([0, 1]))
    client = Client(0, source, Draws(0, "secure", 0), {})
    others = np.frombuffer(os.urandom(2 * clients * KEY), np.uint8).reshape(2, clients, KEY)
    mask_keys, seal_keys = others.copy()
    began = time.process_time()
    told = tasks.tell_keys(client, {})
    mask_keys[0] = np.frombuffer(told["mask"], np.uint8)
    seal_keys[0] = np.frombuffer(told["seal"], np.uint8)
    roster = {
        "clients": np.arange(clients),
        "mask_keys": mask_keys,
        "seal_keys": seal_keys,
        "signatures": np.zeros((clients, tasks.SIGNATURE), np.uint8),
        "share": SHARE,
    }
    tasks.give_shares(client, roster)
    shared = time.process_time() - began
    began = time.process_time()
    everyone = np.arange(clients)
    masking = tasks.Masking(so.aggregations.Sum(), everyone, clients, range, precision)
    masking.cover(client, Ask("benchmark", 1, None, everyone, 0), values)
    return shared, time.process_time() - began


def find_flower() -> Path | None:
    """The Python of an environment with Flower."""
    places = [os.environ.get("SOLERA_FLOWER"), HERE.parent / ".peers" / "flower"]
    pythons = [Path(place) / "bin" / "python" for place in places if place]
    return next((python for python in pythons if python.exists()), None)


def peer_seconds(python: Path, clients: int, k: int, parameters: int) -> tuple[float, float]:
    """The same of Flower; its modulus must hold the sum of all clients, too."""
    bits = max(32, 22 + (clients - 1).bit_length())
    script = HERE / "peers" / "flower_secagg.py"
    command = [str(python), str(script), str(k), str(parameters), str(bits)]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(done.stderr)
    shared, masked = map(float, done.stdout.split()[-2:])
    return shared, masked


if __name__ == "__main__":
    main()

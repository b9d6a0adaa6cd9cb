"""What a closed job costs: a sum over a real network beside an ask that a driver sends.

Both are seconds of one round more: a fit of many rounds less one of few, so that approvals, start
and the first sum of persons do not count. Claims: a no-op round (a linear model of four columns,
ten rows an owner) takes at most 2 times a driver-run ask with 4 agents, 4 times with 10; a network
784-128-10 with 4 agents at most 2 times the same rounds with ``secure=True``.

Trees: 100 of depth 3 on Adult, four owners of 10,000 rows, over a wire that takes 40 ms each way,
take at most 3 × (number of sums × 80 ms) and the simulated fit; that takes at most 1.6 times a fit
without a policy. Without Adult (``SOLERA_DATA``) rows are made up.

    python benchmarks/closed.py [noop] [network] [trees] [--tiny] 2> /dev/null
"""

from __future__ import annotations

import os
import queue
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "serve"))

import closed_network
from closed_network import ClosedNetwork
from network import Network

import solera as so
from sizes import sized
from solera.simulate import owners as simulated_owners

FEW, MANY, ROWS, REPEATS = sized((5, 25, 60, 3), tiny=(2, 4, 10, 1))
AGENTS = sized((4, 10), tiny=(4,))
TREES, OWNED, DELAY = sized((100, 10_000, 0.04), tiny=(2, 200, 0.001))

Make = Callable[[int], Any]
"""A learner of so many rounds."""


def linear(rounds: int) -> Any:
    """A round of it computes next to nothing."""
    return so.FedLinear(rounds=rounds, batch_size=None)


def network(rounds: int) -> Any:
    """784-128-10, an epoch a round."""
    return so.FedAvg(so.nn.mlp(784, 128, 10), rounds=rounds, batch_size=10, lr=0.1)


def frame_of(columns: int, classes: int, rows: int) -> pd.DataFrame:
    """Made-up rows, the last column the class."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, columns))
    y = np.argmax(X[:, :classes], axis=1) if classes > 2 else (X[:, 0] > 0).astype(int)
    frame = pd.DataFrame(X.round(6), columns=[f"x{j}" for j in range(columns)])
    return frame.assign(target=[f"c{label}" for label in y])


def seconds_a_round(fit: Callable[[int], Any]) -> float:
    """The median over some repeats of a long fit less a short one, for each round."""
    fit(1)  # processes are there
    rounds = []
    for repeat in range(REPEATS):
        times = []
        for count in (FEW, MANY):
            began = time.perf_counter()
            fit(count + repeat)
            times.append(time.perf_counter() - began)
        rounds.append((times[1] - times[0]) / (MANY - FEW))
    return float(np.median(rounds))


def closed(frame: pd.DataFrame, agents: int, make: Make) -> float:
    """Seconds of a round in a closed job."""
    closed_network.NAMES = tuple(f"owner{k}" for k in range(agents))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        owners = ClosedNetwork(Path(folder), frame, signed=agents)
        try:
            federation = owners.closed()
            return seconds_a_round(lambda rounds: make(rounds).fit(federation, progress=False))
        finally:
            owners.close()


def driven(frame: pd.DataFrame, agents: int, make: Make, **options: Any) -> float:
    """Seconds of a round that a driver asks for, under the policy ``trusted``."""
    X, y = frame.iloc[:, :-1].to_numpy(), np.unique(frame["target"], return_inverse=True)[1]
    bounds = np.linspace(0, len(X), agents + 1).astype(np.int64)
    data = so.data.FederatedData(X, y, bounds)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        clients = Network(Path(folder))
        try:
            clients.start()
            for k in range(agents):
                clients.enrol(f"client-{k}")
                clients.give(f"client-{k}", data, k)
                clients.work(f"client-{k}")
            federation = clients.connect(**options)
            return seconds_a_round(lambda rounds: make(rounds).fit(federation, progress=False))
        finally:
            clients.close()


def compare(what: str, ours: float, other: str, theirs: float, bar: float) -> None:
    """Print both and their ratio."""
    print(
        f"{what}: closed {ours * 1e3:.0f} ms, {other} {theirs * 1e3:.0f} ms, "
        f"ratio {ours / theirs:.2f} (bar {bar:g})",
        flush=True,
    )


def noop() -> None:
    for agents in AGENTS:
        frame = frame_of(4, 2, 10 * agents)
        ours, theirs = closed(frame, agents, linear), driven(frame, agents, linear)
        bar = 2 if agents == 4 else 4
        compare(f"no-op round, {agents} agents", ours, "driver-run", theirs, bar)


def networks() -> None:
    frame = frame_of(784, 10, 4 * ROWS)
    ours = closed(frame, 4, network)
    theirs = driven(frame, 4, network, secure=True)
    compare("784-128-10, 4 agents", ours, "secure=True", theirs, 2)


class Wire(ClosedNetwork):
    """Owners whose bytes to and from the coordinator take ``DELAY`` seconds."""

    def start(self, **options: Any) -> None:
        super().start(**options)
        listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            near = listener.accept()[0]
            far = socket.create_connection((self.host, self.port))
            for source, sink in ((near, far), (far, near)):
                sink.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                under_way: queue.SimpleQueue[Any] = queue.SimpleQueue()
                threading.Thread(target=_read, args=(source, under_way), daemon=True).start()
                threading.Thread(target=_write, args=(sink, under_way), daemon=True).start()


def _read(source: socket.socket, under_way: Any) -> None:
    with suppress(OSError):
        while content := source.recv(1 << 16):
            under_way.put((time.monotonic() + DELAY, content))
    under_way.put((time.monotonic() + DELAY, b""))


def _write(sink: socket.socket, under_way: Any) -> None:
    with suppress(OSError):
        while True:
            moment, content = under_way.get()
            time.sleep(max(0.0, moment - time.monotonic()))
            if not content:
                sink.shutdown(socket.SHUT_WR)
                return
            sink.sendall(content)


def adult() -> pd.DataFrame:
    """Adult as numbers, codes for categories, the class last."""
    file = Path(os.environ.get("SOLERA_DATA", "")) / "adult.csv.gz"
    if not file.is_file():
        return frame_of(14, 2, 4 * OWNED)
    table = pd.read_csv(file).sample(4 * OWNED, random_state=0)
    y = table.pop("class").to_numpy()
    numbers = table.select_dtypes("number").astype(float)
    texts = table.select_dtypes(exclude="number")
    codes = texts.apply(lambda column: column.astype("category").cat.codes.astype(float))
    return pd.concat([numbers, codes], axis=1).assign(target=y)


def seconds_of(fit: Callable[[], Any]) -> float:
    began = time.perf_counter()
    fit()
    return time.perf_counter() - began


def trees() -> None:
    frame, learner = adult(), so.FedHistGBDT(rounds=TREES, max_depth=3)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        owners = Wire(Path(folder), frame)
        try:
            federation = owners.closed()
            over_wire = seconds_of(lambda: learner.clone().fit(federation, progress=False))
            simulated = owners.simulation()
        finally:
            owners.close()
    free = so.simulate(simulated.data)
    sums = count_sums(lambda: learner.clone().fit(simulated, progress=False))
    under = min(
        seconds_of(lambda: learner.clone().fit(simulated, progress=False)) for _ in range(REPEATS)
    )
    plain = min(
        seconds_of(lambda: learner.clone().fit(free, progress=False)) for _ in range(REPEATS)
    )
    bar = 3 * sums * 2 * DELAY + under
    print(f"{TREES} trees, {sums} sums over the wire: {over_wire:.1f} s (bar {bar:.1f} s)")
    print(
        f"{TREES} trees in simulation: policy {under:.2f} s, none {plain:.2f} s, "
        f"ratio {under / plain:.2f} (bar 1.6)",
        flush=True,
    )


def clusters() -> None:
    rows = adult().select_dtypes("number").to_numpy(float)
    rows = ((rows - rows.mean(axis=0)) / rows.std(axis=0)).round(4)
    for size in (2_500, len(rows)):
        under = so.simulate(rows[:size], clients=4, policy="sums")
        assert under.atoms, "found before the clock runs"
        free = so.simulate(under.data)
        for k in sized((3, 8), tiny=(2,)):
            seconds = [
                min(
                    seconds_of(lambda fed=fed, k=k: so.FedKMeans(k).fit(fed, progress=False))
                    for _ in range(REPEATS)
                )
                for fed in (under, free)
            ]
            print(
                f"k-means, {len(rows[:size]):,} rows, k={k}, in simulation: policy "
                f"{seconds[0]:.2f} s, none {seconds[1]:.2f} s, "
                f"ratio {seconds[0] / seconds[1]:.2f} (bar 1.6)",
                flush=True,
            )


def count_sums(fit: Callable[[], Any]) -> int:
    """How many sums a closed fit takes, by those of its simulation."""
    added_up, sums = simulated_owners.added_up, []
    simulated_owners.added_up = lambda own: sums.append(1) or added_up(own)
    try:
        fit()
    finally:
        simulated_owners.added_up = added_up
    return len(sums)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    chosen = sys.argv[1:] or ["noop", "network", "trees", "clusters"]
    for part in chosen:
        {"noop": noop, "network": networks, "trees": trees, "clusters": clusters}[part]()

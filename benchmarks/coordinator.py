"""What a coordinator carries: replies per second, megabytes per second, memory, latency.

Claims: a no-op round with 10 agents takes under 0.25 s in the median; 1,000 connected agents with
replies of 1 MB need less than 1 GiB at the coordinator, flat in their number; a 100 MB update costs
every process on its way less than four times its size.

    python benchmarks/coordinator.py [latency] [load] [workers] [looks] [update] [flower] [--tiny]

``load`` simulates agents: one process opens all connections, signs every request and polls as an
agent does, but computes nothing. ``workers`` does the same with 1 MB (last with 10 kB) and one or
several worker processes on PostgreSQL, and says whose CPU seconds a round takes: the agents share
the cores. ``looks`` is what an agent costs that finds nothing to do, with a connection kept or made
anew. ``latency`` and ``update`` use real agents. ``flower`` times the same no-op round of a
SuperLink with SuperNodes, where flwr is installed (see ``make bench-peers``).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import json
import os
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from base64 import b64encode
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from sqlalchemy import create_engine, text

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "serve"))
sys.path.append(str(Path(__file__).parent / "peers"))

from databases import NoPostgres, cluster, new_database
from flower_network import find_flower
from network import AGENT, COORDINATOR, Network

import numbers_task  # noqa: F401
import solera as so
from sizes import sized
from solera.core.aggregation import Sum
from solera.core.payload import encode
from solera.serve.connection import CHUNK
from solera.serve.identity import (
    Identity,
    ask_digest,
    reply_message,
    seal_key_message,
    sign_request,
)
from solera.serve.wire import INLINE, NO_START

MB = 1 << 20
DEADLINE = 900.0
AGENTS, ROUNDS, UPDATE = sized((10, 25, 100 * MB), tiny=(2, 2, MB))
SIZES = sized(
    [
        (10, 10_000, 5), (10, MB, 3), (10, 100 * MB, 1),
        (100, 10_000, 3), (100, MB, 2),
        (1000, 10_000, 2), (1000, MB, 1),
    ],
    tiny=[(2, 10_000, 1), (2, MB, 1)],
)  # fmt: skip
"""Simulated agents, bytes of a reply, rounds."""
WORKED, LOOKS = sized((1000, 400), tiny=(2, 8))


def main(parts: list[str]) -> None:
    known = {
        "latency": latency,
        "load": load,
        "workers": workers,
        "looks": looks,
        "update": update,
        "flower": flower,
    }
    for part in parts or known:
        known[part]()


# --- latency, with real agents -------------------------------------------------------------------


def latency(agents: int = AGENTS, rounds: int = ROUNDS) -> float:
    """Seconds of a no-op round."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        network = _network(folder, agents)
        try:
            fed = network.connect()
            fed.ask("data.flaws").collect()
            times = []
            for _ in range(rounds):
                began = time.perf_counter()
                fed.ask("data.flaws").collect()
                times.append(time.perf_counter() - began)
        finally:
            network.close()
    median = statistics.median(times)
    print(
        f"no-op round, {agents} agents, median of {rounds}: {median:.3f} s "
        f"(fastest {min(times):.3f}, slowest {max(times):.3f})"
    )
    return median


def _network(folder: str, agents: int, rows: int = 20) -> Network:
    X = np.random.default_rng(0).normal(size=(rows * agents, 4))
    data = so.data.FederatedData(
        X, (X[:, 0] > 0).astype(int), np.arange(0, rows * agents + 1, rows)
    )
    network = Network(Path(folder))
    with _quiet():
        network.start()
        for k in range(agents):
            name = f"client-{k}"
            network.enrol(name)
            network.give(name, data, k)
            network.work(name)
    return network


# --- load, with simulated agents -----------------------------------------------------------------


class Alone(Network):
    """Its coordinator is a program of its own; in tests it is a fork with all that they import."""

    def start(self, **options: Any) -> None:
        command = [sys.executable, "-c", COORDINATOR, *self.place, json.dumps(options)]
        self.coordinator = subprocess.Popen(command)
        self.wait()


def load() -> None:
    """Rounds over simulated agents: how much, how fast, how much memory."""
    print("agents  reply     round s  replies/s    MB/s  coordinator peak MB")
    for agents, size, rounds in SIZES:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            network = Alone(Path(folder))
            with _quiet():
                network.start()
            swarm = Swarm(network, agents, size)
            try:
                swarm.start()
                fed = network.connect()
                times = []
                for _ in range(rounds):
                    swarm.check()
                    began = time.perf_counter()
                    total = fed.ask("bench.numbers", size, deadline=DEADLINE).fold(Sum())
                    times.append(time.perf_counter() - began)
                    assert total["x"][0] == sum(range(agents)), "a reply was lost or counted twice"
                peak = _peak(network.coordinator.pid)
            finally:
                swarm.stop()
                network.close()
            swarm.check()
        best = min(times)
        print(
            f"{agents:6,} {_size(size):>6} {best:12.2f} {agents / best:10.0f} "
            f"{agents * size / MB / best:7.1f} {peak / MB:12.0f}",
            flush=True,
        )


def workers(agents: int = WORKED, most: int = 2) -> None:
    """A round of replies of 1 MB with one process and SQLite, and with several and PostgreSQL.

    Last comes one of replies of 10 kB, which travel in one message with what is said of them.
    """
    print(
        "workers  database     reply  round s   CPU s: coordinator  database  agents and driver"
        "   peak MB  database B a reply"
    )
    try:
        with cluster() as server:
            _worked(agents, 1, None)
            _worked(agents, 1, new_database(server))
            _worked(agents, most, new_database(server))
            _worked(agents, 1, new_database(server), 10_000)
    except NoPostgres as missing:
        print(f"PostgreSQL is not installed: {missing}")


def _worked(agents: int, count: int, database: str | None, size: int = MB) -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        network = Alone(Path(folder))
        with _quiet():
            network.start(workers=count, database=database)
        swarm = Swarm(network, agents, size)
        try:
            swarm.start()
            fed = network.connect()
            pid = network.coordinator.pid
            served = _family(pid)
            stored, rows = _servers(database), _database_bytes(database)
            before = _cpu(served), _cpu(stored), time.process_time()
            began = time.perf_counter()
            total = fed.ask("bench.numbers", size, deadline=DEADLINE).fold(Sum())
            seconds = time.perf_counter() - began
            swarm.check()
            spent = _cpu(served) - before[0], _cpu(stored) - before[1]
            own = time.process_time() - before[2]
            assert total["x"][0] == sum(range(agents)), "a reply was lost or counted twice"
            peak = max(map(_peak, served))
            rows = (_database_bytes(database) - rows) / agents
        finally:
            swarm.stop()
            network.close()
    kind = "SQLite" if database is None else "PostgreSQL"
    print(
        f"{count:7}  {kind:10} {_size(size):>7} {seconds:8.1f} {spent[0]:20.2f} {spent[1]:9.2f} "
        f"{own:18.2f} {peak / MB:9.0f} {rows:18.0f}",
        flush=True,
    )


def looks(kept: int = LOOKS, anew: int = LOOKS // 4) -> None:
    """CPU of the coordinator for a look for work that finds none."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        network = Network(Path(folder))
        with _quiet():
            network.start()
        try:
            asyncio.run(_look(network, kept, anew))
        finally:
            network.close()


async def _look(network: Network, kept: int, anew: int) -> None:
    swarm = Swarm(network, 1, MB)
    context = ssl.create_default_context(cafile=network.ca)
    options: Any = {"base_url": network.url, "verify": context, "timeout": 60}
    pid = network.coordinator.pid
    async with httpx.AsyncClient(**options) as http:
        _, identity, _ = await swarm._join(http, 0, asyncio.Semaphore(1))
        await swarm._send(http, identity, "GET", "/v1/work?wait=0")
        before = _cpu([pid])
        for _ in range(kept):
            await swarm._send(http, identity, "GET", "/v1/work?wait=0")
            await asyncio.sleep(0.01)  # within the rate that a client has
        each = (_cpu([pid]) - before) / kept
    print(f"a look for work, connection kept: {1000 * each:.2f} ms of the coordinator's CPU")
    before = _cpu([pid])
    for _ in range(anew):
        async with httpx.AsyncClient(**options) as http:
            await swarm._send(http, identity, "GET", "/v1/work?wait=0")
    each = (_cpu([pid]) - before) / anew
    print(f"a look for work, connection made anew: {1000 * each:.2f} ms of the coordinator's CPU")


def _family(pid: int) -> list[int]:
    """A process and those that it has started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(one for child in children for one in _family(int(child)))]


def _servers(database: str | None) -> list[int]:
    """The processes of PostgreSQL that serve a database."""
    name = "no database" if database is None else database.rpartition("/")[2]
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes().startswith(f"postgres: solera {name} ".encode()):
                found.append(int(path.parent.name))
    return found


def _database_bytes(database: str | None) -> int:
    if database is None:
        return 0
    engine = create_engine(database)
    with engine.connect() as connection:
        size = connection.scalar(text("SELECT pg_database_size(current_database())"))
    engine.dispose()
    return int(size)


def _cpu(pids: list[int]) -> float:
    """CPU seconds that processes have taken so far."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


class Swarm:
    """Agents that answer without computing, all in one thread of this process."""

    def __init__(self, network: Network, agents: int, size: int) -> None:
        self.network, self.agents, self.size = network, agents, size
        self.errors: list[str] = []
        self._starts: dict[bytes, str] = {}
        """Of each agent: workers have each their own."""
        self._ready = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def start(self) -> None:
        self._thread.start()
        if not self._ready.wait(600):
            raise TimeoutError("the agents did not join")

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)

    def check(self) -> None:
        if self.errors:
            raise RuntimeError(f"{len(self.errors)} agents failed: {self.errors[0]}")

    async def _run(self) -> None:
        context = ssl.create_default_context(cafile=self.network.ca)
        async with contextlib.AsyncExitStack() as connections:
            # A client of its own for each: one pool of a thousand is searched at every request.
            https = [
                await connections.enter_async_context(
                    httpx.AsyncClient(base_url=self.network.url, verify=context, timeout=300)
                )
                for _ in range(self.agents)
            ]
            gate = asyncio.Semaphore(16)
            joined = [self._join(http, k, gate) for k, http in enumerate(https)]
            members = await asyncio.gather(*joined)
            self._ready.set()
            work = [asyncio.create_task(self._work(*member)) for member in members]
            while not self._stop.is_set():
                await asyncio.wait(work, timeout=0.1, return_when=asyncio.FIRST_EXCEPTION)
                failed = [done.exception() for done in work if done.done()]
                if failed:
                    self.errors = [repr(error) for error in failed]
                    break
            for running in work:
                running.cancel()
            await asyncio.gather(*work, return_exceptions=True)

    async def _join(self, http: Any, k: int, gate: Any) -> tuple[Any, Identity, int]:
        headers = {"Authorization": f"Bearer {self.network.token}"}
        async with gate:
            federation = self.network.federation
            path = f"/v1/federations/{federation}/invites"
            told = await http.post(path, json={"name": f"client-{k}"}, headers=headers)
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                identity = Identity.create(Path(folder) / "keys")
            vouched = identity.sign(seal_key_message(federation, identity.seal_key))
            content = {
                "token": told.json()["token"],
                "sign_key": identity.sign_key.hex(),
                "seal_key": identity.seal_key.hex(),
                "seal_signature": vouched.hex(),
                "tasks": {"bench.numbers": 1},
            }
            joined = await self._send(http, identity, "POST", "/v1/join", content)
            return http, identity, joined.json()["client"]

    async def _send(
        self, http: Any, identity: Identity, method: str, path: str, content: Any = None,
        body: bytes = b"",
    ) -> Any:  # fmt: skip
        data = body if content is None else json.dumps(content).encode()
        digest, federation = hashlib.sha256(data).hexdigest(), self.network.federation
        kind = "application/octet-stream" if content is None else "application/json"
        for pause in (0.1, 0.4, 1.6, None):  # as an agent does when a connection was closed
            start = self._starts.get(identity.sign_key, NO_START)
            sent = (identity, federation, method, path, digest, time.time(), start)
            headers = {**sign_request(*sent), "Content-Type": kind}
            try:
                response = await http.request(method, path, content=data, headers=headers)
            except httpx.TransportError:
                if pause is None:
                    raise
                await asyncio.sleep(pause)
                continue
            if response.status_code == 401 and "start" in response.json():
                self._starts[identity.sign_key] = response.json()["start"]
                continue
            break
        if response.status_code != 200:
            raise RuntimeError(f"{method} {path}: {response.status_code} {response.text[:200]}")
        return response

    async def _work(self, http: Any, identity: Identity, client: int) -> None:
        while True:
            told = await self._send(http, identity, "GET", "/v1/work?wait=20")
            for ask in told.json()["asks"]:
                await self._answer(http, identity, client, ask)

    def _frame(self, client: int) -> tuple[bytes, str]:
        frame = encode({"x": np.full(self.size // 8, client, dtype=np.float64)})
        return frame, hashlib.sha256(frame).hexdigest()

    async def _answer(self, http: Any, identity: Identity, client: int, ask: Any) -> None:
        frame, digest = await asyncio.to_thread(self._frame, client)
        small = len(frame) <= INLINE
        if len(frame) > CHUNK:
            for sent in range(0, len(frame), CHUNK):
                path = f"/v1/uploads/{digest}?offset={sent}"
                await self._send(http, identity, "PUT", path, body=frame[sent : sent + CHUNK])
            await self._send(http, identity, "POST", f"/v1/uploads/{digest}")
        job, sequence = ask["job"], ask["sequence"]
        names = ("task", "version", "payload", "prepare", "round", "seed")
        asked = ask_digest(*(ask[name] for name in names))
        message = reply_message(
            self.network.federation, job, sequence, str(client), asked, "ok", digest, len(frame)
        )
        reply = {
            "status": "ok",
            "digest": digest,
            "size": len(frame),
            "frame": b64encode(frame).decode() if small else None,
            "reason": "",
            "signature": identity.sign(message).hex(),
        }
        path = f"/v1/jobs/{job}/asks/{sequence}/reply"
        if INLINE < len(frame) <= CHUNK:
            path = f"{path}?signature={reply['signature']}"
            await self._send(http, identity, "PUT", path, body=frame)
        else:
            await self._send(http, identity, "POST", path, reply)


# --- one large update, with a real agent ---------------------------------------------------------


def update(size: int = UPDATE) -> None:
    """Peak memory of every process that a large update passes through, above what it had before."""
    import network as processes

    folder = str(Path(__file__).parent)
    task = f"import sys; sys.path.insert(0, {folder!r}); import numbers_task\n"
    processes.AGENT = task + AGENT
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        network = _network(folder, 1)
        try:
            fed = network.connect()
            fed.ask("data.flaws").collect()
            agent = network.agents["client-0"].pid
            worker = int(Path(f"/proc/{agent}/task/{agent}/children").read_text().split()[0])
            pids = {"coordinator": network.coordinator.pid, "agent": agent, "worker": worker}
            pids["driver"] = os.getpid()
            gc.collect()
            before = {name: _memory(pid, "VmRSS") for name, pid in pids.items()}
            for pid in pids.values():
                Path(f"/proc/{pid}/clear_refs").write_text("5")
            began = time.perf_counter()
            fed.ask("bench.numbers", size).fold(Sum())
            seconds = time.perf_counter() - began
            print(f"one reply of {_size(size)}: {seconds:.1f} s, {size / MB / seconds:.0f} MB/s")
            for name, pid in pids.items():
                more = _memory(pid, "VmHWM") - before[name]
                print(f"  {name:12} {more / MB:6.0f} MB more at its peak, {more / size:.1f}×")
        finally:
            network.close()
            processes.AGENT = AGENT


# --- Flower --------------------------------------------------------------------------------------


def flower(agents: int = AGENTS) -> None:
    """The same no-op round over a SuperLink, in an environment of its own."""
    binaries = find_flower()
    if binaries is None:
        print("Flower is not installed: make bench-peers")
        return
    ours = latency(agents)
    script = Path(__file__).parent / "peers" / "flower_round.py"
    command = [str(binaries / "python"), str(script), str(agents)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        print(f"Flower's round failed: {done.stderr.strip()[-500:]}")
        return
    theirs = float(done.stdout.split()[-1])
    print(f"Flower's SuperLink, {agents} SuperNodes, median: {theirs:.3f} s")
    print(f"ratio {theirs / ours:.1f}×")


# --- measuring -----------------------------------------------------------------------------------


def _memory(pid: int, what: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(what):
            return 1024 * int(line.split()[1])
    raise ValueError(what)


def _peak(pid: int) -> int:
    return _memory(pid, "VmHWM")


def _size(size: int) -> str:
    return f"{size // MB} MB" if size >= MB else f"{size // 1000} kB"


class _quiet:
    """Processes started in this block do not write their logs to the terminal."""

    def __enter__(self) -> None:
        self._kept = os.dup(2)
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 2)

    def __exit__(self, *_: object) -> None:
        os.dup2(self._kept, 2)
        os.close(self._kept)


if __name__ == "__main__":
    main(sys.argv[1:])

"""Every kind of process of a federation dies by ``kill -9``, at random, while two jobs go on.

One job is driven by a program, the other managed: its learner is a process of the coordinator's.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fatal import Fragile

from solera.serve import audit, wire
from solera.serve.connection import CoordinatorError
from solera.serve.identity import Identity
from solera.serve.job_spec import parse_job

KINDS = ("coordinator", "agent", "worker", "learner", "driver")
MOST = {"worker": 2, "learner": 3}
"""Kills of one job: a worker that dies three times over one ask, and a learner that dies five times
in a row, have failed for good."""
JOB = """
federation = "cardio"
owner = "ana"
seed = 3
clients = 2
[learner]
kind = "FedLinear"
rounds = {rounds}
"""


class Storm:
    """Kills processes of a network, and remembers whom."""

    def __init__(self, network: Fragile, names: tuple[str, ...], seed: int) -> None:
        self.network, self.names = network, names
        self.chance = random.Random(seed)
        self.killed: Counter[str] = Counter()
        self.here: Counter[str] = Counter()
        self.left_behind: dict[int, str] = {}
        """Processes whose parent was killed: they must end."""

    def run(self, number: int, rounds: int, kills: int) -> tuple[bytes, bytes]:
        """Two jobs, until both have ended and so many kills have been; the models' bytes."""
        self.here.clear()
        out = self.network.learn(f"storm-{number}", rounds=rounds, often=bool(number % 2))
        job = f"managed-{number}"
        self.start(job, rounds)
        aim = self.killed.total() + kills
        end = time.monotonic() + 300 + 20 * kills
        model = None
        while model is None or self.network.lives["driver"].is_alive():
            assert time.monotonic() < end, f"the jobs do not end; killed: {self.killed}"
            time.sleep(self.chance.uniform(0.0, 0.6))
            if self.killed.total() < aim:
                self.kill(self._next_kind())
            elif model is None:
                model = self.model(job)
        assert self.network.lives["driver"].code == 0, self.said()
        return out.read_bytes(), model

    def _next_kind(self) -> str:
        """Any kind, every other time one that has not died yet: a short storm kills all of them."""
        spared = [kind for kind in KINDS if not self.killed[kind]]
        return self.chance.choice(spared if spared and self.chance.random() < 0.5 else KINDS)

    def said(self) -> str:
        return (self.network.folder / "driver.log").read_text()[-3000:]

    def start(self, job: str, rounds: int) -> None:
        driver = self.network.driver()
        try:
            text = JOB.format(rounds=rounds)
            described = parse_job(text, name=job).describe(text)
            blob = driver.upload(described.to_bytes())
            new = wire.NewJob.of(described, id=job, spec=blob)
            driver.request("POST", "/v1/federations/cardio/jobs", json=new)
        finally:
            driver.close()

    def model(self, job: str) -> bytes | None:
        """What a managed job has learned, once it has ended."""
        driver = self.network.driver()
        try:
            state = driver.call("GET", f"/v1/jobs/{job}", wire.Job)
            assert state.state not in ("failed", "expired", "cancelled"), state.reason
            if state.state != "finished":
                return None
            return driver.download(driver.call("GET", f"/v1/jobs/{job}/model", wire.Model).digest)
        except CoordinatorError:
            return None
        finally:
            driver.close()

    def kill(self, kind: str) -> None:
        """One process of a kind, if there is one."""
        name = self.chance.choice(self.names)
        key = f"{kind} of {name}" if kind == "worker" else kind
        if self.here[key] >= MOST.get(kind, 1000):
            return
        pid = self._pid(kind, name)
        if pid is None:
            return
        for child in children(pid):
            self.left_behind[child] = command(child)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            self.killed[kind] += 1
            self.here[key] += 1

    def _pid(self, kind: str, name: str) -> int | None:
        lives = self.network.lives
        parent = lives[{"worker": name, "agent": name, "driver": "driver"}.get(kind, "coordinator")]
        if not parent.is_alive() or not parent.process.is_alive():
            return None
        pid = parent.process.pid
        if kind in ("worker", "learner"):
            found = [c for c in children(pid) if kind == "worker" or "driver.managed" in command(c)]
            return found[0] if found else None
        return int(pid)

    # --- afterwards ---

    def check_nothing_is_left(self) -> None:
        """Whoever lost its parent has ended."""
        end = time.monotonic() + 600
        while left := [p for p, what in self.left_behind.items() if command(p) == what != ""]:
            assert time.monotonic() < end, f"left behind: {[command(pid) for pid in left]}"
            time.sleep(0.2)

    def check_logs(self) -> None:
        """Every signed log is whole; who writes meanwhile is waited for."""
        folder = self.network.folder
        homes = {folder / "coordinator" / "audit.log": folder / "coordinator" / "identity"}
        homes |= {folder / name / "audit.log": folder / name for name in self.names}
        for log, home in homes.items():
            key = Identity.load(home).sign_key
            wait_for(lambda log=log, key=key: audit.verify(log, key).ok, f"{log} is not whole")


def wait_for(condition: Callable[[], bool], why: str, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, why
        time.sleep(0.2)


def children(pid: int) -> list[int]:
    """Processes that a process has started, and that live."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, IndexError):
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
            if int(parent) == pid and state != "Z":
                found.append(int(path.parent.name))
    return sorted(found)


def command(pid: int) -> str:
    """The command of a process; empty if it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""

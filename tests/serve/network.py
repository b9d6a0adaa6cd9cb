"""A coordinator and agents as real processes on loopback, with TLS, to be killed at will.

Processes are forked from a server that has imported everything, so that a life costs little.
"""

from __future__ import annotations

import atexit
import json
import multiprocessing
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import solera as so
from solera.core.payload import encode
from solera.serve import tls, wire
from solera.serve.connection import Connection
from solera.serve.coordinator.run import driver_token
from solera.serve.description import Description
from solera.serve.driver.driven import connect
from solera.serve.driver.engine import HttpEngine

FORKS = multiprocessing.get_context("forkserver")
OURS = ("network", "solera.serve.coordinator.app", "solera.cli.app", "uvicorn", "httpx")
AT_WORK = ("pandas", "scipy.linalg", "sklearn.ensemble", "torch")
"""What agents' workers import."""
FORKS.set_forkserver_preload([*OURS, *AT_WORK])
COORDINATOR = """
import json, sys
from solera.serve.coordinator.run import serve
folder, host, port, certificate, key, *more = sys.argv[1:]
options = json.loads(more[0]) if more else {}
serve(folder, host=host, port=int(port), certificate=certificate, key=key, **options)
"""
AGENT = """
import sys
import solera as so
from solera.core.payload import decode
from solera.core.schema import Schema
from solera.serve.agent.agent import Agent
from solera.serve.agent.policy import OwnerPolicy
from solera.serve.agent.worker import Worker
folder, data, policy = sys.argv[1:]


def rows():
    held = decode(open(data, "rb").read())
    schema = Schema.from_payload(held["schema"])
    return so.data.FederatedData(held["X"], held["y"], held["offsets"], schema=schema)


agent = Agent(folder, Worker(rows), OwnerPolicy.read(policy))
agent.run(wait=5)
"""
POLICY = 'policy = "trusted"\n'
"""All that leaves is as it is: these tests are about the way, not about the policy."""


def free_port() -> int:
    """A port that is free, and that the system gives to no outgoing connection meanwhile."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = 20_000 + 1_500 * (worker % 8)  # no other worker takes one that is to be used again
    while True:
        port = first + secrets.randbelow(1_500)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Network:
    """One federation of real processes under a folder."""

    def __init__(
        self, folder: Path, federation: str = "cardio", *, host: str = "127.0.0.1"
    ) -> None:
        self.folder = folder
        self.federation = federation
        self.host, self.port = host, free_port()
        self.url = f"https://{host}:{self.port}"
        self.ca = str(tls.make_ca(folder / "tls"))
        self.certificate = tls.issue(folder / "tls", "coordinator", [host])
        self.agents: dict[str, Program | subprocess.Popen[bytes]] = {}
        self.coordinator: Program | subprocess.Popen[bytes] | None = None

    def start(self, **options: Any) -> None:
        """The coordinator, with these options of ``serve`` besides the usual ones."""
        self.coordinator = Program(COORDINATOR, *self.place, json.dumps(options))
        self.wait()

    @property
    def place(self) -> list[str]:
        """Where the coordinator lives and listens."""
        home = str(self.folder / "coordinator")
        return [home, self.host, str(self.port), *map(str, self.certificate)]

    def wait(self) -> None:
        """Until the coordinator can be reached."""
        deadline = time.monotonic() + 600
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                probe.settimeout(0.2)
                if probe.connect_ex((self.host, self.port)) == 0:
                    return
            time.sleep(0.05)
        raise TimeoutError("the coordinator did not start")

    @property
    def token(self) -> str:
        return driver_token(self.folder / "coordinator")

    def driver(self) -> Connection:
        headers = {"Authorization": f"Bearer {self.token}"}
        return Connection(self.url, lambda *_: headers, ca=self.ca, patience=120)

    def enrol(self, name: str) -> Path:
        """Invite a client and let it join; its folder."""
        from solera.serve.agent.agent import Agent

        path = f"/v1/federations/{self.federation}/invites"
        driver = self.driver()
        token = driver.request("POST", path, json={"name": name}).json()["token"]
        driver.close()
        home = self.folder / name
        Agent.join(home, self.url, token, ca=self.ca)
        return home

    def give(
        self, name: str, data: so.data.FederatedData, client: int, policy: str = POLICY
    ) -> None:
        """Put one client's rows and policy into its folder."""
        rows = data.segments(np.array([client]))[0]
        held = {"X": rows.X, "y": rows.y, "offsets": np.array([0, len(rows)])}
        frame = encode({**held, "schema": data.schema.to_payload()})
        (self.folder / f"{name}.rows").write_bytes(frame)
        (self.folder / f"{name}.toml").write_text(policy)

    def work(self, name: str) -> None:
        """Start (or restart) a client's agent."""
        files = [str(self.folder / f"{name}.{end}") for end in ("rows", "toml")]
        self.agents[name] = Program(AGENT, str(self.folder / name), *files)

    def contribute(self, name: str, job: str) -> int:
        """A client has something new to tell a standing job; the number of its contribution."""
        from solera.serve.agent.contributing import contribute

        return contribute(self.folder / name, job)

    def connect(self, job: str | None = None, seed: int = 0, **options: Any) -> so.Federation:
        place = {"federation": self.federation, "token": self.token, "ca": self.ca}
        return connect(self.url, **place, job=job, seed=seed, **options)

    def driven(self, job: str, *, owner: str = "", seed: int = 0) -> str:
        """Start a job; its hash."""
        description = Description(
            job=job,
            federation=self.federation,
            kind="driven",
            owner=owner,
            seed=seed,
        )
        driver = self.driver()
        new = wire.NewJob(job, "driven", driver.upload(description.to_bytes()), seed, owner)
        path = f"/v1/federations/{self.federation}/jobs"
        hash = driver.call("POST", path, wire.StartedJob, new).hash
        driver.close()
        return hash

    def drive(self, job: str, seed: int = 0) -> so.Federation:
        """A job that was started, to be asked like any federation."""
        return so.Federation(HttpEngine(self.driver(), job), seed=seed)

    def put_ask(
        self, job: str, sequence: int, task: str, payload: Any, clients: Sequence[int] = (0,)
    ) -> None:
        """Ask clients as a driver does that is moved by hand."""
        driver = self.driver()
        blob = driver.upload(encode(payload))
        ask = wire.NewAsk(task=task, version=1, payload=blob, round=0, clients=list(clients))
        driver.request("PUT", f"/v1/jobs/{job}/asks/{sequence}", json=ask)
        driver.close()

    def replies(self, job: str, sequence: int) -> list[wire.Reply]:
        """Who has answered so far, and what."""
        driver = self.driver()
        path = f"/v1/jobs/{job}/asks/{sequence}/replies"
        replies = driver.call("GET", path, wire.Replies).replies
        driver.close()
        return replies

    def close(self) -> None:
        for process in (*self.agents.values(), self.coordinator):
            if process is not None:
                kill(process)


class Program:
    """A running ``python -c program arguments``."""

    def __init__(self, program: str, *arguments: str) -> None:
        start_fork_server()
        self._process = FORKS.Process(target=_run, args=(program, arguments, dict(os.environ)))
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid
        atexit.register(kill, self)

    def poll(self) -> int | None:
        """How it ended, if it did."""
        return self._process.exitcode

    def wait(self) -> None:
        self._process.join()


def _run(program: str, arguments: Sequence[str], environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["-c", *arguments]
    exec(program, {"__name__": "__main__"})


def start_fork_server() -> None:
    """Must find this module without having been told, which only the environment can do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        forkserver.ensure_running()


def kill(process: Program | subprocess.Popen[bytes]) -> None:
    """kill -9, as a power cut would."""
    if process.poll() is None:
        os.kill(process.pid, signal.SIGKILL)
    process.wait()

"""Processes that die by ``kill -9`` at a chosen step of the protocol, and are started again.

The steps are calls of the product's own functions, wrapped in the process that shall die; the
product knows nothing of it.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from network import FORKS, POLICY, Network, start_fork_server

import solera as so
from solera.core.aggregation import Mean
from solera.core.component import describe_fitted
from solera.core.payload import decode, encode
from solera.core.private_files import write_file
from solera.core.schema import Schema
from solera.core.task import task
from solera.learn.base import Learner
from solera.serve import connection
from solera.serve.agent.agent import Agent
from solera.serve.agent.policy import OwnerPolicy
from solera.serve.agent.worker import Worker
from solera.serve.coordinator.run import serve
from solera.serve.coordinator.store.blobs import Blobs
from solera.serve.driver import engine as http
from solera.serve.driver.driven import connect

WIDTH = 150_000
"""Numbers in an ask and in a reply: more than 1 MB, two pieces of an upload."""

# --- what is learned -----------------------------------------------------------------------------


@task("chaos.walk")
def walk(client: Any, ask: Any) -> dict[str, Any]:
    """A step away from where all are; a client that makes one twice arrives elsewhere."""
    steps = 1 if ask["round"] == 0 else client.state["steps"] + 1
    client.state["steps"] = steps
    return {"at": 0.5 * ask["at"] + client.rng.normal(size=WIDTH) + steps * client.data.X.mean()}


class Walk(Learner):
    """Walks on from the mean of where the clients went."""

    def __init__(self, *, rounds: int = 6) -> None:
        self.rounds = rounds

    def train(self, federation: so.Federation) -> None:
        self.at_ = np.zeros(WIDTH)
        for r in self.each_round(federation, rounds=self.rounds):
            self.at_ = r.ask(walk, {"at": self.at_, "round": r.index}).fold(Mean())["at"]


# --- where processes die -------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """Around the first call of a function for which ``only`` holds."""

    where: str
    when: Literal["before", "after"]
    only: Callable[..., bool] = lambda *_, **__: True


def _first_piece(_: Any, digest: str, offset: int, chunk: bytes, owner: str) -> bool:
    return offset == 0


def _next_piece(_: Any, digest: str, offset: int, chunk: bytes, owner: str) -> bool:
    return offset > 0


def _sent(method: str, part: str) -> Callable[..., bool]:
    return lambda _, verb, path, **__: verb == method and part in path


def _later_piece(_: Any, method: str, path: str, **__: Any) -> bool:
    return method == "PUT" and "/uploads/" in path and not path.endswith("offset=0")


def _walked(*arguments: Any, **_: Any) -> bool:
    return any("chaos.walk" in str(a) for a in arguments)


_STORE = "solera.serve.coordinator.store"
_ASKS, _BLOBS, _JOBS = f"{_STORE}.asks:", f"{_STORE}.blobs:Blobs.", f"{_STORE}.jobs:"
_REPLIES = f"{_STORE}.replies:"
_KEPT = "solera.serve.driver.engine:CoordinatorCheckpointStore."
_REQUEST, _APPEND = "solera.serve.connection:Connection.request", _BLOBS + "append"
COORDINATOR: dict[str, Step] = {
    "ask half uploaded": Step(_APPEND, "before", _next_piece),
    "ask uploaded but for the end": Step(_APPEND, "after", _next_piece),
    "ask uploaded, unchecked": Step(_BLOBS + "finish", "before"),
    "ask uploaded, not acknowledged": Step(_BLOBS + "finish", "after"),
    "ask not stored": Step(_ASKS + "Asks.add_ask", "before", _walked),
    "ask not committed": Step(_ASKS + "insert_ask", "after"),
    "ask stored, not acknowledged": Step(_ASKS + "Asks.add_ask", "after", _walked),
    "ask half fetched": Step(
        "solera.serve.coordinator.routes.blobs:_range", "after", lambda h: "=0-" not in h
    ),
    "first piece of a reply": Step(_APPEND, "after", _first_piece),
    "reply half uploaded": Step(_APPEND, "before", _next_piece),
    "reply uploaded but for the end": Step(_APPEND, "after", _next_piece),
    "reply not stored": Step(_REPLIES + "Replies.add_replies", "before"),
    "reply stored, not acknowledged": Step(_REPLIES + "Replies.add_replies", "after"),
    "checkpoint not stored": Step(_JOBS + "Jobs.save_checkpoint", "before"),
    "checkpoint not committed": Step(_JOBS + "_prune", "after"),
    "checkpoint stored": Step(_JOBS + "Jobs.save_checkpoint", "after"),
    "events not signed": Step("solera.serve.audit:AuditLog.extend", "before"),
    "events half signed": Step("solera.serve.audit:AuditLog._write", "after"),
    "events signed, not deleted": Step("solera.serve.audit:AuditLog.extend", "after"),
}
AGENT: dict[str, Step] = {
    "task not run": Step("solera.serve.agent.worker:Worker.run", "before", _walked),
    "task run, not remembered": Step("solera.serve.agent.worker:Worker.run", "after", _walked),
    "remembered, not logged": Step("solera.serve.audit:AuditLog.append", "before"),
    "logged, not sent": Step("solera.serve.audit:AuditLog.append", "after"),
    "reply half uploaded": Step(_REQUEST, "before", _later_piece),
    "reply uploaded but for the end": Step(_REQUEST, "after", _later_piece),
    "reply uploaded, not sent": Step(_REQUEST, "before", _sent("POST", "/reply")),
    "reply sent": Step(_REQUEST, "after", _sent("POST", "/reply")),
}
DRIVER: dict[str, Step] = {
    "ask half uploaded": Step(_REQUEST, "before", _later_piece),
    "ask uploaded but for the end": Step(_REQUEST, "after", _later_piece),
    "not asked": Step(_REQUEST, "before", _sent("PUT", "/asks/1")),
    "asked": Step(_REQUEST, "after", _sent("PUT", "/asks/2")),
    "not folded": Step("solera.core.federation:Replies.fold", "before"),
    "folded": Step("solera.core.federation:Replies.fold", "after"),
    "state kept nowhere": Step(_KEPT + "save", "before"),
    "state uploaded": Step(_REQUEST, "before", _sent("PUT", "/checkpoint")),
    "between rounds": Step("solera.core.rounds:Rounds._finish", "after"),
}
STEPS = {"coordinator": COORDINATOR, "agent": AGENT, "driver": DRIVER}


def arm(step: Step, died: Callable[[], None]) -> None:
    """Let this process die at a step, once ``died`` has been told."""
    module, _, name = step.where.partition(":")
    owner: Any = importlib.import_module(module)
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    real = getattr(owner, last)
    once = itertools.count()

    @functools.wraps(real)
    def deadly(*arguments: Any, **options: Any) -> Any:
        now = step.only(*arguments, **options) and next(once) == 0
        if now and step.when == "before":
            die()
        result = real(*arguments, **options)
        if now:
            die()
        return result

    def die() -> None:
        died()
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, last, deadly)


def live(role: str, step: str | None, diary: Path, arguments: Sequence[Any]) -> None:
    """A process from its beginning to its end; what it says goes to a file beside the diary."""
    connection.LONGEST_PAUSE = 0.1  # who is away comes back at once
    said = os.open(diary.with_name(f"{role}.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(said, 2)
    if step is not None:

        def died() -> None:
            with diary.open("a") as file:
                file.write(f"{role}: {step}\n")

        arm(STEPS[role][step], died)
    {"coordinator": coordinate, "agent": work, "driver": drive}[role](*arguments)


def coordinate(
    folder: str, port: int, certificate: str, key: str, database: str | None, workers: int
) -> None:
    own = {"certificate": certificate, "key": key, "database": database, "workers": workers}
    serve(folder, port=port, **own)


def work(folder: str, rows: str, policy: str) -> None:
    held = decode(Path(rows).read_bytes())
    schema = Schema.from_payload(held["schema"])
    data = so.data.FederatedData(held["X"], held["y"], held["offsets"], schema=schema)
    Agent(folder, Worker(data, begin=False), OwnerPolicy.read(policy)).run(wait=5)


def drive(url: str, token: str, ca: str, job: str, rounds: int, often: bool, out: str) -> None:
    """Learn, and write the model's bytes to a file; ``often`` keeps the state after every round."""
    http.SAVE_SECONDS = 0.0 if often else 3600.0
    federation = connect(url, federation="cardio", token=token, ca=ca, job=job, seed=3)
    model = Walk(rounds=rounds).fit(federation)
    write_file(Path(out), encode(describe_fitted(model)), 0o600, overwrite=True)


# --- lives ---------------------------------------------------------------------------------------


class Lives(threading.Thread):
    """One process after the other, each to die at the next of some steps; the last one stays."""

    def __init__(
        self, role: str, arguments: Sequence[Any], diary: Path, steps: Sequence[str] = ()
    ) -> None:
        super().__init__(daemon=True)
        self.role, self.arguments, self.diary = role, arguments, diary
        self.steps = list(steps)
        self.deaths = 0
        self.code: int | None = None
        self._over = False
        self._begin()
        self.start()

    def _begin(self) -> None:
        step = self.steps.pop(0) if self.steps else None
        told = (self.role, step, self.diary, self.arguments)
        process = FORKS.Process(target=live, args=told)
        process.start()
        self.process = process  # only now can it be killed

    def run(self) -> None:
        while True:
            self.process.join()
            self.code = self.process.exitcode
            if self._over or self.code in (0, 1):  # it came to an end of its own
                return
            self.deaths += 1
            self._begin()

    def kill(self) -> None:
        """kill -9, as a power cut would; it is started again."""
        self.process.kill()

    def end(self) -> None:
        self._over = True
        while self.is_alive():
            self.process.kill()
            self.join(0.2)


class Fragile(Network):
    """A coordinator and agents that die where the test says."""

    def __init__(self, folder: Path, database: str | None = None, workers: int = 1) -> None:
        super().__init__(folder)
        start_fork_server()
        self.workers = workers
        self.database = database
        self.diary = folder / "diary"
        self.lives: dict[str, Lives] = {}

    def start(self, steps: Sequence[str] = ()) -> None:
        """The coordinator, from now on to die at these steps."""
        home = str(self.folder / "coordinator")
        arguments = (home, self.port, *map(str, self.certificate), self.database, self.workers)
        self._live("coordinator", "coordinator", arguments, steps)
        self.wait()

    def work(self, name: str, steps: Sequence[str] = ()) -> None:
        """A client's agent, from now on to die at these steps."""
        files = [str(self.folder / f"{name}.{end}") for end in ("rows", "toml")]
        self._live(name, "agent", (str(self.folder / name), *files), steps)

    def _live(self, name: str, role: str, arguments: Any, steps: Sequence[str]) -> None:
        if name in self.lives:
            self.lives[name].end()
        self.lives[name] = Lives(role, arguments, self.diary, steps)

    def learn(
        self, job: str, *, rounds: int, often: bool = False, steps: Sequence[str] = ()
    ) -> Path:
        """Start a driver that learns; the file in which its model will be.

        Blobs of earlier jobs are deleted: they are the same, and would not be sent again.
        """
        Blobs(self.folder / "coordinator" / "blobs").collect(set(), grace=-1)
        out = self.folder / f"{job}.model"
        told = (self.url, self.token, self.ca, job, rounds, often, str(out))
        self._live("driver", "driver", told, steps)
        return out

    def learned(self, job: str, *, seconds: float = 600, **options: Any) -> bytes:
        """What a driver learns, however often it dies."""
        out = self.learn(job, **options)
        self.lives["driver"].join(seconds)
        said = (self.folder / "driver.log").read_text()
        assert self.lives["driver"].code == 0, said[-2000:]
        return out.read_bytes()

    def staff(self, names: Sequence[str], data: so.data.FederatedData) -> None:
        for k, name in enumerate(names):
            self.enrol(name)
            self.give(name, data, k, POLICY)
            self.work(name)

    def close(self) -> None:
        for lives in self.lives.values():
            lives.end()

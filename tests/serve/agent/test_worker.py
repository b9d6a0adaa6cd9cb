"""Tasks run in a process of their own, within limits, and nothing they do hangs the owner."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import solera as so
from solera.core.engine import Ask, Preparation
from solera.core.errors import DataError, Refusal, UsageError
from solera.core.payload import decode, encode
from solera.core.task import find_task, task
from solera.engines.local import LocalEngine
from solera.serve.agent.task_process import Guard
from solera.serve.agent.worker import Worker, WorkerLimits
from solera.trust.policy import Policy

CLIENT = 2


@task("worker.pid")
def pid(client, ask):
    return {"pid": os.getpid(), "rows": len(client.data), "id": client.id}


@task("worker.count")
def count(client, ask):
    client.state["times"] = client.state.get("times", 0) + 1
    client.state["seen"] = np.append(client.state.get("seen", np.zeros(0)), ask["x"])
    if ask.get("fail"):
        raise ValueError("after a change of state")
    return {"times": client.state["times"]}


@task("worker.decline")
def decline(client, ask):
    raise Refusal("not on these rows")


@task("worker.fail")
def fail(client, ask):
    return 1 / 0


@task("worker.loop")
def loop(client, ask):
    while True:
        pass


@task("worker.brood")
def brood(client, ask):
    """Leaves a process behind that holds on to everything it inherited."""
    if os.fork() == 0:
        time.sleep(600)
        os._exit(0)
    os._exit(3)


@task("worker.hog")
def hog(client, ask):
    return {"sum": float(np.ones(1 << 28).sum())}


@task("worker.nibble")
def nibble(client, ask):
    kept = []
    while True:
        kept.append("x" * 100_000 + str(len(kept)))


@task("worker.die")
def die(client, ask):
    if "code" in ask:
        os._exit(ask["code"])
    os.kill(os.getpid(), ask["signal"])
    time.sleep(600)


@task("worker.object")
def unsendable(client, ask):
    return {"it": object()}


@task("worker.mute")
def mute(client, ask):
    """Closes every file there is, the wire among them, and lives on."""
    os.closerange(3, 256)
    time.sleep(600)


def alive():
    """The session of every process that runs, by its number."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
            if state != "Z":
                found[int(stat.parent.name)] = int(session)
    return found


linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


def ask(name, payload=None, *, version=None, **options):
    chosen = np.array([CLIENT], dtype=np.int64)
    version = version or find_task(name).version
    return Ask(name, version, payload, chosen, options.pop("seed", 7), **options)


@pytest.fixture(scope="module")
def data():
    X, y, *_ = so.datasets.digits()
    return so.simulate(X, y, clients=3, seed=1).engine.source


@pytest.fixture(scope="module")
def own(data):
    """The rows of one of the clients, as its owner has them."""
    rows = slice(*data.offsets[CLIENT : CLIENT + 2])
    X, y = data.X[rows], data.y[rows]
    return so.data.FederatedData(X, y, np.array([0, len(X)]), schema=data.schema)


struck = []
os.register_at_fork(after_in_parent=lambda: struck and signal.raise_signal(struck.pop()))


def test_an_interrupt_in_the_middle_of_a_fork_is_not_lost(own):
    struck.append(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        Worker(own)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with Worker(own) as worker:
        assert worker.rows == len(own.X)


@pytest.fixture(scope="module")
def worker(own):
    with Worker(own, WorkerLimits(seconds=120, memory_bytes=400 << 20)) as worker:
        yield worker


class Recorder(LocalEngine):
    """Keeps what was asked and what the client answered alone."""

    def __init__(self, source):
        super().__init__(source)
        self.heard = []

    def run(self, asked, aggregation):
        alone = np.array([CLIENT])
        block = self._runner.block(asked, alone, dict(self._states_of(asked.fit)), None)
        self.heard.append((asked, encode(block.batch.payloads[0])))
        return super().run(asked, aggregation)


@pytest.mark.parametrize(
    "learn",
    [
        lambda fed: so.FedLinear(rounds=3).fit(fed),
        lambda fed: so.FedHEONN().fit(fed),
        lambda fed: so.Pipeline(so.FedScaler(), so.FedLinear(rounds=2)).fit(fed),
        lambda fed: fed.ask("data.describe").collect(),
    ],
    ids=["linear", "heonn", "pipeline", "describe"],
)
def test_replies_are_those_of_the_local_engine(learn, data, worker):
    engine = Recorder(data)
    learn(so.Federation(engine, seed=5))
    assert engine.heard
    for asked, reply in engine.heard:
        outcome = worker.run(asked, CLIENT, {})
        assert (outcome.kind, outcome.reason) == ("replied", "")
        assert outcome.reply == reply


def test_one_process_serves_many_tasks_and_knows_its_rows(worker, own):
    answers = [decode(worker.run(ask("worker.pid"), n, {}).reply) for n in range(20)]
    assert len({answer["pid"] for answer in answers}) == 1
    assert answers[0]["pid"] != os.getpid()
    assert [answer["id"] for answer in answers] == list(range(20))
    assert worker.rows == answers[0]["rows"] == len(own.X)


def test_each_client_gets_its_own_payload(worker):
    mine = so.messages.PerClient({CLIENT: {"x": 1.0}, 1: {"x": object()}})
    assert worker.run(ask("worker.count", mine), CLIENT, {}).kind == "replied"


def test_state_is_kept_by_the_caller(worker):
    state = {}
    for n in range(3):
        outcome = worker.run(ask("worker.count", {"x": float(n)}), CLIENT, state)
        state = outcome.state
        assert decode(outcome.reply) == {"times": n + 1}
    assert state["seen"].tolist() == [0.0, 1.0, 2.0]
    failed = worker.run(ask("worker.count", {"x": 9.0, "fail": True}), CLIENT, state)
    assert failed.kind == "failed"
    assert failed.state["times"] == 3


@pytest.mark.parametrize(
    ("asked", "kind", "reason"),
    [
        (ask("worker.decline"), "refused", "declined: "),
        (ask("worker.fail"), "failed", "arithmetic: "),
        (ask("worker.object"), "failed", "payload: "),
        (ask("worker.none", version=1), "failed", "unknown-task: "),
        (ask("worker.pid", version=2), "failed", "task-version: "),
        (ask("worker.pid", object()), "failed", "payload: "),
        (
            ask("worker.pid", prepare=(Preparation({"made": {"$component": "No"}}, ""),)),
            "failed",
            "usage: ",
        ),
    ],
)
def test_what_goes_wrong_is_said(worker, asked, kind, reason):
    outcome = worker.run(asked, CLIENT, {"a": 1})
    assert outcome.kind == kind
    assert outcome.reason.startswith(reason)
    assert outcome.reply is None
    assert outcome.state == {"a": 1}
    assert worker.run(ask("worker.pid"), CLIENT, {}).kind == "replied"


@pytest.mark.parametrize(
    ("name", "limits", "said"),
    [
        (
            "worker.loop",
            WorkerLimits(seconds=0.5),
            ("late", "the task took longer than 0.5 s"),
        ),
        ("worker.mute", WorkerLimits(), ("crashed", "its process stopped listening")),
    ],
)
def test_an_endless_task_is_stopped_in_time(own, name, limits, said):
    with Worker(own) as worker:
        patient = worker.limits  # for tasks that end: a busy machine takes its time over them too
        before = decode(worker.run(ask("worker.pid"), 0, {}).reply)["pid"]
        worker.limits = limits
        began = time.monotonic()
        outcome = worker.run(ask(name), CLIENT, {"a": 1})
        assert time.monotonic() - began < 500, "it lasts ten minutes or more"
        assert (outcome.kind, outcome.reason) == said
        assert outcome.state == {"a": 1}
        with pytest.raises(ProcessLookupError):
            os.kill(before, 0)
        worker.limits = patient
        assert decode(worker.run(ask("worker.pid"), 0, {}).reply)["pid"] != before


def test_the_deadline_of_the_ask_counts_too(own):
    with Worker(own) as worker:
        outcome = worker.run(ask("worker.loop", deadline=0.3), CLIENT, {})
    assert (outcome.kind, outcome.reason) == ("late", "the task took longer than 0.3 s")


@pytest.mark.parametrize(
    "asked",
    [ask("worker.hog"), ask("worker.nibble"), ask("worker.pid", np.zeros(1 << 26))],
    ids=["at once", "bit by bit", "by the ask"],
)
def test_a_memory_hog_is_stopped(worker, asked):
    outcome = worker.run(asked, CLIENT, {})
    assert outcome.kind == "crashed"
    assert outcome.reason == "the task used more than 419,430,400 bytes of memory"
    assert worker.run(ask("worker.pid"), CLIENT, {}).kind == "replied"


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ({"code": 3}, "its process ended with exit code 3"),
        ({"signal": int(signal.SIGTERM)}, "its process was ended by SIGTERM"),
        ({"signal": int(signal.SIGKILL)}, "killed (SIGKILL), as a system does that runs out of"),
    ],
)
def test_a_task_that_ends_its_process(worker, payload, reason):
    outcome = worker.run(ask("worker.die", payload), CLIENT, {})
    assert outcome.kind == "crashed"
    assert reason in outcome.reason
    assert worker.run(ask("worker.pid"), CLIENT, {}).kind == "replied"


@linux
def test_a_process_left_behind_is_ended_too(own):
    with Worker(own) as worker:
        group = decode(worker.run(ask("worker.pid"), 0, {}).reply)["pid"]
        assert group in alive().values()
        worker.limits = WorkerLimits(seconds=1)
        began = time.monotonic()
        assert worker.run(ask("worker.brood"), CLIENT, {}).kind in ("late", "crashed")
        assert time.monotonic() - began < 500, "it lasts ten minutes or more"
        while group in alive().values():
            assert time.monotonic() - began < 590
            time.sleep(0.05)


def test_the_process_ignores_interrupts(worker):
    number = decode(worker.run(ask("worker.pid"), 0, {}).reply)["pid"]
    os.kill(number, signal.SIGINT)
    assert decode(worker.run(ask("worker.pid"), 0, {}).reply)["pid"] == number


def test_an_interrupted_wait_does_not_mix_up_answers(own, monkeypatch):
    def interrupted(deadline):
        raise KeyboardInterrupt

    with Worker(own) as worker:
        monkeypatch.setattr(worker._channel, "receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            worker.run(ask("worker.count", {"x": 1.0}), CLIENT, {})
        assert "pid" in decode(worker.run(ask("worker.pid"), CLIENT, {}).reply)


ORPHANS = """
import os, sys, numpy as np, solera as so
from solera.serve.agent.worker import Worker
data = so.data.FederatedData(np.eye(4), None, np.array([0, 4]))
workers = [Worker(data) for _ in range(3)]
print(*(worker._child.process.pid for worker in workers), flush=True)
os.kill(os.getpid(), 9)
"""


@linux
def test_no_process_outlives_an_owner_that_is_killed():
    done = subprocess.run([sys.executable, "-c", ORPHANS], capture_output=True, timeout=300)
    left = {int(number) for number in done.stdout.split()}
    assert len(left) == 3
    latest = time.monotonic() + 600
    while alive().keys() & left and time.monotonic() < latest:
        time.sleep(0.05)
    assert not alive().keys() & left


def read_rows(rows=10):
    return so.data.FederatedData(np.eye(rows), np.arange(rows), np.array([0, rows]))


def read_nothing():
    raise DataError("the file is gone")


def test_the_process_reads_the_rows_itself():
    with Worker(functools.partial(read_rows, 4)) as worker:
        assert worker.rows == 4
        worker._source = read_nothing
        worker.run(ask("worker.die", {"code": 1}), CLIENT, {})
        with pytest.raises(DataError, match="the file is gone"):
            worker.run(ask("worker.pid"), CLIENT, {})
    with pytest.raises(DataError, match="the file is gone"):
        Worker(read_nothing)


def test_where_nobody_may_ask_no_rows_are_read_for_it(own):
    with Worker(read_nothing, guard=Guard(Policy.of("sums"))) as worker:
        outcome = worker.run(ask("worker.pid"), CLIENT, {"times": 1})
        assert (outcome.kind, outcome.state) == ("refused", {"times": 1})
        assert "answer no open ask" in outcome.reason
        worker.read(own)
        worker.change(Guard(Policy.of("trusted")))
        reply = worker.run(ask("worker.pid"), CLIENT, {}).reply
        assert decode(reply)["rows"] == len(own.X)


def test_a_process_can_be_spawned(own):
    with Worker(own, start="spawn") as worker:
        outcome = worker.run(ask("data.describe"), CLIENT, {})
    assert decode(outcome.reply)["rows"] == len(own.X)


def test_wrong_data_and_limits():
    with pytest.raises(DataError, match="of 2 clients"):
        Worker(so.data.FederatedData(np.eye(4), None, np.array([0, 2, 4])))
    with pytest.raises(UsageError, match="seconds must be > 0"):
        WorkerLimits(seconds=0)


@task("worker.quote_kind")
def quote_kind(client, ask):
    kinds = (DataError, Refusal, UsageError, ValueError, KeyError, so.errors.SchemaError)
    kind = kinds[ask["kind"]]
    raise kind(f"column 'x3' holds {client.data.X[0, 0]!r}: 'secret-{client.data.y[0]}', 'x99'")


@pytest.mark.parametrize("kind", range(6))
def test_the_text_of_an_error_stays_and_its_code_leaves(worker, kind):
    outcome = worker.run(ask("worker.quote_kind", {"kind": kind}), CLIENT, {})
    assert outcome.reason.endswith("(task worker.quote_kind, 64 columns, column 'x3')")
    assert "holds" not in outcome.reason
    assert "secret" not in outcome.reason

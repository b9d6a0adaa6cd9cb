"""Ray: the bytes of worker processes, workers that die, tasks that only the driver has."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import threading
from multiprocessing.shared_memory import SharedMemory

import numpy as np
import pytest

import solera as so
from solera.core.component import describe_fitted
from solera.core.payload import encode
from solera.core.task import _tasks
from solera.engines import frames

ray = pytest.importorskip("ray")

from solera.engines.ray import _room  # noqa: E402

X = np.arange(400.0).reshape(200, 2)


@pytest.fixture(scope="module")
def cluster():
    """One Ray for all tests: starting it takes seconds."""
    ray.init(
        address="local",
        num_cpus=3,  # two federations at a time; as many processes start at once
        object_store_memory=80 << 20,
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
    )
    yield
    ray.shutdown()


@so.task("test.ray-rows-and-pid")
def rows_and_pid(client, ask):
    return {"rows": len(client.data), "pid": os.getpid()}


@so.task("test.ray-dies-once")
def dies_once(client, ask):
    """Takes its worker down, unless somebody did before."""
    if client.id == ask["victim"] and not os.path.exists(ask["mark"]):
        with open(ask["mark"], "w"):
            pass
        os.kill(os.getpid(), signal.SIGKILL)
    client.state["asked"] = client.state.get("asked", 0) + 1
    return {"rows": len(client.data), "asked": client.state["asked"]}


@so.task("test.ray-dies")
def dies(client, ask):
    if client.id == ask["victim"]:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"rows": len(client.data)}


OWN_TASKS = """
import solera as so

TWICE = 2

@so.task("test.ray-own")
def own(client, ask):
    return {"rows": TWICE * len(client.data)}
"""


class LastOfFive(so.aggregations.Aggregation):
    """An aggregation that no installed package brings along."""

    def lift(self, reply):
        return {"rows": reply["rows"]}

    def combine(self, a, b):
        return {"rows": (a["rows"] + b["rows"]) % 1_000_000}


@pytest.fixture(scope="module")
def fed(cluster):
    """One federation for most tests: workers take seconds, too."""
    with so.simulate(X, clients=100, engine="ray", workers=2) as federation:
        yield federation


def test_workers_stay_and_know_what_the_driver_defines(fed):
    pids = [{r["pid"] for r in fed.ask("test.ray-rows-and-pid")} for _ in range(2)]
    assert len(pids[0]) == 2
    assert pids[0] == pids[1]
    assert os.getpid() not in pids[0]
    assert fed.ask("test.ray-rows-and-pid").fold(LastOfFive())["rows"] == 200


def test_a_dead_worker_is_replaced_and_the_ask_goes_on(fed, tmp_path):
    fed.ask("test.ray-dies-once", {"victim": -1, "mark": ""}).collect()
    replies = fed.ask("test.ray-dies-once", {"victim": 50, "mark": str(tmp_path / "mark")})
    total = replies.fold(so.aggregations.Sum())
    assert not replies.failures
    assert total == {"rows": 200, "asked": 200}  # no state is lost, none is counted twice
    assert (tmp_path / "mark").exists()


@pytest.mark.slow
def test_a_block_that_kills_every_worker_fails_alone(fed):
    replies = fed.ask("test.ray-dies", {"victim": 50})
    assert replies.fold(so.aggregations.Sum())["rows"] == 2 * (100 - len(replies.failures))
    assert 50 in [f.client for f in replies.failures]
    assert len(replies.failures) <= 13
    assert all("died 3 times" in f.reason for f in replies.failures)
    assert fed.ask("test.ray-dies", {"victim": -1}).fold(so.aggregations.Sum())["rows"] == 200


@so.task("test.ray-long")
def long(client, ask):
    return {"sums": np.full(30_000, client.id + ask["shift"][0])}


def test_answers_lie_in_shared_memory_where_workers_can_open_it(fed, monkeypatch):
    """And come through Ray where not; either way the same."""
    engine = fed.engine
    totals = []

    def ask(shift):
        asked = fed.ask("test.ray-long", {"shift": np.full(30_000, shift)})
        return asked.fold(so.aggregations.Sum())["sums"].tolist()

    def rooms():
        return [room for worker in engine._actors for room in worker.rooms]

    totals += [ask(1.0), ask(1.0)]  # the first finds out how much room is needed
    assert all(worker.near for worker in engine._actors)
    largest = max(rooms(), key=lambda room: room.size)
    assert largest.size > 200_000
    frame = bytes(largest.memory.buf)
    totals.append(ask(2.0))
    assert bytes(largest.memory.buf) != frame
    names = [room.name for room in rooms()]
    with monkeypatch.context() as patch:
        patch.setattr(frames, "_allocate", unseen)
        engine._asks.close(remove=True)
        for worker in engine._actors:  # as new workers of another machine are
            worker.close()
            worker.near = False
            worker.rooms += [_room() for _ in range(2)]
        totals.append(ask(1.0))
        assert not any(worker.near for worker in engine._actors)
        assert not rooms()
        totals.append(ask(2.0))
    assert totals[0] == totals[1] == totals[3] == [5050.0] * 30_000
    assert totals[2] == totals[4] == [5150.0] * 30_000
    for name in names:
        with pytest.raises(FileNotFoundError):
            SharedMemory(name)
    for worker in engine._actors:
        worker.rooms += [_room() for _ in range(2)]
    assert ask(1.0) == totals[0]
    assert all(worker.near for worker in engine._actors)
    with monkeypatch.context() as patch:
        patch.setattr(frames, "_allocate", full)
        engine._asks.close(remove=True)
        assert ask(2.0) == totals[2]
    for worker in engine._actors:
        worker.rooms += [_room() for _ in range(2)]


def full(size):
    raise so.errors.SoleraError("no shared memory is left")


def unseen(size):
    """Shared memory that no other process can open."""
    memory = SharedMemory(create=True, size=size)
    memory.unlink()
    return memory


GUEST = """
import sys
from solera.engines.frames import Frames
frames = Frames(guest=True)
frames.attach(sys.argv[1])
frames.fill([b"answer"])
"""


def test_memory_stays_when_a_guest_ends():
    """Python's tracker of shared memory would remove it with the process that opened it last."""
    room = _room()
    try:
        command = [sys.executable, "-c", GUEST, room.name]
        told = subprocess.run(command, capture_output=True, text=True, check=True)
        assert told.stderr == ""  # read to its end: the guest's tracker has ended, too
        assert frames.Frames().read([room.name, 6, 1]) == b"answer"
    finally:
        room.close(remove=True)


def test_same_bytes_as_processes(cluster):
    Xd, yd, *_ = so.datasets.digits()
    Xd, yd = Xd[:600, 10:30], yd[:600]
    learners = [so.FedLinear(rounds=2), so.FedHistGBDT(rounds=2), so.FedKMeans(3, rounds=2)]
    fitted = []
    for engine, workers in (("ray", 1), ("processes", 2)):
        with so.simulate(Xd, yd, clients=12, seed=1, engine=engine, workers=workers) as federation:
            models = [learner.clone().fit(federation) for learner in learners]
        fitted.append([encode(describe_fitted(model)) for model in models])
    assert fitted[0] == fitted[1]


def test_rows_in_files_are_read_by_the_workers(cluster, tmp_path, monkeypatch):
    pandas = pytest.importorskip("pandas")
    from solera.data.table_files import TableFile

    frame = pandas.DataFrame({"x": np.arange(60.0), "y": np.arange(60) % 2})
    for k in range(6):
        frame[10 * k : 10 * k + 10].to_csv(tmp_path / f"{k}.csv", index=False)
    source = so.from_files(str(tmp_path / "*.csv"), target="y")

    def unread(self, columns):
        raise AssertionError("the driver reads rows")

    monkeypatch.setattr(TableFile, "read", unread)
    with so.simulate(source, engine="ray", workers=1) as fed:
        assert so.FedHEONN().fit(fed).schema_.classes.tolist() == [0, 1]


def test_an_error_of_a_task_names_it(fed):
    with pytest.raises(so.errors.SoleraError, match=r"test\.ray-dies"):
        fed.ask("test.ray-dies", {}).fold(so.aggregations.Sum())


def test_modules_that_only_the_driver_finds_are_found_by_the_workers(fed, tmp_path, monkeypatch):
    """As in worker processes that are forked; what cannot travel keeps nothing else back."""
    (tmp_path / "ray_own_tasks.py").write_text(OWN_TASKS)
    monkeypatch.syspath_prepend(tmp_path)
    own = importlib.import_module("ray_own_tasks")
    lock = threading.Lock()

    @so.task("test.ray-locked")
    def locked(client, ask):
        return {"locked": lock.locked()}

    try:
        assert fed.ask("test.ray-own").fold(so.aggregations.Sum()) == {"rows": own.TWICE * 200}
        with pytest.raises(so.errors.TaskError, match=r"no task 'test\.ray-locked'.*cannot pickle"):
            fed.ask("test.ray-locked").collect()
    finally:
        for name in ("test.ray-own", "test.ray-locked"):
            del _tasks[name]
        del sys.modules["ray_own_tasks"]

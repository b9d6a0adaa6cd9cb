"""Ray: the bytes of worker processes, workers that die, tasks that only the driver has."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading

import numpy as np
import pytest

import solera as so
from solera.core.component import describe_fitted
from solera.core.payload import encode
from solera.core.task import _tasks

ray = pytest.importorskip("ray")

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

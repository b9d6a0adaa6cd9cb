"""Worker processes: dead ones, late tasks, states, spawn, and no traces left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import solera as so
from solera.engines import processes
from solera.engines.processes import ProcessEngine

X = np.arange(400.0).reshape(200, 2)


@so.task("test.rows-and-pid")
def rows_and_pid(client, ask):
    return {"rows": len(client.data), "pid": os.getpid()}


@so.task("test.suicide")
def suicide(client, ask):
    if client.id == ask["victim"]:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"rows": len(client.data)}


@so.task("test.big")
def big(client, ask):
    return {"echo": ask["x"] + client.id}


def simulate(**options):
    return so.simulate(X, clients=100, engine="processes", workers=2, **options)


def test_both_workers_work_and_persist():
    with simulate() as fed:
        pids = [{r["pid"] for r in fed.ask("test.rows-and-pid")} for _ in range(3)]
        assert len(pids[0]) == 2
        assert pids[0] == pids[1] == pids[2]
        assert os.getpid() not in pids[0]


def test_a_dead_worker_costs_its_block_only():
    with simulate() as fed:
        for _ in range(2):
            replies = fed.ask("test.suicide", {"victim": 50})
            assert replies.fold(so.aggregations.Sum())["rows"] == 2 * (100 - len(replies.failures))
            failed = [f.client for f in replies.failures]
            assert 50 in failed
            assert len(failed) <= 13
            assert all("was killed (SIGKILL)" in f.reason for f in replies.failures)
        assert fed.ask("test.suicide", {"victim": -1}).fold(so.aggregations.Sum())["rows"] == 200


def test_an_engine_started_later_does_not_keep_workers_from_ending():
    with simulate() as first:
        first.ask("test.rows-and-pid").collect()
        workers = [worker.child.process for worker in first.engine._workers]
        with simulate() as second:
            second.ask("test.rows-and-pid").collect()
            first.engine.close()
            assert [process.exitcode for process in workers] == [0, 0], "none had to be killed"
            assert len(second.ask("test.rows-and-pid").collect()) == 100


def test_tasks_defined_after_the_start_are_found():
    with simulate() as fed:
        fed.ask("test.rows-and-pid").collect()

        @so.task("test.late")
        def late(client, ask):
            return {"x": 1}

        assert fed.ask("test.late").fold(so.aggregations.Sum()) == {"x": 100}


@so.task("test.slow-some")
def slow_some(client, ask):
    time.sleep(0.01 * ((client.id * ask["stride"]) % 7))
    return {"x": client.rng.normal(size=50)}


def test_who_answers_first_changes_no_bit():
    with simulate() as fed:
        sums = [
            fed.ask("test.slow-some", {"stride": stride}).fold(so.aggregations.Sum())["x"].tobytes()
            for stride in (1, 3, 5)
        ]
    here = (
        so.simulate(X, clients=100).ask("test.slow-some", {"stride": 0}).fold(so.aggregations.Sum())
    )
    assert sums == [here["x"].tobytes()] * 3


def test_large_payloads_travel_through_shared_memory():
    with simulate() as fed:
        for size in (10, 300_000, 1000):
            x = np.arange(size, dtype=float)
            total = fed.ask("test.big", {"x": x}, to=range(20)).fold(so.aggregations.Sum())["echo"]
            assert np.array_equal(total, 20 * x + sum(range(20)))


def test_spawned_workers_give_the_same_and_know_what_was_registered():
    data = so.data.FederatedData(X, np.arange(200) % 2, np.arange(0, 201, 20))
    engine = ProcessEngine(data, workers=1, start="spawn")
    with so.Federation(engine, seed=3) as fed:
        spawned = so.FedLinear(rounds=2, lr=1e-6).fit(fed)
        assert [r["rows"] for r in fed.ask("test.rows-and-pid", to=[0, 7])] == [20, 20]
    here = so.FedLinear(rounds=2, lr=1e-6).fit(
        so.Federation(ProcessEngine(data, workers=1), seed=3)
    )
    assert np.array_equal(spawned.coef_, here.coef_)


def test_workers_are_not_forked_beside_a_gpu(monkeypatch):
    torch = pytest.importorskip("torch")
    assert processes._way() == ("fork" if hasattr(os, "fork") else "spawn")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert processes._way() == "spawn"


def test_at_least_one_worker():
    with pytest.raises(so.errors.UsageError, match="workers"):
        so.simulate(X, clients=5, engine="processes", workers=0)
    with pytest.raises(so.errors.UsageError, match=r"no engine 'cluster'.*http, local, processes"):
        so.simulate(X, clients=5, engine="cluster")
    with pytest.raises(so.errors.UsageError, match="cannot simulate"):
        so.simulate(X, clients=5, engine="http")
    with pytest.raises(so.errors.UsageError, match="processes"):
        so.simulate(X, clients=5, engine_options={"start": "spawn"})


SCRIPT = """
import os, sys, time
import numpy as np
import solera as so

@so.task("script.pid")
def pid(client, ask):
    return {"pid": os.getpid()}

fed = so.simulate(np.zeros((20, 2)), clients=20, engine="processes", workers=2)
print(*{r["pid"] for r in fed.ask("script.pid")})
buffers = [fed.engine._asks, *(worker.results for worker in fed.engine._workers)]
print(*[buffer.memory.name for buffer in buffers], flush=True)
if sys.argv[1] == "hang":
    time.sleep(600)
"""


def _alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="reads /proc")
@pytest.mark.parametrize("end", ["normal", "kill"])
def test_no_process_or_shared_memory_is_left_behind(end, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with subprocess.Popen(
        [sys.executable, str(script), "hang" if end == "kill" else "end"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        pids = [int(p) for p in process.stdout.readline().split()]
        memory = [Path("/dev/shm", name) for name in process.stdout.readline().split()]
        assert len(pids) == 2
        assert len(memory) == 3
        if end == "kill":
            process.kill()
        _, errors = process.communicate(timeout=300)
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        if not any(map(_alive, pids)) and not any(path.exists() for path in memory):
            break
        time.sleep(0.05)
    assert not any(map(_alive, pids))
    assert not any(path.exists() for path in memory)
    if end == "normal":
        assert errors == ""


TORCH_THREADS = """
import numpy as np, torch
import solera as so
torch.set_num_threads(2)
many = torch.ones(900, 900, dtype=torch.float64)
many @ many  # now there are threads, which no fork takes along
rng = np.random.default_rng(0)
X, y = rng.normal(size=(4000, 200)), rng.integers(0, 2, 4000)
with so.simulate(X, y, clients=2, engine="processes", workers=1) as federation:
    net = so.nn.mlp(200, 200, 2)
    so.FedAvg(net, rounds=1, batch_size=1000, dtype="float64").fit(federation)
print("done")
"""


def test_workers_do_not_wait_for_threads_that_their_parent_had():
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, "-c", TORCH_THREADS], capture_output=True, text=True, timeout=600
    )
    assert done.stdout.endswith("done\n"), done.stderr

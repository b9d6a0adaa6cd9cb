"""The privacy ledger: never less than was spent, whatever dies and whoever else spends."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

import solera as so
from solera.core.accounting import Event
from solera.core.engine import Ask
from solera.core.errors import Refusal
from solera.core.payload import decode
from solera.learn.averaging.learner import train_and_send
from solera.trust.noise import worth
from solera.trust.policy import Policy

for library in ("httpx", "cryptography", "dp_accounting", "torch"):
    pytest.importorskip(library, reason="the extras 'serve', 'dp' and 'torch' are not installed")

from typer.testing import CliRunner  # noqa: E402

from solera.cli.app import app  # noqa: E402
from solera.serve.agent.ledger import Ledger  # noqa: E402
from solera.serve.agent.task_process import Guard  # noqa: E402
from solera.serve.agent.worker import Worker  # noqa: E402

DELTA = 1e-6
EVENT = Event(4.0)
LIMIT = 1.05 * worth([replace(EVENT, times=12)], DELTA)
"""Room for twelve or thirteen events."""


def spent(path):
    ledger = Ledger(path)
    try:
        return ledger.statement(DELTA)
    finally:
        ledger.close()  # or forked processes have it open, and SQLite's locks do not hold for them


def test_events_are_composed_and_not_added_up(tmp_path):
    ledger = Ledger(tmp_path / "ledger.sqlite")
    for i in range(4):
        ledger.begin(f"job {i % 2}")
        ledger.spend(f"ask {i}", "averaging.train", [EVENT], LIMIT, DELTA)
    found = spent(tmp_path / "ledger.sqlite")
    assert found.epsilon == worth([replace(EVENT, times=4)], DELTA)
    assert [(job.job, job.replies) for job in found.jobs] == [("job 0", 2), ("job 1", 2)]
    assert found.epsilon < sum(job.epsilon for job in found.jobs)
    assert found.budget == LIMIT
    assert os.stat(tmp_path / "ledger.sqlite").st_mode & 0o077 == 0


def test_what_is_refused_is_not_put_down_and_the_same_ask_counts_once(tmp_path):
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.spend("a", "t", [EVENT], LIMIT, DELTA)
    ledger.spend("a", "t", [EVENT], LIMIT, DELTA)
    with pytest.raises(Refusal, match="the privacy budget is"):
        ledger.spend("b", "t", [Event(0.01)], LIMIT, DELTA)
    with pytest.raises(Refusal, match="inf"):
        ledger.spend("c", "t", [Event(0.0)], LIMIT, DELTA)
    found = spent(tmp_path / "ledger.sqlite")
    assert found.epsilon == worth([EVENT], DELTA)
    ledger.spend("", "t", [EVENT], LIMIT, DELTA)  # nobody knows whether these are the same
    ledger.spend("", "t", [EVENT], LIMIT, DELTA)
    assert spent(tmp_path / "ledger.sqlite").epsilon == worth([Event(4.0, 3)], DELTA)


def spend_all(path, log, name):
    """Spend until the ledger refuses; a line in the log says that a reply has left."""
    ledger, out = Ledger(path), os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    ledger.begin(name)
    for i in range(100):
        try:
            ledger.spend(f"{name}/{i}", "t", [EVENT], LIMIT, DELTA)
        except Refusal:
            os.write(out, b"refused\n")
            return
        os.write(out, b"left\n")


def spender(path, log, name):
    process = multiprocessing.get_context("fork").Process(target=spend_all, args=(path, log, name))
    process.start()
    return process


def replies_in(statement):
    return sum(job.replies for job in statement.jobs)


def test_killed_at_any_moment_it_never_counts_less_than_left_and_refuses_after(tmp_path):
    path, log = tmp_path / "ledger.sqlite", tmp_path / "log"
    log.touch()
    for life in range(8):
        left = log.read_text().count("left")
        process = spender(path, log, f"life {life}")
        while process.is_alive() and log.read_text().count("left") < left + (life > 1):
            time.sleep(0.001)
        time.sleep(0.001 * life)  # where in the next transaction it dies
        process.kill()
        process.join()
        found = spent(path)
        assert log.read_text().count("left") <= replies_in(found)
        assert found.epsilon <= LIMIT
    spender(path, log, "last").join()
    assert log.read_text().endswith("refused\n")
    found = spent(path)
    assert found.epsilon <= LIMIT < worth([Event(4.0, 1 + replies_in(found))], DELTA)


def test_two_jobs_at_once_spend_one_budget(tmp_path):
    path, logs = tmp_path / "ledger.sqlite", [tmp_path / "one", tmp_path / "two"]
    processes = [spender(path, log, log.name) for log in logs]
    for process in processes:
        process.join()
    said = [log.read_text().split() for log in logs]
    left = sum(lines.count("left") for lines in said)
    assert all(lines[-1] == "refused" for lines in said)
    found = spent(path)
    assert replies_in(found) == left
    assert found.epsilon == worth([Event(4.0, left)], DELTA)
    assert found.epsilon <= LIMIT < worth([Event(4.0, left + 1)], DELTA)


# --- at an agent's worker ---

rng = np.random.default_rng(5)
ROWS = so.data.FederatedData(rng.normal(size=(60, 3)), np.arange(60) % 2, np.array([0, 60]))
PRIVACY = {"level": "client", "noise": 20.0, "clip": 1.0, "share": 1, "below": None, "rate": None}


def train(**privacy):
    learner = so.FedAvg(so.nn.mlp(3, 4, 2), rounds=1, epochs=1)
    fed = so.simulate(ROWS.X, ROWS.y, clients=1, seed=0)
    learner.schema_ = fed.schema
    learner.begin(fed)
    ask = learner.round_ask(0)
    return {**ask, "privacy": {**PRIVACY, **privacy}} if privacy else ask


def asked(payload, secret=b"1" * 32):
    return Ask(train_and_send.name, 1, payload, np.array([3]), 7, secret=secret)


@pytest.fixture
def guard(tmp_path):
    return Guard(Policy("noise", budget=(1.0, DELTA)), tmp_path / "ledger.sqlite")


def test_a_network_leaves_with_noise_until_the_budget_is_spent(guard):
    with Worker(ROWS, guard=guard) as worker:
        plain = worker.run(asked(train()), 3, {}, "job")
        assert plain.kind == "refused"
        assert "the ask states none" in plain.reason
        loud = worker.run(asked(train(noise=0.5)), 3, {}, "job")
        assert loud.kind == "refused"
        first = worker.run(asked(train(noise=20.0)), 3, {}, "job")
        assert first.kind == "replied", first.reason
        assert first.epsilon == pytest.approx(worth([Event(10.0)], DELTA))
        assert "loss" not in decode(first.reply)
        again = worker.run(asked(train(noise=20.0)), 3, {}, "job")
        assert (again.reply, again.epsilon) == (first.reply, 0.0)
        for i in range(50):
            more = worker.run(asked(train(noise=20.0), bytes([i]) * 32), 3, {}, "other job")
            if more.kind == "refused":
                break
            assert more.reply != first.reply
    assert more.kind == "refused"
    with Worker(ROWS, guard=guard) as worker:  # a new process remembers
        assert worker.run(asked(train(noise=20.0), b"z" * 32), 3, {}, "third").kind == "refused"
    found = Ledger(guard.ledger).statement()
    assert found.epsilon <= 1.0
    assert [job.job for job in found.jobs] == ["job", "other job"]


def test_noise_for_rows_is_refused_where_persons_are_counted(guard):
    guard = replace(guard, policy=replace(guard.policy, unit="patient"))
    with Worker(ROWS, guard=guard) as worker:
        ask = train(level="record", rate=0.1, noise=50.0)
        assert worker.run(asked(ask), 3, {}, "job").kind == "refused"


def test_without_a_budget_noise_opens_nothing(guard):
    with Worker(ROWS, guard=replace(guard, policy=Policy("noise"))) as worker:
        assert worker.run(asked(train(noise=1e6)), 3, {}, "job").kind == "refused"


def test_budget_shows_what_each_job_took(tmp_path):
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.begin("readmission")
    ledger.spend("a", "averaging.train", [EVENT], LIMIT, DELTA)
    ledger.close()
    shown = CliRunner().invoke(app, ["budget", "--folder", str(tmp_path)])
    assert shown.exit_code == 0, shown.output
    assert "readmission" in shown.output
    assert f"of {LIMIT:g} at δ = 1e-06" in shown.output
    told = json.loads(
        CliRunner().invoke(app, ["budget", "--folder", str(tmp_path), "--json"]).output
    )
    assert told["jobs"][0]["replies"] == 1
    none = CliRunner().invoke(app, ["budget", "--folder", str(tmp_path / "elsewhere")])
    assert none.exit_code == 1
    assert "nothing was spent yet" in none.output


def test_a_second_opening_in_one_process_keeps_the_locks_of_the_first(tmp_path):
    """Whoever closes a file that nobody else locks takes away the log that others write to."""
    path = tmp_path / "ledger.sqlite"
    first, second = Ledger(path), Ledger(path)
    first.spend("a", "t", [EVENT], LIMIT, DELTA)
    second.statement(DELTA)
    other = f"""
import sqlite3
db = sqlite3.connect({str(path)!r})
print(db.execute("SELECT count(*) FROM spent").fetchone()[0])
db.close()
"""
    assert subprocess.run([sys.executable, "-c", other], capture_output=True).stdout == b"1\n"
    first.spend("b", "t", [EVENT], LIMIT, DELTA)
    assert subprocess.run([sys.executable, "-c", other], capture_output=True).stdout == b"2\n"

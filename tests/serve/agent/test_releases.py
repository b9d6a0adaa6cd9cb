"""The gate at an agent: what left is remembered on disk, over jobs, restarts and deaths."""

from __future__ import annotations

import sqlite3
from types import SimpleNamespace

import numpy as np
import pytest

import solera as so
from solera.core.disclosure.evidence import Persons, Sums
from solera.core.disclosure.memory import Memory
from solera.core.disclosure.row_sets import RowSets
from solera.core.engine import Ask
from solera.trust.gate import POLICIES
from solera.core.payload import decode, encode
from solera.core.release import release_numbers
from solera.core.task import task

for library in ("httpx", "cryptography"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

from solera.serve.agent.releases import Releases  # noqa: E402
from solera.serve.agent.task_process import Guard  # noqa: E402
from solera.serve.agent.worker import Worker  # noqa: E402

rng = np.random.default_rng(5)
X = rng.normal(size=(60, 3))
ROWS = so.data.FederatedData(X, np.arange(60) % 2, np.array([0, 60]))


@task("releases.undeclared")
def undeclared(client, ask):
    return {"rows": len(client.data)}


def asked(name, payload=None, round=0):
    return Ask(name, 1, payload, np.array([3]), 7, round)


@pytest.fixture
def guard(tmp_path):
    return Guard(POLICIES["training"], tmp_path / "releases.sqlite")


def memory(numbers, rows, **families):
    kept = Memory()
    kept.numbers, kept.rows, kept.families = numbers, rows, families
    return kept.to_payload()


def same(a, b):
    return encode(a) == encode(b)


def test_what_left_is_read_back_as_it_was_written(tmp_path):
    path = tmp_path / "releases.sqlite"
    releases = Releases(path)
    rows = np.arange(4)
    right, numbers = rng.normal(size=(4, 3)), rng.normal(size=(3, 2))
    marks = rng.random((4, 2)) < 0.5
    first = memory(8, rows, a=(right[:, :1], numbers[:1]), b=(marks, numbers[:2]))
    assert releases.keep(first) == 8
    later = memory(12, rows, a=(right, numbers), b=(marks, numbers[:2]))
    assert releases.keep(later) == 4
    assert same(Releases(path).kept, later)
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT count(*) FROM released").fetchone() == (3,), "only what is new"
    widened = memory(12, rows, a=(right, numbers), b=(marks.astype(float), numbers[:2]))
    releases.keep(widened)
    assert same(Releases(path).kept, widened)
    anew = memory(12, np.arange(5), a=(rng.normal(size=(5, 1)), numbers[:1]))
    releases.keep(anew)
    assert same(Releases(path).kept, anew)
    assert path.stat().st_mode & 0o077 == 0


def test_rows_counted_at_nodes_are_read_back_and_forgotten_with_their_rows(tmp_path):
    kept = Memory()
    kept.check_rows(np.arange(40), least=5)
    sets = RowSets(np.arange(12, dtype=np.int32), np.array([5, 12]))
    kept.sets = sets
    Releases(tmp_path / "releases.sqlite").keep(kept.to_payload())
    again = Memory.from_payload(Releases(tmp_path / "releases.sqlite").kept)
    assert np.array_equal(again.sets.rows, sets.rows)
    assert np.array_equal(again.sets.ends, sets.ends)
    again.check_rows(np.arange(50), least=5)
    assert len(again.sets) == 0


def test_an_ask_that_adds_nothing_costs_no_write(tmp_path):
    path = tmp_path / "releases.sqlite"
    rows, numbers = np.arange(4), rng.normal(size=(3, 2))
    one = memory(8, rows, a=(rng.normal(size=(4, 3)), numbers))
    Releases(path).keep(one)
    releases = Releases(path)
    with sqlite3.connect(path) as db:

        def version():
            return db.execute("PRAGMA data_version").fetchone()

        first = version()
        assert releases.keep(one) == 0
        assert version() == first
        for change in (memory(9, rows, a=one["families"]["a"]), memory(9, rows)):
            releases.keep(change)
            assert version() != first
            first = version()
            assert same(Releases(path).kept, change)


def test_a_task_that_does_not_say_what_leaves_does_not_run(guard):
    with Worker(ROWS, guard=guard) as worker:
        outcome = worker.run(asked("releases.undeclared"), 3, {})
    assert outcome.kind == "refused"
    assert "does not declare what leaves" in outcome.reason


def test_numbers_are_counted_once_and_over_all_jobs_and_processes(guard):
    with Worker(ROWS, guard=guard) as worker:
        first = worker.run(asked("preprocess.moments"), 3, {})
        assert first.kind == "replied", first.reason
        assert first.counted > 0
        assert "solera.released" not in first.state
        again = worker.run(asked("preprocess.moments"), 3, {"other": "job"})
        assert again.counted == 0
        assert again.state == {"other": "job"}
    with Worker(ROWS, guard=guard) as worker:
        assert worker.run(asked("preprocess.moments"), 3, {}).counted == 0
    assert Releases(guard.releases).kept["numbers"] == first.counted


def test_one_row_less_after_a_restart_tells_no_row(guard):
    less = so.data.FederatedData(X[1:], (np.arange(60) % 2)[1:], np.array([0, 59]))
    with Worker(ROWS, guard=guard) as worker:
        assert worker.run(asked("preprocess.moments"), 3, {}).kind == "replied"
    with Worker(less, guard=guard) as worker:
        outcome = worker.run(asked("preprocess.moments"), 3, {})
    assert outcome.kind == "refused"
    assert "rows have changed since the last answer" in outcome.reason


def test_a_budget_that_is_spent_stays_spent(tmp_path):
    limits = so.core.gate.ReleaseLimits(POLICIES["training"].allows, numbers=0.15)
    guard = Guard(limits, tmp_path / "releases.sqlite")
    train = {
        "coef": np.zeros((3, 2)),
        "intercept": np.zeros(2),
        "loss": "softmax",
        "classes": np.arange(2),
        "lr": 0.1,
        "l2": 0.0,
        "epochs": 1,
        "batch_size": None,
    }
    for round in range(9):
        with Worker(ROWS, guard=guard) as worker:  # a process of its own for every ask
            outcome = worker.run(asked("preprocess.moments"), 3, {})
            assert outcome.kind == "replied", outcome.reason
            outcome = worker.run(asked("linear.train", train, round), 3, {})
        if outcome.kind == "refused":
            break
        train["coef"] = decode(outcome.reply)["coef"]
    assert round > 0
    assert "numbers have left" in outcome.reason


def test_a_cell_that_is_asked_again_gets_what_it_got_whatever_left_since():
    """Else a replay, or the same job once more, would learn another model."""
    left = np.stack([np.ones(40), np.arange(40.0)], axis=1)
    first = np.ones(40)
    other = first + np.where(np.arange(40) < 2, 1.0, 0.0) * (np.arange(40) + 1)
    other[30:] += 0.01
    leaving = SimpleNamespace(
        memory=Memory(),
        limits=POLICIES["training"],
        persons=lambda sums: Persons(),
        outcome={},
        client=SimpleNamespace(data=SimpleNamespace(schema=SimpleNamespace(width=2))),
    )

    def release(right, numbers):
        sums = Sums(right[:, None], left)
        kept = np.zeros((1, 2), bool)
        return release_numbers(
            leaving, "w", sums, np.array([numbers]), kept, np.array([[-1.0, -1.0]]), stands=True
        ).tolist()

    told = release(first, [40.0, 780.0])
    assert told == [[40.0, 780.0]]
    near = release(other, [43.0, 785.0])
    assert near == [[-1.0, 785.0]], "one of its numbers rests on two rows more than the first"
    assert release(first, [40.0, 780.0]) == told
    assert release(other, [43.0, 785.0]) == near

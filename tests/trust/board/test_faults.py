"""Owners that are killed, restored from backups, or away: same bytes, one post for one k."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from board_memory import MemoryBoard, MemoryConnection, MemoryStore
from board_owners import EPOCH, EXACT, Ended, Job, run_of, text_of

import solera as so
from solera.core.errors import DataError
from solera.serve.agent.closed.store import ClosedStore, JobRecords
from solera.trust.board.run import OwnerRun, RunEnded
from solera.trust.board.text import jid

draw = np.random.default_rng(1)
X = draw.normal(size=(240, 5))
CLASSES = (X[:, 0] + draw.normal(size=len(X)) > 0).astype(int)
NUMBERS = X[:, 0] + draw.normal(size=len(X))
ENDED = draw.exponential(np.exp(-X[:, 0])), draw.exponential(size=len(X))
SURVIVAL = np.column_stack([np.minimum(*ENDED), ENDED[0] <= ENDED[1]]).astype(float)
MLP = so.nn.mlp(5, 6, 2)
LEARNERS = {
    "FedLinear": (so.FedLinear(rounds=6), CLASSES),
    "FedGLM": (so.FedGLM(), NUMBERS),
    "FedCox": (so.FedCox(), SURVIVAL),
    "FedCox of all rows": (so.FedCox(strata=None), SURVIVAL),
    "Scaffold": (so.learn.Scaffold(MLP, rounds=5), CLASSES),
    "FedRep": (so.learn.FedRep(MLP, rounds=5), CLASSES),
    "Pipeline": (so.Pipeline(so.FedImputer(), so.FedScaler(), so.FedHEONN()), CLASSES),
    "FedHistGBDT": (so.FedHistGBDT(rounds=3, max_depth=2), CLASSES),
    "FedID3": (so.Pipeline(so.FedBins(3), so.FedID3(max_depth=4)), CLASSES),
}


class Killed(BaseException):
    """The process of this owner is gone."""


class Mortal:
    """Counts what an owner does, and kills it at some of it."""

    def __init__(self, at: set[int]) -> None:
        self.at = at
        self.done = 0

    def step(self) -> None:
        self.done += 1
        if self.done in self.at:
            raise Killed(self.done)


def records_of(path: Path, job: str) -> JobRecords:
    """The records of one job, as an agent keeps them."""
    store = ClosedStore(path)
    store.add(job, "", b"")
    return JobRecords(store, job)


class MortalStore(JobRecords):
    """Dies before a record is made, before it is stored, or right after."""

    life: Mortal

    def once(self, name: str, make: Callable[[], bytes]) -> bytes:
        def made() -> bytes:
            content = make()
            self.life.step()
            return content

        self.life.step()
        content = super().once(name, made)
        self.life.step()
        return content


class MortalConnection(MemoryConnection):
    """Dies before or after a post; keeps all that was ever posted."""

    life: Mortal
    posted: dict[Any, set[bytes]]

    def post(self, step: str, content: bytes) -> None:
        self.life.step()
        self.posted.setdefault((step, self.owner), set()).add(content)
        super().post(step, content)
        self.life.step()


class MortalJob(Job):
    """Owners begin again when they were killed, with what is on their disks."""

    def with_deaths(self, folder: Path, deaths: dict[int, set[int]]) -> MortalJob:
        lives = {i: Mortal(deaths.get(i, set())) for i in range(self.owners)}
        self.posted: dict[Any, set[bytes]] = {}
        self.disks: dict[int, MortalStore] = {}
        self.kills = 0

        def store(i: int) -> MortalStore:
            path, job = folder / f"{i}.sqlite", jid(EPOCH, self.text).hex()
            opened = self.disks[i] = MortalStore(records_of(path, job)._store, job)
            opened.life = lives[i]
            return opened

        def connect(board: MemoryBoard, i: int) -> MortalConnection:
            connection = MortalConnection(board, i)
            connection.life, connection.posted = lives[i], self.posted
            return connection

        self.stores, self.connect = store, connect
        return self

    def owner(self, index: int, board: MemoryBoard) -> Ended:
        while True:
            try:
                return super().owner(index, board)
            except Killed:
                self.kills += 1
                self.disks[index]._store.close()


def mortal_job(name: str) -> MortalJob:
    learner, y = LEARNERS[name]
    return MortalJob(learner, so.simulate(X, y, clients=4, seed=2, policy=EXACT))


def check_same_bytes(job: MortalJob, expected: bytes) -> None:
    ends = job.run()
    assert [end.why for end in ends] == [""] * 4
    assert {end.closed.result for end in ends if end.closed} == {expected}
    assert all(len(posts) == 1 for posts in job.posted.values())


@pytest.mark.parametrize("name", LEARNERS)
def test_owners_that_are_killed_anywhere_give_the_same_bytes(name: str, tmp_path: Path) -> None:
    job = mortal_job(name)
    expected = job.simulated()
    random = np.random.default_rng(len(name))
    kills = 0
    for repeat in range(5):
        deaths = {i: {int(d) for d in random.integers(1, 50, 3)} for i in range(4)}
        (folder := tmp_path / str(repeat)).mkdir()
        check_same_bytes(job.with_deaths(folder, deaths), expected)
        kills += job.kills
    assert kills > 40


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNERS)
def test_an_owner_killed_at_every_step_gives_the_same_bytes(name: str, tmp_path: Path) -> None:
    job = mortal_job(name)
    expected = job.simulated()
    for step in range(1, 80):
        (folder := tmp_path / str(step)).mkdir()
        check_same_bytes(job.with_deaths(folder, {step % 4: {step}}), expected)


def test_a_backup_gives_no_second_post(tmp_path: Path) -> None:
    """The disk of owner 2 is set back by some sums; tasks give the same bytes again."""
    job = mortal_job("FedRep").with_deaths(tmp_path, {2: {20, 50}})
    expected = job.simulated()

    def restored(index: int, board: MemoryBoard) -> Ended:
        backup, disk = tmp_path / "backup", tmp_path / f"{index}.sqlite"
        while True:
            try:
                return Job.owner(job, index, board)
            except Killed:
                database = job.disks[index]
                if not backup.exists():
                    with closing(sqlite3.connect(disk)) as open_disk:
                        open_disk.execute("VACUUM INTO ?", (str(backup),))
                database._store.close()
                if job.kills:
                    shutil.copy(backup, disk)
                job.kills += 1

    job.owner = restored  # type: ignore[method-assign]
    check_same_bytes(job, expected)
    assert job.kills == 2


def test_a_backup_from_before_the_start_ends_the_run() -> None:
    """Another x would be another start: the board, or the own start, says no."""
    job = Job(so.FedLinear(rounds=2), so.simulate(X, CLASSES, clients=4, policy=EXACT))
    job.run()
    run = run_of(1, job.board.connect(1), MemoryStore(), job.text)
    with pytest.raises(RunEnded, match="a second post for start"):
        run.start()

    class Forgetful(MemoryConnection):
        def post(self, step: str, content: bytes) -> None:
            """A coordinator that takes any post and shows the first."""

    run = run_of(1, Forgetful(job.board, 1), MemoryStore(), job.text)
    with pytest.raises(RunEnded, match="my own start is missing"):
        run.start()


def test_a_worker_that_fails_ends_the_run_for_all_at_the_same_sum() -> None:
    """Others are told that it ended, not why: the reason is of one owner's rows."""

    class Failing:
        def __init__(self, worker: Any) -> None:
            self.worker, self.asked = worker, 0

        def __getattr__(self, name: str) -> Any:
            return getattr(self.worker, name)

        def answer(self, *args: Any) -> Any:
            self.asked += 1
            if self.asked < 4:
                return self.worker.answer(*args)
            answer = self.worker.answer(*args)
            answer.first = lambda: (_ for _ in ()).throw(DataError("row 17 is strange"))
            return answer

    job = Job(so.FedLinear(rounds=5), so.simulate(X, CLASSES, clients=4, policy=EXACT))
    job.workers = lambda i, worker: Failing(worker) if i == 2 else worker  # type: ignore[assignment, return-value]
    ends = job.run()
    assert [end.closed for end in ends] == [None] * 4
    assert {end.sums for end in ends} == {5}
    assert "row 17 is strange" in ends[2].why
    assert all(end.why == "sum4: an owner asked to stop" for i, end in enumerate(ends) if i != 2)


def test_an_owner_that_asks_to_stop_is_heard_at_the_next_sum() -> None:
    job = Job(so.FedLinear(rounds=5), so.simulate(X, CLASSES, clients=4, policy=EXACT))

    class Stops(OwnerRun):
        def total(self, question: bytes, own_terms: Any) -> Any:
            if self.k == 3:
                self.stop("its owner erases a row")
            return super().total(question, own_terms)

    job.kinds = {1: Stops}
    ends = job.run()
    assert {end.sums for end in ends} == {4}
    assert ends[1].why == "its owner erases a row"
    assert ends[0].why == "sum3: an owner asked to stop"


def test_an_owner_that_is_away_for_good_ends_the_run() -> None:
    board = MemoryBoard(4, patience=0.2)
    run = run_of(0, board.connect(0), store := MemoryStore(), text_of(so.FedLinear()))
    with pytest.raises(RunEnded, match="an owner is away"):
        run.start()
    run.end()
    with pytest.raises(RunEnded, match="it starts once"):
        run_of(0, board.connect(0), store, text_of(so.FedLinear())).start()


def test_keys_and_records_are_erased_and_that_it_is_over_stays(tmp_path: Path) -> None:
    path = tmp_path / "closed.sqlite"
    one, other = records_of(path, "one"), records_of(path, "other")
    secret = b"a secret key that must not stay on disk"
    assert one.once("x", lambda: secret) == secret
    assert one.once("x", lambda: b"another") == secret
    other.once("x", lambda: b"kept")
    one._store.move("one", "ended")
    one.erase()
    with pytest.raises(RunEnded):
        one.once("x", lambda: b"again")
    assert other.once("x", lambda: b"again") == b"kept"
    for file in tmp_path.iterdir():
        assert secret not in file.read_bytes()


def test_results_are_kept_until_their_epoch_ends(tmp_path: Path) -> None:
    store = ClosedStore(tmp_path / "closed.sqlite")
    for job, epoch in (("one", "first"), ("two", "second")):
        store.add(job, epoch, b"")
        store.move(job, "running")
        store.finish(job, f"hash of {job}", b"model", b"part", 1)
    assert store.result("hash of one") == (b"model", b"part")
    store.end_epochs_before("second")
    assert store.result("hash of one") is None
    assert store.result("hash of two") == (b"model", b"part")

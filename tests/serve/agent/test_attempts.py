"""An ask that kills is tried twice more and then failed for good, whatever restarts in between."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import solera as so
from solera.core.errors import PayloadError, Refusal, UsageError
from solera.core.payload import decode, encode

for library in ("httpx", "cryptography"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

import agent_tasks  # noqa: E402, F401
from liar import Liar, digest  # noqa: E402

from solera.serve.agent import home  # noqa: E402
from solera.serve.agent.agent import Agent  # noqa: E402
from solera.serve.agent.attempts import CRASHES, STARTS, AskKey, Attempts  # noqa: E402
from solera.serve.agent.policy import OwnerPolicy  # noqa: E402
from solera.serve.agent.worker import Worker  # noqa: E402
from solera.serve.identity import Identity  # noqa: E402

KEY = AskKey("job", 3, "ab")
ALL = 'policy = "trusted"\n'
ROWS = so.data.FederatedData(np.ones((40, 3)), np.arange(40) % 2, np.array([0, 40]))


@pytest.fixture
def attempts(tmp_path):
    return Attempts(tmp_path / "attempts.sqlite")


def test_attempts_are_remembered_by_the_next_process(attempts, tmp_path):
    assert attempts.begin(KEY) == (1, 0)
    program = (
        "import sys\nfrom pathlib import Path\n"
        "from solera.serve.agent.attempts import AskKey, Attempts\n"
        "Attempts(Path(sys.argv[1])).begin(AskKey('job', 3, 'ab'))\n"
        "import os; os.kill(os.getpid(), 9)"
    )
    path = os.pathsep.join(sys.path)
    subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "attempts.sqlite")],
        env={**os.environ, "PYTHONPATH": path},
        check=False,
    )
    assert attempts.begin(KEY) == (3, 0)
    assert attempts.begin(KEY._replace(digest="ac")) == (1, 0), "another ask of the same number"
    assert (tmp_path / "attempts.sqlite").stat().st_mode & 0o077 == 0


def test_an_ask_that_kills_becomes_hopeless_and_one_that_ends_is_forgotten(attempts):
    for _ in range(CRASHES):
        assert not attempts.begin(KEY).hopeless
        attempts.crashed(KEY)
    assert attempts.begin(KEY).hopeless
    attempts.end(KEY)
    for _ in range(STARTS):
        assert not attempts.begin(KEY).hopeless
    assert attempts.begin(KEY).hopeless
    attempts.end(KEY)
    for _ in range(3 * STARTS):
        assert not attempts.begin(KEY).hopeless
        attempts.undo(KEY)


def test_of_many_attempts_the_newest_are_kept(attempts, monkeypatch):
    monkeypatch.setattr("solera.serve.agent.attempts._MOST", 20)
    for sequence in range(60):
        attempts.begin(KEY._replace(sequence=sequence))
    with attempts._database.write() as db:
        assert db.execute("SELECT count(*) FROM attempts").fetchone()[0] <= 21
    assert attempts.begin(KEY._replace(sequence=59)).starts == 2


def test_a_damaged_file_is_named(tmp_path):
    path = tmp_path / "attempts.sqlite"
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(UsageError, match=r"attempts\.sqlite is damaged"):
        Attempts(path).begin(KEY)


# --- at an agent ---------------------------------------------------------------------------------


@pytest.fixture
def liar():
    with Liar() as here:
        yield here


@pytest.fixture
def agent(liar, tmp_path):
    folder = tmp_path / "client"
    Identity.create(folder)
    home.write_place(folder, home.Place(liar.url, None, 3, "north", "cardio"))
    agent = Agent(folder, Worker(ROWS), OwnerPolicy.parse(ALL), patience=1)
    yield agent
    agent.close()


def order(liar, task, content, **more):
    frame = encode(content)
    liar.blobs[digest(frame)] = frame
    liar.ask(task=task, payload=digest(frame), **more)


def killed(folder: Path) -> int:
    return len(list(folder.glob("killed-*")))


@pytest.mark.parametrize("times", [1, 2])
def test_a_worker_killed_in_a_task_is_replaced_and_the_reply_is_the_same(
    agent, liar, tmp_path, times
):
    order(liar, "agent.die", {"folder": str(tmp_path), "times": times})
    assert agent.step() == 1
    assert killed(tmp_path) == times
    rough = liar.replies[-1]
    assert rough["status"] == "ok"
    liar.replies.clear()
    order(liar, "agent.die", {"folder": str(tmp_path), "times": times})
    (agent.folder / home.MEMORY).unlink()  # or it would be answered from there
    assert agent.step() == 1
    assert killed(tmp_path) == times, "nothing died this time"
    assert liar.replies[-1] == rough, "draws, and what protects, are those of the first time"


def secret_of(liar):
    return decode(base64.b64decode(liar.replies[-1]["frame"]))["secret"]


def test_what_protects_is_from_the_system_and_stays_the_same_for_the_same_ask(
    agent, liar, tmp_path
):
    seen = []
    for sequence in (0, 1, 0):
        order(liar, "agent.die", {"folder": str(tmp_path), "times": 0}, sequence=sequence)
        assert agent.step() == 1
        seen.append(secret_of(liar))
    assert seen[0] == seen[2], "asked again, it draws the same: there is nothing to average"
    assert seen[0] != seen[1]
    assert len(seen[0]) == 32
    key = agent.folder / "secret.key"
    assert key.stat().st_mode & 0o077 == 0
    agent.close()
    key.unlink()
    again = Agent(agent.folder, Worker(ROWS), OwnerPolicy.parse(ALL), patience=1)
    (again.folder / home.MEMORY).unlink()
    assert again.step() == 1
    assert secret_of(liar) not in seen, "not from the seed, the job or the rows"
    again.close()


def test_the_third_death_fails_the_ask_for_good_and_the_agent_works_on(agent, liar, tmp_path):
    order(liar, "agent.die", {"folder": str(tmp_path), "times": 99})
    assert agent.step() == 1
    assert killed(tmp_path) == CRASHES
    assert liar.replies[-1]["status"] == "failed"
    assert liar.replies[-1]["reason"].startswith("crashed: ")
    liar.ask()
    assert agent.step() == 1
    assert liar.replies[-1]["status"] == "ok"


def test_an_ask_that_kills_the_agent_does_so_no_more_after_some_restarts(
    agent, liar, tmp_path, monkeypatch
):
    """As by kill -9: nothing is told, the next agent finds the ask pending."""

    class Killed(BaseException):
        pass

    def die(*_):
        raise Killed

    begun = []
    monkeypatch.setattr("solera.serve.agent.attempts.Attempts.undo", die)
    monkeypatch.setattr(Agent, "_run", lambda *_: (begun.append(1), die()))
    liar.ask()
    for _ in range(STARTS):
        with pytest.raises(Killed):
            agent.step()
        assert liar.replies == []
    assert agent.step() == 1
    assert len(begun) == STARTS
    assert liar.replies[-1]["status"] == "failed"


def test_an_unforeseen_error_of_the_agent_fails_the_ask_and_tells_nothing(agent, liar, monkeypatch):
    def fail(*_):
        raise RuntimeError("the value 4711")

    monkeypatch.setattr(Agent, "_run", fail)
    liar.ask()
    assert agent.step() == 1
    assert liar.replies[-1]["reason"] == "error: the agent failed"


@pytest.mark.parametrize("error", [Refusal, PayloadError])
def test_whatever_is_wrong_the_reason_is_short(agent, liar, monkeypatch, error):
    def refuse(*_, **__):
        raise error("x" * 600_000)

    with monkeypatch.context() as patch:
        patch.setattr(OwnerPolicy, "check_ask", refuse)
        liar.ask()
        assert agent.step() == 1
    assert len(liar.replies[-1]["reason"]) <= 500


def test_being_told_to_end_is_no_fault_of_the_ask(agent, liar, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Agent, "_run", interrupt)
        liar.ask()
        for _ in range(2 * STARTS):
            with pytest.raises(KeyboardInterrupt):
                agent.step()
    assert agent.step() == 1
    assert liar.replies[-1]["status"] == "ok"

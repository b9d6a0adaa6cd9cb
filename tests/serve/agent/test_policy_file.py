"""A policy that changes while the agent runs; a broken one lets nothing run."""

from __future__ import annotations

import functools
import json
import os

import numpy as np
import pytest

for library in ("httpx", "cryptography", "pandas"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

import agent_tasks  # noqa: E402, F401
from liar import Liar, digest  # noqa: E402

from solera.core.payload import decode, encode  # noqa: E402
from solera.serve.agent import home  # noqa: E402
from solera.serve.agent.agent import Agent  # noqa: E402
from solera.serve.agent.policy_file import PolicyBroken, PolicyFile  # noqa: E402
from solera.serve.agent.sources import open_source  # noqa: E402
from solera.serve.agent.worker import Worker  # noqa: E402
from solera.serve.identity import Identity  # noqa: E402

TRUSTED = 'policy = "trusted"\n'
SUMS = 'policy = "sums"\n[approval]\nmode = "auto"\n'


@pytest.fixture
def liar():
    with Liar() as here:
        yield here


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "policy.toml"
    path.write_text(TRUSTED)
    return path


@pytest.fixture
def agent(liar, tmp_path, path):
    folder = tmp_path / "client"
    Identity.create(folder)
    home.write_place(folder, home.Place(liar.url, None, 3, "north", "cardio"))
    rows = tmp_path / "rows.csv"
    values = np.random.default_rng(0).integers(20, 80, (30, 2))
    rows.write_text("\n".join(["age,bmi", *(f"{a},{b}" for a, b in values.tolist())]))

    def source(policy):
        columns = policy.data.columns or None
        return functools.partial(open_source, str(rows), target=None, columns=columns)

    file = PolicyFile(path)
    agent = Agent(folder, Worker(source(file.policy)), file, source=source, patience=1)
    yield agent
    agent.close()


def rewrite(path, text):
    path.write_text(text)
    later = path.stat().st_mtime_ns + 1_000_000  # a coarse clock must not hide the change
    os.utime(path, ns=(later, later))


def answer(agent, liar, **order):
    liar.ask(**order)
    assert agent.step() == 1
    return liar.replies[-1]["status"], liar.replies[-1]["reason"]


def columns(liar):
    import base64

    return decode(base64.b64decode(liar.replies[-1]["frame"]))["names"]


def test_what_the_new_file_allows_runs_and_what_it_does_not_is_refused(agent, liar, path):
    assert answer(agent, liar)[0] == "ok"
    rewrite(path, SUMS)
    status, reason = answer(agent, liar)
    assert (status, "answer no open ask, here for 'agent.count'" in reason) == ("refused", True)
    rewrite(path, TRUSTED)
    assert answer(agent, liar, task="agent.rows")[0] == "ok"
    assert columns(liar) == ["age", "bmi"]
    rewrite(path, TRUSTED + '[data]\ncolumns = ["bmi"]\n')
    assert answer(agent, liar, task="agent.rows")[0] == "ok"
    assert columns(liar) == ["bmi"], "the rows are read again with the columns it names"
    lines = [json.loads(line) for line in (agent.folder / "audit.log").read_text().splitlines()]
    changes = [line["facts"] for line in lines if line["event"] == "policy"]
    assert len(changes) == 3
    assert changes[0]["now"] == changes[1]["before"]


def test_a_comment_changes_nothing(agent, liar, path):
    assert answer(agent, liar)[0] == "ok"
    child = agent.worker._child
    rewrite(path, "# as before\n" + TRUSTED)
    assert answer(agent, liar)[0] == "ok"
    assert agent.worker._child is child
    assert b'"policy"' not in (agent.folder / "audit.log").read_bytes()


@pytest.mark.parametrize("broken", ["policy = ", 'policy = "training"\n', None])
def test_while_the_file_is_broken_nothing_runs_and_nothing_is_lost(agent, liar, path, broken):
    """The old policy does not count: the owner may have wanted to forbid what it allows."""
    if broken is None:
        path.unlink()
    else:
        rewrite(path, broken)
    liar.ask()
    for _ in range(2):
        with pytest.raises(PolicyBroken, match=r"nothing runs: .*policy\.toml"):
            agent.step()
    assert liar.replies == []
    rewrite(path, TRUSTED) if path.exists() else path.write_text(TRUSTED)
    assert answer(agent, liar) == ("ok", "")


def test_a_change_while_the_agent_looks_for_work_counts_for_what_it_finds(
    agent, liar, path, monkeypatch
):
    call = agent.connection.call

    def forbid_meanwhile(*arguments):
        work = call(*arguments)
        rewrite(path, SUMS)
        return work

    monkeypatch.setattr(agent.connection, "call", forbid_meanwhile)
    assert answer(agent, liar)[0] == "refused"


def test_noise_is_asked_for_from_the_next_task_on(agent, liar, path):
    frame = encode(None)
    liar.blobs[digest(frame)] = frame
    moments = {"task": "preprocess.moments", "version": 2, "payload": digest(frame)}
    assert answer(agent, liar, **moments) == ("ok", "")
    rewrite(path, 'policy = "noise"\n[approval]\nmode = "auto"\n')
    status, reason = answer(agent, liar, **moments)
    assert (status, "leaves with noise, and the ask states none" in reason) == ("refused", True)

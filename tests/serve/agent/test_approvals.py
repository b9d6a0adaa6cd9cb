"""An approval means this job, as described, made by a person whom the policy names."""

from __future__ import annotations

import json
import re
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

import solera as so
from solera.core.errors import UsageError
from solera.core.payload import decode, encode

for library in ("httpx", "cryptography"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

import agent_tasks  # noqa: E402, F401
from liar import Liar, digest  # noqa: E402

from solera.serve.agent import home  # noqa: E402
from solera.serve.agent.agent import Agent  # noqa: E402
from solera.serve.agent.approvals import Approvals, Approver  # noqa: E402
from solera.serve.agent.policy import OwnerPolicy  # noqa: E402
from solera.serve.agent.worker import Worker  # noqa: E402
from solera.serve.description import job_hash  # noqa: E402
from solera.serve.held_words import held_since  # noqa: E402
from solera.serve.identity import Identity  # noqa: E402

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
JOB = "ab" * 32


@pytest.fixture
def ana(tmp_path):
    return Approver.create(tmp_path / "ana.key", "ana")


@pytest.fixture
def approvals(tmp_path, ana):
    return Approvals(tmp_path / "approvals.json", {"ana": ana.public})


# --- decisions -----------------------------------------------------------------------------------


def test_a_decision_holds_for_one_hash_until_it_is_withdrawn(approvals, ana, tmp_path):
    assert approvals.approval(JOB) is None
    approvals.decide(JOB, "approved", Approver.load(tmp_path / "ana.key"), NOON)
    again = Approvals(approvals.path, approvals.approvers)
    assert again.approval(JOB).person == "ana"
    assert again.approval("ac" * 32) is None
    assert again.approval(JOB[:12]) is None
    assert approvals.path.stat().st_mode & 0o077 == 0
    earlier = NOON - timedelta(days=1)
    approvals.decide(JOB, "withdrawn", ana, earlier)
    assert approvals.approval(JOB) is None, "a clock that was set back withdraws all the same"
    first = approvals.path.read_text().split("\n")[1]
    with approvals.path.open("a") as file:
        file.write(f"\n{first}\n")
    assert approvals.approval(JOB) is None, "an old approval written down again is still old"
    approvals.decide(JOB, "approved", ana, earlier)
    assert approvals.approval(JOB) is not None


def test_only_the_key_in_the_policy_decides(approvals, ana, tmp_path):
    other = Approver.create(tmp_path / "other.key", "ana")
    with pytest.raises(UsageError, match=r"'ana' may not approve with this key"):
        approvals.decide(JOB, "approved", other, NOON)
    stranger = Approver.create(tmp_path / "eva.key", "eva")
    with pytest.raises(UsageError, match=r"'eva' may not approve jobs \(the policy names ana\)"):
        approvals.decide(JOB, "approved", stranger, NOON)
    with pytest.raises(UsageError, match="is not the hash of a job"):
        approvals.decide(JOB[:8], "approved", ana, NOON)
    assert not approvals.path.exists()
    Approvals(approvals.path, {"ana": other.public}).decide(JOB, "approved", other, NOON)
    assert approvals.approval(JOB) is None, "signed with a key that the policy does not name"


FIELDS = ["job", "verdict", "person", "at", "until", "reason", "signature"]


@pytest.mark.parametrize("field", FIELDS)
def test_a_changed_decision_counts_not(approvals, ana, field):
    soon = datetime.now(UTC) + timedelta(hours=1)
    approvals.decide(JOB, "approved", ana, NOON, until=soon, reason="checked")
    entry = json.loads(approvals.path.read_text())
    changed = {"job": "ac" * 32, "verdict": "approve", "person": "eva", "at": "2027-01-01T00:00",
               "until": "", "reason": "not checked"}  # fmt: skip
    entry[field] = changed.get(field, "00" * 64)
    approvals.path.write_text(json.dumps(entry))
    assert approvals.approval(JOB) is None
    assert approvals.approval("ac" * 32) is None


def test_a_damaged_line_approves_nothing_and_hides_nothing(approvals, ana):
    damaged = [b"\xff", b"[1]", JOB.encode(), b'{"job": "%s"}' % JOB.encode(), b"5"]
    approvals.path.write_bytes(b"\n".join(damaged) + b'\n{"job": "' + JOB.encode())
    assert approvals.approval(JOB) is None
    approvals.decide(JOB, "approved", ana, NOON)
    assert approvals.approval(JOB) is not None


def test_an_approvers_key_is_for_the_approver_alone(tmp_path, ana):
    path = tmp_path / "ana.key"
    assert path.stat().st_mode & 0o077 == 0
    with pytest.raises(UsageError, match="exists"):
        Approver.create(path, "ana")
    path.chmod(0o644)
    with pytest.raises(UsageError, match="open to other users"):
        Approver.load(path)
    for content in (b"", b"x", encode([1]), encode({"kind": "solera approver 1"})):
        path.write_bytes(content)
        path.chmod(0o600)
        with pytest.raises(UsageError, match="not an approver's key"):
            Approver.load(path)


# --- this job and no other -----------------------------------------------------------------------

rng = np.random.default_rng(1)
ROWS = so.data.FederatedData(rng.normal(size=(40, 3)), np.arange(40) % 2, np.array([0, 40]))


@pytest.fixture(scope="module")
def worker():
    with Worker(ROWS) as worker:
        yield worker


@pytest.fixture
def liar():
    with Liar() as here:
        yield here


@pytest.fixture
def agent(liar, worker, tmp_path, ana):
    policy = f"""
        policy = "trusted"
        [approval]
        mode = "ask"
        approvers = {{ ana = "{ana.public}" }}
        [notify]
        command = ["tee", "-a", "{tmp_path / "told"}"]
    """
    folder = tmp_path / "client"
    Identity.create(folder)
    home.write_place(folder, home.Place(liar.url, None, 3, "north", "cardio"))
    agent = Agent(folder, worker, OwnerPolicy.parse(policy), patience=1)
    yield agent
    agent._lock.release()


def approve(agent, ana, spec, job="job", verdict="approved", now=None):
    hash = job_hash("cardio", job, spec)
    agent.approvals.decide(hash, verdict, ana, now or datetime.now(UTC))
    return hash


def answer(agent, liar, **order):
    """Status and reason of the reply, or "held"."""
    liar.ask(**order)
    if agent.step() == 0:
        return "held"
    return liar.replies[-1]["status"], liar.replies[-1]["reason"]


def payload(liar, content):
    frame = encode(content)
    liar.blobs[digest(frame)] = frame
    return digest(frame)


def test_what_was_approved_runs(agent, liar, ana):
    spec = liar.describe()
    assert answer(agent, liar, spec=spec) == "held"
    (held,) = agent.held.read()
    assert held.hash == approve(agent, ana, spec)
    assert "the driver chooses what is asked" in held.description
    assert answer(agent, liar, spec=spec) == ("ok", "")
    assert agent.held.read() == []
    assert answer(agent, liar, spec=spec) == ("ok", "")


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        ({"owner": "nobody-at-all"}, "names another owner"),
        ({"kind": "managed"}, "names another kind"),
        ({"seed": 2}, "names another seed"),
    ],
)
def test_an_ask_that_was_not_described_is_refused(agent, liar, ana, order, reason):
    spec = liar.describe()
    approve(agent, ana, spec)
    status, said = answer(agent, liar, spec=spec, **order)
    assert status == "refused"
    assert reason in said


def test_the_approval_of_one_job_runs_no_other(agent, liar, ana):
    """Another learner under another name; an approved file under a name that is not its own."""
    spec = liar.describe()
    approve(agent, ana, spec)
    other = liar.describe(job="other")
    assert answer(agent, liar, spec=other, job="other") == "held"
    reused = answer(agent, liar, spec=spec, job="other")
    assert reused == ("refused", "the job's description names another job")
    other = liar.describe(learner={"kind": "FedGLM"})
    assert answer(agent, liar, spec=other) == "held"
    elsewhere = liar.describe(federation="oncology")
    assert "another federation" in answer(agent, liar, spec=elsewhere)[1]
    assert answer(agent, liar, spec=liar.describe(seed=2), seed=2) == "held"
    assert liar.replies[-1]["status"] == "refused"


def test_the_hash_that_the_coordinator_names_is_worth_nothing(agent, liar, ana):
    approved = approve(agent, ana, liar.describe(toml="x = 1"))
    wide = liar.describe(learner={"kind": "FedGLM"})
    assert answer(agent, liar, spec=wide, hash=approved, task="agent.rows") == "held"
    spec = liar.describe(toml="x = 1")
    liar.blobs[spec] = liar.blobs[wide]
    agent._asked._descriptions.clear()
    status, said = answer(agent, liar, spec=spec, task="agent.rows")
    assert (status, "is not" in said) == ("failed", True), "not the bytes that were approved"


def test_what_is_no_description_runs_nothing(agent, liar):
    broken = encode({"toml": "x = 1"})
    liar.blobs[digest(broken)] = broken
    assert answer(agent, liar, spec=digest(broken))[0] == "failed"


def test_a_withdrawn_or_old_approval_holds_the_job_back(agent, liar, ana):
    spec = liar.describe(seconds=3600.0)
    now = datetime.now(UTC)
    approve(agent, ana, spec, now=now - timedelta(seconds=3601))
    assert answer(agent, liar, spec=spec) == "held", "the job said one hour"
    approve(agent, ana, spec)
    assert answer(agent, liar, spec=spec) == ("ok", "")
    approve(agent, ana, spec, verdict="withdrawn")
    assert answer(agent, liar, spec=spec, sequence=9) == "held"
    long = liar.describe(seconds=1e9)
    approve(agent, ana, long, now=now - timedelta(days=31))
    assert answer(agent, liar, spec=long) == "held", "the policy says thirty days"


def test_an_approval_ends_when_the_approver_says_so(agent, liar, ana, monkeypatch):
    spec = liar.describe()
    hash, now = job_hash("cardio", "job", spec), datetime.now(UTC)
    with pytest.raises(UsageError, match="is over already"):
        agent.approvals.decide(hash, "approved", ana, now, until=now - timedelta(seconds=1))
    agent.approvals.decide(hash, "approved", ana, now, until=now + timedelta(hours=1))
    assert answer(agent, liar, spec=spec) == ("ok", "")
    monkeypatch.setattr(Approvals, "check", lambda *_, **__: None)  # as if an hour had passed
    agent.approvals.decide(hash, "approved", ana, now, until=now - timedelta(seconds=1))
    assert answer(agent, liar, spec=spec, sequence=9) == "held"


def test_a_rejected_job_is_answered_with_the_reason(agent, liar, ana):
    spec = liar.describe()
    assert answer(agent, liar, spec=spec) == "held"
    beat = agent._beat().doing
    assert re.fullmatch(r"waits for approval of job since ([\d-]+ )?\d\d:\d\d UTC", beat)
    assert held_since(beat, "job") == beat.rpartition(" since ")[2]
    assert held_since(beat, "jo") is None
    for said in ("waits for approval of job", "waits for approval of a b, job", "job since 18:30"):
        assert held_since(said, "job") is None
    hash = job_hash("cardio", "job", spec)
    agent.approvals.decide(hash, "rejected", ana, datetime.now(UTC), reason="no contract")
    assert agent.step() == 1
    last = liar.replies[-1]
    assert (last["status"], last["reason"]) == ("refused", "ana rejected the job: no contract")
    assert agent._beat().doing == ""
    approve(agent, ana, spec)
    assert answer(agent, liar, spec=spec, sequence=9) == ("ok", "")


def test_an_approval_withdrawn_while_the_task_runs_keeps_the_reply_back(
    agent, liar, ana, monkeypatch
):
    spec = liar.describe()
    approve(agent, ana, spec)
    run = agent.worker.run

    def run_and_withdraw(*arguments):
        outcome = run(*arguments)
        approve(agent, ana, spec, verdict="withdrawn")
        return outcome

    monkeypatch.setattr(agent.worker, "run", run_and_withdraw)
    assert answer(agent, liar, spec=spec) == "held"
    assert liar.replies == []


def test_people_are_told_of_a_job_that_waits(agent, liar, tmp_path):
    answer(agent, liar, spec=liar.describe())
    told, end = tmp_path / "told", time.monotonic() + 600
    while not (told.exists() and told.read_text()):
        assert time.monotonic() < end
        time.sleep(0.01)
    message = json.loads(told.read_text())
    assert message["event"] == "held"
    assert message["hash"] == agent.held.read()[0].hash
    assert Path(agent.folder / "held.json").exists()
    assert decode(liar.blobs[liar.describe()])["owner"] == message["owner"]

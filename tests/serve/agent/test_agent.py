"""The agent alone with a coordinator: heartbeats, approvals, faults of its own machine, signals."""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import solera as so
from solera.core.errors import DataError, UsageError
from solera.core.payload import encode

for library in ("fastapi", "uvicorn", "httpx", "sqlalchemy", "alembic", "cryptography", "pandas"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

import agent_tasks  # noqa: E402, F401
from network import AGENT, Network, kill  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

from solera.cli.app import app  # noqa: E402
from solera.serve.agent import heartbeat  # noqa: E402
from solera.serve.agent.agent import Agent  # noqa: E402
from solera.serve.agent.approvals import Approver  # noqa: E402
from solera.serve.agent.held_jobs import HeldJobs, describe  # noqa: E402
from solera.serve.agent.policy import OwnerPolicy  # noqa: E402
from solera.serve.agent.sources import open_source  # noqa: E402
from solera.serve.agent.worker import Worker  # noqa: E402
from solera.serve.description import Description  # noqa: E402

PROGRAM = f"import sys\nsys.path.insert(0, {str(Path(__file__).parents[1])!r})\n" + (
    "import agent_tasks\n" + AGENT
)
ALL = 'policy = "trusted"\n'
rng = np.random.default_rng(3)
X = rng.normal(size=(60, 3))
Y = (X @ rng.normal(size=(3, 2))).argmax(axis=1)
ROWS = so.data.FederatedData(X, Y, np.array([0, 60]))


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory):
    here = Network(tmp_path_factory.mktemp("agents"))
    try:
        here.start()
        yield here
    finally:
        here.close()


@pytest.fixture
def network(coordinator, request, tmp_path):
    """A federation of its own for every test, at one coordinator."""
    here = copy.copy(coordinator)
    here.federation = f"f{hashlib.sha256(request.node.name.encode()).hexdigest()[:12]}"
    here.folder, here.agents = tmp_path, {}
    (tmp_path / "coordinator").symlink_to(coordinator.folder / "coordinator")
    yield here
    for process in here.agents.values():
        kill(process)


def hire(network, policy=ALL, rows=ROWS, name="north", **options):
    return Agent(
        network.enrol(name), Worker(rows, **options), OwnerPolicy.parse(policy), patience=5
    )


@contextmanager
def working(agent):
    thread = threading.Thread(target=agent.run, args=(0.5,))
    thread.start()
    try:
        yield agent
    finally:
        agent.stop.set()
        thread.join(300)
        agent.close()


def told(network):
    """What the coordinator knows of the first client."""
    path = f"/v1/federations/{network.federation}"
    return network.driver().request("GET", path).json()["clients"][0]


def until(ready, seconds=600):
    deadline = time.monotonic() + seconds
    while not (found := ready()):
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.05)
    return found


@contextmanager
def asking(fed, *what, **options):
    """An ask in the background; gives a list that fills with its replies and failures."""
    heard = []

    def ask():
        replies = fed.ask(*what, quorum=0, deadline=600, **options)
        heard.extend([*(r.payload for r in replies), *replies.failures])

    thread = threading.Thread(target=ask)
    thread.start()
    yield heard
    thread.join(300)


def answer(network, *what, **options):
    with asking(network.connect(), *what, **options) as heard:
        pass
    return heard


# --- heartbeats and the log ----------------------------------------------------------------------


def test_the_coordinator_hears_what_a_client_does_and_where_its_log_ends(network, tmp_path):
    busy = tmp_path / "busy"
    busy.touch()
    agent = hire(network)
    assert told(network)["head"] is None
    with working(agent):
        with asking(network.connect(), "agent.wait", {"file": str(busy)}) as heard:
            until(lambda: told(network)["doing"] == "agent.wait")
            assert told(network)["head"] == [0, "0" * 64]
            busy.unlink()
        assert heard == [{"rows": 60}]
        until(lambda: told(network)["doing"] == "")
    assert told(network)["head"] == list(agent.audit.head())
    assert told(network)["head"][0] == 1
    assert time.time() - told(network)["seen"] < 600


def test_a_log_cut_together_with_its_head_is_found_out(network, tmp_path, monkeypatch):
    monkeypatch.setattr(heartbeat, "_SECONDS", 0.5)
    monkeypatch.setattr(heartbeat, "_LOOK_SECONDS", 0.1)
    with working(hire(network)) as agent:
        answer(network, "data.flaws")
        home = agent.folder
        for name in ("audit.log", "audit.log.head"):
            shutil.copy(home / name, tmp_path / name)
        answer(network, "data.flaws")
    head = told(network)["head"]
    assert head[0] == 2
    remembered = ("--head", f"{head[0]}:{head[1]}")

    def verify(*options, code):
        arguments = ["audit", "verify", str(home / "audit.log"), "--folder", str(home), *options]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == code, result.output
        return result.output

    assert "ok" in verify(*remembered, code=0)
    for name in ("audit.log", "audit.log.head"):
        shutil.copy(tmp_path / name, home / name)
    assert "ok" in verify(code=0), "the files alone look right"
    assert "the log ends at line 1, the remembered head is at line 2" in verify(*remembered, code=1)
    assert "no line of a log" in verify("--head", "2:ab", code=1)

    with working(Agent(home, Worker(ROWS), OwnerPolicy.parse(ALL), patience=5)):
        until(lambda: cuts(network))
        answer(network, "data.flaws")
        until(lambda: len(cuts(network)) == 2)
        time.sleep(0.5)  # it is said again meanwhile
    assert told(network)["head"] == head, "what convicts the log is not forgotten"
    assert [e["facts"]["said"][0] for e in cuts(network)] == [1, 2], "each noted once"


def cuts(network):
    path = f"/v1/federations/{network.federation}/events"
    events = network.driver().request("GET", path).json()
    return [event for event in events if event["event"] == "log cut"]


# --- signals and second agents -------------------------------------------------------------------


def start(network, name, program=PROGRAM, **options):
    files = [str(network.folder / f"{name}.{end}") for end in ("rows", "toml")]
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(network.folder / name), *files], **options
    )
    network.agents[f"{name} {process.pid}"] = process
    return process


def children(pid):
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(path.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_sigterm_ends_an_agent_in_the_middle_of_a_task_and_nothing_is_lost(network, tmp_path):
    busy = tmp_path / "busy"
    busy.touch()
    network.enrol("north")
    network.give("north", ROWS, 0)
    first = start(network, "north")
    with asking(network.connect(), "agent.wait", {"file": str(busy)}) as heard:
        until(lambda: told(network)["doing"] == "agent.wait")
        workers = children(first.pid)
        assert workers
        second = start(network, "north", stderr=subprocess.PIPE)
        assert second.wait(600) == 1
        said = second.stderr.read().decode()
        second.stderr.close()
        assert f"an agent works in {network.folder / 'north'} already, process {first.pid}" in said
        first.send_signal(signal.SIGTERM)
        assert first.wait(600) == 0
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
        assert told(network)["doing"] == ""
        assert heard == []
        busy.unlink()
        start(network, "north")
    assert heard == [{"rows": 60}]


def test_a_worker_that_is_killed_is_replaced_twice_and_then_the_ask_has_failed(network, tmp_path):
    with working(hire(network)):
        (reply,) = answer(network, "agent.die", {"folder": str(tmp_path), "times": 2})
        assert reply["draw"].shape == (3,)
        (failure,) = answer(network, "agent.die", {"folder": str(tmp_path), "times": 99})
        assert failure.kind == "failed"
        assert failure.reason.startswith("crashed: ")
        assert len(list(tmp_path.glob("killed-*"))) == 2 + 3
        assert answer(network, "agent.count", {"numbers": 0})[0]["times"] == 1, "it works on"


# --- a machine with faults -----------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["empty", "cut", "no table", "other fields"])
def test_a_damaged_memory_is_named(network, damage):
    agent = hire(network)
    job = network.connect()

    def times():
        return job.ask("agent.count", {"numbers": 0}).collect()[0].payload["times"]

    with working(agent):
        assert times() == 1
    path = agent.folder / "memory.sol"
    whole = path.read_bytes()
    other = {"no table": encode([1]), "other fields": encode({"state": {}}), "empty": b""}
    path.write_bytes(other.get(damage, whole[:-1]))
    with Worker(ROWS) as worker:
        with pytest.raises(UsageError, match=r"memory\.sol is damaged.*restore it from a copy"):
            Agent(agent.folder, worker, OwnerPolicy.parse(ALL))
        path.write_bytes(whole)
        again = Agent(agent.folder, worker, OwnerPolicy.parse(ALL))
        with working(again):
            assert times() == 2


@contextmanager
def full_disk(size=512 << 10):
    """No file of this process may grow beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_what_the_disk_does_not_keep_does_not_leave(network):
    agent = hire(network)
    large = ("agent.count", {"numbers": 100_000})
    with working(agent):
        with full_disk():
            (failure,) = answer(network, *large)
        assert failure.kind == "failed"
        assert failure.reason == "the client cannot keep its reply: File too large"
        assert not [path for path in agent.folder.iterdir() if "memory" in path.name]
        (reply,) = answer(network, *large)
        assert reply["times"] == 1, "the state of the task that was not kept does not count"


def test_nothing_leaves_that_cannot_be_logged(network):
    agent = hire(network)
    with working(agent):
        log = agent.folder / "audit.log"
        aside = log.rename(agent.folder / "aside")
        log.mkdir()
        with asking(network.connect(), "agent.count", {"numbers": 1}) as heard:
            until(lambda: told(network)["doing"].startswith("cannot work: "))
            assert heard == []
            log.rmdir()
            aside.rename(log)
        assert heard[0]["times"] == 1


def read_when_there(path):
    if not path.exists():
        raise DataError("the database is away")
    return ROWS


def test_an_agent_whose_rows_are_away_says_so_and_waits(network, tmp_path):
    flag = tmp_path / "flag"
    agent = hire(network, rows=functools.partial(read_when_there, flag), begin=False)
    with working(agent):
        until(lambda: told(network)["doing"] == "cannot work: the rows cannot be read")
        with asking(network.connect(), "agent.count", {"numbers": 0}) as heard:
            flag.touch()
        assert heard[0]["times"] == 1
        until(lambda: told(network)["doing"] == "")


# --- held jobs -----------------------------------------------------------------------------------


def test_held_jobs_are_listed_with_their_description_and_run_once_approved(network, tmp_path):
    key = tmp_path / "ana.key"
    public = Approver.create(key, "ana").public
    policy = tmp_path / "policy.toml"
    policy.write_text(ALL + f'[approval]\nmode = "ask"\napprovers = {{ ana = "{public}" }}\n')
    agent = hire(network, policy.read_text())

    def solera(*arguments):
        result = CliRunner().invoke(app, [*arguments, "--folder", str(agent.folder)])
        assert result.exit_code == 0, result.output
        return result.stdout

    def decide(command, code=0):
        order = [command, hash, "--key", str(key), "--policy", str(policy)]
        solera(*order)

    assert solera("held") == "no job waits for approval\n"
    hash = network.driven("studied", owner="dr. vega", seed=77)
    with working(agent):
        network.put_ask("studied", 0, "agent.count", {"numbers": 0})
        said = until(lambda: agent.held.read() and solera("held"))
        assert hash in said
        assert "studied, driven, of dr. vega; asks for agent.count; since 20" in said
        assert "seed 77" in said
        assert "the driver chooses what is asked" in said
        assert network.replies("studied", 0) == []
        decide("approve")
        assert solera("held", "--policy", str(policy)) == "no job waits for approval\n"
        until(lambda: network.replies("studied", 0))
        until(lambda: agent.held.read() == [])
        decide("withdraw")
        network.put_ask("studied", 1, "agent.count", {"numbers": 0})
        until(lambda: agent.held.read())
        assert network.replies("studied", 1) == []
        decide("approve")
        until(lambda: network.replies("studied", 1))
    events = [json.loads(line) for line in (agent.folder / "audit.log").read_text().splitlines()]
    told = [event["event"] for event in events]
    assert told == ["approved", "reply", "withdrawn", "approved", "reply"]
    assert events[0]["facts"]["person"] == "ana"
    assert events[0]["facts"]["job"] == hash


def test_a_description_is_told_in_words_and_not_at_any_length():
    def job(**changes):
        fields = {"job": "j", "federation": "f", "kind": "managed", "owner": "o", "seed": 3}
        return describe(Description(**{**fields, **changes}))

    assert job(toml='name = "a"').endswith('name = "a"')
    assert "managed job j of o, seed 3" in job()
    assert "array float64 (4,)" in job(learner={"kind": "FedX", "start": np.zeros(4)})
    assert "2 bytes" in job(learner={"kind": "FedX", "start": b"12"})
    assert len(job(toml="a" * 100_000)) < 21_000
    assert "24.0 hours at most" in job(seconds=86400.0)
    assert "without an end" in job(seconds=None)


def test_what_is_shown_cannot_write_to_the_terminal(tmp_path):
    from solera.serve.agent.held_jobs import HeldJob

    evil = "\x1b[2Jname = 'fine'\r\x07"
    HeldJobs(tmp_path / "held.json").write([HeldJob("ab", "j", evil, "k", evil, "now", evil)])
    said = CliRunner().invoke(app, ["held", "--folder", str(tmp_path)]).stdout
    assert "name = 'fine'" in said
    assert not {"\x1b", "\r", "\x07"} & set(said)
    (tmp_path / "held.json").write_bytes(b"[{}]")
    broken = CliRunner().invoke(app, ["held", "--folder", str(tmp_path)])
    assert broken.exit_code == 1
    assert "held.json is damaged" in broken.stderr


# --- what tasks see ------------------------------------------------------------------------------


def test_columns_that_the_policy_does_not_list_never_reach_a_task(network, tmp_path):
    path = tmp_path / "rows.csv"
    lines = [f"{i},{i / 2},{90_000 + i},{i % 2}" for i in range(30)]
    path.write_text("\n".join(["age,bmi,secret,ill", *lines]))
    policy = ALL + '[data]\ncolumns = ["bmi", "age"]\n'
    columns = OwnerPolicy.parse(policy).data.columns
    source = functools.partial(open_source, str(path), target="ill", columns=columns)
    with working(hire(network, policy, source)):
        (seen,) = answer(network, "agent.rows")
    assert seen["names"] == ["bmi", "age"]
    assert seen["X"].shape == (30, 2)
    assert seen["X"].max() < 90_000


# --- messages ------------------------------------------------------------------------------------


def test_what_is_asked_again_for_a_late_reply_is_not_done_twice(network):
    """A task that exchanges messages moves on with every ask; others are done as often as asked."""
    with working(hire(network)):
        fed = network.connect("again")

        def times(task, numbers):
            (reply,) = fed.ask(task, {"numbers": numbers}).collect()
            return reply["times"]

        assert [times("agent.whisper", 1), times("agent.whisper", 1)] == [1, 1]
        assert times("agent.whisper", 2) == 2
        assert times("agent.whisper", 1) == 3
        fed.close()

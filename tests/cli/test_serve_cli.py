"""A real federation from the command line: certificates, a coordinator, an owner's agent."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import solera as so
import solera.cli
from solera.cli.app import app

for library in ("fastapi", "uvicorn", "httpx", "sqlalchemy", "alembic", "cryptography", "pandas"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

SOURCE = str(Path(solera.cli.__file__).parents[2])
POLICY = """
policy = "trusted"
[approval]
mode = "auto"
approvers = { ana = "abababababababababababababababababababababababababababababababab" }
[data]
columns = ["age", "bmi"]
"""
HASH = "ab" * 32
FEDERATION = ("--federation", "cardio")


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("SOLERA_TOKEN", "SOLERA_CA", "SOLERA_URL", "SOLERA_TRACEBACK"):
        monkeypatch.delenv(name, raising=False)
    Path("policy.toml").write_text(POLICY)
    rows = np.random.default_rng(0).integers(20, 80, (30, 3))
    lines = [f"{age},{bmi},{secret},{age % 2}" for age, bmi, secret in rows.tolist()]
    Path("rows.csv").write_text("\n".join(["age,bmi,secret,ill", *lines]))


def solera_(*arguments: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, list(arguments), prog_name="solera")
    assert result.exit_code == code, result.output
    return result


def complaint(*arguments: str) -> str:
    """What a command that fails says, without a traceback."""
    said = str(solera_(*arguments, code=1).stderr)
    assert said.startswith("error: "), said
    assert "unexpected" not in said, said
    assert len(said.splitlines()) <= 2, said
    return said


def start(*arguments: str) -> subprocess.Popen[str]:
    path = os.pathsep.join([SOURCE, os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-m", "solera.cli.app", *arguments],
        env={**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(process: subprocess.Popen[str], number: int | None = None) -> tuple[int, str, str]:
    """Exit code, stdout and stderr, after a signal if one is given."""
    if number is not None:
        while number == signal.SIGTERM and not listens(process):
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(number)
    try:
        out, err = process.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, out, err


def listens(process: subprocess.Popen[str]) -> bool:
    """Whether it has a handler of SIGTERM by now, where the system tells."""
    status = Path(f"/proc/{process.pid}/status")
    if not status.exists():
        return True
    caught = int(status.read_text().partition("SigCgt:")[2].split()[0], 16)
    return bool(caught >> (signal.SIGTERM - 1) & 1)


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def url(_in_a_folder: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a running ``solera serve``; token and authority are in the environment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    solera_("tls", "init", "--host", "127.0.0.1")
    pair = ("--certificate", "tls/coordinator.pem", "--key", "tls/coordinator.key")
    process = start("serve", "--port", str(port), *pair, "--uploads", "1")
    try:
        deadline = time.monotonic() + 600
        while not answers(port) and time.monotonic() < deadline:
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        address = f"https://127.0.0.1:{port}"
        monkeypatch.setenv("SOLERA_URL", address)
        monkeypatch.setenv("SOLERA_CA", "tls/ca.pem")
        monkeypatch.setenv("SOLERA_TOKEN", Path("coordinator/driver.token").read_text())
        assert "cannot listen" in complaint("serve", "--port", str(port))
        yield address
    finally:
        code, out, err = end(process, signal.SIGINT)
    assert code == 130
    assert err.endswith("error: interrupted\n")
    assert f"https://127.0.0.1:{port}" in out
    assert "coordinator/driver.token" in out
    assert Path("coordinator/driver.token").read_text() not in out


def test_a_federation_from_invitation_to_audit(url: str) -> None:
    token = solera_("invite", "north", *FEDERATION).stdout.strip()
    assert token.startswith("cardio/north/")
    rows = ("--data", "rows.csv", "--target", "ill", "--policy", "policy.toml")
    code, out, err = end(start("join", url, "--token", token, *rows, "--once", "--wait", "0"))
    assert code == 0, err
    assert "warning: `ps` shows --token to everybody; use --token-file" in err
    assert "north, of federation cardio" in out
    assert "policy" in out
    assert "answered 0 asks" in out

    (client,) = json.loads(solera_("clients", *FEDERATION, "--json").stdout)
    assert client["name"] == "north"
    assert client["status"] == "active"
    assert "north" in solera_("clients", *FEDERATION).stdout

    replies: list[Any] = []
    federation = so.connect(url, federation="cardio")
    asking = threading.Thread(
        target=lambda: replies.extend(federation.ask("data.describe", deadline=600).collect())
    )
    asking.start()
    code, out, err = end(start("join", url, *rows, "--once"))
    asking.join(600)
    federation.close()
    assert code == 0, err
    assert "answered 1 ask\n" in out
    assert [reply.client for reply in replies] == [0]
    assert "age" in str(replies[0].payload)
    assert "secret" not in str(replies[0].payload)

    _check_audit(Path("agent/audit.log"))

    agent = start("join", url, *rows)
    assert agent.stdout is not None
    assert "north" in agent.stdout.readline()
    assert "policy" in agent.stdout.readline()
    assert end(agent, signal.SIGINT)[0] == 130
    agent = start("join", url, *rows)
    assert agent.stdout is not None
    assert "north" in agent.stdout.readline()
    assert "policy" in agent.stdout.readline()
    assert "already, process" in complaint("join", url, *rows, "--once")
    assert end(agent, signal.SIGTERM)[0] == 0
    Path("rows.csv").rename("aside.csv")
    agent = start("join", url, *rows)
    assert agent.stderr is not None
    assert "there is no file rows.csv" in agent.stderr.readline(), "it says so and waits"
    assert end(agent, signal.SIGTERM)[0] == 0
    Path("aside.csv").rename("rows.csv")

    assert "has joined" in complaint("join", "https://127.0.0.1:1", *rows)
    assert "-" in solera_("clients", *FEDERATION).stdout
    (client,) = json.loads(solera_("clients", *FEDERATION, "--json").stdout)
    head = f"{client['head'][0]}:{client['head'][1]}"
    assert client["doing"] == ""
    assert "ok" in solera_("audit", "verify", "agent/audit.log", "--head", head).stdout
    assert "give --delete" in complaint("leave", "--log")
    assert "deliveries" in solera_("leave").stdout
    assert "no job waits" in solera_("held").stdout
    solera_("revoke", str(client["id"]), *FEDERATION, "--reason", "moved away")
    (client,) = json.loads(solera_("clients", *FEDERATION, "--json").stdout)
    assert client["status"] == "revoked"
    assert "status 40" in complaint("clients", *FEDERATION, "--token", "wrong")
    assert "status 404" in complaint("clients", "--federation", "nobody")


def test_what_is_uploaded_and_not_used_is_bounded(url: str) -> None:
    from solera.serve.connection import Connection, CoordinatorError

    token = {"Authorization": f"Bearer {Path('coordinator/driver.token').read_text()}"}
    driver = Connection(url, lambda *_: token, ca="tls/ca.pem", patience=0)
    driver.upload(bytes(900_000))
    with pytest.raises(CoordinatorError, match="uploaded and are not used"):
        driver.upload(bytes(200_000))
    driver.close()


def _check_audit(log: Path) -> None:
    assert "1 lines" in solera_("audit", "verify", str(log)).stdout
    from solera.serve.identity import Identity

    key = Identity.load("agent").sign_key.hex()
    report = json.loads(solera_("audit", "verify", str(log), "--key", key, "--json").stdout)
    assert report["ok"]
    assert report["lines"] == 1
    assert "not a public key" in complaint("audit", "verify", str(log), "--key", "abc")
    assert not json.loads(
        solera_("audit", "verify", str(log), "--key", "00" * 32, "--json", code=1).stdout
    )["ok"]
    whole = log.read_bytes()
    log.write_bytes(whole.replace(b"data.describe", b"data.nothing!"))
    assert "NOT OK" in solera_("audit", "verify", str(log), code=1).stdout
    log.write_bytes(whole)


def test_what_is_wrong_is_said_before_a_token_is_spent() -> None:
    join = ("join", "https://127.0.0.1:1", "--policy", "policy.toml")
    assert "--token" in complaint(*join, "--data", "rows.csv")
    assert "absent.csv" in complaint(*join, "--data", "absent.csv", "--token", "t")
    rows = ("--data", "rows.csv", "--token", "t")
    assert "absent.pem" in complaint(*join, *rows, "--ca", "absent.pem")
    assert "PEM" in complaint(*join, *rows, "--ca", "rows.csv")
    assert "https://" in complaint("join", "http://example.org", *join[2:], *rows)
    assert "not an address" in complaint("join", "example.org", *join[2:], *rows)
    assert not Path("agent").exists()
    assert "SOLERA_TOKEN" in complaint("invite", "north", *FEDERATION)
    assert "not a name" in complaint("invite", "../north", *FEDERATION, "--token", "t")


def test_tls_init() -> None:
    made = json.loads(solera_("tls", "init", "--host", "localhost", "--json").stdout)
    assert len(made["fingerprint"]) == 64
    assert all(Path(made[name]).is_file() for name in ("authority", "certificate", "key"))
    assert Path(made["key"]).stat().st_mode & 0o077 == 0
    assert "exists" in complaint("tls", "init")
    other = solera_("tls", "init", "--name", "second", "--host", "10.0.0.5").stdout
    assert "tls/second.pem" in other
    assert made["fingerprint"] in other
    pair = ("--certificate", made["certificate"], "--key", "tls/second.key")
    assert "not the key" in complaint("serve", *pair)
    assert "belong together" in complaint("serve", *pair[:2])
    assert "needs TLS" in complaint("serve", "--host", "0.0.0.0")


def test_a_policy_is_written_checked_and_explained() -> None:
    from solera.trust.policy import PROMISE

    said = solera_("policy", "init", "new.toml").stdout
    assert "policy = 'sums'" in said
    assert "exists" in complaint("policy", "init", "new.toml")
    assert "there is no policy 'sum'" in complaint("policy", "init", "sum.toml", "--policy", "sum")
    assert not Path("sum.toml").exists()
    checked = solera_("policy", "check", "new.toml").stdout
    assert checked.startswith("new.toml is a policy\n")
    assert "numbers from 5 persons of all" in checked
    assert "columns: age, bmi" in solera_("policy", "check", "policy.toml").stdout
    Path("policy.toml").write_text('policy = "sums"\n[dta]\n')
    assert "policy.toml:2" in complaint("policy", "check", "policy.toml")
    Path("policy.toml").write_text('policy = "training"\n')
    assert 'policy = "sums"' in complaint("policy", "check", "policy.toml")
    assert "absent.toml" in complaint("policy", "check", "absent.toml")
    lines = solera_("policy", "explain").stdout.splitlines()
    assert lines == [f"{number}. {sentence}" for number, sentence in enumerate(PROMISE, start=1)]
    more = solera_("policy", "explain", "new.toml").stdout.splitlines()
    assert more[:5] == lines
    assert any("exact training refused" in line for line in more[5:])


def test_a_dry_run_says_what_tasks_would_see_and_sends_nothing() -> None:
    policy = 'policy = "sums"\n[data]\ncolumns = ["age", "weight"]\n'
    policy += '[columns]\nweight = { from = "bmi", times = 2 }\n'
    Path("policy.toml").write_text(policy)
    rows = Path("rows.csv").read_text().splitlines()
    Path("rows.csv").write_text("\n".join([*rows, "33,30,1,7"]))
    join = ("join", "https://127.0.0.1:1", "--policy", "policy.toml", "--data", "rows.csv")
    said = solera_(*join, "--target", "ill", "--test", "0.2", "--dry-run").stdout
    assert "rows      31 (25 to train, 6 to test)" in said
    assert "2 kept: age, weight" in said
    assert "1 dropped: secret" in said
    assert "7 (1 rows)" in said
    assert not Path("agent").exists()
    lines = [f"{20 + i},{i},{i // 4},{i % 2}" for i in range(36)]  # four visits of each of nine
    Path("rows.csv").write_text("\n".join(["age,bmi,person,ill", *lines]))
    Path("policy.toml").write_text('policy = "sums"\n[data]\nunit = "person"\n')
    said = solera_(*join, "--target", "ill", "--dry-run").stdout
    assert "rows      36 (36 to train), of 9 persons" in said
    assert "0 (18 rows of 9 persons), 1 (18 rows of 9 persons)" in said


def test_join_takes_several_targets_from_the_line_and_from_a_file() -> None:
    lines = [f"{20 + i},{i},{i // 4 % 2},{i % 2}" for i in range(36)]
    Path("rows.csv").write_text("\n".join(["age,bmi,A,B", *lines]))
    Path("policy.toml").write_text('policy = "sums"\n')
    place = ("join", "https://127.0.0.1:1", "--policy", "policy.toml", "--data", "rows.csv")
    said = solera_(*place, "--target", "A", "--target", "B", "--dry-run").stdout
    assert "columns   2 kept: age, bmi\n" in said
    assert "labels    A: 16 of 36, B: 18 of 36" in said
    lacking = solera_(*place, "--target", "B", "--target", "C", "--dry-run").stdout
    assert "columns   3 kept: age, bmi, A\n" in lacking
    assert "labels    B: 18 of 36, C: 0 of 0" in lacking
    for target, kept in (('"B"', "age, bmi, A"), ('["A", "B"]', "age, bmi")):
        Path("solera.toml").write_text(f"[agent]\ntarget = {target}\n")
        said = solera_(*place, "--config", "solera.toml", "--dry-run").stdout
        assert f"kept: {kept}\n" in said


def test_approve() -> None:
    from solera.serve.agent.approvals import Approvals
    from solera.serve.identity import Identity

    said = solera_("approver", "new", "ana").stdout
    public = said.split('"')[1]
    Path("policy.toml").write_text(POLICY.replace("ab" * 32, public))
    assert "exists" in complaint("approver", "new", "ana")
    assert "not a name" in complaint("approver", "new", "a b")

    def decide(command: str, key: str = "ana.key") -> tuple[str, ...]:
        return (command, HASH, "--policy", "policy.toml", "--key", key)

    assert "no folder" in complaint(*decide("approve"))
    Identity.create("agent")
    solera_("approver", "new", "eva")
    said = complaint(*decide("approve", "eva.key"))
    assert "'eva' may not approve" in said
    assert "the policy names ana" in said
    solera_("approver", "new", "ana", "--key", "forged.key")
    assert "'ana' may not approve with this key" in complaint(*decide("approve", "forged.key"))
    assert not Path("agent/approvals.json").exists()
    assert not Path("agent/audit.log").exists()
    Path("notify.sh").write_text("#!/bin/sh\ncat >> told.json\n")
    Path("notify.sh").chmod(0o700)
    with Path("policy.toml").open("a") as file:
        file.write('[notify]\ncommand = ["./notify.sh"]\n')
    assert "ana has approved" in solera_(*decide("approve")).stdout
    approvals = Approvals("agent/approvals.json", {"ana": public})
    assert approvals.approval(HASH) is not None
    assert json.loads(Path("told.json").read_text())["event"] == "approved"
    assert "ana has withdrawn" in solera_(*decide("withdraw")).stdout
    assert approvals.approval(HASH) is None
    lines = [json.loads(line) for line in Path("agent/audit.log").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["approved", "withdrawn"]
    assert {line["facts"]["person"] for line in lines} == {"ana"}


@pytest.mark.parametrize(
    "arguments",
    [
        ("tls", "init"),
        ("serve",),
        ("join", "https://127.0.0.1:1", "--data", "a", "--policy", "policy.toml", "--token", "t"),
        ("invite", "north", *FEDERATION, "--token", "t"),
        ("audit", "verify", "audit.log"),
        ("leave",),
    ],
)
def test_without_the_extra(arguments: tuple[str, ...]) -> None:
    program = (
        "import sys\n"
        "for name in ('fastapi', 'uvicorn', 'httpx', 'sqlalchemy', 'cryptography'):\n"
        "    sys.modules[name] = None\n"
        "from solera.cli.app import main\nmain()\n"
    )
    path = os.pathsep.join([SOURCE, os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1
    assert "needs the extra 'serve'" in done.stderr
    assert "pip install" in done.stderr
    assert len(done.stderr.splitlines()) == 2

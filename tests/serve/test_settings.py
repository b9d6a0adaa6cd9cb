"""The configuration file of a coordinator and an agent: located errors, and no secret in `ps`."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

import solera.cli
from solera.cli.app import app
from solera.core.errors import UsageError
from solera.serve.settings import read_settings

for library in ("fastapi", "uvicorn", "httpx", "sqlalchemy", "cryptography", "pandas"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

SOURCE = str(Path(solera.cli.__file__).parents[2])


def written(folder: Path, text: str) -> Path:
    path = folder / "solera.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[coordinator]\nprot = 1\n", r"solera.toml:2: .* no 'prot' .*'port'"),
        ("[coordinator]\n\nport = 0\n", "solera.toml:3: .*port = 0 is not a whole number in"),
        ("[coordinator]\nport = '8443'\n", "solera.toml:2: .*'8443' is not a whole number"),
        ("[agent]\nurl = 'https://a'\ntest = 2\n", "solera.toml:3: .*test = 2"),
        ("[coordinator]\nlog_format = 'xml'\n", "solera.toml:2: .*'xml'"),
        ("[cordinator]\n", "solera.toml:1: there is no table 'cordinator'"),
        ("agent = 3\n", "solera.toml:1: agent is not a table"),
        ("[agent\n", "solera.toml:1: this is not TOML"),
        ("[agent]\ntoken = 'secret'\n", "solera.toml:2: .*no 'token' "),
        (
            "[coordinator]\ndatabase = 'postgresql+psycopg://a:secret@b/c'\n",
            "solera.toml:2: .*password .*database_file",
        ),
        ("[coordinator]\ndatabase = 'sqlite:///a'\ndatabase_file = 'b'\n", "solera.toml:3: .*two"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_line(tmp_path, text, problem):
    with pytest.raises(UsageError, match=problem) as wrong:
        read_settings(written(tmp_path, text))
    assert "secret" not in str(wrong.value)


def test_every_option_of_the_commands_can_be_written_in_the_file():
    """But what is secret, what is asked for once, and the file itself."""
    import inspect
    from dataclasses import fields

    from solera.cli.client import join
    from solera.cli.serve import serve
    from solera.serve.settings import AgentSettings, CoordinatorSettings

    for command, settings, but in (
        (serve, CoordinatorSettings, {"config"}),
        (join, AgentSettings, {"config", "context", "token", "dry_run", "once"}),
    ):
        options = set(inspect.signature(command).parameters) - but
        assert options == {field.name for field in fields(settings)}


def test_paths_are_relative_to_the_file(tmp_path):
    text = "[agent]\ndata = 'rows.csv'\nca = '/etc/ca.pem'\ntarget = 'ill'\n"
    agent = read_settings(written(tmp_path, text)).agent
    assert agent.data == str(tmp_path / "rows.csv")
    assert agent.ca == "/etc/ca.pem"
    assert agent.target == "ill"
    text = "[agent]\ntarget = ['ill', 'old']\n"
    assert read_settings(written(tmp_path, text)).agent.target == ["ill", "old"]
    text = "[agent]\ndata = 'sql:sqlite:///a.db#SELECT 1'\n"
    assert read_settings(written(tmp_path, text)).agent.data == "sql:sqlite:///a.db#SELECT 1"


@pytest.mark.parametrize(
    "command",
    [
        ("serve", "--database", "postgresql+psycopg://solera:secret@db/solera"),
        ("join", "https://a", "--policy", "p", "--data", "sql:postgresql://a:secret@b/c#SELECT 1"),
    ],
)
def test_a_password_on_the_command_line_is_refused(command):
    result = CliRunner().invoke(app, list(command))
    assert result.exit_code == 1
    assert "`ps` shows it" in result.stderr
    assert "secret" not in result.stderr


def test_a_coordinator_and_an_agent_start_from_a_file_and_no_secret_is_in_ps(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (tmp_path / "database").write_text(f"sqlite:///{tmp_path / 'elsewhere.db'}\n")
    (tmp_path / "rows.csv").write_text("age,ill\n" + "40,1\n50,0\n" * 20)
    (tmp_path / "policy.toml").write_text('policy = "trusted"\n')
    config = written(
        tmp_path,
        f"""
[coordinator]
folder = "home"
port = {port}
database_file = "database"

[agent]
url = "http://127.0.0.1:{port}"
data = "rows.csv"
target = "ill"
policy = "policy.toml"
token_file = "invitation"
folder = "agent"
""",
    )
    coordinator = started("serve", config)
    try:
        token = invited(coordinator, tmp_path, port)
        (tmp_path / "invitation").write_text(token)
        agent = started("join", config)
        try:
            assert agent.stdout is not None
            assert "north" in agent.stdout.readline()
            for process in (coordinator, agent):
                shown = Path(f"/proc/{process.pid}/cmdline").read_text()
                assert token not in shown
                assert "elsewhere.db" not in shown
            assert (tmp_path / "elsewhere.db").exists()
            assert not (tmp_path / "home" / "coordinator.sqlite").exists()
        finally:
            end(agent)
        (tmp_path / "invitation").unlink()  # needed only once
        again = started("join", config, "--once", "--wait", "0")
        out, err = again.communicate(timeout=600)
        assert again.returncode == 0, err
        assert "answered 0 asks" in out
    finally:
        end(coordinator)


def started(command: str, config: Path, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "solera.cli.app", command, "--config", str(config), *more],
        env={**os.environ, "PYTHONPATH": SOURCE, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def invited(coordinator: subprocess.Popen[str], folder: Path, port: int) -> str:
    from solera.serve.connection import Connection

    deadline = time.monotonic() + 600
    while not (folder / "home" / "driver.token").exists() and time.monotonic() < deadline:
        assert coordinator.poll() is None, coordinator.communicate()
        time.sleep(0.05)
    token = (folder / "home" / "driver.token").read_text()
    headers = {"Authorization": f"Bearer {token}"}
    driver = Connection(f"http://127.0.0.1:{port}", lambda *_: headers, patience=120)
    made = driver.request("POST", "/v1/federations/cardio/invites", json={"name": "north"}).json()
    driver.close()
    return str(made["token"])


def end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    process.communicate(timeout=300)

"""Tutorials that are typed into terminals: each is run, with the commands as printed."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

for library in ("fastapi", "uvicorn", "httpx", "sqlalchemy", "cryptography", "pandas"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(
    r'^```sh title="(?P<who>\w+)(?P<stays>, leave it running)?"\n(?P<code>.*?)^```$',
    re.MULTILINE | re.DOTALL,
)
_SECONDS = 900


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Terminal:
    """One party's shell: variables and folder stay from block to block."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.state = folder / f".{id(self)}"
        self.folder, self.environment = folder, environment
        self.running: list[subprocess.Popen[str]] = []

    def run(self, code: str) -> str:
        keep = f"\n{{ declare -p | grep '^declare -x'; echo cd \"$PWD\"; }} > '{self.state}'"
        done = subprocess.run(
            ["bash", "-euc", self._before() + code + keep],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
        assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def leave_running(self, code: str) -> None:
        command = ["bash", "-euc", self._before() + "exec " + code]
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.running.append(process)
        assert process.stdout is not None
        assert process.stdout.readline(), "it said nothing and ended"

    def _before(self) -> str:
        return self.state.read_text() if self.state.exists() else ""

    def close(self) -> None:
        for process in reversed(self.running):
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)


def wait_for(port: int) -> None:
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise TimeoutError("nobody listens")


@pytest.mark.slow
def test_connect_a_hospital_in_an_hour(tmp_path):
    text = (ROOT / "docs" / "tutorial" / "connect-a-hospital.md").read_text(encoding="utf-8")
    port = free_port()
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "solera"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m solera.cli.app "$@"\n')
    program.chmod(0o700)
    environment = {
        "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "PYTHONUNBUFFERED": "1",
        "HOME": str(tmp_path),
        "LC_ALL": "C.UTF-8",
    }
    parties = {who: Terminal(tmp_path, environment) for who in ("coordinator", "hospital")}
    said = ""
    try:
        for block in BLOCK.finditer(text):
            code = block["code"].replace("8443", str(port))  # others may listen on 8443 here
            terminal = parties[block["who"]]
            if block["stays"]:
                terminal.leave_running(code)
                wait_for(port)
            else:
                said += terminal.run(code)
    finally:
        for terminal in reversed(parties.values()):
            terminal.close()
    assert "north" in said
    assert "pulse" not in (tmp_path / "hospital" / "agent" / "audit.log").read_text()
    made = {path.name for path in (tmp_path / "coordinator").glob("readmission.sol*")}
    assert len(made) == 3, made
    assert "unbroken" in said or "ok" in said
    blocks = len(re.findall(r"^```sh", text, re.MULTILINE))
    assert blocks == len(BLOCK.findall(text)), "every block of commands was run"

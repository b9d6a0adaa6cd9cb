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
    r'^```sh title="(?P<who>\w+)(?P<how>, leave it running|, it waits)?"\n(?P<code>.*?)^```$',
    re.MULTILINE | re.DOTALL,
)
_SECONDS = 900


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Terminal:
    """One party's shell: variables and folder stay from block to block.

    What is left running ends with the test; what waits for others ends before the next block.
    """

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.state = folder / f".{id(self)}"
        self.folder, self.environment = folder, environment
        self.running: list[subprocess.Popen[bytes]] = []
        self.waiting: tuple[subprocess.Popen[bytes], Path] | None = None

    def run(self, code: str) -> str:
        """Type a block, and yes to what it asks; what it said."""
        before = self.finish()
        keep = f"\n{{ declare -p | grep '^declare -x'; echo cd \"$PWD\"; }} > '{self.state}'"
        done = subprocess.run(
            ["bash", "-euc", self._before() + code + keep],
            cwd=self.folder,
            env=self.environment,
            input="y\n",
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
        assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
        return before + done.stdout

    def leave_running(self, code: str) -> None:
        process, output = self._start(code)
        deadline = time.monotonic() + _SECONDS
        while "\n" not in output.read_text():
            assert process.poll() is None, f"it ended: {output.read_text()}"
            assert time.monotonic() < deadline, "it says nothing"
            time.sleep(0.1)

    def wait(self, code: str) -> None:
        """Type a block that ends when others have done something."""
        self.waiting = self._start(code)

    def finish(self) -> str:
        """What the block said that waited for others."""
        if self.waiting is None:
            return ""
        (process, output), self.waiting = self.waiting, None
        process.wait(_SECONDS)
        said = output.read_text()
        assert process.returncode == 0, said
        return said

    def _start(self, code: str) -> tuple[subprocess.Popen[bytes], Path]:
        """A block that goes on, and a file of what it says: a pipe that nobody reads gets full."""
        output = Path(f"{self.state}.{len(self.running)}")
        with output.open("wb") as file:
            process = subprocess.Popen(
                ["bash", "-euc", self._before() + code],
                cwd=self.folder,
                env=self.environment,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.running.append(process)
        return process, output

    def _before(self) -> str:
        return self.state.read_text() if self.state.exists() else ""

    def close(self) -> None:
        for process in reversed(self.running):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait(60)


def wait_for(port: int) -> None:
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise TimeoutError("nobody listens")


PIP = """
import shutil, sys, tomllib
from pathlib import Path

command, source = sys.argv[1], Path(sys.argv[2])
assert command == "install"
site = Path(__file__).parents[1] / "site"
project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
info = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
info.mkdir(parents=True, exist_ok=True)
for module in source.glob("*.py"):
    shutil.copy(module, site)
(info / "METADATA").write_text(f"Name: {project['name']}\\nVersion: {project['version']}\\n")
lines = []
for group, names in project["entry-points"].items():
    lines += [f"[{group}]", *(f"{name} = {module}" for name, module in names.items())]
(info / "entry_points.txt").write_text("\\n".join(lines))
"""
"""Installs a package of modules without a network, into a folder of the test."""
FILE = re.compile(
    r'^```python title="(?P<file>[^"]+)"\n(?P<code>.*?)^```$', re.MULTILINE | re.DOTALL
)


def programs(folder: Path) -> dict[str, str]:
    """The environment in which `solera`, `python` and `pip` are those under test."""
    (folder / "bin").mkdir()
    (folder / "site").mkdir()
    (folder / "bin" / "pip.py").write_text(PIP)
    for name, options in (
        ("solera", "-m solera.cli.app"),
        ("python", ""),
        ("pip", f"'{folder / 'bin' / 'pip.py'}'"),
    ):
        program = folder / "bin" / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {options} "$@"\n')
        program.chmod(0o700)
    return {
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{folder / 'site'}",
        "PYTHONUNBUFFERED": "1",
        "HOME": str(folder),
        "LC_ALL": "C.UTF-8",
    }


def follow(page: str, parties: tuple[str, ...], folder: Path) -> str:
    """Type all that a tutorial has in its terminals; what they said."""
    text = (ROOT / "docs" / "tutorial" / page).read_text(encoding="utf-8")
    port = free_port()
    environment = programs(folder)
    for block in FILE.finditer(text):
        (folder / block["file"]).parent.mkdir(exist_ok=True)
        with (folder / block["file"]).open("a") as file:
            file.write(block["code"])
    terminals = {who: Terminal(folder, environment) for who in parties}
    said = ""
    try:
        for block in BLOCK.finditer(text):
            code = block["code"].replace("8443", str(port))  # others may listen on 8443 here
            terminal = terminals[block["who"]]
            if block["how"] == ", leave it running":
                terminal.leave_running(code)
                wait_for(port)
            elif block["how"]:
                terminal.wait(code)
            else:
                said += terminal.run(code)
    finally:
        for terminal in reversed(terminals.values()):
            terminal.close()
    blocks = len(re.findall(r"^```sh", text, re.MULTILINE))
    assert blocks == len(BLOCK.findall(text)), "every block of commands was run"
    return said


@pytest.mark.slow
def test_connect_a_hospital_in_an_hour(tmp_path):
    said = follow("connect-a-hospital.md", ("coordinator", "hospital", "others"), tmp_path)
    assert said.count("all 3 columns fit") == 4
    assert "signed by all" in said
    assert len(re.findall(r"^ana has approved job", said, re.MULTILINE)) == 8
    assert re.search(r"closed training +finished", said)
    assert re.search(r"closed evaluation +finished", said)
    assert re.search(r"accuracy=.* of \d+ test rows of 4 clients", said)
    assert re.search(r"^ok: nothing was changed", said, re.MULTILINE)
    assert re.search(r"^age +\d\.\d+", said, re.MULTILINE)
    for name in ("north", "south", "east", "west"):
        log = (tmp_path / name / "agent" / "audit.log").read_text()
        assert "epoch signed" in log
        assert "pulse" not in log


def test_write_a_learner_ends_at_real_agents(tmp_path):
    """They have the task installed and a policy, and what they tell gives the right model."""
    parties = ("coordinator", "researcher", "north", "south")
    said = follow("write-a-learner.md", parties, tmp_path)
    assert "does      Rows, sums and sums of squares of every class." in said
    assert "as on the joined rows" in said
    assert re.search(r"bayes +tutorial.class_moments +1 +0 +0 +81 ", said)
    assert (tmp_path / "bayes.sol").exists()

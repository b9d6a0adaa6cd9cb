"""The systemd units: systemd understands every line, and the command line what they start."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from solera.cli.app import app

UNITS = sorted((Path(__file__).parents[2] / "deploy" / "systemd").iterdir())
SOLERA = "/opt/solera/venv/bin/solera"


def verified(unit: Path, folder: Path, text: str) -> str:
    """What systemd has against a unit, whose command is one that is installed here."""
    for other in UNITS:  # a timer names its service
        (folder / other.name).write_text(other.read_text().replace(SOLERA, "/bin/true"))
    (folder / unit.name).write_text(text.replace(SOLERA, "/bin/true"))
    command = ["systemd-analyze", "verify", "--man=no", str(folder / unit.name)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600).stderr


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_understands_it(unit, tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    about = verified(unit, tmp_path, unit.read_text())
    assert unit.name not in about, about
    section = "[Timer]\n" if unit.suffix == ".timer" else "[Service]\n"
    wrong = unit.read_text().replace(section, f"{section}Retsart=always\n")
    assert "Retsart" in verified(unit, tmp_path, wrong), "a check that finds nothing is none"


@pytest.mark.parametrize(
    "unit", [u for u in UNITS if u.suffix == ".service"], ids=lambda unit: unit.name
)
def test_the_command_line_understands_what_it_starts(unit):
    started = [line for line in unit.read_text().splitlines() if line.startswith("ExecStart=")]
    program, *arguments = shlex.split(started[0].removeprefix("ExecStart="))
    assert program == SOLERA
    (config,) = [word for word in arguments if word.startswith("/etc/solera/")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert f"there is no file {config}" in result.stderr

"""A test finds a real data set with the marker ``data`` alone; none asks the network for one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import solera as so
from solera.core.errors import DatasetUnavailable

ADULT = pytest.mark.data("adult")
ASK = "import solera as so; print(len(so.datasets.adult().X))"


def not_bundled() -> list[str]:
    return [info.name for info in so.datasets.available() if info.file]


@pytest.fixture
def no_network(monkeypatch):
    def connect(*args):
        raise AssertionError("a loader asks the network")

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket, "getaddrinfo", connect)


@pytest.mark.parametrize("name", not_bundled())
def test_a_loader_finds_nothing_without_the_marker(name, no_network):
    with pytest.raises(DatasetUnavailable, match="not at hand"):
        so.datasets.load(name)


def test_nor_does_a_program_that_a_test_starts():
    done = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True)
    assert done.returncode == 1
    assert "SOLERA_OFFLINE forbids the download" in done.stderr


@ADULT
def test_with_the_marker_it_is_there():
    assert Path(so.datasets.adult().source).parent == Path(os.environ["SOLERA_DATA"])
    done = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "32561"


def test_every_marker_names_sets_that_have_files(request):
    known = set(not_bundled())
    for item in request.session.items:
        for marker in item.iter_markers("data"):
            assert marker.args, item.nodeid
            assert known.issuperset(marker.args), item.nodeid


def outcomes_of(tmp_path: Path, **environment: str) -> str:
    """How two tests end in a run of their own: one with the marker, one that needs it."""
    root = Path(__file__).parents[1]
    (tmp_path / "conftest.py").write_text(Path(__file__).with_name("conftest.py").read_text())
    (tmp_path / "test_two.py").write_text(
        "import pytest, solera as so\n"
        "@pytest.mark.data('car')\n"
        "def test_marked(): assert len(so.datasets.car().X)\n"
        "def test_unmarked(): so.datasets.car()\n"
    )
    drop = ("SOLERA_TEST_DATA", "SOLERA_DATA", "SOLERA_OFFLINE", "PYTEST_ADDOPTS")
    inherited = {k: v for k, v in os.environ.items() if k not in drop}
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider"]
    command += ["-c", str(root / "pyproject.toml"), "--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run(
        command, cwd=tmp_path, env={**inherited, **environment}, capture_output=True, text=True
    )
    return done.stdout


def test_what_needs_data_and_does_not_say_so_fails(tmp_path):
    """With the folder and without: it is not skipped, and does not depend on what lies there."""
    row = "low,low,2,2,small,low,unacc\n"
    said = outcomes_of(tmp_path, SOLERA_DATA="")
    assert "FAILED test_two.py::test_unmarked" in said
    assert "car.csv.gz is not in the folder SOLERA_DATA" in said
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "car.csv.gz").write_bytes(row.encode())
    said = outcomes_of(tmp_path, SOLERA_DATA=str(folder))
    assert "FAILED test_two.py::test_unmarked - solera.core.errors.DatasetUnavailable" in said
    assert "FAILED test_two.py::test_marked - solera.core.errors.DataError" in said  # it was read

"""A person who withdraws is left out of every later task, and nobody can read who it was."""

from __future__ import annotations

import sys
from threading import Lock
from types import SimpleNamespace

import numpy as np
import pytest

for library in ("fastapi", "uvicorn", "httpx", "sqlalchemy", "alembic", "cryptography"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")
pd = pytest.importorskip("pandas")

from typer.testing import CliRunner  # noqa: E402

import solera as so  # noqa: E402
from solera.cli.app import app  # noqa: E402
from solera.serve.agent.agent import Agent  # noqa: E402
from solera.serve.agent.sources import open_source  # noqa: E402
from solera.serve.agent.withdrawn import FILE, read_withdrawn, withdraw  # noqa: E402
from solera.serve.audit import entries  # noqa: E402
from solera.serve.identity import Identity  # noqa: E402


@pytest.fixture
def folder(tmp_path):
    Identity.create(tmp_path / "agent")
    return tmp_path / "agent"


@pytest.fixture
def table(tmp_path):
    rows = pd.DataFrame(
        {
            "patient": [f"P-{i // 3:03d}" for i in range(60)],
            "age": np.arange(60.0),
            "ill": np.arange(60) % 2,
        }
    )
    path = tmp_path / "rows.csv"
    rows.to_csv(path, index=False)
    return str(path)


def test_rows_of_whoever_withdrew_are_not_read(folder, table):
    read = {"target": "ill", "unit": "patient"}
    assert len(open_source(table, **read).X) == 60
    assert withdraw(folder, "P-004") == 1
    assert withdraw(folder, "P-004") == 1, "once is enough"
    assert withdraw(folder, "P-010") == 2
    left = open_source(table, withdrawn=read_withdrawn(folder), **read)
    ages = left.X[:, 0].tolist()
    assert ages == [a for a in range(60) if a // 3 not in (4, 10)]
    with pytest.raises(so.errors.UsageError, match="unit"):
        open_source(table, target="ill", withdrawn=read_withdrawn(folder))


def numbered():
    """Rows of persons 0 … 9, three each, the last six of them to test on."""
    X = np.column_stack([np.repeat(np.arange(10.0), 3), np.arange(30.0)])
    data = so.data.FederatedData(X, (np.arange(30) % 2), np.array([0, 30]))
    return data.split(test=0.2, seed=1)


def test_rows_of_a_function_lose_theirs_in_every_part(folder, monkeypatch):
    module = SimpleNamespace(numbered=numbered)
    monkeypatch.setitem(sys.modules, "withdrawn_rows", module)
    withdraw(folder, "3")
    names = [feature.name for feature in numbered().schema.features]
    read = {"target": None, "unit": names[0]}
    every = open_source("python:withdrawn_rows:numbered", **read)
    left = open_source("python:withdrawn_rows:numbered", withdrawn=read_withdrawn(folder), **read)
    total = 0
    for part in ("train", "test"):
        before, after = (d.segments(np.array([0]), part)[0].X[:, 0] for d in (every, left))
        assert set(after) == {v for v in before if v // 3 != 3}
        total += len(before) - len(after)
    assert total == 3


def test_neither_list_nor_log_names_the_person(folder):
    withdraw(folder, "P-004")
    for path in folder.iterdir():
        assert b"P-004" not in path.read_bytes(), path
    assert (folder / FILE).stat().st_mode & 0o077 == 0
    key = Identity.load(folder).sign_key
    told = [e for e in entries(folder / "audit.log", key) if e.event == "person withdrawn"]
    assert [e.facts["persons"] for e in told] == [1]


def test_the_command_and_an_agent_that_runs_follow(folder, table, monkeypatch):
    result = CliRunner().invoke(app, ["withdraw", "--unit", "P-001", "--folder", str(folder)])
    assert result.exit_code == 0, result.output
    assert "1 so far" in result.output
    failed = CliRunner().invoke(app, ["withdraw", "--folder", str(folder)])
    assert failed.exit_code != 0

    read = []

    class Reading:
        """A worker that says what it was given to read."""

        def read(self, source, table=None):
            read.append(source)

    agent = Agent.__new__(Agent)
    agent.folder, agent.worker, agent._policy_file = folder, Reading(), None
    agent._refreshing, agent._table = Lock(), None
    agent.policy, agent._source = None, lambda policy: read_withdrawn(folder)
    agent._left_out = agent._withdrawals()
    agent._refresh()
    assert read == []
    withdraw(folder, "P-002")
    agent._refresh()
    agent._refresh()
    assert len(read) == 1
    assert read[0].of(["P-001", "P-002", "P-003"]) == [True, True, False]

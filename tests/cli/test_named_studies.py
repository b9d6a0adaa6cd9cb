"""``solera study`` where no studies are installed."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from solera.cli.app import app
from solera.core.errors import UsageError
from solera.study import named


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named, "entry_points", lambda group: ())


def test_the_list_says_how_to_get_the_studies() -> None:
    result = CliRunner().invoke(app, ["study", "list"], prog_name="solera")
    assert result.exit_code == 0
    assert "pip install ./studies" in result.output


def test_a_name_says_how_to_get_the_studies() -> None:
    with pytest.raises(UsageError, match=r"there is no study 'trees'.*pip install \./studies"):
        named.find("trees")

"""Named studies: what they must have, what they print, and the figures of the FedHEONN thesis."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from solera.cli.app import app
from solera.published import heonn_energy, heonn_ensemble
from solera.published import tables as published
from solera.published.rows import row
from solera.study import runs


def solera_(*arguments: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, list(arguments), prog_name="solera")
    assert result.exit_code == code, result.output
    return result


def test_every_study_says_what_it_is() -> None:
    known = published.studies()
    assert {"heonn-incremental", "heonn-ensemble", "heonn-energy"} <= set(known)
    assert "rows" not in known
    for module in known.values():
        assert module.TITLE
        assert module.SCALE_DOWN
        assert isinstance(module.ERRATA, tuple)
        assert callable(module.run)
    assert set(json.loads(solera_("study", "list", "--json").stdout)) == set(known)
    assert "Table 3.9" in solera_("study", "list").stdout


def test_rows() -> None:
    whole = row("a", 1.0, 1.5, form=".2f")
    assert whole["difference"] == 0.5
    assert published.cells(whole) == ["a", "1.00", "1.50", "+0.50", ""]
    assert published.cells(row("b", None, 2.0)) == ["b", "–", "2", "–", ""]
    assert published.cells(row("c", 2.0, None, note="--full"))[2:] == ["–", "–", "--full"]


def test_a_name_that_does_not_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = solera_("study", "heon-energy", code=1)
    assert "no study 'heon-energy'" in result.stderr
    assert "'heonn-energy'" in result.stderr
    assert not Path("runs").exists()


@pytest.mark.usefixtures("shared_data")
def test_incremental(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    printed = solera_("study", "heonn-incremental").stdout
    assert "Erratum:" in printed
    assert "Scale:" in printed
    rows = so_read("study-heonn-incremental")
    assert len(rows) == 10
    digits = [r for r in rows if r["learner"].startswith("digits")]
    assert [round(r["value"], 2) for r in digits] == [90.74, 90.74]
    beans = [r["value"] for r in rows if r["learner"].startswith("drybean")]
    assert max(beans) - min(beans) < 0.02  # in any grouping the same model
    tubes = [r["value"] for r in rows if r["learner"].startswith("carbon")]
    assert tubes == pytest.approx([5.75e-5] * 4, rel=1e-3)
    assert "90.74" in Path("runs/study-heonn-incremental/report.html").read_text()


def so_read(name: str) -> list[dict[str, Any]]:
    frame = runs.read(name)
    ours = frame.query("scheme == 'ours' and part == 'test'")
    found: list[dict[str, Any]] = ours.to_dict("records")
    return found


@pytest.mark.usefixtures("shared_data")
def test_ensemble_protocol_on_the_quick_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = [case for case in heonn_ensemble.CASES if case[0] != "skin" and case[2] is None]
    monkeypatch.setattr(heonn_ensemble, "CASES", quick)
    by_name = {r["cell"]: r for r in heonn_ensemble.run()}
    assert abs(by_name["digits"]["difference"]) < 0.01
    assert abs(by_name["digits, ± over folds"]["difference"]) < 0.01
    assert abs(by_name["drybean"]["difference"]) < 0.01
    assert by_name["carbon_nanotubes"]["ours"] == pytest.approx(7.85e-5, rel=0.01)


@pytest.mark.usefixtures("shared_data")
def test_energy_on_the_quick_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = [
        c for c in heonn_energy.CASES if c.data != "mnist" and c.what in ("plain", "encrypted")
    ]
    quick += [c for c in heonn_energy.CASES if c.only_full]
    monkeypatch.setattr(heonn_energy, "CASES", quick)
    by_name = {r["cell"]: r for r in heonn_energy.run()}
    assert by_name["3.13 optdigits, plain: %"]["ours"] == pytest.approx(91.70, abs=0.01)
    assert by_name["3.16 digits, plain: %"]["ours"] == pytest.approx(90.74, abs=0.01)
    assert 0 < by_name["3.16 digits, plain: kWh"]["ours"] < 1e-5
    assert by_name["3.16 mnist, MLP: kWh"]["ours"] is None
    assert by_name["3.16 mnist, MLP: kWh"]["note"] == "--full"

"""Time and energy of a study: of training and prediction, whoever comes first."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import solera as so
from solera.core.component import Component
from solera.core.federation import Federation
from solera.green.energy import APART
from solera.learn.linear import FedLinear
from solera.study.files.reader import parse
from solera.study.run import warm_up
from solera.study.run.runner import StudyRun, run_study

HEAD = """\
seeds = [0, 1, 2]
[data]
name = "digits"
clients = 5
client_test = 0.2
[energy]
source = "model"
memory_watts = 0
"""
FIRST_USE = 0.5


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two learners that burn half a second when they are used for the first time, and who did."""
    monkeypatch.setattr(Component, "registry", dict(Component.registry))
    monkeypatch.setattr(warm_up, "_warm", set())
    burnt: list[str] = []

    class Late(FedLinear):
        def train(self, federation: Federation) -> None:
            if type(self).__name__ not in burnt:
                burnt.append(type(self).__name__)
                end = time.process_time() + FIRST_USE
                while time.process_time() < end:
                    sum(range(1000))
            super().train(federation)

    class AlsoLate(Late):
        pass

    assert AlsoLate.__name__ == "AlsoLate"
    return burnt


def study(kinds: tuple[str, ...], folder: Path) -> StudyRun:
    learners = "".join(f'[[learner]]\nkind = "{kind}"\nrounds = 3\n' for kind in kinds)
    run = run_study(parse(HEAD + learners, file="s.toml", name="s"), folder)
    assert not run.failures
    return run


@pytest.mark.parametrize("kinds", [("Late", "AlsoLate"), ("AlsoLate", "Late")])
def test_nobody_pays_for_being_the_first(
    late: list[str], tmp_path: Path, kinds: tuple[str, ...]
) -> None:
    run = study(kinds, tmp_path)
    assert late == list(kinds)
    use = 12 * FIRST_USE / 3.6e6
    for cell, result in run.finished:
        assert result.energy is not None
        first = cell.seed == 0
        assert result.seconds + result.predicting < FIRST_USE
        assert result.energy.of_work().kwh < use / 2
        assert (result.energy.tasks.get("warming up", 0.0) > use / 2) == first


def test_what_is_apart_is_named_and_adds_up(late: list[str], tmp_path: Path) -> None:
    run = study(("Late",), tmp_path)
    table = so.runs.read(run.folder).query("part == 'cost'")
    for cell, result in run.finished:
        lines = table[table["cell"] == cell.key].set_index("metric")["value"]
        tasks = {n.removeprefix("kwh of "): v for n, v in lines.items() if n.startswith("kwh of ")}
        assert {"prediction", "linear.train"} <= set(tasks)
        work = sum(v for name, v in tasks.items() if name not in APART)
        assert lines["kwh"] == pytest.approx(work)
        assert lines["kwh apart"] == pytest.approx(sum(tasks.values()) - work)
        assert lines["seconds"] == result.seconds > 0
        assert lines["seconds of prediction"] == result.predicting > 0
    page = (tmp_path / "report.md").read_text()
    assert "kWh apart" in page
    assert "apart are between trainings, reading data, warming up" in page


def test_a_warm_up_changes_no_bit_and_its_errors_nothing(
    late: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = study(("Late",), tmp_path / "warm")
    monkeypatch.setattr(warm_up, "_train_a_little", _broken)
    monkeypatch.setattr(warm_up, "_warm", set())
    second = study(("Late",), tmp_path / "cold")
    for (_, a), (_, b) in zip(first.finished, second.finished, strict=True):
        assert (a.metrics, a.answers, a.history) == (b.metrics, b.answers, b.history)
    assert not second.warnings


def _broken(learner: Any, dataset: Any) -> None:
    raise RuntimeError("too few rows")


def test_judging_rounds_by_held_out_rows_is_not_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Component, "registry", dict(Component.registry))

    class Pondering(FedLinear):
        def losses(self, X: Any, y: Any) -> Any:
            time.sleep(0.1)
            return super().losses(X, y)

    assert Pondering.__name__ == "Pondering"
    run = study(("Pondering",), tmp_path)
    dataset = so.datasets.digits()
    for cell, result in run.finished:
        assert result.seconds < 0.3, "three rounds, each judged for 0.1 s"
        path = next((tmp_path / "models").glob(f"*{cell.key}.sol"))
        model = so.load(path)
        last = result.history[-1]
        assert last["held_out_accuracy"] == np.mean(model.predict(dataset.X_test) == dataset.y_test)
        p = model.predict_proba(dataset.X_test)[np.arange(len(dataset.y_test)), dataset.y_test]
        assert last["held_out_loss"] == pytest.approx(-np.log(np.maximum(p, 1e-12)).mean())
        assert last["held_out_loss"].rows == len(dataset.y_test)
    asked = {entry["bytes_up"] for _, r in run.finished for entry in r.history}
    assert sum(r.bytes_up for _, r in run.finished) == pytest.approx(
        sum(e["bytes_up"] for _, r in run.finished for e in r.history), rel=0.01
    )
    assert len(asked) == 1
    assert "Loss of held-out rows of every round" in (tmp_path / "report.md").read_text()


ORDERS = """\
seeds = [0, 1, 2]
[data]
name = "digits"
clients = 10
{learners}
[energy]
source = "model"
"""
TWO = (
    '[[learner]]\nkind = "FedHEONN"\n',
    '[[learner]]\nkind = "FedLinear"\nrounds = 60\nepochs = 3\nlr = 1e-3\n',
)


@pytest.mark.slow
def test_time_and_energy_are_the_same_in_both_orders(tmp_path: Path) -> None:
    """Each order in a process of its own, with nothing imported before; the least of three runs."""
    source = str(Path(so.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    least: dict[tuple[str, int, str], float] = {}
    for turn in range(3):
        for place, learners in enumerate((TWO, TWO[::-1])):
            file = tmp_path / f"order{place}.toml"
            file.write_text(ORDERS.format(learners="".join(learners)))
            folder = tmp_path / f"{turn}-{place}"
            command = [sys.executable, "-m", "solera.cli.app", "run", str(file), "--threads", "1"]
            subprocess.run([*command, "--folder", str(folder)], env=environment, check=True)
            costs = so.runs.read(folder).query("part == 'cost'")
            for kind in ("FedHEONN", "FedLinear"):
                own = costs[costs["learner"].str.startswith(kind)]
                for metric in ("seconds", "kwh"):
                    mean = own.loc[own["metric"] == metric, "value"].mean()
                    key = (kind, place, metric)
                    least[key] = min(mean, least.get(key, np.inf))
    for kind in ("FedHEONN", "FedLinear"):
        for metric in ("seconds", "kwh"):
            assert least[kind, 0, metric] == pytest.approx(least[kind, 1, metric], rel=0.2)

"""Studies: every cell once, whatever interrupts them, and only what the budget allows."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import solera as so
from solera.core.component import Component
from solera.core.errors import DataError, DatasetUnavailable, UsageError
from solera.core.federation import Federation
from solera.learn.base import Learner
from solera.study.files.reader import Study, parse
from solera.study.files.tables import BudgetSpec
from solera.study.run import schemes
from solera.study.run.cells import Fold, cells_of
from solera.study.run.runner import StudyRun, run_study
from solera.study.run.schemes import train
from solera.study.run.search import rungs

pytestmark = pytest.mark.usefixtures("unrendered")

SOURCE = str(Path(so.__file__).parents[1])
SMALL = """\
seeds = [0, 1]
schemes = ["alone", "federated", "centralised"]
[data]
name = "wine"
clients = 3
client_test = 0.25
[[learner]]
kind = "FedLinear"
rounds = 2
lr = [1e-5, 1e-4]
[[learner]]
kind = "FedHEONN"
"""


def study_of(text: str = SMALL) -> Study:
    return parse(text, file="study.toml", name="study")


def table(folder: Path) -> list[str]:
    """The tidy table without what a clock decides."""
    lines = (folder / "metrics.csv").read_text().splitlines()
    return [line for line in lines if ",cost," not in line or ",bytes_" in line]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> StudyRun:
    return run_study(study_of(), tmp_path_factory.mktemp("whole"))


def test_every_cell_has_a_result_a_model_and_lines(whole: StudyRun) -> None:
    assert len(whole.cells) == len(whole.finished) == 3 * 2 * 3
    assert not whole.failures
    keys = {cell.key for cell in whole.cells}
    assert {path.stem for path in (whole.folder / "cells").iterdir()} == keys
    assert len(list((whole.folder / "models").glob("*.sol"))) == 3 * 2 * 2  # none for alone
    assert not list((whole.folder / "checkpoints").iterdir())
    events = [json.loads(line)["event"] for line in (whole.folder / "events.jsonl").open()]
    assert events.count("cell finished") == 18
    assert (events[0], events[-1]) == ("started", "finished")
    for name in ("spec.toml", "environment.json", "metrics.csv", "report.html", "report.md"):
        assert (whole.folder / name).stat().st_size


def test_cells_are_the_same_lines_in_python(whole: StudyRun) -> None:
    wine = so.datasets.wine()
    fed = so.simulate(wine.X, wine.y, clients=3, test=0.25, seed=1, schema=wine.schema)
    for cell, result in whole.finished:
        if cell.seed != 1 or cell.scheme == "alone":
            continue
        learner = cell.variant.learner.clone()
        if cell.scheme == "federated":
            model = learner.fit(fed)
        else:
            rows = fed.data.segments(fed.clients, "train").joined()
            one = so.simulate(rows.X, rows.y, clients=1, seed=1, schema=wine.schema)
            model = learner.fit(one)
        assert result.metrics["accuracy"] == model.score(wine.X_test, wine.y_test)
        judged = model.evaluate(fed)
        assert result.client_metrics == judged.metrics
        assert result.clients == {k: v["accuracy"] for k, v in judged.clients.items()}
        assert np.trace(result.confusion) / np.sum(result.confusion) == result.metrics["accuracy"]


def test_alone_is_the_mean_of_models_that_saw_one_client(whole: StudyRun) -> None:
    cell, result = next((c, r) for c, r in whole.finished if c.scheme == "alone")
    wine = so.datasets.wine()
    data = schemes.divided(cell, wine)
    scores, own = [], {}
    for client in range(3):
        mine = np.array([client])
        rows = data.segments(mine, "train").joined()
        one = so.simulate(rows.X, rows.y, clients=1, seed=0, schema=wine.schema)
        model = cell.variant.learner.clone().fit(one)
        scores.append(model.score(wine.X_test, wine.y_test))
        kept = data.segments(mine, "test").joined()
        own[client] = model.score(kept.X, kept.y)
    assert result.metrics["accuracy"] == pytest.approx(np.mean(scores))
    assert result.clients == pytest.approx(own)
    assert result.bytes_up == result.bytes_down == 0


def test_workers_change_no_bit(whole: StudyRun, tmp_path: Path) -> None:
    run = run_study(study_of(), tmp_path, workers=2)
    assert not run.failures
    assert table(tmp_path) == table(whole.folder)


@pytest.mark.slow
def test_a_ray_cluster_changes_no_bit(whole: StudyRun, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    run = run_study(study_of(), tmp_path, ray="local", workers=2)
    assert not run.failures
    assert table(tmp_path) == table(whole.folder)


def test_nothing_is_repeated_and_a_study_may_grow(whole: StudyRun, tmp_path: Path) -> None:
    shutil.copytree(whole.folder, tmp_path, dirs_exist_ok=True)
    again = run_study(study_of(), tmp_path)
    assert again.started == 0
    assert table(tmp_path) == table(whole.folder)
    more = run_study(study_of(SMALL.replace("[0, 1]", "[0, 1, 2]")), tmp_path)
    assert (more.started, len(more.finished)) == (9, 27)
    assert run_study(study_of(), tmp_path, fresh=True).started == 18


def test_a_damaged_cell_is_run_again(whole: StudyRun, tmp_path: Path) -> None:
    shutil.copytree(whole.folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "cells" / f"{whole.cells[4].key}.json").write_text('{"labels": {}')
    assert run_study(study_of(), tmp_path).started == 1
    assert table(tmp_path) == table(whole.folder)


def test_folds_cover_all_rows(tmp_path: Path) -> None:
    study = study_of(SMALL.replace("seeds = [0, 1]", "folds = 4"))
    run = run_study(replace(study, schemes=("federated",)), tmp_path)
    assert len(run.finished) == 3 * 4
    assert [c.fold for c, _ in run.finished[:4]] == [Fold(i, 4) for i in range(4)]
    wine = so.datasets.wine()
    cell, result = run.finished[2]
    data = schemes.divided(cell, wine)
    fed = so.simulate(data, seed=0)
    model = cell.variant.learner.clone().fit(fed)
    assert result.validation == model.evaluate(fed, "validation").metrics
    whole = schemes.divided(replace(cell, fold=None), wine)
    validated = sum(schemes.divided(c, wine).sizes("validation") for c, _ in run.finished[:4])
    assert np.array_equal(validated, whole.sizes("train"))


def test_random_search_draws_what_the_seed_says(tmp_path: Path) -> None:
    text = SMALL.replace("lr = [1e-5, 1e-4]", 'lr = { from = 1e-6, to = 1e-3, scale = "log" }')
    search = text + '[search]\nkind = "random"\ndraws = 5\n'
    study = replace(study_of(search), schemes=("federated",), seeds=(0,))
    run = run_study(study, tmp_path)
    assert len(run.finished) == 5
    rates = [c.variant.params["learner.lr"] for c in run.cells if "learner.lr" in c.variant.params]
    assert all(1e-6 <= rate <= 1e-3 for rate in rates)
    assert len(set(rates)) == len(rates) >= 2
    assert run_study(study, tmp_path).started == 0
    other = study_of(search.replace("draws = 5", "draws = 5\nseed = 1"))
    assert {c.key for c in cells_of(study, study.grids[0].draw(np.random.default_rng(0)))}
    assert other.search != study.search
    few = study_of(SMALL + '[search]\nkind = "random"\ndraws = 2\n')
    few = replace(few, schemes=("federated",))
    assert len(run_study(few, tmp_path / "few").cells) == 2 * 2


def test_halving_gives_more_to_the_better(tmp_path: Path) -> None:
    text = """\
folds = 2
[data]
name = "diabetes"
clients = 3
[learner]
kind = "FedLinear"
rounds = 9
lr = [1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 0.1, 0.2, 0.3]
[search]
kind = "halving"
"""
    study = study_of(text)
    assert rungs(study, study.variants()) == [1, 3, 9]
    run = run_study(study, tmp_path)
    tried: dict[int, set[float]] = {}
    for cell in run.cells:
        tried.setdefault(cell.variant.params["learner.rounds"], set()).add(
            cell.variant.params["learner.lr"]
        )
    assert {rounds: len(rates) for rounds, rates in tried.items()} == {1: 9, 3: 3, 9: 1}
    assert tried[9] <= tried[3] <= tried[1]
    assert tried[3] == {0.1, 0.2, 0.3}  # steps too small to learn were dropped
    spent = sum(r.rounds for _, r in run.finished)
    assert spent == 2 * (9 * 1 + 3 * 3 + 1 * 9)  # of 2 × 9 × 9 rounds of the grid
    assert run_study(study, tmp_path).started == 0
    seeds = study_of("seeds = [0, 1, 2]\n" + text + 'resource = "seeds"\n')
    assert rungs(seeds, seeds.variants()) == [1, 3]


def test_budgets(whole: StudyRun, tmp_path: Path) -> None:
    five = run_study(replace(study_of(), budget=BudgetSpec(cells=5)), tmp_path)
    assert len(five.finished) == 5
    assert "5 cells" in five.stopped
    assert "ended early" in (tmp_path / "report.html").read_text()
    more = run_study(replace(study_of(), budget=BudgetSpec(cells=5)), tmp_path)
    assert len(more.finished) == 10  # five more
    none = run_study(replace(study_of(), budget=BudgetSpec(seconds=1e-9)), tmp_path)
    assert (none.started, len(none.finished)) == (0, 10)
    enough = replace(study_of(), budget=BudgetSpec(cells=8))  # all that are left
    assert not run_study(enough, tmp_path, workers=2).stopped
    assert table(tmp_path) == table(whole.folder)


def test_an_energy_budget_measures_and_stops(tmp_path: Path) -> None:
    study = study_of(SMALL + "[budget]\nwh = 1e-6\n")
    run = run_study(study, tmp_path)
    assert len(run.finished) == 1
    assert "Wh is spent" in run.stopped
    assert run.finished[0][1].energy is not None


def test_a_failing_cell_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Component, "registry", dict(Component.registry))

    class Moody(Learner):
        def __init__(self, mood: str = "good") -> None:
            self.mood = mood

        def train(self, federation: Federation) -> None:
            if self.mood == "bad":
                raise DataError("not today")
            if self.mood == "awful":
                raise ZeroDivisionError("oops")

    text = '[data]\nname = "wine"\n[learner]\nkind = "Moody"\nmood = ["bad", "good", "awful"]\n'
    run = run_study(study_of(text), tmp_path)
    assert len(run.finished) == 1
    assert sorted(run.failures.values()) == ["ZeroDivisionError: oops", "not today"]
    page = (tmp_path / "report.html").read_text()
    assert "not today" in page
    assert run_study(study_of(text), tmp_path).started == 2  # they are tried again


def test_a_data_file_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOLERA_DATA", str(tmp_path / "nothing"))
    monkeypatch.setenv("SOLERA_OFFLINE", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    text = SMALL.replace('name = "wine"', 'name = ["wine", "mediamill"]')
    with pytest.raises(DatasetUnavailable, match="mediamill"):
        run_study(study_of(text), tmp_path / "run")
    assert not (tmp_path / "run" / "cells").exists()


def test_what_cannot_be_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="workers"):
        run_study(study_of(), tmp_path / "x", workers=0)


def test_a_checkpoint_of_a_killed_cell_is_used(tmp_path: Path) -> None:
    study = replace(study_of(SMALL.replace("rounds = 2", "rounds = 6")), schemes=("federated",))
    (cell, *_) = cells_of(study, study.variants()[0])
    seen: list[int] = []

    class Stop(so.callbacks.Callback):
        def on_round(self, learner: Any, round: Any) -> None:
            seen.append(round.index)
            if round.index == 3 and seen.count(3) == 1:
                raise KeyboardInterrupt

    path = tmp_path / "checkpoint.sol"
    with pytest.raises(KeyboardInterrupt):
        train(cell, checkpoint=path, callbacks=[Stop()], energy=so.energy.EnergyOptions())
    result = train(cell, checkpoint=path, callbacks=[Stop()], energy=so.energy.EnergyOptions())
    assert seen == [0, 1, 2, 3, 3, 4, 5]
    undisturbed = train(cell)
    assert result.metrics == undisturbed.metrics
    assert result.bytes_up == undisturbed.bytes_up
    assert result.selected == undisturbed.selected == [6, 6, 6]
    assert result.energy is not None
    assert result.energy.tasks["earlier starts"] > 0


CELLS = """\
seeds = {seeds}
schemes = ["federated", "centralised"]
[data]
name = "wine"
clients = [2, 4]
client_test = 0.2
[learner]
kind = "FedLinear"
rounds = 4
lr = {{ from = 1e-6, to = 1e-4, steps = {steps}, scale = "log" }}
"""


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX systems")
@pytest.mark.parametrize(
    ("seeds", "steps", "turns"), [(2, 4, 3), pytest.param(5, 10, 10, marks=pytest.mark.slow)]
)
def test_cells_interrupted_at_random(tmp_path: Path, seeds: int, steps: int, turns: int) -> None:
    """Killed and interrupted wherever it happens to be, a study ends with the same table."""
    text = CELLS.format(seeds=list(range(seeds)), steps=steps)
    (tmp_path / "study.toml").write_text(text)
    study = study_of(text)
    cells = 4 * seeds * steps
    draw = random.Random(7)
    folder = tmp_path / "broken"
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join([SOURCE, os.environ.get("PYTHONPATH", "")])
    }  # fmt: skip
    stored: dict[str, int] = {}
    interrupted = 0
    for turn in range(turns):
        workers = 2 if turn in (2, 3, 6) else 1
        command = [sys.executable, "-m", "solera.cli.app", "run", str(tmp_path / "study.toml")]
        command += ["--folder", str(folder), "--workers", str(workers)]
        goal = len(stored) + draw.randint(1, cells // (2 * turns))
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            patience = time.monotonic() + 600
            while process.poll() is None and len(list(folder.glob("cells/*.json"))) < goal:
                assert time.monotonic() < patience
                time.sleep(0.003)
            time.sleep(draw.random() * 0.05)
            process.send_signal(signal.SIGKILL if turn % 3 else signal.SIGINT)
            interrupted += process.wait(timeout=600) != 0  # a busy machine may be too late
        for path in folder.glob("cells/*.json"):
            changed = path.stat().st_mtime_ns
            assert stored.setdefault(path.name, changed) == changed, "a finished cell was repeated"
    assert interrupted >= 2
    assert len(stored) >= turns
    last = run_study(study, folder)
    assert last.started >= cells - len(list(folder.glob("cells/*.json")))
    assert len(last.finished) == cells
    for path in folder.glob("cells/*.json"):
        assert stored.get(path.name) in (None, path.stat().st_mtime_ns)
    whole = run_study(study, tmp_path / "whole")
    assert len(whole.finished) == cells
    assert table(folder) == table(tmp_path / "whole")

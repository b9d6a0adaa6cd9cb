"""Studies of one variant: what they leave behind, and that an interruption changes nothing."""

from __future__ import annotations

import getpass
import json
import platform
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import solera as so
from solera.core.errors import SoleraError, UsageError
from solera.core.rounds import Callback, Round
from solera.data import datasets
from solera.study.files.reader import Study, parse
from solera.study.run.cells import Stored
from solera.study.run.results import Result
from solera.study.run.runner import run_study

pytestmark = pytest.mark.usefixtures("unrendered")

TEXT = """\
seeds = [0, 1]
[data]
name = "wine"
clients = 4
client_test = 0.25
[partition]
kind = "Dirichlet"
alpha = 1.0
min_rows = 8
[learner]
kind = "FedLinear"
rounds = 6
lr = 1e-5
"""


def study_of(text: str = TEXT) -> Study:
    return parse(text, file="run.toml", name="run")


def run(text: str, folder: Path, *arguments: Any, **options: Any) -> list[Result]:
    """The results of a study whose cells all come to an end."""
    outcome = run_study(study_of(text), folder, *arguments, **options)
    assert not outcome.failures
    return [result for _, result in outcome.finished]


def finished(folder: Path) -> dict[int, Result]:
    """The results that a folder holds by seed; nothing is run to find them."""
    stored = [
        msgspec.json.decode(path.read_bytes(), type=Stored).result
        for path in sorted((folder / "cells").glob("*.json"))
    ]
    return {result.seed: result for result in stored}


def model_file(folder: Path, seed: int) -> Path:
    (path,) = (folder / "models").glob(f"*-federated-seed{seed}.sol")
    return path


class Watcher:
    """A progress display that notes what it is shown and, if asked, interrupts a round."""

    def __init__(self, interrupt: str = "", after: int = 0) -> None:
        self.seen: list[str] = []
        self.interrupt = interrupt
        self.after = after

    def stage(self, text: str) -> None: ...

    def cells(self, finished: int, total: int, detail: str) -> None:
        raise AssertionError("rounds are shown instead")

    def watch(self, title: str) -> Callback:
        outer = self

        class Watch(Callback):
            def on_round(self, learner: Any, round: Round) -> None:
                outer.seen.append(f"{title} round {round.index}")
                if title == outer.interrupt and round.index == outer.after:
                    raise KeyboardInterrupt

        return Watch()


def comparable(results: list[Result]) -> list[dict[str, Any]]:
    clocks = ("seconds", "predicting")
    return [{k: v for k, v in vars(r).items() if k not in clocks} for r in results]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    run(TEXT, folder)
    return folder


def test_the_folder(undisturbed: Path) -> None:
    assert sorted(path.name for path in undisturbed.iterdir()) == [
        "cells",
        "checkpoints",
        "environment.json",
        "events.jsonl",
        "figures",
        "metrics.csv",
        "models",
        "report.html",
        "report.md",
        "spec.toml",
    ]
    (key,) = {path.name.partition("-")[0] for path in (undisturbed / "models").glob("*.sol")}
    names = [f"{key}-federated-seed{seed}" for seed in (0, 1)]
    for folder, endings in (("cells", [".json"]), ("models", [".sol", ".sol.card.md"])):
        found = sorted(path.name for path in (undisturbed / folder).iterdir())
        assert found == [f"{name}{ending}" for name in names for ending in endings]
    assert not list((undisturbed / "checkpoints").iterdir())
    assert (undisturbed / "spec.toml").read_text() == TEXT
    environment = json.loads((undisturbed / "environment.json").read_text())
    assert environment["numpy"] == np.__version__
    text = json.dumps(environment)
    assert platform.node() not in text
    assert f'"{getpass.getuser()}"' not in text


def test_results_are_those_of_the_same_lines_in_python(undisturbed: Path) -> None:
    result = finished(undisturbed)[1]
    wine = datasets.wine()
    partition = study_of().variants()[0].partition
    fed = so.simulate(
        wine.X, wine.y, clients=4, partition=partition, test=0.25, seed=1, schema=wine.schema
    )
    model = so.FedLinear(rounds=6, lr=1e-5).fit(fed)
    sent = fed.meter.total()
    judged = model.evaluate(fed)
    assert so.load(model_file(undisturbed, 1)).coef_.tobytes() == model.coef_.tobytes()
    assert result.metrics["accuracy"] == model.score(wine.X_test, wine.y_test)
    assert result.client_metrics == judged.metrics
    assert result.clients == {k: v["accuracy"] for k, v in judged.clients.items()}
    assert (result.bytes_down, result.bytes_up) == (sent.down, sent.up)
    assert [h["loss"] for h in result.history] == [h["loss"] for h in model.history_]
    assert result.rounds == 6
    assert result.seconds > 0


@pytest.mark.parametrize("interrupt", ["seed 0", "seed 1"])
def test_interrupted_and_started_again(undisturbed: Path, tmp_path: Path, interrupt: str) -> None:
    first = Watcher(interrupt, after=3)
    with pytest.raises(KeyboardInterrupt):
        run(TEXT, tmp_path, first)
    kept = finished(tmp_path)
    assert list(kept) == ([0] if interrupt == "seed 1" else [])
    assert (tmp_path / "report.html").exists() == bool(kept)

    second = Watcher()
    results = run(TEXT, tmp_path, second)
    assert second.seen[0] == f"{interrupt} round 3"  # the round that was not finished
    assert len(first.seen) + len(second.seen) == 2 * 6 + 1
    assert comparable(results) == comparable(list(finished(undisturbed).values()))
    for seed in (0, 1):
        assert model_file(tmp_path, seed).read_bytes() == model_file(undisturbed, seed).read_bytes()
    assert not list((tmp_path / "checkpoints").iterdir())


def test_a_pipeline_counts_the_same_bytes_after_an_interruption(tmp_path: Path) -> None:
    text = TEXT.replace("[0, 1]", "[3]").split("[learner]")[0] + (
        '[learner]\nkind = "Pipeline"\n[[learner.steps]]\nkind = "FedScaler"\n'
        '[[learner.steps]]\nkind = "FedLinear"\nrounds = 5\n'
    )
    whole = run(text, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(text, tmp_path / "parts", Watcher("seed 3", after=2))
    assert comparable(run(text, tmp_path / "parts")) == comparable(whole)
    assert whole[0].bytes_up > sum(h["bytes_up"] for h in whole[0].history)


def test_nothing_is_repeated(tmp_path: Path) -> None:
    first = run(TEXT, tmp_path)
    again = Watcher()
    assert run("# a comment\n" + TEXT, tmp_path, again) == first
    assert not again.seen
    more = Watcher()
    results = run(TEXT.replace("[0, 1]", "[0, 2]"), tmp_path, more)
    assert [r.seed for r in results] == [0, 2]
    assert {title[:6] for title in more.seen} == {"seed 2"}
    assert list(finished(tmp_path)) == [0, 1, 2]


def test_another_run_in_the_same_folder(tmp_path: Path) -> None:
    run(TEXT.replace("[0, 1]", "[0]"), tmp_path)
    other = TEXT.replace("[0, 1]", "[5]").replace("alpha = 1.0", "alpha = 2.0")
    with pytest.raises(UsageError, match=r"another file.*--fresh"):
        run(other, tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    assert [r.seed for r in run(other, tmp_path, fresh=True)] == [5]
    assert list(finished(tmp_path)) == [5]
    assert len(list((tmp_path / "models").glob("*.sol"))) == 1
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_damaged_results_are_computed_again(tmp_path: Path) -> None:
    first = run(TEXT, tmp_path)
    (path,) = (tmp_path / "cells").glob("*seed1.json")
    path.write_text('{"labels": {}')
    again = Watcher()
    assert comparable(run(TEXT, tmp_path, again)) == comparable(first)
    assert {title[:6] for title in again.seen} == {"seed 1"}


def test_a_failing_seed_keeps_the_others(tmp_path: Path) -> None:
    run(TEXT.replace("[0, 1]", "[0]"), tmp_path)

    class Broken(Watcher):
        def watch(self, title: str) -> Callback:
            raise SoleraError(f"{title} cannot be shown")

    outcome = run_study(study_of(), tmp_path, Broken())
    assert list(outcome.failures.values()) == ["seed 1 cannot be shown"]
    assert list(finished(tmp_path)) == [0]
    assert "1 of 2 cells are finished" in (tmp_path / "report.html").read_text()


def test_processes_agree_with_local(undisturbed: Path, tmp_path: Path) -> None:
    text = TEXT.replace("[0, 1]", "[1]") + '[engine]\nkind = "processes"\nworkers = 2\n'
    (result,) = run(text, tmp_path)
    local = finished(undisturbed)[1]
    assert result.metrics == pytest.approx(local.metrics)
    assert result.bytes_up == local.bytes_up


def test_numbers_without_client_rows(tmp_path: Path) -> None:
    text = (
        '[data]\nname = "diabetes"\nclients = 5\n[learner]\nkind = "FedLinear"\nrounds = 3\n'
        "per_round = 2\n"
    )
    (result,) = run(text, tmp_path)
    assert result.score == "r2"
    assert set(result.metrics) == {"mse", "rmse", "mae", "r2"}
    assert result.clients == {}
    assert result.client_metrics == {}
    assert "client_test" in (tmp_path / "report.html").read_text()


def test_a_data_set_without_test_rows(tmp_path: Path) -> None:
    text = TEXT.replace("[0, 1]", "[0]").replace("clients", "test = 0\nclients", 1)
    (result,) = run(text, tmp_path)
    assert result.metrics == {}
    assert result.score == "accuracy"
    assert "worst client" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    "learner",
    [
        '[learner]\nkind = "FedKMeans"\nk = 3\n',
        '[learner]\nkind = "Pipeline"\n[[learner.steps]]\nkind = "FedScaler"\n'
        '[[learner.steps]]\nkind = "FedKMeans"\nk = 3\n',
    ],
)
def test_a_clustering_runs_and_is_not_judged_by_the_target(tmp_path: Path, learner: str) -> None:
    text = '[data]\nname = "wine"\nclients = 4\nclient_test = 0.2\n' + learner
    (result,) = run(text, tmp_path)
    assert result.metrics == result.client_metrics == {}
    assert result.rounds > 0
    assert "Summary" in (tmp_path / "report.html").read_text()


ATTACKED = """\
[data]
name = "digits"
clients = 10
[learner]
kind = "FedLinear"
rounds = 4
lr = 0.001
"""


def test_attackers_do_harm_that_a_rule_undoes_and_reports_say_who_attacks(tmp_path: Path) -> None:
    attack = '[attack]\nkind = "SignFlip"\nfactor = 10\nshare = [0.0, 0.3]\n'
    clean, attacked = (r.metrics["accuracy"] for r in run(ATTACKED + attack, tmp_path / "mean"))
    assert clean > 0.8 > 0.5 > attacked
    rule = '[learner.aggregate]\nkind = "Median"\n'
    _, held = (r.metrics["accuracy"] for r in run(ATTACKED + rule + attack, tmp_path / "rule"))
    assert held > clean - 0.1
    told = (tmp_path / "mean" / "metrics.csv").read_text()
    assert "attacked by SignFlip(share=0.3, factor=10)" in told


def test_secure_sums_in_a_file_give_the_same_model(tmp_path: Path) -> None:
    (plain,) = run(ATTACKED, tmp_path / "plain")
    (secure,) = run("secure = true\n" + ATTACKED, tmp_path / "secure")
    assert secure.metrics["accuracy"] == plain.metrics["accuracy"]
    assert secure.bytes_up > plain.bytes_up, "masks and keys were sent"


def test_metrics_of_older_files_are_of_rows_that_are_not_known() -> None:
    older = {"seed": 0, "rounds": 1, "metrics": {"cost": 1.5}, "clients": {"3": 0.5}}
    result = msgspec.convert(older, Result, strict=False)
    assert str(result.metrics["cost"]) == "cost 1.5 of rows that are not known"
    assert result.clients[3].whose == "rows that are not known"

"""The run store: what is in it, what two runs differ in, and where it can be sent."""

from __future__ import annotations

import json
import re
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import solera as so
from solera.cli.app import app
from solera.core.errors import UsageError
from solera.study import runs
from solera.study.files.reader import parse
from solera.study.run.runner import run_study

pytestmark = pytest.mark.usefixtures("unrendered")

RUN = """\
seeds = [0, 1]
[data]
name = "wine"
clients = 4
client_test = 0.25
[learner]
kind = "FedLinear"
rounds = 3
lr = 1e-5
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("store")
    for name, text in (
        ("plain", RUN),
        ("other", RUN.replace("1e-5", "1e-4").replace("clients = 4", "clients = 5")),
        ("grid", RUN.replace("lr = 1e-5", "lr = [1e-5, 1e-4]")),
    ):
        run_study(parse(text, file=name, name=name), root / name)
    return root


@pytest.fixture
def store(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(made, tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def damage(store: Path) -> None:
    for name in ("cut", "binary", "strange"):
        shutil.copytree(store / "plain", store / name)
    table = store / "cut" / "metrics.csv"
    table.write_text(table.read_text()[:-25])
    (store / "binary" / "metrics.csv").write_bytes(b"\xff\xfe\x00")
    (store / "strange" / "environment.json").write_text("[1]")


def solera_(*arguments: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, list(arguments), prog_name="solera")
    assert result.exit_code == code, result.output
    return result


def test_list_names_and_skips_what_is_damaged(store: Path) -> None:
    damage(store)
    listed = solera_("runs", "list", "--json")
    names = [run["name"] for run in json.loads(listed.stdout)]
    assert names == ["grid", "other", "plain"]
    for name in ("cut", "binary", "strange"):
        assert f"runs/{name} cannot be read" in listed.stderr
    text = solera_("runs", "list").stdout
    assert "accuracy 0." in text
    by_name = {run["name"]: run for run in json.loads(listed.stdout)}
    named = r"accuracy 0\.\d+ by FedLinear\(.*\) \(wine, IID\(\), federated\)"
    assert re.fullmatch(named, by_name["grid"]["result"])
    assert "finished" in text
    assert "no runs in" in solera_("runs", "list", "--root", "nowhere").stdout


def test_show(store: Path) -> None:
    shown = json.loads(solera_("runs", "show", "grid", "--json").stdout)
    assert shown["cells"] == 4
    assert shown["spec"]["learner"]["lr"] == [1e-5, 1e-4]
    assert shown["environment"]["python"]
    means = so.runs.read("grid").query("part == 'test' and metric == 'accuracy'")
    means = means.groupby("learner")["value"].mean()
    accuracy = shown["metrics"]["accuracy"]
    assert accuracy["value"] == pytest.approx(means.max())
    assert means[shown["best"].split(" (")[0]] == means.max()
    rows = len(so.datasets.wine().y_test)
    assert f"of {rows} rows at hand" in solera_("runs", "show", "grid").stdout
    assert (accuracy["part"], accuracy["rows"]) == ("rows", rows)
    assert "macro_f1" in solera_("runs", "show", "runs/plain").stdout
    wrong = solera_("runs", "show", "plian", code=1)
    assert "no run 'plian'" in wrong.stderr
    assert "'plain'" in wrong.stderr


def test_diff(store: Path) -> None:
    found = json.loads(solera_("runs", "diff", "plain", "other", "--json").stdout)
    by_name = {entry["name"]: entry for entry in found}
    assert (by_name["learner.lr"]["first"], by_name["learner.lr"]["second"]) == (1e-5, 1e-4)
    assert by_name["data.clients"]["what"] == "spec"
    assert by_name["accuracy"]["what"] == "metric"
    assert "difference" in solera_("runs", "diff", "plain", "other").stdout
    assert "do not differ" in solera_("runs", "diff", "plain", "plain").stdout


def test_read_gives_one_frame(store: Path) -> None:
    damage(store)
    with pytest.warns(runs.SkippedRun, match="cut"):
        everything = so.runs.read()
    assert set(everything["run"]) == {"plain", "other", "grid"}
    one = so.runs.read("grid")
    test = one[(one["part"] == "test") & (one["metric"] == "accuracy")]
    assert len(test) == 4
    assert set(test["learner.lr"]) == {1e-5, 1e-4}
    (path,) = (store / "plain" / "models").glob("*-federated-seed1.sol")
    model = so.load(path)
    wine = so.datasets.wine()
    plain = so.runs.read(store / "plain")
    row = plain.query("part == 'test' and metric == 'accuracy' and seed == 1")
    assert row["value"].item() == model.score(wine.X_test, wine.y_test)
    losses = plain.query("part == 'round' and metric == 'loss' and seed == 1")
    assert losses["value"].tolist() == [entry["loss"] for entry in model.history_]
    assert len(plain.query("part == 'client'")) == 2 * 4
    with pytest.raises(runs.BadRun, match="cut cannot be read"):
        so.runs.read("cut")
    with pytest.raises(UsageError, match=r"no run 'grd'.*'grid'"):
        so.runs.read("grd")
    assert so.runs.read(root=store / "empty").empty


def test_export_to_tables_and_documents(store: Path) -> None:
    solera_("runs", "export", "plain")
    assert Path("plain.csv").read_text() == (store / "plain" / "metrics.csv").read_text()
    solera_("runs", "export", "plain", "--to", "json", "--output", "x.json")
    assert len(json.loads(Path("x.json").read_text())) == len(so.runs.read("plain"))
    solera_("runs", "export", "plain", "--to", "parquet")
    assert Path("plain.parquet").exists()
    solera_("runs", "export", "grid", "--to", "markdown")
    text = Path("grid.md").read_text()
    assert "## Results" in text
    pictures = sorted(Path("figures").glob("grid-*.svg"))
    assert pictures
    assert all(f"({picture})" in text for picture in pictures)


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util import tensor_util

    events = EventAccumulator(str(folder))
    events.Reload()
    return {
        tag: [
            (e.step, float(tensor_util.make_ndarray(e.tensor_proto))) for e in events.Tensors(tag)
        ]
        for tag in events.Tags()["tensors"]
    }


@pytest.mark.skipif(find_spec("tensorboard") is None, reason="TensorBoard is not installed")
def test_tensorboard(store: Path) -> None:
    X, y, _, _ = so.datasets.wine()
    model = so.FedLinear(rounds=4, lr=1e-5)
    model.fit(so.simulate(X, y, clients=3), callbacks=[so.callbacks.TensorBoard("logs")])
    written = scalars(Path("logs"))
    assert [step for step, _ in written["loss"]] == [0, 1, 2, 3]
    assert [v for _, v in written["loss"]] == pytest.approx([h["loss"] for h in model.history_])
    solera_("runs", "export", "plain", "--to", "tensorboard", "--output", "stored")
    (written_to,) = Path("stored").glob("*-federated-seed1")
    stored = scalars(written_to)
    frame = so.runs.read("plain").query("seed == 1")
    accuracy = frame.query("part == 'test' and metric == 'accuracy'")["value"].item()
    assert stored["test/accuracy"] == [(3, pytest.approx(accuracy))]
    assert len(stored["loss"]) == 3


@pytest.mark.skipif(find_spec("mlflow") is None, reason="MLflow is not installed")
def test_mlflow(store: Path, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    X, y, _, _ = so.datasets.wine()
    exporter = so.callbacks.MLflow(uri, experiment="wine", run="mine")
    model = so.FedLinear(rounds=4, lr=1e-5).fit(so.simulate(X, y, clients=3), callbacks=[exporter])
    reader = MlflowClient(tracking_uri=uri)
    found = reader.get_run(exporter.run_id_)
    assert found.info.status == "FINISHED"
    assert found.data.params["lr"] == "1e-05"
    history = reader.get_metric_history(exporter.run_id_, "loss")
    assert [m.step for m in history] == [0, 1, 2, 3]
    assert [m.value for m in history] == [h["loss"] for h in model.history_]
    solera_("runs", "export", "grid", "--to", "mlflow", "--output", uri)
    experiment = reader.get_experiment_by_name("grid")
    stored = reader.search_runs([experiment.experiment_id])
    assert len(stored) == 4
    assert {run.data.params["learner.lr"] for run in stored} == {"1e-05", "0.0001"}
    assert all("test/accuracy" in run.data.metrics for run in stored)


def test_exporters_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in ("tensorboard", "tensorboard.summary", "mlflow"):
        monkeypatch.setitem(sys.modules, name, None)
    X, y, _, _ = so.datasets.wine()
    fed = so.simulate(X, y, clients=3)
    for exporter, extra in (
        (so.callbacks.TensorBoard("x"), "tensorboard"),
        (so.callbacks.MLflow("x"), "mlflow"),
    ):
        with pytest.raises(so.errors.MissingExtra, match=rf"solera\[{extra}\]"):
            so.FedLinear(rounds=1).fit(fed, callbacks=[exporter])

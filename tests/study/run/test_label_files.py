"""A file of labels as MULAN writes it, to a report: by the command line and by Python."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import solera as so
from solera.cli.app import app
from solera.core.errors import UsageError
from solera.study.files.reader import read
from solera.study.run.runner import run_study

pd = pytest.importorskip("pandas")
pytestmark = pytest.mark.usefixtures("unrendered")

LABELS = ["asthma", "gout", "angina", "lupus"]
STUDY = """\
name = "labels"
[data]
file = "made.arff"
target = "made.xml"
group = "hospital"
test = 0.0
client_test = 0.25
[[learner]]
kind = "FedLinear"
rounds = 8
lr = 0.5
[[learner]]
kind = "MLFedAvg"
model = { kind = "MLP", sizes = [5, 8] }
aggregation = ["uniform", "samples", "samples_labels"]
rounds = 8
lr = 0.03
stop = false
"""
LEARNERS: dict[str, Any] = {
    "": so.FedLinear(rounds=8, lr=0.5),
    **{
        weights: so.MLFedAvg(so.nn.mlp(5, 8), aggregation=weights, rounds=8, lr=0.03, stop=None)
        for weights in ("uniform", "samples", "samples_labels")
    },
}


def arff(rows: int = 180) -> str:
    """Hospitals that code different labels, and some cells that nobody filled in."""
    draw = np.random.default_rng(4)
    X = draw.normal(size=(rows, 5))
    score = X @ draw.normal(size=(5, 4)) + 0.5 * draw.normal(size=(rows, 4))
    hospital = np.repeat(["Lugo", "Vigo", "Noia"], [80, 60, rows - 140])
    cells = np.where(score > 0.2, "1", "0")
    cells[draw.random(cells.shape) < 0.05] = "?"
    cells[hospital == "Noia", 3] = "?"
    cells[hospital == "Lugo", 0] = "?"
    header = ["@relation 'made: -C 4'", *(f"@attribute marker{i} numeric" for i in range(5))]
    header += ["@attribute hospital {Lugo,Vigo,Noia}"]
    header += [f"@attribute {label} {{0,1}}" for label in LABELS]
    lines = [
        ",".join([*(f"{value:.4f}" for value in x), where, *known])
        for x, where, known in zip(X, hospital, cells, strict=True)
    ]
    return "\n".join([*header, "@data", *lines, ""])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file, and what ``solera run`` made of it."""
    place = tmp_path_factory.mktemp("labels")
    (place / "made.arff").write_text(arff())
    names = "".join(f'<label name="{label}"></label>\n' for label in LABELS)
    (place / "made.xml").write_text(f"<labels>\n{names}</labels>\n")
    (place / "labels.toml").write_text(STUDY)
    told = CliRunner().invoke(
        app, ["run", str(place / "labels.toml"), "--folder", str(place / "by_file")]
    )
    assert told.exit_code == 0, told.output
    return place


def lines(folder: Path) -> list[dict[str, str]]:
    """All numbers that no clock decides."""
    with (folder / "metrics.csv").open() as file:
        return [line for line in csv.DictReader(file) if not line["metric"].startswith("seconds")]


def federation(folder: Path) -> Any:
    frame = so.data.read_table(str(folder / "made.arff"))
    target = so.data.label_names(folder / "made.xml")
    return so.simulate(frame, target=target, group="hospital", test=0.25, seed=0)


@pytest.mark.parametrize("weights", LEARNERS)
def test_the_file_and_python_come_to_the_same_numbers(folder: Path, weights: str) -> None:
    found = [n for n in lines(folder / "by_file") if n["learner.aggregation"] == weights]
    fed = federation(folder)
    evaluation = LEARNERS[weights].clone().fit(fed).evaluate(fed)
    told = {line["metric"]: line for line in found if line["part"] == "clients"}
    assert told.keys() == evaluation.metrics.keys()
    for name, figure in evaluation.metrics.items():
        assert float(told[name]["value"]) == figure
        assert int(told[name]["rows"]) == figure.rows
    each = {line["client"]: float(line["value"]) for line in found if line["part"] == "client"}
    assert each == {
        evaluation.names[client]: metrics["subset_accuracy"]
        for client, metrics in evaluation.clients.items()
    }


def test_the_report_says_what_is_known(folder: Path) -> None:
    report = (folder / "by_file" / "report.md").read_text()
    frame = so.data.read_table(str(folder / "made.arff"))
    for label in LABELS:
        present, known = (frame[label] == 1).sum(), frame[label].notna().sum()
        assert f"{label}: {present} of {known}" in report
    assert "Rows per client and label on made" in report
    assert "no common head" in report
    for line in lines(folder / "by_file"):
        if line["part"] == "clients" and line["metric"] in ("subset_accuracy", "macro_f1"):
            assert f"{float(line['value']):.3f}" in report
    assert (folder / "by_file" / "report.html").exists()


def test_python_carries_out_the_file_as_the_command_does(folder: Path) -> None:
    run = run_study(read(folder / "labels.toml"), folder / "by_python")
    assert not run.failures
    assert lines(run.folder) == lines(folder / "by_file")
    first, second = (
        (place / "report.md").read_text() for place in (run.folder, folder / "by_file")
    )
    assert first.splitlines()[:6] == second.splitlines()[:6]


def test_models_of_the_study_know_whose_labels_they_predict(folder: Path) -> None:
    frame = so.data.read_table(str(folder / "made.arff"))
    models = [so.load(path) for path in (folder / "by_file" / "models").glob("*.sol")]
    personal = [model for model in models if isinstance(model, so.MLFedAvg)]
    assert len(personal) == 3
    for model in personal:
        assert (model.at("Noia").predict(frame)[:, 3] == -1).all()
        assert (model.at("Vigo").predict(frame) >= 0).all()
        with pytest.raises(UsageError, match=r"model\.at\('Lugo'\)"):
            model.predict(frame)

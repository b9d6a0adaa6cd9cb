"""Studies of learners whose clients have models of their own: every number is of these."""

from __future__ import annotations

import csv
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import accuracy_score

import solera as so
from solera.study.fairness import three_schemes
from solera.study.files.reader import parse
from solera.study.report.groups import StudyResults
from solera.study.report.outcomes import results
from solera.study.run.cells import Cell
from solera.study.run.runner import StudyRun, run_study
from solera.study.run.schemes import divided, load

pytestmark = pytest.mark.usefixtures("unrendered")

TEXT = """\
seeds = [0]
schemes = ["alone", "federated", "centralised"]
[data]
name = "wine"
clients = 3
client_test = 0.3
[[learner]]
kind = "FedPer"
NETWORK[[learner]]
kind = "Ditto"
NETWORK[[learner]]
kind = "FedAvg"
NETWORK"""
NETWORK = """\
rounds = 8
lr = 1e-3
model = { kind = "MLP", sizes = [13, 6, 3] }
"""


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> StudyRun:
    study = parse(TEXT.replace("NETWORK", NETWORK), file="personal.toml", name="personal")
    run = run_study(study, tmp_path_factory.mktemp("personal"))
    assert not run.failures
    return run


def lines(
    outcome: StudyRun, learner: str, scheme: str = "federated"
) -> dict[tuple[str, ...], float]:
    with (outcome.folder / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["scheme"] == scheme]
    return {
        (row["part"], row["client"], row["metric"]): float(row["value"])
        for row in rows
        if row["learner"].startswith(learner)
    }


def saved(outcome: StudyRun, learner: str) -> tuple[Any, Cell]:
    (cell,) = [
        cell
        for cell, _ in outcome.finished
        if cell.scheme == "federated" and cell.variant.method.startswith(learner)
    ]
    (path,) = (outcome.folder / "models").glob(f"*{cell.key}.sol")
    return so.load(path), cell


@pytest.mark.parametrize("learner", ["FedPer", "Ditto"])
def test_every_number_is_of_the_clients_own_models(outcome: StudyRun, learner: str) -> None:
    model, cell = saved(outcome, learner)
    dataset, found = load(cell.variant.data), lines(outcome, learner)
    data = divided(cell, dataset)
    truth, predicted = [], []
    for client in range(3):
        rows = data.segments(np.array([client]), "test").joined()
        truth.append(rows.y)
        predicted.append(model.at(client).predict(rows.X))
        accuracy = accuracy_score(truth[-1], predicted[-1])
        assert found["client", str(client), "accuracy"] == pytest.approx(accuracy)
    whole = accuracy_score(np.concatenate(truth), np.concatenate(predicted))
    assert found["clients", "", "accuracy"] == pytest.approx(whole)
    elsewhere = [
        accuracy_score(dataset.y_test, model.at(client).predict(dataset.X_test))
        for client in range(3)
    ]
    assert found["test", "", "accuracy"] == pytest.approx(np.mean(elsewhere))


def test_the_common_model_stands_beside_them(outcome: StudyRun) -> None:
    model, cell = saved(outcome, "Ditto")
    rows = divided(cell, load(cell.variant.data)).segments(np.arange(3), "test").joined()
    accuracy = accuracy_score(rows.y, model.common().predict(rows.X))
    assert lines(outcome, "Ditto")["common", "", "accuracy"] == pytest.approx(accuracy)
    assert not any(part == "common" for part, *_ in lines(outcome, "FedPer"))
    assert not any(part == "common" for part, *_ in lines(outcome, "FedAvg"))
    (table,) = [block for block in results(StudyResults(outcome)) if hasattr(block, "rows")]
    column = table.header.index("accuracy, common model")
    shown = {str(row[0]): str(row[column]) for row in table.rows}
    assert shown["FedPer"] == "no common head"
    assert shown["Ditto"] == f"{accuracy:.3f}"
    assert shown["FedAvg"] == "–"


@pytest.mark.parametrize("scheme", ["alone", "centralised"])
def test_one_client_alone_has_a_model_of_its_own(outcome: StudyRun, scheme: str) -> None:
    """With one client body and head are trained together, as all of FedAvg's network is."""
    head, whole = (lines(outcome, learner, scheme) for learner in ("FedPer", "FedAvg"))
    assert head["test", "", "accuracy"] == pytest.approx(whole["test", "", "accuracy"])
    assert head["clients", "", "accuracy"] == pytest.approx(whole["clients", "", "accuracy"])


def test_the_card_says_that_clients_have_their_own(outcome: StudyRun) -> None:
    _, cell = saved(outcome, "FedPer")
    (path,) = (outcome.folder / "models").glob(f"*{cell.key}.sol.card.md")
    assert "every client has a model of its own" in path.read_text()


def test_three_schemes_judge_own_models() -> None:
    X, y, *_ = so.datasets.wine()
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    data = so.simulate(X, y, clients=3, test=0.3, seed=0).data
    options = {"rounds": 6, "lr": 0.1}
    network = so.nn.mlp(13, 6, 3)
    personal = three_schemes(so.FedPer(network, **options), data)
    whole = three_schemes(so.FedAvg(network, **options), data)
    for scheme in ("alone", "centralised"):
        assert personal[scheme]["accuracy"] == whole[scheme]["accuracy"]
    federation = so.simulate(data)
    model = so.FedPer(network, **options).fit(federation)
    assert personal["federated"].clients == model.evaluate(federation).clients

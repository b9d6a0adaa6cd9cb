"""Every number of a report, from ``metrics.csv`` and the saved models, with none of our code.

Rows are divided and models are read by Solera; what they come to is pandas', scikit-learn's and
scipy's.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.dummy import DummyClassifier
from sklearn.metrics import accuracy_score, f1_score

import solera as so
from solera.study.files.reader import parse
from solera.study.run.runner import StudyRun, run_study
from solera.study.run.schemes import divided, load

pd = pytest.importorskip("pandas")

STUDY = """\
seeds = [0, 1]
schemes = ["alone", "federated", "centralised"]
metrics = ["accuracy", "macro_f1"]
folds = {folds}
[data]
name = "breast_cancer"
clients = 3
client_test = {client_test}
[[learner]]
kind = "FedHEONN"
[[learner]]
kind = "FedLinear"
rounds = 3
lr = 1e-6
[[learner]]
kind = "FederatedTree"
max_depth = 2
"""


@pytest.fixture(scope="module", params=[(0, 0.0), (2, 0.2)], ids=["plain", "folds"])
def run(request: Any, tmp_path_factory: pytest.TempPathFactory) -> StudyRun:
    folds, client_test = request.param
    text = STUDY.format(folds=folds, client_test=client_test)
    done = run_study(parse(text, file="s.toml", name="s"), tmp_path_factory.mktemp("s"))
    assert not done.failures
    return done


def models(run: StudyRun) -> dict[str, Any]:
    """The saved models by the names of their cells."""
    return {
        cell.key: so.load(next((run.folder / "models").glob(f"*{cell.key}.sol")))
        for cell, _ in run.finished
        if cell.scheme != "alone"
    }


def tables(run: StudyRun, section: str) -> list[dict[str, dict[str, str]]]:
    """The tables of a section, by the first column."""
    text = (run.folder / "report.md").read_text()
    text = re.split(rf"^## {section}$", text, flags=re.MULTILINE)[1]
    text = re.split(r"^## ", text, flags=re.MULTILINE)[0]
    found: list[dict[str, dict[str, str]]] = []
    for block in re.findall(r"(?:^\|.*\|\n)+", text, flags=re.MULTILINE):
        rows = [
            [cell.strip().strip("*").strip() for cell in line.strip("|\n").split("|")]
            for line in block.splitlines()
        ]
        found.append({row[0]: dict(zip(rows[0], row, strict=True)) for row in rows[2:]})
    return found


def name_of(row: Any) -> str:
    kind = row["learner"].partition("(")[0]
    return kind if row["scheme"] == "federated" else f"{kind}, {row['scheme']}"


def test_lines_of_the_table_are_those_of_the_models(run: StudyRun) -> None:
    saved = models(run)
    table = pd.read_csv(run.folder / "metrics.csv")
    scores = {"accuracy": accuracy_score, "macro_f1": lambda t, p: f1_score(t, p, average="macro")}
    seen = 0
    for cell, _ in run.finished:
        if cell.key not in saved:
            continue
        dataset = load(cell.variant.data)
        data = divided(cell, dataset)
        everyone = np.arange(3)
        rows = {
            "test": (dataset.X_test, dataset.y_test),
            "clients": data.segments(everyone, "test").joined(),
            "validation": data.segments(everyone, "validation").joined(),
        }
        own = table[table["cell"] == cell.key]
        for part, about in rows.items():
            X, y = about if part == "test" else (about.X, about.y)
            for metric, score in scores.items():
                line = own[(own["part"] == part) & (own["metric"] == metric)]
                if not len(y):
                    assert line.empty
                    continue
                assert line["value"].item() == pytest.approx(score(y, saved[cell.key].predict(X)))
                assert line["rows"].item() == len(y)
                seen += 1
        train = data.segments(everyone, "train").joined()
        majority = DummyClassifier().fit(train.X, train.y).predict(dataset.X_test)
        for metric, score in scores.items():
            line = own[(own["part"] == "baseline") & (own["metric"] == metric)]
            assert line["value"].item() == pytest.approx(score(dataset.y_test, majority))
    assert seen >= 2 * 3 * 2 * 2


def test_cells_of_the_report_are_means_of_the_table(run: StudyRun) -> None:
    (shown,) = tables(run, "Results")
    table = pd.read_csv(run.folder / "metrics.csv")
    table["name"] = table.apply(name_of, axis=1)
    repeated = set(table.loc[table["metric"] == "repeats", "cell"])
    for said in _answers(run).values():
        every = {cell: each.tobytes() for cell, each in said.items()}
        assert len(every) - len(set(every.values())) == len(repeated & set(every))
    for name, own in table[table["part"] == "test"].groupby("name"):
        for metric, column in (("accuracy", "accuracy"), ("macro_f1", "macro-F1")):
            values = own[own["metric"] == metric].set_index("cell")["value"]
            values = values[~values.index.isin(repeated)]
            _shows(shown[name][column], values)
    for part, whose in (("validation", "validation"), ("clients", "clients' rows"),
                        ("others", "others' rows")):  # fmt: skip
        column = f"accuracy, {whose}"
        own = table[(table["part"] == part) & (table["metric"] == "accuracy")]
        for name, values in own.groupby("name")["value"]:
            _shows(shown[name][column], values)
    base = table[(table["part"] == "baseline") & (table["metric"] == "accuracy")]["value"]
    assert shown["most frequent class"]["accuracy"] == f"{base.mean():.3f}"
    for name, values in table[table["metric"] == "seconds"].groupby("name")["value"]:
        assert shown[name]["seconds"].startswith(f"{values.mean():.2f} + ")


def _shows(text: str, values: Any) -> None:
    """The mean and, of several, the standard deviation."""
    numbers = [float(number) for number in text.removesuffix(" †").split(" ± ")]
    expected = [values.mean(), values.std()][: len(values)]
    assert numbers == pytest.approx(expected, abs=5.1e-4)


def _answers(run: StudyRun) -> dict[str, dict[str, Any]]:
    """What the saved models of each method answer on the test rows, by cell."""
    saved = models(run)
    found: dict[str, dict[str, Any]] = {}
    for cell, _ in run.finished:
        if cell.key in saved:
            name = name_of({"learner": cell.variant.method, "scheme": cell.scheme})
            said = saved[cell.key].predict(load(cell.variant.data).X_test)
            found.setdefault(name, {})[cell.key] = np.asarray(said)
    return found


def test_intervals_are_wilsons_of_what_the_models_answer(run: StudyRun) -> None:
    (shown,) = tables(run, "Results")
    y = load(run.cells[0].variant.data).y_test
    for name, said in _answers(run).items():
        right = np.unique([each == y for each in said.values()], axis=0).mean(axis=0)
        if len({each.tobytes() for each in said.values()}) == 1:
            found = binomtest(int(right.sum()), len(y)).proportion_ci(method="wilson")
            assert shown[name]["95 %"] == f"{found.low:.3f} … {found.high:.3f}"
        low, high = map(float, shown[name]["95 %"].split(" … "))
        reach = 1.96 * right.std() / np.sqrt(len(y))
        assert low < right.mean() < high
        assert (high - low) / 2 == pytest.approx(reach, rel=0.25, abs=0.012)


def test_pairs_of_one_answer_each_are_mcnemars(run: StudyRun) -> None:
    (shown,) = tables(run, "Significance")
    y = load(run.cells[0].variant.data).y_test
    said = _answers(run)
    checked = 0
    for pair, row in shown.items():
        names = pair.split(" – ")
        if not all(name in said for name in names):
            continue  # of models alone, which are not saved
        right = [np.unique([each == y for each in said[name].values()], axis=0) for name in names]
        gap = right[0].mean() - right[1].mean()
        assert float(row["first is better by"]) == pytest.approx(gap, abs=6e-4)
        if len(right[0]) == len(right[1]) == 1:
            wins, losses = (right[0] & ~right[1]).sum(), (right[1] & ~right[0]).sum()
            p = binomtest(wins, wins + losses).pvalue if wins + losses else 1.0
            assert float(row["p"]) == pytest.approx(p, abs=6e-5)
            checked += 1
    assert checked or all(len(each) > 1 for each in said.values())


def test_the_best_is_the_winner_of_validation_rows(run: StudyRun) -> None:
    table = pd.read_csv(run.folder / "metrics.csv")
    table["name"] = table.apply(name_of, axis=1)
    part = "validation" if run.study.folds else "test"
    own = table[(table["part"] == part) & (table["metric"] == "accuracy")]
    means = own.groupby("name")["value"].mean()
    text = Path(run.folder / "report.md").read_text()
    winners = set(means.index[means > means.max() - 1e-9])
    said = (
        "validation rows choose (.*?), with" if run.study.folds else "IID, (.*?) ha[sv]e? the best"
    )
    named = re.search(said, text)
    assert named is not None
    assert set(re.sub(r", (alone|centralised)", r"; \1", named[1]).split(", ")) <= {
        re.sub(r", ", "; ", name) for name in winners
    }


def test_gains_are_of_a_learner_against_itself(run: StudyRun) -> None:
    (shown,) = tables(run, "Gains of federating")
    (results,) = tables(run, "Results")

    def mean(name: str) -> float:
        return float(results[name]["accuracy"].split(" ")[0])

    for kind in ("FedHEONN", "FedLinear", "FederatedTree"):
        over = mean(kind) - mean(f"{kind}, alone")
        assert float(shown[kind]["accuracy over alone"]) == pytest.approx(over, abs=1.1e-3)
        lost = mean(kind) - mean(f"{kind}, centralised")
        assert float(shown[kind]["accuracy over centralised"]) == pytest.approx(lost, abs=1.1e-3)

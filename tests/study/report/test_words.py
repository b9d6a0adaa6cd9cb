"""What reports say of who is best, who differs, what repeats, and what went wrong."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binomtest

import solera as so
from solera.core.component import Component
from solera.core.errors import DataError
from solera.core.federation import Federation
from solera.learn.linear import FedLinear
from solera.study.files.reader import parse
from solera.study.run.results import different
from solera.study.run.runner import StudyRun, run_study
from solera.study.run.schemes import divided, load

pd = pytest.importorskip("pandas")

GRID = """\
folds = 2
[data]
name = "wine"
clients = 2
[learner]
kind = "FedLinear"
rounds = {rounds}
epochs = [1, 2]
lr = {{ from = 1e-7, to = 1e-4, steps = 8, scale = "log" }}
{search}
"""


def carried_out(text: str, folder: Path) -> tuple[StudyRun, str]:
    run = run_study(parse(text, file="s.toml", name="s"), folder)
    return run, (folder / "report.md").read_text()


@pytest.mark.parametrize(
    ("rounds", "search", "points"),
    [("[1, 2, 3, 4]", "", 64), ("9", '[search]\nkind = "halving"\n', 16 + 6 + 2)],
    ids=["grid", "halving"],
)
def test_the_best_is_the_one_that_validation_rows_choose(
    tmp_path: Path, rounds: str, search: str, points: int
) -> None:
    _, report = carried_out(GRID.format(rounds=rounds, search=search), tmp_path)
    table = pd.read_csv(tmp_path / "metrics.csv")
    table = table[table["metric"] == "accuracy"]
    means = table.groupby(["part", "learner"])["value"].mean()
    assert len(means["validation"]) == points
    ahead = means["validation"] > means["validation"].max() - 1e-9
    winner = means["validation"].index[ahead]
    named = re.search(r"validation rows choose (.*?), with accuracy ([\d.]+) there", report)
    assert named is not None
    assert float(named[2]) == pytest.approx(means["validation"].max(), abs=5.1e-4)
    best = so.runs.load(tmp_path)
    assert best.best.rpartition(" (")[0] in set(winner)
    assert float(best.metrics["accuracy"]) == pytest.approx(
        means["test"][best.best.rpartition(" (")[0]]
    )
    shown = re.findall(r"^\| (.*?) \| \*\*", report, re.MULTILINE)
    assert len(shown) == len(winner), "ties are marked, and nobody else"
    leader = shown[0]
    assert f"| {leader} – " in report, "of many methods each is compared with the one chosen"


TEN = """\
seeds = {seeds}
[data]
name = "breast_cancer"
clients = 4
[[learner]]
kind = "FedHEONN"
lam = 0.01
[[learner]]
kind = "FedHEONN"
lam = 1000.0
"""


def test_ten_seeds_that_say_the_same_say_it_once(tmp_path: Path) -> None:
    run, ten = carried_out(TEN.format(seeds=list(range(10))), tmp_path / "ten")
    _, one = carried_out(TEN.format(seeds=[0]), tmp_path / "one")
    assert "Cells with the same predictions count once" in ten
    assert "(1 of 10)" in ten
    dataset = so.datasets.breast_cancer()
    for cell, result in run.finished[::10]:
        model = so.load(next((run.folder / "models").glob(f"*{cell.key}.sol")))
        hits = int((model.predict(dataset.X_test) == dataset.y_test).sum())
        found = binomtest(hits, len(dataset.y_test)).proportion_ci(method="wilson")
        lam = cell.variant.learner.get_params()["lam"]
        line = next(line for line in ten.splitlines() if line.startswith(f"| FedHEONN lam={lam}"))
        assert f"{result.metrics['accuracy']:.3f}" in line.split("|")[2]
        assert "±" not in line.split("|")[2], "no spread of zero"
        assert line.split("|")[3].strip() == f"{found.low:.3f} … {found.high:.3f}"
    pairs = [re.findall(r"^\| FedHEONN lam=\S+ – .*$", r, re.MULTILINE) for r in (ten, one)]
    assert pairs[0] == pairs[1] != [], "nine more seeds change no p"
    assert "Friedman" not in ten


def test_the_same_predictions_by_other_probabilities_are_not_the_same(tmp_path: Path) -> None:
    text = (
        'metrics = ["auroc", "accuracy"]\nseeds = [0, 1]\nschemes = ["alone", "federated"]\n'
        '[data]\nname = "breast_cancer"\nclients = 3\nclient_test = 0.2\n[learner]\n'
        'kind = "FedHEONN"\n'
    )
    run, report = carried_out(text, tmp_path)
    one, other = (result for cell, result in run.finished if cell.scheme == "federated")
    alike = replace(other, answers=one.answers)
    assert len(different([one, alike])) == 2, "their curves are not the same"
    assert len(different([one, replace(alike, curves=one.curves)])) == 1
    header = next(line for line in report.splitlines() if line.startswith("|"))
    assert "| accuracy, others' rows |" in header, "probabilities of others' rows are not counted"
    assert "AUROC, others' rows" not in header


ROUNDING = """\
schemes = ["federated", "centralised"]
[data]
name = "diabetes"
clients = 4
[learner]
kind = "FedHEONN"
activation = "linear"
"""


def test_equal_but_for_rounding_is_no_difference(tmp_path: Path) -> None:
    run, report = carried_out(ROUNDING, tmp_path)
    one, other = (result.metrics["mse"] for _, result in run.finished)
    assert one == pytest.approx(other, rel=1e-9)
    assert "federated, centralised have the best MSE" in report
    assert "as good as centralised" in report
    assert re.search(r"\| federated – centralised \| \+0\.000 .* \| no difference seen \|", report)
    assert "differs |" not in report
    assert len(re.findall(r"\| \*\*", report)) == 2, "a tie is marked twice"
    assert "mean of training rows" in report


def test_failures_and_divergence_are_in_the_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Component, "registry", dict(Component.registry))

    class Failing(FedLinear):
        def train(self, federation: Federation) -> None:
            raise DataError("not today")

    assert Failing.__name__ == "Failing"
    text = (
        'seeds = [0, 1]\n[data]\nname = "breast_cancer"\nclients = 3\n'
        '[[learner]]\nkind = "Failing"\n'
        '[[learner]]\nkind = "FedLinear"\nrounds = 5\nlr = [1e-7, 1.0]\n'
    )
    run, report = carried_out(text, tmp_path)
    summary = report[: report.index("## Results")]
    assert len(run.failures) == 2
    assert "2 cells failed, for the reasons below." in summary
    assert "Training diverged: FedLinear lr=1.0 (2 of its cells)." in summary
    again = run_study(run.study, tmp_path)
    assert again.started == 2, "only those that failed"
    report = (tmp_path / "report.md").read_text()
    assert "Training diverged: FedLinear lr=1.0 (2 of its cells)." in report
    assert "training diverged, from a loss" in report[report.index("## Warnings") :]


TREE = """\
[data]
name = "breast_cancer"
clients = 3
{positive}
[learner]
kind = "FederatedTree"
max_depth = 2
"""


@pytest.mark.parametrize(
    ("positive", "named"),
    [("", "benign"), ('positive = "malignant"', "malignant"), ('positive = "benign"', "benign")],
)
def test_classes_go_by_their_names(tmp_path: Path, positive: str, named: str) -> None:
    run, report = carried_out(TREE.format(positive=positive), tmp_path)
    assert f"The positive class is {named}." in report
    rules = report[report.index("### Rules") :]
    classes = re.findall(r"^\| .*? \| (\S+) \| [01]\.\d+ \|", rules, re.MULTILINE)
    assert set(classes) <= {"malignant", "benign"}
    assert classes
    page = (tmp_path / "report.html").read_text()
    tree = page[page.index("<h3>Tree") : page.index("<h3>Rules")]
    assert "malignant (" in tree
    assert "benign (" in tree
    counts = re.search(r"\| rows per class \| malignant: (\d+), benign: (\d+) \|", report)
    swapped = re.search(r"\| rows per class \| benign: (\d+), malignant: (\d+) \|", report)
    held = np.bincount(so.datasets.breast_cancer().y).tolist()
    assert list(map(int, counts.groups() if counts else swapped.groups()[::-1])) == held
    confusion = page[page.index("<h2>Confusion") : page.index("<h2>Learners")]
    ticks = re.findall(r">(malignant|benign)</text>", confusion)
    dataset = load(run.cells[0].variant.data)
    model = so.load(next((tmp_path / "models").glob("*.sol")))
    order = [ticks[-2], ticks[-1]]
    codes = {"malignant": 0, "benign": 1}
    first = codes[order[0]] if not positive else order[0]
    (result,) = run.results.values()
    assert sum(result.confusion[0]) == (dataset.y_test == first).sum()
    assert (
        result.confusion[0][0]
        == ((dataset.y_test == first) & (model.predict(dataset.X_test) == first)).sum()
    )
    answers = set(model.predict(so.datasets.breast_cancer().X_test).tolist())
    assert answers <= ({0, 1} if not positive else {"malignant", "benign"})
    assert not run.failures


def test_cards_of_stored_models_hold_what_was_measured(tmp_path: Path) -> None:
    text = (
        'folds = 2\n[data]\nname = "wine"\nclients = 3\nclient_test = 0.2\n'
        '[learner]\nkind = "FedHEONN"\n'
    )
    run, _ = carried_out(text, tmp_path)
    for cell, result in run.finished:
        path = next((tmp_path / "models").glob(f"*{cell.key}.sol"))
        for card in (so.load(path).card(), Path(f"{path}.card.md").read_text()):
            assert f"- accuracy: {result.metrics['accuracy'].words} (test rows)" in card
            assert f"- accuracy: {result.client_metrics['accuracy'].words} (clients'" in card
            assert f"- accuracy: {result.validation['accuracy'].words} (validation rows)" in card
            assert f"- accuracy: {result.baseline['accuracy'].words} (baseline" in card
        wine = so.datasets.wine()
        given = so.load(path).evaluate(wine.X_test[:20], y=wine.y_test[:20])
        card = so.load(path).card(given)
        assert "of 20 rows at hand" in card
        assert "(test rows)" not in card, "what is given comes first"


ALONE = """\
schemes = ["alone", "federated"]
[data]
name = "wine"
clients = 3
client_test = 0.3
[partition]
kind = "Shards"
per_client = 1
[learner]
kind = "FedHEONN"
"""


def test_alone_on_own_rows_and_on_those_of_others_are_two_columns(tmp_path: Path) -> None:
    """Clients have one class or two: alone they are right on their own rows, and not on others'."""
    run, report = carried_out(ALONE, tmp_path)
    lines = [line for line in report.splitlines() if line.startswith("|")]
    header = [cell.strip() for cell in lines[0].split("|")]
    alone = next(line for line in lines if line.startswith("| alone")).split("|")
    own, others = (
        float(alone[header.index(f"accuracy, {whose} rows")]) for whose in ("clients'", "others'")
    )
    (cell,) = [cell for cell, _ in run.finished if cell.scheme == "alone"]
    data = divided(cell, load(cell.variant.data))
    right: dict[bool, list[float]] = {True: [], False: []}
    for client in range(3):
        rows = data.segments(np.array([client]), "train").joined()
        one = so.simulate(rows.X, rows.y, clients=1, seed=0, schema=data.schema)
        model = so.FedHEONN().fit(one)
        tested = [data.segments(np.array([c]), "test").joined() for c in range(3)]
        for is_own in right:
            some = [rows for c, rows in enumerate(tested) if (c == client) == is_own]
            hits = np.concatenate([model.predict(rows.X) == rows.y for rows in some])
            right[is_own] += [hits.sum()] if is_own else [hits.mean()]
    assert own == pytest.approx(sum(right[True]) / sum(map(len, tested)), abs=5.1e-4)
    assert others == pytest.approx(np.mean(right[False]), abs=5.1e-4)
    assert own > 0.9 > 0.5 > others
    gains = report[report.index("## Gains") :]
    assert re.search(r"\| FedHEONN \| \+0\.\d+ \| -0\.\d+ \| 0 / \d \|", gains)


def test_two_personal_methods_are_compared_by_what_their_models_answer(tmp_path: Path) -> None:
    network = 'rounds = 4\nlr = 0.05\nmodel = { kind = "MLP", sizes = [13, 6, 3] }\n'
    text = (
        '[data]\nname = "wine"\ntest = 0\nclients = 3\nclient_test = 0.3\n'
        f'[[learner]]\nkind = "FedPer"\n{network}[[learner]]\nkind = "FedAvg"\n{network}'
    )
    run, report = carried_out(text, tmp_path)
    assert not run.failures
    assert "test rows of the clients' own" in report
    line = next(line for line in report.splitlines() if line.startswith("| FedPer –"))
    gap = float(line.split("|")[2])
    scores = {
        c.variant.method.partition("(")[0]: r.client_metrics["accuracy"] for c, r in run.finished
    }
    assert gap == pytest.approx(scores["FedPer"] - scores["FedAvg"], abs=6e-4)
    assert np.isfinite(gap)

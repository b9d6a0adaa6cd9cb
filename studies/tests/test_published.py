"""Named studies: what they owe the theses' tables, what they print, and what they store."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2
from sklearn.metrics import f1_score
from typer.testing import CliRunner

import solera as so
from solera.cli.app import app
from solera.core.errors import UsageError
from solera.study import named as tables
from solera.study import runs
from solera_studies import (
    dp,
    heonn_energy,
    heonn_ensemble,
    heonn_grid,
    multilabel,
    selection_performance,
    theses,
)
from solera_studies.heonn_protocol import THESIS, cross_validated, score_of, split
from solera_studies.rows import AS_PUBLISHED, OURS, quiet, row

STUDIES = tables.studies()
LISTED = {
    "000": [
        *(f"Table 3.{n}" for n in (9, 10, 11, 13, 14, 16)),
        *(f"Table 4.{n}" for n in range(1, 11)),
    ],
    "001": ["Table 6.1", "Table 6.2"],
    "002": ["Section 3.2", "Section 3.3", "Table 3.1", "Section 4.1.1", "Table 4.1", "Figure 4.7"],
    "003": ["Table 1.3", "Table 1.4", *(f"Table 2.{n}" for n in range(2, 6))],
    "004": [f"Table 5.{n}" for n in range(5, 15)],
}  # fmt: skip


def solera_(*arguments: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, list(arguments), prog_name="solera")
    assert result.exit_code == code, result.output
    return result


# --- the theses' numbers ---


def test_every_listed_table_is_there_and_has_a_study() -> None:
    assert {thesis: sorted(theses.read(thesis)) for thesis in theses.THESES} == {
        thesis: sorted(names) for thesis, names in LISTED.items()
    }
    claimed = [table for study in STUDIES.values() for table in study.TABLES]
    assert sorted((t.thesis, t.name) for t in claimed) == sorted(
        (t.thesis, t.name) for t in theses.tables()
    )


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        (("000", "Table 3.16", "MNIST-orig, FedHEONN", "accuracy"), 81.30),
        (("000", "Table 3.10", "Skin, T = 2", "deviation"), 0.34),
        (("000", "Table 4.10", "λ = 10", "mean"), 7.9242e-05),
        (("001", "Table 6.1", "MNIST, AFL", "RoA 2"), 17),
        (("001", "Table 6.1", "CIFAR10, GreedyFed", "RoA 2"), None),
        (("001", "Table 6.2", "CIFAR10, Dyn-HybridFL", "selections"), 602),
        (("002", "Section 3.2", "centralised, 20 epochs", "seconds"), 240),
        (("002", "Section 3.3", "centralised, 60 epochs", "seconds"), 6300),
        (("002", "Section 4.1.1", "centralised seconds, 20 epochs", "value"), 105),
        (("002", "Section 4.1.1", "share of single runs above .80", "value"), 0.63),
        (("002", "Table 3.1", "2/7 clients, 30 rounds × 2 epochs", "accuracy"), 0.67),
        (("003", "Table 1.4", "test accuracy", "Flower"), 0.966),
        (("003", "Table 2.3", "50 clients, Federated-ID3", "Credit2 macro-F1"), 49.69),
        (("003", "Table 2.5", "20 clients, ICDTA4FL-CART", "Car accuracy"), 68.85),
        (("004", "Table 5.6", "slashdot", "aggregation 2"), 0.1153),
        (("004", "Table 5.14", "macro-F1, global test", "p"), 7.654e-11),
    ],
)
def test_numbers_as_the_theses_print_them(cell: tuple[str, ...], value: float | None) -> None:
    assert theses.Cell(*cell).value == value
    assert theses.table(*cell[:2]).cell(*cell[2:]) == cell


def test_a_cell_that_no_thesis_has() -> None:
    with pytest.raises(UsageError, match="no cell 'MNIST, AFL; RoA 3'"):
        theses.table("001", "Table 6.1").cell("MNIST, AFL", "RoA 3")


def test_tables_without_a_number_missing() -> None:
    for table in theses.tables():
        widths = {len(columns) for columns in table.numbers.values()}
        assert len(widths) == 1, table.name
        assert table.cells()


# --- what a study owes them ---


@pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)
def test_every_cell_is_printed_or_its_absence_has_a_reason(study: ModuleType) -> None:
    assert tables.unexplained(study) == []
    owed = set(tables.owed(study))
    for full in (True, False):
        planned = study.planned(full=full)
        assert all(cell.source for cell in planned)
        printed = {cell for cell in planned if cell.value is not None}
        assert printed <= owed
        assert {cell for cell in planned if cell.value is None} <= {
            theses.Cell(t.thesis, t.name, r, c)
            for t in study.TABLES for r, cs in t.numbers.items() for c in cs
        }  # fmt: skip
    assert set(study.planned(full=False)) <= set(study.planned(full=True))


@pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)
def test_no_reason_is_given_for_a_cell_that_is_printed(study: ModuleType) -> None:
    excused = [c for c in study.planned(full=True) if tables.reason(study, c) is not None]
    partly = {"heonn-parallel": "Table 3.11; *; parallel"}
    name = study.__name__.rpartition(".")[2].replace("_", "-")
    assert not excused or name in partly


def test_a_cell_without_a_reason_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tables.unexplained(heonn_ensemble) == []
    monkeypatch.setattr(heonn_ensemble, "LEFT_OUT", {})
    missing = tables.unexplained(heonn_ensemble)
    assert {cell.row for cell in missing} == {"MiniBoone, plain", "MiniBoone, T = 2"}
    monkeypatch.setattr(heonn_ensemble, "CASES", heonn_ensemble.CASES[1:])
    assert len(tables.unexplained(heonn_ensemble)) == len(missing) + 2


def test_a_study_that_prints_other_cells_than_it_planned_is_found_out() -> None:
    planned = heonn_grid.planned(full=True)
    rows = [row("x", cell, 1.0) for cell in planned]
    tables.check_printed(heonn_grid, rows, full=True)
    with pytest.raises(AssertionError, match="planned other cells"):
        tables.check_printed(heonn_grid, rows[1:], full=True)
    with pytest.raises(AssertionError, match="planned other cells"):
        tables.check_printed(heonn_grid, rows, full=False)


@pytest.mark.parametrize("full", [False, True])
def test_every_row_says_at_which_size_it_was_run(full: bool) -> None:
    for study in STUDIES.values():
        if study is selection_performance:  # its rows say their own
            assert all(setting.size(full) for setting in study.SETTINGS)
            continue
        for told in ("", "a tenth"):
            (line,) = tables.sized(study, [row("a", None, 1.0, size=told)], full)
            assert line["size"] == (told or study.SIZES[full])
            assert line["size"] in tables.cells(line)
            assert line["size"]


def test_a_row_of_differential_privacy_tells_the_spread_of_its_own_figure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fit(data: Any, name: str, noise: float, seed: int, rounds: int) -> tuple[float, ...]:
        return 0.5 + seed / 10, 1.0 + seed, 2.0 if noise else np.inf

    monkeypatch.setattr(so.datasets, "mnist", so.datasets.digits)
    monkeypatch.setattr(dp, "one_fit", fit)
    notes = {line["label"]: line["note"] for line in dp.run()}
    assert notes["IID, σ = 0.5, accuracy"] == "± 0.0500"
    assert notes["IID, σ = 0.5, loss"] == "± 0.5000"
    assert notes["IID, σ = 0.5, ε"] == "at δ = 0.001"
    assert notes["IID, σ = 0, accuracy"] == "± 0.0500; neither noise nor clipping"


def test_every_study_says_what_it_is() -> None:
    for module in STUDIES.values():
        assert module.TITLE
        assert module.SCALE_DOWN
        assert isinstance(module.ERRATA, tuple)
    assert set(json.loads(solera_("study", "list", "--json").stdout)) == set(STUDIES)
    assert "Table 3.9" in solera_("study", "list").stdout


@pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)
def test_every_study_says_in_one_line_what_differs(study: ModuleType) -> None:
    for full in (True, False):
        below = [text for title, text in tables.remarks(study, full) if "differ" in title]
        assert len(below) == 1
        assert len(below[0].split()) > 4
        assert "\n" not in below[0]
    ours_alone = below[0].startswith("every row is ours")
    assert ours_alone <= (study.planned(full=True) == [])  # whoever prints a thesis's cell differs


# --- what is printed and stored ---


def test_rows() -> None:
    cell = theses.table("001", "Table 6.1").cell("MNIST, AFL", "accuracy")
    whole = row("a", cell, 0.95, form=".2f")
    assert tables.cells(whole) == [
        "a",
        "001 Table 6.1",
        AS_PUBLISHED,
        "0.95",
        "0.95",
        "+0.00",
        "",
        "",
    ]
    beyond = row("b", None, 2.0, protocol=OURS)
    assert tables.cells(beyond) == ["b", "–", OURS, "–", "2", "–", "", ""]
    assert tables.cells(row("c", cell, None, note="--full"))[4:] == ["–", "–", "", "--full"]
    assert row("d", cell, 3.0, compare=False)["difference"] is None


def test_a_name_that_does_not_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = solera_("study", "heon-energy", code=1)
    assert "no study 'heon-energy'" in result.stderr
    assert "'heonn-energy'" in result.stderr
    assert "two sizes" in solera_("study", "cifar", "--full", "--quick", code=1).stderr
    assert not Path("runs").exists()


@pytest.mark.data("drybean", "carbon_nanotubes")
def test_incremental(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    printed = solera_("study", "heonn-incremental").stdout
    for words in ("Erratum:", "Scale:", "As published and ours differ:", "000 Table 3.9"):
        assert words in printed
    frame = runs.read("study-heonn-incremental")
    assert set(frame["part"]) == {"test"}  # no made-up rounds, bytes or seconds
    assert frame["seed"].isna().all()  # a thesis has none, and means are of several
    assert set(frame["source"]) == {"000 Table 3.9"}
    assert set(frame["scheme"]) == {AS_PUBLISHED, OURS, "thesis"}
    theirs = frame.query(f"scheme == '{AS_PUBLISHED}'")
    digits = theirs[theirs["learner"].str.startswith("MNIST-test")]["value"]
    assert [round(value, 2) for value in digits] == [90.74, 90.74]
    beans = theirs[theirs["learner"].str.startswith("Dry Bean")]["value"]
    assert beans.max() - beans.min() < 0.02  # in any grouping the same model
    tubes = theirs[theirs["learner"].str.startswith("Carbon")]["value"]
    assert tubes.tolist() == pytest.approx([5.75e-5] * 4, rel=1e-3)
    assert "90.74" in Path("runs/study-heonn-incremental/report.html").read_text()


@pytest.mark.data("drybean", "carbon_nanotubes")
def test_all_studies_on_one_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {"heonn-incremental": STUDIES["heonn-incremental"], "text": STUDIES["text"]}
    monkeypatch.setattr(tables, "studies", lambda: few)
    monkeypatch.setattr(
        few["text"], "tweets", lambda: theses.table("001", "Table 6.1").cell("", "")
    )
    printed = solera_("study", "all", "--report", "--quick", "--folder", str(tmp_path)).stdout
    page = (tmp_path / "report.html").read_text()
    assert "90.74" in page
    assert "Not run:" in page
    assert "not run: text" in printed
    assert (tmp_path / "heonn-incremental" / "metrics.csv").exists()


@pytest.mark.data("drybean", "carbon_nanotubes")
def test_ensemble_protocol_on_the_quick_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = [c for c in heonn_ensemble.CASES if c.data != "Skin" and c.ensemble is None]
    monkeypatch.setattr(heonn_ensemble, "CASES", quick)
    found = [r for r in heonn_ensemble.run() if r["protocol"] == AS_PUBLISHED]
    by_name = {r["label"]: r for r in found}
    assert abs(by_name["MNIST-test, plain, mean"]["difference"]) < 0.01
    assert abs(by_name["MNIST-test, plain, deviation"]["difference"]) < 0.01
    assert abs(by_name["Dry Bean, plain, mean"]["difference"]) < 0.01
    assert by_name["Carbon Nanotubes, plain, mean"]["measured"] == pytest.approx(7.85e-5, rel=0.01)


@pytest.mark.data("optdigits")
def test_energy_on_the_quick_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    every = heonn_energy._cases(full=False)
    wanted = ("FedHEONN", "MNIST-test, FedHEONN", "MNIST-test, FedHEONN_enc")
    quick = [c for c in every if c.row in wanted and c.table is not heonn_energy.ENCRYPTED]
    monkeypatch.setattr(heonn_energy, "_cases", lambda full: quick)
    rows = heonn_energy.run()
    tables.check_printed(heonn_energy, rows, full=False)
    by_name = {(r["label"], r["protocol"]): r for r in rows}
    plain = by_name["FedHEONN, accuracy", AS_PUBLISHED]
    assert plain["measured"] == pytest.approx(91.70, abs=0.01)
    whole = by_name["FedHEONN, kWh", AS_PUBLISHED]
    assert 0 < whole["measured"] < 1e-5
    assert whole["difference"] is None  # of two machines only ratios compare
    parts = [
        r["measured"] for (label, protocol), r in by_name.items()
        if label.startswith("FedHEONN: ") and label.endswith("kWh") and protocol == AS_PUBLISHED
    ]  # fmt: skip
    assert len(parts) == 6
    assert sum(parts) == pytest.approx(whole["measured"])
    published = by_name["MNIST-test, FedHEONN_enc, kWh", AS_PUBLISHED]
    ours = by_name["MNIST-test, FedHEONN_enc, kWh", OURS]
    assert ours["measured"] < published["measured"] / 5
    assert "thesis 175" in published["note"]


@pytest.mark.data("mnist")
def test_mnist_of_the_thesis_comes_out_to_the_last_digit() -> None:
    """Table 3.16 prints 81.30 %: Keras's own split, not 70/30."""
    X, y, X_test, y_test = split("mnist")
    assert (len(X), len(X_test)) == (60_000, 10_000)
    model = so.FedHEONN(lam=10.0, **THESIS).fit(so.simulate(X, y, clients=1, seed=0))
    assert round(score_of(model, X_test, y_test), 2) == 81.30


DRAWN = [
    ("Dry Bean", "11520: λ = 10, T = 2, rows 0.4 without, features 0.4 with"),
    ("Carbon Nanotubes", "8960: λ = 0.01, T = 10, rows 0.5 with, features 0.2 with"),
    ("Carbon Nanotubes", "11520: λ = 1, T = 75, rows 0.3 with, features 0.1 with"),
]
SLOWLY_DRAWN = [
    (data, name)
    for data, number in heonn_grid.GRIDS.items()
    for name in theses.table("000", f"Table {number}").numbers
    if (data, name) not in DRAWN
]


@pytest.mark.data("drybean", "carbon_nanotubes")
@pytest.mark.parametrize(
    ("data", "name"),
    [*DRAWN, *(pytest.param(*row, marks=pytest.mark.slow) for row in SLOWLY_DRAWN)],
)
def test_ensembles_of_the_thesis_come_out_to_the_last_digit(data: str, name: str) -> None:
    """Tables 4.1, 4.3, 4.7 and 4.9, with the draws of the program."""
    printed = theses.table("000", f"Table {heonn_grid.GRIDS[data]}").numbers[name]
    lam, ensemble = heonn_grid.options_of(name)
    numbers = {"activation": "linear"} if data == "Carbon Nanotubes" else {}
    model = so.FedHEONN(lam=lam, **numbers, **THESIS)
    with quiet():
        scores = cross_validated(data, model, ensemble, AS_PUBLISHED)
    for column, value in (("mean", scores.mean()), ("deviation", scores.std())):
        if numbers:
            assert value == pytest.approx(printed[column], rel=1e-4)
        else:
            assert value == pytest.approx(printed[column], abs=0.0051)


@pytest.mark.slow
@pytest.mark.data("optdigits")
def test_accuracies_of_the_energy_tables_come_out_to_the_last_digit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tables 3.13 and 3.16: blocks of the shuffled rows, the program's draws, the MLP's seed."""
    plain = [
        case
        for case in heonn_energy._cases(full=True)
        if not case.encrypted and case.data != "MNIST-orig"
    ]
    monkeypatch.setattr(heonn_energy, "_cases", lambda full: plain)
    found = [
        r for r in heonn_energy.run(full=True)
        if r["protocol"] == AS_PUBLISHED and r["cell"].column == "accuracy"
    ]  # fmt: skip
    assert len(found) == 17
    for r in found:
        assert r["measured"] == pytest.approx(r["thesis"], abs=0.0055), r[
            "label"
        ]  # 90.925 is printed as 90.92


def test_rows_of_the_grid_are_read_as_they_are_written() -> None:
    for _, found in heonn_grid._tables(full=True):
        for name in found.numbers:
            lam, ensemble = heonn_grid.options_of(name)
            assert f"λ = {lam:g}" in name
            assert ensemble is None or f"T = {ensemble.estimators}," in name
    _, ensemble = heonn_grid.options_of("72: λ = 10, T = 2, rows 0.2 with, features 0.9 without")
    assert ensemble is not None
    assert (ensemble.rows, ensemble.row_replacement) == (0.2, True)
    assert (ensemble.features, ensemble.feature_replacement) == (0.9, False)


def test_scores_of_mlfedavg_stand_where_the_thesis_prints_them() -> None:
    twice = multilabel.sources("scene", "samples_labels", "macro-F1", "local")
    assert [(c.table, c.value) for c in twice] == [("Table 5.6", 0.7901), ("Table 5.11", 0.7901)]
    (alone,) = multilabel.sources("20NG", multilabel.ALONE, "SA", "global")
    assert (alone.table, alone.value) == ("Table 5.12", 0.7753)
    assert multilabel.sources("20NG", "improved, text's noise", "SA", "global") == []


@pytest.mark.parametrize("share", [True, False])
def test_macro_f1_of_mlfedavg_counts_labels_that_do_not_occur(share: bool) -> None:
    draw = np.random.default_rng(0)
    X = draw.normal(size=(200, 4))
    y = (X @ draw.normal(size=(4, 6)) > 0).astype(int)
    y[:, [1, 4]] = 0
    y[0, 1] = y[1, 4] = 1  # in one row each, so that most tests have none
    dealt = so.data.deal_labels(X, y, [[0, 1, 2], [3, 4, 5]], seed=1)
    core = so.nn.mlp(4, 6)
    learner = so.MLFedAvg(core, rounds=3, stop=None, lr=0.05, share=share)
    found, rounds = multilabel._judged(learner, dealt, 0, "it")
    assert rounds == 3
    everyone = [dealt.clients] if share else [dealt.clients.only(k) for k in range(2)]
    wanted: dict[str, list[float]] = {"global": [], "local": []}
    for clients in everyone:
        model = learner.clone().fit(so.simulate(clients, seed=0))
        for k in range(clients.clients):
            own = dealt.owned[k if share else everyone.index(clients)]
            rows = clients.segments(np.array([k]), "test").joined()
            for part, (X_of, y_of) in {"global": (dealt.X_test, dealt.y_test),
                                       "local": (rows.X, rows.y)}.items():  # fmt: skip
                truth = y_of[:, own]
                guess, has = model.at(k).predict(X_of)[:, own], truth.any(axis=1)
                score = f1_score(truth[has], guess[has], average="macro", zero_division=0)
                wanted[part].append(score)
    for part, scores in wanted.items():
        assert found["it", "macro-F1", part] == pytest.approx(np.mean(scores))
        assert np.mean(scores) < 2 / 3  # of three labels one does not occur


def test_tests_and_diagrams_of_mlfedavg() -> None:
    methods = [*multilabel.AGGREGATIONS, multilabel.ALONE]
    methods += [f"{who}, {noise}" for noise in multilabel.NOISES.values()
                for who in ("improved", "alone improved", "alone")]  # fmt: skip
    draw = np.random.default_rng(0)
    runs = [
        {(m, metric, part): (1.0 if m == multilabel.ALONE else 0.5) + draw.random() / 10
         for m in methods for metric in multilabel.METRICS for part in multilabel.PARTS}
        for _ in range(20)
    ]  # fmt: skip
    rows = multilabel._tests(runs)
    tested = {r["cell"]: r for r in rows if r["cell"] is not None}
    assert len(tested) == 8
    apart = tested[theses.table("004", "Table 5.14").cell("SA, local test", "p")]
    assert apart["measured"] == pytest.approx(chi2.sf(20, 1))  # alone is best in all 20 runs
    assert "20 runs" in apart["note"]
    diagrams = multilabel.figures(rows)
    assert [title.partition(",")[0] for title, _ in diagrams] == [
        f"Figure 5.{n}" for n in range(2, 7)
    ]
    below = next(
        r for r in rows if r["label"].startswith("improved, program's noise, above alone:")
    )
    assert below["measured"] == 0

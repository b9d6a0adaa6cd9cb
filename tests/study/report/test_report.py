"""The report of a study: what it says, and how it looks in a real browser."""

from __future__ import annotations

import html as markup
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import needs_chromium, screenshot, visit
from matplotlib.figure import Figure
from sklearn.metrics import brier_score_loss, roc_auc_score

import solera as so
from solera.core.component import Component
from solera.core.errors import UsageError
from solera.core.meter import size
from solera.evaluation.curves import GRID
from solera.learn.base import load as load_model
from solera.learn.linear import FedLinear
from solera.study.files.reader import parse
from solera.study.report import clients, costs, outcomes
from solera.study.report.blocks import Paragraph, Section
from solera.study.report.export import NoBrowser, export_report
from solera.study.report.groups import Group, StudyResults, best, leaders
from solera.study.report.html import render_html
from solera.study.report.report import sections_of
from solera.study.report.summary import summary
from solera.study.run.cells import CellStore, cells_of
from solera.study.run.results import Result
from solera.study.run.runner import StudyRun, run_study
from solera.study.run.schemes import load

STUDY = """\
# <script>alert('x')</script>
seeds = [0, 1, 2]
schemes = ["alone", "federated", "centralised"]
folds = 2
[data]
name = "wine"
clients = 5
client_test = 0.2
[[partition]]
kind = "IID"
[[partition]]
kind = "Dirichlet"
alpha = 1.0
min_rows = 10
[[learner]]
kind = "FedLinear"
rounds = 4
per_round = 2
lr = [1e-5, 1e-4]
[[learner]]
kind = "FedHEONN"
[energy]
country = "ESP"
"""
TITLES = [
    "Summary", "Results", "Learning curves", "Partitions", "Selection", "Fairness",
    "Clients one by one", "Confusion", "Score by cost", "Traffic", "Energy", "Study file",
    "Environment",
]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> StudyRun:
    study = parse(STUDY, file="study.toml", name="look")
    done = run_study(study, tmp_path_factory.mktemp("look"))
    assert not done.failures
    return done


@pytest.fixture(scope="module")
def page(run: StudyRun) -> str:
    return (run.folder / "report.html").read_text()


def test_every_section_is_there(page: str) -> None:
    titles = re.findall(r"<h2>(.*?)</h2>", page)
    assert [title for title in titles if title in TITLES] == TITLES
    assert page.count("<svg") >= 2 + 2 + 1 + 1 + 2 + 1  # curves, maps, selection, …
    text = re.sub(r"<[^>]+>", " ", page)
    assert "3 methods on 2 divisions of wine, 3 seeds and 2 folds: 108 of 108 cells" in text
    assert "than alone" in text
    assert "as good as centralised" in text, "FedHEONN is, and leads"
    assert "<script" not in page


ALONE = """\
seeds = [0, 1]
schemes = ["alone", "federated", "centralised"]
{metrics}
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


@pytest.fixture(scope="module")
def one_class_each(tmp_path_factory: pytest.TempPathFactory) -> StudyRun:
    """Every client has one class: its own model is right on its own rows and on no others."""
    text = ALONE.format(metrics='metrics = ["macro_f1"]')
    study = parse(text, file="study.toml", name="alone")
    return run_study(study, tmp_path_factory.mktemp("alone"))


def test_a_gap_to_alone_says_on_whose_rows(one_class_each: StudyRun) -> None:
    """'3.672 better than alone' stood where training alone won at every client."""
    blocks = summary(StudyResults(one_class_each))
    text = " ".join(block.text for block in blocks if isinstance(block, Paragraph))
    assert re.search(r"macro-F1 [\d.± ]+, of \d+ test rows that no client has", text)
    gap = (
        r"better than alone \(the mean of the clients' own models, on the same rows, which are not"
    )
    assert re.search(gap, text)
    on_own_rows = re.search(
        r"better than the one trained alone at 0 of 3 clients and worse at (\d)", text
    )
    assert on_own_rows is not None
    assert int(on_own_rows[1]) > 0


def test_the_worst_client_is_of_the_metric_beside_it(one_class_each: StudyRun) -> None:
    study = StudyResults(one_class_each)
    columns = outcomes.result_columns(study)
    names = [name for name in columns if "client" in name and "clients" not in name.split(",")[0]]
    assert names[:3] == [
        "macro-F1, clients' rows", "accuracy, clients' rows", "accuracy, worst client",
    ]  # fmt: skip
    (federated,) = [g for g in study.groups if g.scheme == "federated"]
    for result in federated.results:
        cells = {name: float(columns[name]([result])) for name in names[1:3]}
        assert cells["accuracy, worst client"] <= cells["accuracy, clients' rows"]
    note = outcomes.results(study)[-1]
    assert isinstance(note, Paragraph)
    assert "test rows that no client has" in note.text
    assert "Alone is the mean over the clients' own models on the same rows" in note.text


def test_the_best_of_every_division_by_validation_is_marked(run: StudyRun, page: str) -> None:
    found = StudyResults(run).groups
    table = so.runs.read(run.folder).query("part == 'validation' and metric == 'accuracy'")
    chosen = table.groupby(["partition", "learner", "scheme"])["value"].mean()
    for group in [g for g in found if g in leaders("accuracy", _beside(g, found))]:
        variant = group.cells[0].variant
        mean = chosen[variant.setting, variant.method, group.scheme]
        assert mean == pytest.approx(chosen[variant.setting].max())
    results = page[page.index("<h2>Results") : page.index("<h2>Gains")]
    tables = re.findall(r"<h3>.*?</table>", results, re.DOTALL)
    assert len(tables) == 2
    assert all(table.count("<strong>") >= 1 for table in tables)
    first = re.findall(r"<strong>([^<]+)</strong>", results)
    assert len(first) == sum(g in leaders("accuracy", _beside(g, found)) for g in found)


def _beside(group: Group, groups: list[Group]) -> list[Group]:
    return [other for other in groups if other.division == group.division]


def test_pairs_are_of_the_test_rows_of_one_division(run: StudyRun, page: str) -> None:
    study = StudyResults(run)
    assert study.comparison is None, "there is one data set"
    assert list(study.pairs) == list(study.divisions)
    for division, groups in study.divisions.items():
        leader = best("accuracy", groups)
        assert leader is not None
        pairs = study.pairs[division]
        assert {pair.a for pair in pairs} == {leader.name}, "of nine methods"
        assert {pair.b for pair in pairs} == {g.name for g in groups} - {leader.name}
    assert "McNemar" in page
    assert "Friedman" not in page


def test_ready_made_sections_follow_the_results(run: StudyRun) -> None:
    made = render_html("mine", sections_of(run, [Section("Mine", [Paragraph("<hello>")])]))
    assert "&lt;hello&gt;" in made
    assert made.index("<h2>Results") < made.index("<h2>Mine") < made.index("<h2>Partitions")


def test_nothing_comes_from_outside(page: str) -> None:
    plain = re.sub(r"data:image/png;base64,[\w+/=\s]+", "", page)
    assert not re.search(r"https?:|//\w|@import|url\((?!#)", plain)
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


@needs_chromium
def test_the_page_opens_without_a_word(run: StudyRun, tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text('<img src="http://example.org/x.png"><script>absent()</script>')
    control = visit(bad.as_uri())
    assert control.console
    assert "example.org" in control.hosts
    quiet = visit((run.folder / "report.html").as_uri())
    assert quiet.console == []
    assert quiet.hosts <= control.hosts - {"example.org"}  # the browser's own
    assert quiet.text.count("<svg") >= 9


@needs_chromium
def test_the_pictures_are_there(run: StudyRun, page: str, tmp_path: Path) -> None:
    whole = screenshot(run.folder / "report.html", tmp_path / "whole.png", 900, 11000)
    bare = tmp_path / "bare.html"
    bare.write_text(re.sub(r"<svg.*?</svg>", "", page, flags=re.DOTALL))
    without = screenshot(bare, tmp_path / "bare.png", 900, 11000)
    colours = {"blue": "0072b2", "red": "d55e00", "map": "00224e", "map's end": "fee838"}
    for name, colour in colours.items():
        rgb = np.array([int(colour[i : i + 2], 16) for i in (0, 2, 4)], dtype=np.int16)
        seen = (np.abs(whole - rgb).max(axis=2) <= 5).sum()
        assert seen > 100, f"no {name} in the picture of the page"
        assert not (np.abs(without - rgb).max(axis=2) <= 5).any()


MEASURE = """
<script>addEventListener("load", () => {
  const inner = document.querySelector("iframe").contentDocument, root = inner.documentElement;
  const sizes = [...inner.querySelectorAll("svg")].map(s => s.getBoundingClientRect());
  document.title = JSON.stringify([root.scrollWidth, root.clientWidth,
    Math.min(...sizes.map(s => s.width)), Math.min(...sizes.map(s => s.height))]);
})</script>
"""


@needs_chromium
def test_a_phone_shows_it_without_scrolling_sideways(page: str, tmp_path: Path) -> None:
    frame = tmp_path / "phone.html"
    inside = markup.escape(page, quote=True)
    frame.write_text(f'{MEASURE}<iframe width="360" height="800" srcdoc="{inside}"></iframe>')
    shown = visit(frame.as_uri()).text
    sizes = re.search(r"<title>\[([\d.,]+)\]</title>", shown)
    assert sizes is not None
    wide, available, width, height = map(float, sizes[1].split(","))
    assert wide <= available <= 360
    assert width > 250
    assert height > 50


def test_what_is_sent_to_and_from_clients_is_shown(run: StudyRun, page: str) -> None:
    group = StudyResults(run).groups[0]
    down = size(float(np.mean([result.bytes_down for result in group.results])))
    text = (run.folder / "report.md").read_text()
    results = text[text.index("## Results") : text.index("## Learning curves")]
    (header, *_) = re.findall(r"^\|.*\|$", results, re.MULTILINE)
    assert "| rounds | to clients | from clients | seconds |" in header
    assert f"| {down} |" in results
    assert '<th scope="col">to clients</th><th scope="col">from clients</th>' in page
    traffic = page[page.index("<h2>Traffic</h2>") :]
    for report in (traffic, text[text.index("## Traffic") :]):
        assert ": to clients" in report
        assert ": from clients" in report
        assert "per client and round" in report


def test_markdown_holds_the_same_words_and_pictures(run: StudyRun, page: str) -> None:
    text = (run.folder / "report.md").read_text()
    assert [t for t in re.findall(r"^## (.*)$", text, re.MULTILINE) if t in TITLES] == TITLES
    assert "| pair | first is better by |" in text
    assert "**" in text
    linked = re.findall(r"\]\((figures/[^)]+)\)", text)
    assert len(linked) == page.count("<svg")
    for name in linked:
        picture = (run.folder / name).read_text()
        assert picture.startswith('<svg xmlns="http://www.w3.org/2000/svg"')
        assert "var(" not in picture
    lines = text.splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert all(line.endswith("|") for line in rows)


@needs_chromium
def test_pdf(run: StudyRun, tmp_path: Path) -> None:
    export_report(run.folder, tmp_path / "report.pdf")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
    assert (tmp_path / "report.pdf").stat().st_size > 50_000


def test_pdf_without_a_browser(
    run: StudyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoBrowser, match="print it there"):
        export_report(run.folder, tmp_path / "report.pdf")
    with pytest.raises(UsageError, match=r"neither \.md nor \.pdf"):
        export_report(run.folder, tmp_path / "report.doc")


def test_learners_may_add_sections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Component, "registry", dict(Component.registry))

    class Showing(FedLinear):
        def report_sections(self) -> list[tuple[str, Any]]:
            figure = Figure()
            figure.add_subplot().plot([1, 2])
            return [("Rules", "if x <= 3 & y"), ("Tree", figure)]

    text = '[data]\nname = "wine"\nclients = 3\n[learner]\nkind = "Showing"\nrounds = 2\n'
    study = parse(text, file="study.toml", name="shown")
    run_study(study, tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "<pre>if x &lt;= 3 &amp; y</pre>" in page
    assert re.search(r"<h3>Tree: Showing</h3>\s*<svg", page)


def test_fairness_in_numbers() -> None:
    assert clients.jain([0.5, 0.5, 0.5]) == pytest.approx(1)
    assert clients.jain([1, 0, 0, 0]) == pytest.approx(0.25)
    assert clients.jain([0, 0]) == 1


def test_sections_without_anything_to_show_are_left_out(tmp_path: Path) -> None:
    study = parse(STUDY.replace("folds = 2\n", ""), file="study.toml", name="bare")
    run = StudyRun(study, tmp_path, cells_of(study, study.variants()[0]))
    run.results = {cell.key: Result(cell.seed, 0, {}, 0, 0, 0.0) for cell in run.cells}
    bare = StudyResults(run)
    for section in (costs.energy, clients.selection, outcomes.confusion, outcomes.learners):
        assert section(bare) == []


def test_daggers_are_of_pairs_that_differ(run: StudyRun) -> None:
    study = StudyResults(run)
    text = (run.folder / "report.md").read_text()
    section = text[text.index("## Results") : text.index("Means over seeds")]
    differing = sum(
        pair.p_holm < 0.05 and pair.b not in {g.name for g in leaders("accuracy", groups)}
        for division, groups in study.divisions.items()
        for pair in study.pairs[division]
    )
    assert section.count("†") == differing


SCORED = """\
seeds = [0, 1]
schemes = ["alone", "federated"]
metrics = ["auroc", "brier"]
[data]
name = "breast_cancer"
clients = 4
client_test = 0.3
[[learner]]
kind = "FedHEONN"
[[learner]]
kind = "FedID3"
max_depth = 2
"""


def test_scores_give_curves_and_metrics_that_scikit_learn_gives(tmp_path: Path) -> None:
    run = run_study(parse(SCORED, file="s.toml", name="s"), tmp_path / "s")
    sections = {section.title: section.blocks for section in sections_of(run)}
    assert len(sections["Discrimination and calibration"]) == 1
    federated = [(c, r) for c, r in run.finished if c.scheme == "federated"]
    cell, result = next((c, r) for c, r in federated if r.curves is not None)
    path = CellStore(run.folder).model(cell)
    model = load_model(path)
    assert f"auroc: {result.metrics['auroc']:.4g}" in Path(f"{path}.card.md").read_text()
    dataset = load(cell.variant.data)
    p = model.predict_proba(dataset.X_test)[:, 1]
    assert result.metrics["auroc"] == pytest.approx(roc_auc_score(dataset.y_test, p), abs=5e-3)
    assert result.metrics["brier"] == pytest.approx(brier_score_loss(dataset.y_test, p))
    assert len(result.client_curves) == 4
    assert result.curves is not None
    area = np.trapezoid(result.curves.roc, GRID)
    assert area == pytest.approx(roc_auc_score(dataset.y_test, p), abs=0.02)
    alone = next(r for c, r in run.finished if c.scheme == "alone")
    assert alone.curves is None
    assert len(alone.client_curves) == 4


def test_a_study_that_later_asks_for_scores_trains_its_cells_again(tmp_path: Path) -> None:
    text = SCORED.replace('metrics = ["auroc", "brier"]\n', "")
    without = parse(text, file="s.toml", name="s")
    scored = parse(SCORED, file="s.toml", name="s")
    keys = [{cell.key for cell in cells_of(s, s.variants()[0])} for s in (without, scored)]
    assert keys[0].isdisjoint(keys[1])
    assert not without.scores
    assert parse("scores = true\n" + text, file="s.toml", name="s").scores

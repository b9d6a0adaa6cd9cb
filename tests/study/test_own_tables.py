"""Studies on a table of one's own, with learners called by names."""

from __future__ import annotations

import html as markup
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import needs_chromium, visit
from typer.testing import CliRunner

import solera as so
from solera.cli.app import app
from solera.core.errors import DataError, UsageError
from solera.study import comparison
from solera.study.files.reader import parse, read
from solera.study.names import chain_of, chain_of_text, short_names
from solera.study.report.groups import StudyResults
from solera.study.run.runner import StudyRun, run_study

pd = pytest.importorskip("pandas")

LABELS = ["logistic regression", "closed form", "boosted trees", "one tree to read"]
STUDY = """
seeds = [0, 1, 2]
schemes = ["alone", "federated", "centralised"]

[data]
file = "patients.csv"
target = "outcome"
group = "hospital"
kinds = { ward = "categorical" }
test = 0.2
client_test = 0.2

[[learner]]
label = "logistic regression"
kind = "Pipeline"
steps = [{ kind = "FedEncoder" }, { kind = "FedImputer" }, { kind = "FedScaler" },
  { kind = "FedLinear", rounds = 4 }]

[[learner]]
label = "closed form"
kind = "Pipeline"
steps = [{ kind = "FedEncoder" }, { kind = "FedImputer" }, { kind = "FedHEONN" }]

[[learner]]
label = "boosted trees"
kind = "Pipeline"
steps = [{ kind = "FedImputer" }, { kind = "FedHistGBDT", rounds = 3 }]

[[learner]]
label = "one tree to read"
kind = "Pipeline"
steps = [{ kind = "FedImputer" }, { kind = "FederatedTree", max_depth = 3 }]
"""


def patients(rows: int = 240) -> Any:
    rng = np.random.default_rng(4)
    made = pd.DataFrame(
        {
            "hospital": rng.choice(["A Coruña", "Lugo", "Vigo"], rows),
            "age": rng.integers(20, 90, rows),
            "bmi": np.where(rng.random(rows) < 0.1, np.nan, rng.normal(26, 4, rows).round(1)),
            "smokes": rng.choice(["never", "daily", None], rows),
            "ward": rng.integers(1, 4, rows),
            "admitted": [f"2024-03-{day:02d}" for day in rng.integers(1, 32, rows)],
        }
    )
    risk = made["age"] + 20 * (made["smokes"] == "daily")
    return made.assign(outcome=np.where(risk > risk.median(), "relapse", "healthy"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("own")
    patients().to_csv(place / "patients.csv", index=False)
    (place / "cohort.toml").write_text(STUDY)
    return place


@pytest.fixture(scope="module")
def run(folder: Path) -> StudyRun:
    return run_study(read(folder / "cohort.toml"), folder / "runs" / "cohort")


def test_every_learner_goes_by_its_label(run: StudyRun) -> None:
    assert not run.failures
    groups = StudyResults(run).groups
    assert list(dict.fromkeys(group.method for group in groups)) == LABELS
    assert {group.data for group in groups} == {"patients"}
    assert {group.partition for group in groups} == {"hospital"}
    table = so.runs.read(run.folder)
    assert list(dict.fromkeys(table["learner"])) == LABELS
    assert set(table.loc[table["part"] == "client", "client"]) == {"A Coruña", "Lugo", "Vigo"}
    models = [path.name for path in sorted((run.folder / "models").glob("*.sol"))]
    assert any(name.startswith("one_tree_to_read-") for name in models)
    report = (run.folder / "report.md").read_text()
    assert "Pipeline(" not in report[: report.index("## Study file")]
    assert "one tree to read, centralised" in report
    assert "A Coruña" in (run.folder / "report.html").read_text()


def test_models_of_a_study_answer_in_the_words_of_the_table(run: StudyRun) -> None:
    path = next((run.folder / "models").glob("closed_form-*-federated-seed0.sol"))
    model = so.load(path)
    assert set(model.predict(patients())) == {"healthy", "relapse"}
    assert model.score(patients(), patients()["outcome"]) > 0.7


def test_nothing_is_trained_twice_until_the_table_changes(folder: Path, run: StudyRun) -> None:
    again = run_study(read(folder / "cohort.toml"), run.folder)
    assert again.started == 0
    before = read(folder / "cohort.toml").variants()[0].key
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "cohort.toml").write_text(STUDY)
    patients().to_csv(elsewhere / "patients.csv", index=False)
    assert read(elsewhere / "cohort.toml").variants()[0].key == before
    patients(200).to_csv(elsewhere / "patients.csv", index=False)
    assert read(elsewhere / "cohort.toml").variants()[0].key != before


MEASURE = """
<script>addEventListener("load", () => {
  const inner = document.querySelector("iframe").contentDocument, root = inner.documentElement;
  const cut = [...inner.querySelectorAll(".wide")].filter(d => d.scrollWidth > d.clientWidth + 1);
  const outside = [...inner.querySelectorAll("svg text")].filter(t => {
    const picture = t.ownerSVGElement.getBoundingClientRect(), box = t.getBoundingClientRect();
    return box.right > picture.right + 1 || box.left < picture.left - 1;
  });
  document.title = JSON.stringify([root.scrollWidth - root.clientWidth, cut.length,
    outside.length, inner.querySelectorAll("svg text").length]);
})</script><body style="margin:0">
"""


@needs_chromium
@pytest.mark.parametrize("width", [1200, 400])
def test_nothing_of_the_report_is_off_screen(run: StudyRun, tmp_path: Path, width: int) -> None:
    page = (run.folder / "report.html").read_text()
    frame = tmp_path / "frame.html"
    inside = markup.escape(page, quote=True)
    frame.write_text(
        f'{MEASURE}<iframe style="border:0" width="{width}" height="900" srcdoc="{inside}">'
    )
    title = re.search(r"<title>(.*?)</title>", visit(frame.as_uri()).text)
    assert title is not None
    sideways, cut, outside, labels = json.loads(title[1])
    assert (sideways, cut, outside) == (0, 0, 0)
    assert labels > 50


def test_comparisons_do_not_pool_schemes(run: StudyRun) -> None:
    scores, _ = comparison.gather([run.folder], "accuracy")
    outcome = comparison.compare(scores, "learner", "accuracy")
    assert len(outcome.methods) == 12
    assert "closed form, alone" in outcome.methods
    assert outcome.rows == ("all",), "seeds of one table are no rows"
    assert {len(pairs) for pairs in outcome.on_rows.values()} == {11}
    federated = comparison.where(scores, {"scheme": "federated"})
    assert sorted(comparison.compare(federated, "learner", "accuracy").methods) == sorted(LABELS)
    schemes = comparison.compare(scores, "scheme", "accuracy")
    assert sorted(schemes.methods) == ["alone", "centralised", "federated"]
    with pytest.raises(UsageError, match=r"no run has scheme 'federate'.*'federated'"):
        comparison.where(scores, {"scheme": "federate"})
    with pytest.raises(UsageError, match=r"runs have no 'schema'.*'scheme'"):
        comparison.where(scores, {"schema": "federated"})


def solera_(*arguments: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, list(arguments), prog_name="solera")
    assert result.exit_code == code, result.output
    return result


def test_compare_filters_on_the_command_line(run: StudyRun) -> None:
    shown = solera_("compare", str(run.folder), "--where", "scheme=federated", "--json").stdout
    assert sorted(json.loads(shown)["methods"]) == sorted(LABELS)
    wrong = solera_("compare", str(run.folder), "--where", "scheme", code=2)
    assert "LABEL=VALUE" in wrong.stderr


def test_data_show_says_what_was_understood(folder: Path) -> None:
    file = str(folder / "patients.csv")
    options = ("--target", "outcome", "--group", "hospital", "--kind", "ward=categorical")
    text = solera_("data", "show", file, *options).stdout
    for line in (
        r"age\s+numeric\s+0\s+20 to 89",
        r"smokes\s+categorical\s+\d+\s+daily, never",
        r"ward\s+categorical\s+0\s+1, 2, 3",
        r"admitted\s+date\s+0\s+2024-03-01 to 2024-03-31",
        r"outcome\s+target",
        r"hospital\s+group\s+0\s+A Coruña: \d+, Lugo: \d+, Vigo: \d+",
    ):
        assert re.search(line, text), line
    content = json.loads(solera_("data", "show", file, *options, "--json").stdout)
    assert content["classes"] == ["healthy", "relapse"]
    assert sum(content["groups"]["hospital"].values()) == 240
    wrong = solera_("data", "show", file, "--target", "outcom", code=1)
    assert "did you mean 'outcome'" in wrong.stderr
    assert "no file" in solera_("data", "show", "nowhere.csv", code=1).stderr
    wrong = solera_("data", "show", "wine", "--target", "x", code=1)
    assert "knows its own columns" in wrong.stderr


@pytest.mark.parametrize("kind", ["parquet", "folder", "sql"])
def test_tables_are_the_same_wherever_they_lie(tmp_path: Path, kind: str) -> None:
    frame = patients()
    if kind == "parquet":
        pytest.importorskip("pyarrow")
        frame.to_parquet(tmp_path / "patients.parquet")
        file = "patients.parquet"
    elif kind == "folder":
        (tmp_path / "patients").mkdir()
        frame[:100].to_csv(tmp_path / "patients" / "a.csv", index=False)
        frame[100:].to_csv(tmp_path / "patients" / "b.csv", index=False)
        file = "patients"
    else:
        sqlalchemy = pytest.importorskip("sqlalchemy")
        engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'patients.db'}")
        frame.to_sql("visits", engine, index=False)
        engine.dispose()
        file = f"sql:sqlite:///{tmp_path / 'patients.db'}#SELECT * FROM visits"
    (tmp_path / "cohort.toml").write_text(
        f'[data]\nfile = "{file}"\ntarget = "outcome"\ngroup = "hospital"\n'
        '[learner]\nkind = "Pipeline"\n'
        'steps = [{ kind = "FedEncoder" }, { kind = "FedImputer" }, { kind = "FedHEONN" }]\n'
    )
    frame.to_csv(tmp_path / "patients.csv", index=False)
    study = read(tmp_path / "cohort.toml")
    assert study.variants()[0].data.name == "patients"
    run = run_study(study, tmp_path / "run")
    csv = study.text.replace(file, str(tmp_path / "patients.csv"))
    same = run_study(parse(csv, file="x.toml", name="csv"), tmp_path / "csv")
    (mine,), (theirs,) = run.results.values(), same.results.values()
    assert mine.metrics == theirs.metrics
    assert mine.metrics["accuracy"] > 0.6


LEARNER = '[learner]\nkind = "FedLinear"\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[data]\nfile = "a.csv"\ntarge = "y"\n', r"x.toml:3: .* has no 'targe'.*'target'"),
        (
            '[data]\nfile = "a.csv"\nkinds = { x = "code" }\n',
            r"x.toml:3: kinds: x = 'code' must be",
        ),
        (
            '[data]\nfile = "a.csv"\ngroup = "x"\n[partition]\nkind = "Dirichlet"\nalpha = 1.0\n',
            r"x.toml:4: .*Dirichlet.* divides rows that group = 'x' divides already",
        ),
        ('[data]\nname = "wine"\n[learner]\nkind = "FedLinear"\nlabel = 3\n', "label = 3 is not"),
        ("[data]\nclients = 3\n", 'file = "…" is for a table of your own'),
    ],
)
def test_mistakes_are_located(text: str, says: str) -> None:
    text = text if "[learner]" in text else text + LEARNER
    with pytest.raises(UsageError, match=says):
        parse(text, file="x.toml", name="x").variants()


def test_a_table_that_cannot_be_read_shows_before_anything_runs(folder: Path) -> None:
    text = STUDY.replace('"outcome"', '"outcom"')
    study = parse(text, file=str(folder / "x.toml"), name="x")
    with pytest.raises(DataError, match="no column 'outcom'"):
        run_study(study, folder / "wrong")
    assert not (folder / "wrong").exists()


def test_names_are_made_from_what_differs() -> None:
    heonn = [so.FedHEONN(lam=lam) for lam in (0.1, 1.0)]
    learners = [
        *(so.Pipeline(so.FedImputer(), so.FedScaler(), model) for model in heonn),
        so.Pipeline(so.FedImputer(), so.FedBins(8), so.FedID3()),
        so.FedHistGBDT(rounds=3),
    ]
    expected = [
        "FedImputer → FedScaler → FedHEONN lam=0.1",
        "FedImputer → FedScaler → FedHEONN lam=1.0",
        "FedImputer → FedBins → FedID3",
        "FedHistGBDT",
    ]
    assert short_names([chain_of(learner) for learner in learners]) == expected
    assert short_names([chain_of(learner) for learner in learners[:3]]) == [
        name.removeprefix("FedImputer → ") for name in expected[:3]
    ]
    texts = [chain_of_text(repr(learner)) for learner in learners]
    assert short_names(texts) == expected
    assert short_names([chain_of_text("any <odd> text"), chain_of_text("closed form")]) == [
        "any <odd> text",
        "closed form",
    ]
    two = [so.Pipeline(so.FedBins(4), so.FedBins(b)) for b in (2, 3)]
    assert short_names([chain_of(p) for p in two]) == ["FedBins bins=2", "FedBins bins=3"]


def test_a_label_covers_the_values_of_a_grid() -> None:
    learner = '[learner]\nkind = "FedHEONN"\nlabel = "ridge"\nlam = { values = [0.1, 1.0] }\n'
    study = parse(f'[data]\nname = "wine"\n{learner}', file="x", name="x")
    assert [variant.label for variant in study.variants()] == ["ridge lam=0.1", "ridge lam=1.0"]

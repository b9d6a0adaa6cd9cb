"""Comparing runs: what becomes a row, and what the command says."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import f1_score
from typer.testing import CliRunner

import solera as so
from solera.cli.app import app
from solera.core.errors import UsageError
from solera.study.comparison import Score, compare, gather
from solera.study.files.reader import parse
from solera.study.report.significance import friedman_words
from solera.study.run.runner import run_study

pytestmark = pytest.mark.usefixtures("unrendered")

LEARNERS = {
    "linear": 'kind = "FedLinear"\nrounds = 4\nlr = 1e-5',
    "heonn": 'kind = "FedHEONN"\nlam = 1.0',
    "weak": 'kind = "FedHEONN"\nlam = 100000.0',
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    for name, learner in LEARNERS.items():
        for data in ("wine", "breast_cancer"):
            text = (
                f'seeds = [0, 1, 2]\n[data]\nname = "{data}"\nclients = 3\n[learner]\n{learner}\n'
            )
            run_study(parse(text, file="x.toml", name=name), root / f"{name}-{data}")
    return root


def command(*args):
    return CliRunner().invoke(app, ["compare", *map(str, args)])


def test_rows_are_data_sets_and_scores_their_means(folders):
    scores, skipped = gather(sorted(folders.iterdir()), "macro_f1")
    assert not skipped
    found = compare(scores, "learner", "macro_f1")
    assert len(found.methods) == 3
    assert set(found.rows) == {"data wine", "data breast_cancer"}
    wine = so.datasets.wine()
    models = list((folders / "linear-wine" / "models").glob("*.sol"))
    said = {so.load(path).predict(wine.X_test).tobytes() for path in models}
    values = [f1_score(wine.y_test, np.frombuffer(s, int), average="macro") for s in said]
    row, column = found.rows.index("data wine"), found.methods.index(
        next(m for m in found.methods if m.startswith("FedLinear"))
    )  # fmt: skip
    assert len(models) == 3
    assert found.scores[row, column] == pytest.approx(np.mean(values))
    assert sum(found.ranks) == pytest.approx(6)


def test_pairs_are_compared_on_the_test_rows_of_each_data_set(folders):
    scores, _ = gather(sorted(folders.iterdir()), "accuracy")
    found = compare(scores, "learner", "accuracy")
    assert set(found.on_rows) == {"data wine", "data breast_cancer"}
    (pair,) = [
        p for p in found.on_rows["data wine"] if {p.a, p.b} == {"FedLinear", found.methods[0]}
    ]
    wine = so.datasets.wine()
    right = {}
    for name in ("linear", "heonn", "weak"):
        models = sorted((folders / f"{name}-wine" / "models").glob("*.sol"))
        said = {so.load(path).predict(wine.X_test).tobytes() for path in models}
        right[name] = [np.mean(np.frombuffer(each, int) == wine.y_test) for each in said]
    gaps = [np.mean(right["linear"]) - np.mean(right[name]) for name in ("heonn", "weak")]
    assert any(abs(pair.gap) == pytest.approx(abs(gap)) for gap in gaps)


def test_two_data_sets_cannot_say_that_methods_differ():
    scores = [
        score(0.1 * m + 0.01 * s, learner="abcdefgh"[m], data=data, seed=str(s))
        for data in ("x", "y") for m in range(3) for s in range(10)
    ]  # fmt: skip
    found = compare(scores, "learner", "accuracy")
    assert found.rows == ("data x", "data y")
    assert found.smallest == (1 / 6, 0.5)
    assert not found.differ
    assert "which so few could not bring below 0.1667" in friedman_words(found)
    assert friedman_words(found).endswith("are not shown to differ")
    more = [replace(s, labels={**s.labels, "data": f"{s.labels['data']}{i}"})
            for s in scores for i in range(4)]  # fmt: skip
    assert compare(more, "learner", "accuracy").differ


def test_the_command_prints_tests_and_saves_the_diagram(folders, tmp_path):
    picture = tmp_path / "cd.svg"
    done = command(*sorted(folders.iterdir()), "--by", "learner", "--metric", "macro_f1",
                   "--plot", picture)  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "Friedman over 2 data sets: χ²" in done.output
    assert "Nemenyi" in done.output
    assert "On the same test rows: data wine" in done.output
    assert "no difference seen" in done.output
    assert "<svg" in picture.read_text()
    as_json = command(*sorted(folders.iterdir()), "--metric", "macro_f1", "--json")
    content = json.loads(as_json.stdout)
    assert np.array(content["scores"]).shape == (2, 3)
    assert len(content["wilcoxon_holm"]) == 3
    assert len(content["on_rows"]["data wine"]) == 3


def test_two_kinds_are_named_without_their_parameters(folders):
    scores, _ = gather([folders / "linear-wine", folders / "heonn-wine"], "accuracy")
    assert compare(scores, "learner", "accuracy").methods == ("FedHEONN", "FedLinear")


def test_corrupt_folders_are_named_and_skipped(folders, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(folders / "linear-wine", broken)
    (broken / "metrics.csv").write_text("seed,value\n0,1\n")
    (tmp_path / "empty").mkdir()
    done = command(folders / "linear-wine", folders / "heonn-wine", broken, tmp_path / "empty")
    assert done.exit_code == 0
    assert "broken" in done.stderr
    assert "empty" in done.stderr
    nothing = command(broken)
    assert nothing.exit_code == 1
    assert "nothing to compare" in nothing.stderr


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--metric", "macro_f2"], "did you mean 'macro_f1'"),
        (["--by", "learners"], "did you mean 'learner'"),
        (["--by", "partition"], "same partition"),
        (["--plot", "cd.png"], "svg"),
        (["--part", "train"], "clients"),
    ],
)
def test_wrong_options_are_explained(folders, args, says):
    done = command(folders / "linear-wine", folders / "heonn-wine", *args)
    assert done.exit_code != 0
    assert says in done.stderr


def score(value, **labels):
    return Score(labels, value)


def test_rows_without_all_methods_are_left_out_and_doubles_refused():
    scores = [score(1.0, learner="a", seed="0"), score(2.0, learner="b", seed="0"),
              score(1.0, learner="a", seed="1")]  # fmt: skip
    found = compare(scores, "learner", "accuracy")
    assert (found.rows, found.left_out, found.friedman) == (("all",), 1, None)
    with pytest.raises(UsageError, match="two scores"):
        compare([*scores, score(3.0, learner="b", seed="0")], "learner", "accuracy")
    with pytest.raises(UsageError, match="no data set"):
        compare([scores[1], scores[2]], "learner", "accuracy")


def test_losses_rank_the_other_way_round():
    scores = [
        score(v, learner=n, seed=str(s)) for s in range(4) for n, v in (("a", 1.0), ("b", 2.0))
    ]
    assert compare(scores, "learner", "accuracy").ranks == (2.0, 1.0)
    assert compare(scores, "learner", "hamming_loss").ranks == (1.0, 2.0)


def test_a_parameter_is_compared_over_the_others():
    scores = [
        score(lr + seed, **{"learner": f"L(lr={lr})", "learner.lr": str(lr), "seed": str(seed)})
        for lr in (1, 2)
        for seed in range(3)
    ]
    found = compare(scores, "learner.lr", "accuracy")
    assert (found.methods, found.rows) == (("1", "2"), ("all",))
    np.testing.assert_allclose(found.scores, [[2.0, 3.0]])


def test_the_table_of_a_folder_is_read_or_named(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        lines = [f"x,wine,IID(),{name},federated,{s},,test,,,accuracy,0.{s}" for s in range(1, 5)]
        (tmp_path / name / "metrics.csv").write_text(
            "cell,data,partition,learner,scheme,seed,fold,part,round,client,metric,value\n"
            + "\n".join(lines)
        )
    scores, skipped = gather([tmp_path / "a", tmp_path / "b"], "accuracy")
    assert not skipped
    found = compare(scores, "learner", "accuracy")
    assert (found.rows, found.left_out) == (("all",), 0)
    assert found.on_rows == {"all": []}, "answers of no cell are there"
    np.testing.assert_allclose(found.scores, [[0.25, 0.25]])
    table = tmp_path / "b" / "metrics.csv"
    table.write_text(table.read_text().replace("accuracy,0.1", "accuracy,oops"))
    assert "line 2" in gather([tmp_path / "b"], "accuracy")[1][0]

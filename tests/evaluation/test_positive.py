"""Of two classes the positive one can be chosen, and every number that depends on it names it."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics as sk

import solera as so
from solera.core.errors import UsageError
from solera.study.files.reader import parse
from solera.study.run.runner import run_study

rng = np.random.default_rng(4)
X = rng.normal(size=(400, 3))
DIED = X @ [1.0, -0.5, 0.0] + rng.normal(size=400) > 0.8
Y = np.where(DIED, "died", "survived")

LEARNERS = {
    "linear": lambda: so.FedLinear(rounds=5),
    "heonn": lambda: so.FedHEONN(),
    "glm": lambda: so.FedGLM(family="binomial"),
    "tree": lambda: so.FederatedTree(max_depth=3),
    "forest": lambda: so.FedForest(trees=5),
    "boosting": lambda: so.FedHistGBDT(rounds=3),
    "network": lambda: so.FedAvg(so.nn.mlp(3, 4, 2), rounds=2),
    "pipeline": lambda: so.Pipeline(so.FedScaler(), so.FedLinear(rounds=5)),
}


def federation(**options):
    return so.simulate(X, Y, clients=4, test=0.4, seed=1, **options)


@pytest.mark.parametrize("name", LEARNERS)
def test_every_learner_takes_it(name):
    fed = federation(positive="died")
    model = LEARNERS[name]().fit(fed)
    assert model.classes_.tolist() == ["survived", "died"]
    rows = fed.data.segments(fed.clients, "test").joined()
    guess = model.predict(rows.X)
    assert np.mean(guess == rows.y) > 0.6
    found = model.evaluate(fed)
    recall = sk.recall_score(rows.y, guess, pos_label="died")
    assert found["accuracy"] == pytest.approx(np.mean(guess == rows.y))
    assert found["sensitivity"] == pytest.approx(recall)
    assert found["specificity"] == pytest.approx(
        sk.recall_score(rows.y, guess, pos_label="survived")
    )
    assert model.score(rows.X, rows.y) == pytest.approx(found["accuracy"])


def test_scores_and_curves_are_of_it():
    fed, other = federation(positive="died"), federation()
    model, default = (so.FedLinear(rounds=5).fit(f) for f in (fed, other))
    rows = fed.data.segments(fed.clients, "test").joined()
    of_died = model.predict_proba(rows.X)[:, 1]
    np.testing.assert_allclose(of_died, default.predict_proba(rows.X)[:, 0], atol=1e-9)
    found = model.evaluate(fed, scores=True)
    auprc = sk.average_precision_score(rows.y == "died", of_died)
    assert abs(found["auprc"] - auprc) <= found.bounds["auprc"] + 1e-9
    assert found.scores.names == ("died",)
    for name in ("sensitivity", "specificity", "false_positive_rate", "auroc", "auprc"):
        assert found[name].positive == found.clients[0][name].positive == "died"
        assert "class died" in str(found[name])
    assert found["accuracy"].positive == ""
    assert "positive class: died" in model.card(found)
    assert default.evaluate(other)["sensitivity"].positive == "survived"
    assert model.evaluate(rows.X, y=rows.y)["sensitivity"].positive == "died"


def test_odds_are_those_of_it_and_have_intervals_of_their_own():
    model, default = (
        so.FedGLM(family="binomial").fit(federation(**options))
        for options in ({"positive": "died"}, {})
    )
    np.testing.assert_allclose(model.params_, -default.params_, rtol=1e-6)
    assert "odds of 'died'" in str(model.summary())
    assert "odds of 'survived'" in str(default.summary())
    table = model.summary().to_pandas()
    for end in ("lower 95%", "upper 95%"):
        np.testing.assert_allclose(table[f"odds ratio, {end}"], np.exp(table[end]))
    assert (table["odds ratio, lower 95%"] < table["odds ratio"]).all()
    assert table.loc["x0", "odds ratio, lower 95%"] > 1


def test_it_is_saved_with_the_model(tmp_path):
    model = so.FedLinear(rounds=3).fit(federation(positive="died"))
    model.save(tmp_path / "m.sol")
    loaded = so.load(tmp_path / "m.sol")
    assert loaded.schema_.positive == "died"
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))


def test_what_is_no_class_is_named():
    with pytest.raises(UsageError, match="positive='dead' is not one of two classes") as error:
        so.FedLinear().fit(federation(positive="dead"))
    assert error.value.hint == "positive='died'"
    three = so.simulate(X, rng.integers(0, 3, 400), clients=2, positive=1)
    with pytest.raises(UsageError, match="holds 0, 1, 2"):
        so.FedLinear().fit(three)


def test_run_files_name_it(tmp_path):
    text = (
        '[data]\nname = "breast_cancer"\nclients = 3\npositive = "malignant"\nclient_test = 0.3\n'
        '[learner]\nkind = "FedHEONN"\n'
    )
    found = run_study(parse(text, file="x.toml", name="x"), tmp_path / "run")
    (result,) = found.results.values()
    assert result.metrics["sensitivity"].positive == "malignant"
    other = run_study(
        parse(text.replace("malignant", "benign"), file="x.toml", name="x"), tmp_path / "other"
    )
    (reverse,) = other.results.values()
    assert reverse.metrics["sensitivity"] == pytest.approx(result.metrics["specificity"])

"""Codes of categories are no numbers: who would read them as such refuses, with the way out."""

from __future__ import annotations

import numpy as np
import pytest

import solera as so
from solera.core.component import Component
from solera.core.errors import DataError

pd = pytest.importorskip("pandas")

draw = np.random.default_rng(0)
ROWS = 400
FRAME = pd.DataFrame(
    {
        "age": draw.normal(size=ROWS),
        "sex": draw.choice(["diverse", "female", "male", "unknown"], ROWS),
        "icu": draw.random(ROWS) < 0.4,
    }
)
ILL = np.where(FRAME.age + (FRAME.sex == "female") + draw.normal(size=ROWS) / 2 > 0.5, "yes", "no")
SURVIVAL = np.column_stack([draw.exponential(size=ROWS), draw.integers(0, 2, ROWS)]).astype(float)
NUMBERS = {
    "FedLinear": (so.FedLinear(rounds=2), ILL),
    "FedHEONN": (so.FedHEONN(), ILL),
    "FedGLM": (so.FedGLM("binomial"), ILL),
    "FedCox": (so.FedCox(), SURVIVAL),
    "FedKMeans": (so.FedKMeans(2, rounds=2), None),
    "FedAvg": (so.FedAvg(so.nn.mlp(7, 4, 2), rounds=1), ILL),
}
TREES = {
    "FederatedTree": so.FederatedTree(max_depth=3),
    "C4.5": so.FederatedTree("c45", max_depth=3),
    "FedForest": so.FedForest(trees=2),
    "FedHistGBDT": so.FedHistGBDT(rounds=2),
    "SimFL": so.SimFL(rounds=2),
    "FedID3": so.Pipeline(so.FedBins(4), so.FedID3()),
}


def federation(y, frame=FRAME):
    return so.simulate(frame, y, clients=3, seed=0)


@pytest.mark.parametrize("name", NUMBERS)
def test_text_without_an_encoder_is_refused_with_the_pipeline_to_write(name):
    learner, y = NUMBERS[name]
    dummy = name in ("FedGLM", "FedCox")
    encoder = so.FedEncoder("dummy") if dummy else so.FedEncoder()
    for refused in (learner, so.Pipeline(so.FedScaler(), learner)):
        with pytest.raises(DataError, match=rf"{name} reads numbers, 'sex' holds categories") as e:
            refused.clone().fit(federation(y))
        line = "so.FedEncoder('dummy')" if dummy else "so.FedEncoder()"
        assert f"so.Pipeline({line}, so.{name}(…))" in str(e.value)
    with pytest.raises(DataError, match="reads numbers"):
        learner.clone().fit(so.from_pandas(FRAME) if y is None else FRAME, y)
    model = so.Pipeline(encoder, learner).fit(federation(y))  # the line to write instead
    assert len(model.predict(FRAME)) == ROWS
    columns = [feature.name for feature in model.steps_[-1].schema_.features]
    assert columns[1:] == [
        *([] if dummy else ["sex=diverse"]),
        *("sex=female", "sex=male", "sex=unknown"),
        *([] if dummy else ["icu=False"]),
        "icu=True",
    ]


def test_every_category_has_an_odds_ratio_but_the_first():
    """As scikit-learn's own dummies and unpenalised logistic regression have them."""
    from sklearn.linear_model import LogisticRegression

    model = so.Pipeline(so.FedEncoder("dummy"), so.FedGLM("binomial")).fit(federation(ILL))
    glm = model.steps_[-1]
    dummies = pd.get_dummies(FRAME, columns=["sex", "icu"], drop_first=True).astype(float)
    theirs = LogisticRegression(C=np.inf, tol=1e-9, max_iter=500).fit(dummies, ILL)
    np.testing.assert_allclose(glm.params_[1:], theirs.coef_[0], rtol=1e-4)
    assert [f.name for f in glm.schema_.features][1:4] == ["sex=female", "sex=male", "sex=unknown"]


@pytest.mark.parametrize("name", NUMBERS)
def test_truth_values_codes_and_chosen_columns_are_numbers(name):
    learner, y = NUMBERS[name]
    if name == "FedAvg":
        learner = so.FedAvg(so.nn.mlp(2, 4, 2), rounds=1)
    learner.clone().fit(federation(y, FRAME[["age", "icu"]]))
    learner.clone().fit(federation(y, FRAME[["age"]].assign(code=FRAME.sex.map(len) % 3)))
    so.Pipeline(so.learn.FedSelect(["age", "icu"]), learner).fit(federation(y))
    ordered = FRAME[["age"]].assign(stage=FRAME.sex)
    ranked = so.Pipeline(so.FedEncoder("ordinal"), learner).fit(federation(y, ordered))
    assert ranked.steps_[-1].schema_.features[1].kind == "numeric"


@pytest.mark.parametrize("name", TREES)
def test_trees_take_categories(name):
    model = TREES[name].clone().fit(federation(ILL))
    assert model.score(FRAME, ILL) > 0.6
    assert (TREES[name].learners[-1] if "FedID3" in name else TREES[name]).takes_categories


def test_codes_of_an_ordinal_encoder_still_have_their_names():
    encoded = so.Pipeline(so.FedEncoder("ordinal"), so.FedBins(4), so.FedID3()).fit(federation(ILL))
    plain = so.Pipeline(so.FedBins(4), so.FedID3()).fit(federation(ILL))
    assert encoded.to_text() == plain.to_text()
    scaled = so.Pipeline(so.FedEncoder("ordinal"), so.FedScaler(), so.FederatedTree(max_depth=4))
    assert "sex = " in scaled.fit(federation(ILL)).to_text()


def test_later_clients_and_seeding_pass_the_same_check():
    with pytest.raises(DataError, match="reads numbers"):
        so.FedHEONN().partial_fit(federation(ILL))
    with pytest.raises(DataError, match="reads numbers"):
        so.FedKMeans(2).start(federation(None))


def test_every_learner_says_what_it_makes_of_categories():
    """A learner that says nothing reads numbers; transformers and trees say more."""
    kinds = [c for c in Component.registry.values() if issubclass(c, so.Learner)]
    takes = {c.__name__ for c in kinds if c.takes_categories and c.__module__.startswith("solera.")}
    transformers = {c.__name__ for c in kinds if issubclass(c, so.learn.Transformer)}
    vertical = {c.__name__ for c in kinds if issubclass(c, so.learn.VerticalLearner)}
    rest = takes - transformers - vertical
    assert rest == {"FederatedTree", "FedForest", "FedHistGBDT", "FedID3", "Pipeline", "SimFL"}

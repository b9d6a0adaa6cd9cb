"""Learners take frames wherever they take rows, and answer in the frame's own words."""

from __future__ import annotations

import numpy as np
import pytest

import solera as so
from solera.core.errors import DataError, UsageError

pd = pytest.importorskip("pandas")


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    n = 240
    made = pd.DataFrame(
        {
            "town": rng.choice(["Vigo", "Lugo", "Ourense"], n),
            "age": rng.integers(20, 90, n),
            "smokes": rng.choice(["never", "former", "daily"], n),
            "icu": rng.random(n) < 0.3,
        }
    )
    score = made.age / 25 + 2 * (made.smokes == "daily") + made.icu
    return made.assign(outcome=np.where(score > score.median(), "yes", "no"))


@pytest.fixture(scope="module")
def model(frame):
    federation = so.simulate(frame, target="outcome", group="town", test=0.25, seed=1)
    return so.Pipeline(so.FedEncoder(), so.FedScaler(), so.FedLinear(rounds=20)).fit(federation)


def test_predictions_do_not_depend_on_the_rest_of_the_frame(model, frame):
    whole = model.predict(frame.assign(smokes="never"))
    alone = [model.predict(frame.assign(smokes="never").iloc[[i]])[0] for i in range(5)]
    assert whole[:5].tolist() == alone
    shuffled = frame[["icu", "smokes", "town", "age"]]
    assert np.array_equal(model.predict_proba(shuffled), model.predict_proba(frame))
    assert set(model.predict(frame)) == {"no", "yes"}


def test_score_and_evaluate_read_the_target_of_a_frame(model, frame):
    rows, y = frame.drop(columns="outcome"), frame["outcome"]
    truth = float((model.predict(rows) == y.to_numpy()).mean())
    assert truth > 0.9
    assert model.score(frame) == model.score(rows, y) == model.score(rows, y.tolist()) == truth
    assert model.evaluate(frame)["accuracy"] == model.evaluate(rows, y=y)["accuracy"] == truth
    with pytest.raises(UsageError, match="give y as well"):
        model.score(frame.to_numpy())
    with pytest.raises(DataError, match="no column 'outcome'"):
        model.score(rows)


def test_a_target_of_another_type_is_an_error_and_not_a_score_of_0(model, frame):
    with pytest.raises(DataError, match="y holds 0, the classes are 'no', 'yes'"):
        model.score(frame, (frame["outcome"] == "yes").astype(int))
    coded = so.FedLinear(rounds=2).fit(so.simulate(np.eye(4), [0, 1, 0, 1], clients=2))
    with pytest.raises(DataError, match="y holds 'no', the classes are 0, 1"):
        coded.score(np.eye(4), ["no", "yes", "no", "yes"])


def test_metrics_of_clients_go_with_their_names(model, frame):
    federation = so.simulate(frame, target="outcome", group="town", test=0.25, seed=1)
    found = model.evaluate(federation)
    assert found.names == {0: "Lugo", 1: "Ourense", 2: "Vigo"}
    assert model.evaluate(federation, per_client=False).names == {}


def test_the_score_of_a_federation_is_that_of_all_its_rows(model, frame):
    federation = so.simulate(frame, target="outcome", group="town", test=0.25, seed=1)
    assert model.score(federation) == pytest.approx(model.score(frame))


def test_missing_values_are_named_by_learners_that_cannot_use_them(frame):
    rows = frame[["age", "outcome"]]
    model = so.FedLinear(rounds=2).fit(so.simulate(rows, target="outcome", clients=2))
    with pytest.raises(DataError, match="missing or infinite values in age, FedLinear needs"):
        model.predict(pd.DataFrame({"age": [50, None]}))
    with pytest.raises(DataError, match="missing or infinite values in age"):
        model.predict(np.array([[np.nan]]))


def test_a_frame_for_a_model_of_arrays_is_read_by_position(frame):
    rows = frame[["age", "icu"]].astype(float)
    federation = so.simulate(rows.to_numpy(), frame["outcome"], clients=2)
    model = so.FedLinear(rounds=2).fit(federation)
    assert np.array_equal(model.predict(rows), model.predict(rows.to_numpy()))
    with pytest.raises(DataError, match="X has 3 features"):
        model.predict(rows.assign(more=1.0))


def test_rows_of_one_s_own_are_those_of_one_client(frame):
    rows, y = frame[["age"]], frame["outcome"]
    direct = so.FedHEONN().fit(rows, y)
    asked = so.FedHEONN().fit(so.simulate(rows, y, clients=1))
    assert np.array_equal(direct.predict(rows), asked.predict(rows))
    assert direct.schema_ == asked.schema_
    with pytest.raises(UsageError, match="have their own y"):
        so.FedHEONN().fit(so.simulate(rows, y, clients=1), y)


def test_trees_speak_of_dates_and_categories():
    frame = pd.DataFrame(
        {
            "born": pd.to_datetime(["1950-01-01", "1960-01-01", "1970-01-01", "1980-01-01"] * 10),
            "smokes": ["daily", "former", "never", "daily"] * 10,
            "ill": ["yes", "yes", "no", "no"] * 10,
        }
    )
    tree = so.FederatedTree(max_depth=2)
    dates = tree.clone().fit(so.simulate(frame[["born", "ill"]], target="ill", clients=2))
    assert "born ≤ 1964-12-31" in str(dates.explain(dates.check_rows(frame.head(1))[0]))
    words = frame.assign(ill=["no", "yes", "yes", "no"] * 10)[["smokes", "ill"]]
    texts = tree.clone().fit(so.simulate(words, target="ill", clients=2))
    assert "smokes = daily" in str(texts.explain([0.0]))
    assert "smokes = former or never" in str(texts.explain([2.0]))

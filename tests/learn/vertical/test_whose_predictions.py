"""Predictions of a vertical model say whose they are."""

from __future__ import annotations

import numpy as np
import pytest

import solera as so

pd = pytest.importorskip("pandas")

COLUMNS = {"bank": ["age", "income"], "shop": ["visits", "spent"]}


def people(rows=120):
    draw = np.random.default_rng(0)
    frame = pd.DataFrame(draw.normal(size=(rows, 4)), columns=["age", "income", "visits", "spent"])
    frame["default"] = np.where(frame.income + frame.visits > 0.3, "late", "paid")
    frame["id"] = [f"Person {i}" for i in range(rows)]
    return frame


def divided(frame, target="default"):
    return so.simulate_vertical(frame, columns=COLUMNS, target=target, id="id")


def test_every_prediction_has_the_identifier_of_its_person():
    frame = people()
    fed = divided(frame)
    model = so.SecureBoost(rounds=8, test=0.25).fit(fed)
    predicted, p = model.predict(fed), model.predict_proba(fed)
    assert sorted(predicted.index) == sorted(frame["id"])
    assert p.columns.tolist() == ["late", "paid"]
    assert p.index.equals(predicted.index)
    assert (p.idxmax(axis=1) == predicted).all()
    truth = frame.set_index("id")["default"]
    hits = (predicted == truth.loc[predicted.index]).mean()
    assert hits == pytest.approx(model.score(fed))
    assert hits > 0.85  # in another order it would be near a half
    tested = model.predict(fed, "test")
    assert len(tested) == 30
    assert (tested == predicted.loc[tested.index]).all()


def test_only_people_whom_all_know_are_predicted():
    frame = people()
    tables = {
        "bank": frame[["id", *COLUMNS["bank"], "default"]][:90],
        "shop": frame[["id", *COLUMNS["shop"]]][30:],
    }
    fed = so.simulate_vertical(tables, target="default", id="id")
    predicted = so.SecureBoost(rounds=3).fit(fed).predict(fed)
    assert set(predicted.index) == {f"Person {i}" for i in range(30, 90)}


def test_numbers_are_predicted_by_person_too():
    frame = people().assign(default=lambda f: f.income + 2 * f.visits)
    fed = divided(frame)
    predicted = so.SecureBoost(rounds=20).fit(fed).predict(fed)
    truth = frame.set_index("id")["default"].loc[predicted.index]
    assert np.corrcoef(predicted, truth)[0, 1] > 0.9


def test_no_identifier_leaves_its_owner():
    """The owner tells numbers of its rows; elsewhere than in a simulation these are the index."""
    fed = divided(people())
    model = so.SecureBoost(rounds=3).fit(fed)
    named = model.predict(fed)
    ask = {"model": model.model_, "part": "now"}
    reply = fed.ask("vertical.outputs", ask, to=[0]).collect()[0].payload
    assert reply.keys() == {"outputs", "rows"}
    assert reply["rows"].tolist() == list(range(120))
    assert fed.data.parties[0].identifiers[reply["rows"]].tolist() == named.index.tolist()

"""Every vertical learner: same seed, same parts; engines agree; asks are planned; killed, resumed.

A learner is enrolled by its class; one whose defaults are slow gets an example here.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from cases import VERTICAL, example, registered

import solera as so
from solera.core.payload import encode
from solera.learn.vertical.party import PARTS

NUMBERS = ("VerticalLinearRegression", "VerticalPoissonRegression")
"""Those that predict a number, not a class."""
LEARNERS = {cls.__name__: cls for cls in registered(so.learn.VerticalLearner)}


def make(name):
    return example(LEARNERS[name], VERTICAL)


def federation(name, engine="local", **options):
    rng = np.random.default_rng(5)
    df = pd.DataFrame(rng.normal(size=(60, 4)), columns=list("abcd"))
    df["y"] = (df.a - df.c + 0.3 * rng.normal(size=60) > 0).astype(int)
    if name in NUMBERS:
        df["y"] = rng.poisson(np.exp(0.3 * df.a)).astype(float)
    df["id"] = [f"p{i}" for i in range(60)]
    columns = {"bank": ["a", "b"], "shop": ["c", "d"]}
    return so.simulate_vertical(
        df, columns=columns, target="y", id="id", seed=7, engine=engine, **options
    )


def parts(fed, model):
    return encode([fed.engine.states()[k][PARTS] for k in range(2)]) + encode(model.get_state())


@pytest.fixture(scope="module", params=LEARNERS)
def fitted(request):
    fed = federation(request.param)
    asked = []
    run = fed.engine.run
    fed.engine.run = lambda ask, aggregation: (asked.append(ask), run(ask, aggregation))[1]
    model = make(request.param).fit(fed)
    return request.param, model, parts(fed, model), asked


def test_same_seed_same_parts_on_every_engine(fitted):
    name, _, expected, _ = fitted
    with federation(name, "processes", workers=2) as fed:
        model = make(name).fit(fed)
        assert parts(fed, model) == expected


def test_a_fit_starts_fresh(fitted):
    name, _, expected, _ = fitted
    fed = federation(name)
    for _ in range(2):
        assert parts(fed, make(name).fit(fed)) == expected


def test_trust_changes_no_part(fitted):
    name, _, expected, _ = fitted
    fed = federation(name, policy="trusted")
    model = make(name).fit(fed)
    states = fed.engine.states()
    assert encode([states[k][PARTS] for k in range(2)]) + encode(model.get_state()) == expected


class Interrupt(so.callbacks.Callback):
    def on_round(self, learner, round):
        if round.index == 1:
            raise KeyboardInterrupt


def test_an_interrupted_fit_goes_on_to_the_same_parts(fitted, tmp_path):
    name, _, expected, _ = fitted
    fed = federation(name)
    with pytest.raises(KeyboardInterrupt):
        make(name).fit(fed, checkpoint=tmp_path / "c", callbacks=[Interrupt()])
    assert (tmp_path / "c").exists()
    later = federation(name)
    model = make(name).fit(later, checkpoint=tmp_path / "c")
    assert parts(later, model) == expected


def test_saved_and_loaded(fitted, tmp_path):
    name, model, _, _ = fitted
    loaded = so.load(model.save(tmp_path / "model.sol"))
    assert encode(loaded.get_state()) == encode(model.get_state())
    assert loaded == model
    assert model.clone() == make(name)

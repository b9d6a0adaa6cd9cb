"""What clients keep of a fit is that fit's: the next starts fresh, and every model has its own."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import solera as so
from solera.core.errors import UsageError
from solera.core.payload import encode

draw = np.random.default_rng(3)
X = draw.normal(size=(240, 6))
Y = (X @ draw.normal(size=(6, 3))).argmax(axis=1)
OWN = np.concatenate([(Y[k * 60 : (k + 1) * 60] + k) % 3 for k in range(4)])
"""Every client calls the classes by other names, so that heads differ."""
NET = so.nn.mlp(6, 8, 3)
PERSONAL = [so.FedPer, so.FedRep, so.Ditto]


def federation(engine="local", **options):
    data = so.data.FederatedData(X, OWN, np.arange(0, 241, 60)).split(test=0.25, seed=0)
    return so.simulate(data, engine=engine, **options)


@pytest.fixture(params=["local", "processes"])
def fed(request):
    workers = {} if request.param == "local" else {"workers": 1}
    with federation(request.param, **workers) as fed:
        yield fed


def kept(model, fed):
    """What clients keep of a model, as bytes."""
    states = model.at_clients(fed).states()
    assert len(states) == 4
    return encode([list(pair) for pair in sorted(states.items())])


def judged(model, fed):
    return model.evaluate(fed).clients


@pytest.mark.parametrize("cls", PERSONAL)
def test_every_model_is_judged_by_its_own_part_of_the_clients(cls, fed):
    first = cls(NET, rounds=6, lr=0.3).fit(fed)
    before, heads = judged(first, fed), kept(first, fed)
    second = cls(NET, rounds=2, lr=0.05).fit(fed)
    assert judged(first, fed) == before
    assert kept(first, fed) == heads != kept(second, fed)
    assert judged(second, fed) == judged(cls(NET, rounds=2, lr=0.05).fit(fed), fed) != before


@pytest.mark.parametrize("cls", PERSONAL)
def test_own_models_of_a_second_fit_are_those_of_a_first(cls, fed):
    first = cls(NET, rounds=2, lr=0.3).fit(fed)
    heads = kept(first, fed)
    assert kept(cls(NET, rounds=2, lr=0.3).fit(fed), fed) == heads
    assert kept(first.fit(fed), fed) == heads


@pytest.mark.parametrize("cls", [so.FedPer, so.Ditto])
def test_a_start_says_that_clients_go_on_with_what_they_keep(cls, fed):
    model = cls(NET, rounds=6, lr=0.3).fit(fed)
    still = cls(NET, rounds=1, lr=1e-12).fit(fed, start=model)
    np.testing.assert_allclose(still.weights_, model.weights_, atol=1e-6)
    assert judged(still, fed) == judged(model, fed)
    heads = kept(model, fed)
    further = cls(NET, rounds=1, lr=0.3).fit(fed, start=model)
    assert kept(model, fed) == heads != kept(further, fed)
    elsewhere = federation()
    fresh = cls(NET, rounds=1, lr=1e-12).fit(elsewhere, start=model)
    assert judged(fresh, elsewhere) != judged(model, fed)
    averaged = so.FedAvg(NET, rounds=1).fit(fed, start=model)
    assert not averaged.at_clients(fed).states(), "another kind of model keeps other things"


def test_labels_are_judged_by_the_heads_of_their_model():
    labels = (X @ draw.normal(size=(6, 4)) > 0).astype(np.uint8)
    fed = so.simulate(X, labels, clients=3, test=0.2, validation=0.2)
    options = {"rounds": 5, "thresholds": True}
    first = so.MLFedAvg(so.nn.mlp(6, 8, 4), lr=0.05, **options).fit(fed)
    before = first.evaluate_clients(fed)
    second = so.MLFedAvg(so.nn.mlp(6, 8, 4), lr=0.01, **options).fit(fed)
    assert first.evaluate_clients(fed) == before != second.evaluate_clients(fed)


def test_aggregations_compared_on_one_federation_equal_those_on_fresh_ones(tmp_path):
    labels = (X @ draw.normal(size=(6, 4)) > 0).astype(np.int8)
    labels[:80, 0] = labels[160:, 3] = -1

    def federation_of_labels():
        return so.simulate(X, labels, clients=3, test=0.2, validation=0.2, seed=4)

    options = {"rounds": 6, "lr": 0.05, "stop": "patience", "thresholds": True, "fine_tune": 2}
    core, shared = so.nn.mlp(6, 8), federation_of_labels()
    weights = ("uniform", "samples", "samples_labels")
    compared = [so.MLFedAvg(core, aggregation=w, **options).fit(shared) for w in weights]
    for weight, model in zip(weights, compared, strict=True):
        fed = federation_of_labels()
        alone = so.MLFedAvg(core, aggregation=weight, **options).fit(fed)
        assert model.to_bytes() == alone.to_bytes()
        assert repr(model.evaluate(shared)) == repr(alone.evaluate(fed))
        assert model.evaluate_clients(shared) == alone.evaluate_clients(fed)
    assert len({model.to_bytes() for model in compared}) == 3


def test_a_model_without_its_part_of_the_clients_is_not_judged_by_others(tmp_path, fed):
    model = so.FedPer(NET, rounds=1).fit(fed)
    so.FedPer(NET, rounds=1).fit(fed)
    loaded = so.load(model.save(tmp_path / "model.sol"))
    for anyone, place in ((loaded, fed), (model, federation()), (model, fed[:90])):
        with pytest.raises(UsageError, match="keep nothing of this FedPer"):
            anyone.evaluate(place)
    assert judged(model, fed.without(1)) != judged(model, fed)


def test_what_clients_keep_goes_with_the_model():
    fed = federation()
    model = so.FedPer(NET, rounds=1).fit(fed)
    so.FedPer(NET, rounds=1).fit(fed)
    so.Scaffold(NET, rounds=1).fit(fed)
    gc.collect()
    assert [len(kept) for kept in fed.engine._fits.values()] == [4]
    judged(model, fed)


class Judge(so.callbacks.Callback):
    """Judges own models while they are trained."""

    def on_round(self, learner, round):
        round.log(own=learner.evaluate(fed_of[0])["accuracy"])


fed_of = []


def test_own_models_can_be_judged_while_they_are_trained(fed):
    fed_of[:] = [fed]
    so.FedPer(NET, rounds=6, lr=0.3).fit(fed)
    model = so.FedPer(NET, rounds=3, lr=0.3).fit(fed, callbacks=[Judge()])
    for rounds in (1, 3):
        alone = so.FedPer(NET, rounds=rounds, lr=0.3).fit(fed)
        own = alone.evaluate(fed)["accuracy"]
        assert model.history_[rounds - 1]["own"] == own


def test_own_models_in_a_pipeline(fed):
    pipeline = so.Pipeline(so.FedScaler(), so.FedPer(NET, rounds=4, lr=0.3)).fit(fed)
    scaler, model = pipeline.steps_
    before = judged(model, fed.prepared(scaler))
    so.Pipeline(so.FedScaler(), so.FedPer(NET, rounds=1)).fit(fed)
    assert judged(model, fed.prepared(scaler)) == before


class Interrupt(so.callbacks.Callback):
    def on_round(self, learner, round):
        if round.index == 2:
            raise KeyboardInterrupt


def test_a_resumed_fit_has_the_own_models_of_one_that_was_not_interrupted(tmp_path, fed):
    whole = so.FedPer(NET, rounds=4, lr=0.3).fit(fed)
    with pytest.raises(KeyboardInterrupt):
        so.FedPer(NET, rounds=4, lr=0.3).fit(
            fed, checkpoint=tmp_path / "c", callbacks=[Interrupt()]
        )
    so.FedPer(NET, rounds=2, lr=0.1).fit(fed)
    resumed = so.FedPer(NET, rounds=4, lr=0.3).fit(fed, checkpoint=tmp_path / "c")
    assert kept(resumed, fed) == kept(whole, fed)


def test_forgetting_a_client_begins_with_what_others_kept_then():
    fed = federation()
    model = so.FedPer(NET, rounds=4, lr=0.3).fit(fed, keep=True)
    so.FedPer(NET, rounds=2, lr=0.1).fit(fed)
    never = so.FedPer(NET, rounds=4, lr=0.3).fit(fed.without(1))
    model.forget(1, fed, progress=False)
    assert encode(model.get_state()) == encode(never.get_state())
    assert judged(model, fed.without(1)) == judged(never, fed.without(1))

"""What a learner says it will ask holds every ask of its fit, and nothing that is never asked."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from cases import Undeclared, federation_over, learner_cases, registered, rows

import solera as so
from solera.core.component import describe
from solera.core.errors import UsageError
from solera.core.plan import PREPARE, PlannedTask, objection
from solera.core.selection import Selector

CASES = {name: (make, target) for name, make, target in learner_cases()}
FITS = {
    "evaluate": so.FedLinear(rounds=4),
    "in a pipeline": so.Pipeline(so.FedScaler(), so.FedLinear(rounds=3)),
    "boosted": so.FedHistGBDT(rounds=2, max_depth=2, min_rows=3),
    "patience": so.MLFedAvg(
        so.nn.mlp(5, 9, 6), rounds=3, batch_size=8, stop="patience", thresholds=True
    ),
    "thesis": so.MLFedAvg(so.nn.mlp(5, 9, 6), rounds=3, batch_size=8),
    "decay": so.FedAvg(so.nn.linear(5, 3), rounds=3, schedule=so.nn.StepDecay(0.5), epochs=2),
    "median": so.Pipeline(so.FedImputer("median"), so.FedBins(4), so.FedID3(max_depth=2)),
    "columns": so.Pipeline(
        so.FedColumns(("scaled", so.FedScaler(), ["x0", "x2"]), (so.FedEncoder(), "categorical")),
        so.FedLinear(rounds=2),
    ),
    "resources": so.FedLinear(rounds=2, per_round=2, select=so.selectors.FedCS(deadline=1e9)),
    "uploads": so.FedLinear(rounds=2, per_round=4, select=so.selectors.HybridFL(deadline=25.0)),
    "valued": so.FedLinear(
        rounds=2, per_round=11, select=so.selectors.ShapleyUCB(part="train", epsilon=0.0)
    ),
}
LABELS = ("patience", "thesis")
EXTRA = {
    "evaluate": "learner.evaluate",
    "in a pipeline": "learner.evaluate",
    "boosted": "learner.evaluate",
    "patience": "multilabel.finish",
    "thesis": "multilabel.judge",
    "resources": "select.resources",
    "uploads": "select.upload",
    "valued": "select.losses",
}
"""What the option adds."""


class Network(Undeclared):
    """Knows neither rows nor their number beforehand, and remembers what clients are asked."""

    def __init__(self, source):
        super().__init__(source)
        self.asks = []

    def sizes(self, part):
        return None

    def run(self, ask, aggregation):
        self.asks.append(ask)
        return super().run(ask, aggregation)


def received(ask, client):
    """What the client looks at: the task, and every transformer as a task of its own."""
    yield ask.task, ask.version, ask.payload_for(client)
    for step in ask.prepare:
        for made in components(step.description["made"]):
            yield PREPARE + made["$component"], 1, made["params"]


def components(description):
    if isinstance(description, dict):
        if "$component" in description:
            yield description
        description = list(description.values())
    for inner in description if isinstance(description, list) else ():
        yield from components(inner)


def departures(plan, asks):
    """Every objection of every client, and the tasks that somebody was asked."""
    found, seen = [], set()
    for client in sorted({c for ask in asks for c in ask.clients.tolist()}):
        so_far = Counter()
        for ask in (ask for ask in asks if client in ask.clients):
            for task, version, payload in received(ask, client):
                found.append(objection(plan, so_far, task, version, payload))
                so_far[task] += 1
        seen |= set(so_far)
    return list(filter(None, found)), seen


def fit_and_compare(learner, target, callbacks=(), data=None):
    data = rows(target) if data is None else data
    network = Network(data)
    federation = federation_over(network, learner)
    learner.clone().fit(federation, callbacks=callbacks)
    for schema in (data.schema, None):
        plan = learner.asks(schema, callbacks=callbacks)
        assert all(isinstance(entry.most, int) and entry.most >= 1 for entry in plan), plan
        assert len({entry.task for entry in plan}) == len(plan)
        found, seen = departures(plan, network.asks)
        assert found == []
        assert {entry.task for entry in plan if not entry.optional} <= seen
    return network.asks, learner.asks(data.schema, callbacks=callbacks)


@pytest.mark.parametrize("name", CASES)
def test_every_ask_was_planned(name):
    make, target = CASES[name]
    fit_and_compare(make(), target)


@pytest.mark.parametrize("name", FITS)
def test_every_ask_of_options_callbacks_and_selectors_was_planned(name, tmp_path, monkeypatch):
    data = rows("labels" if name in LABELS else "classes")
    if name in LABELS:
        whole = so.data.FederatedData(data.X, data.y, data.offsets, schema=data.schema)
        data = whole.split(validation=0.3, seed=1)
    callbacks = []
    if name in ("evaluate", "in a pipeline", "boosted"):
        callbacks = [so.callbacks.Evaluate(part="test", every=2)]
    if name == "valued":
        data = so.data.FederatedData(
            data.X, data.y, np.linspace(0, 160, 13).astype(int), schema=data.schema
        )
    stated = tmp_path / "resources.toml"
    stated.write_text("samples_per_second = 1\nbits_per_second = 1_000_000\nupload = true\n")
    monkeypatch.setenv("SOLERA_RESOURCES", str(stated))
    asks, _ = fit_and_compare(FITS[name], data.schema.target, callbacks, data)
    assert EXTRA.get(name, "data.describe") in {ask.task for ask in asks}


def test_encryption_is_planned_and_stays_on(tmp_path, monkeypatch):
    pytest.importorskip("tenseal", reason="the extra 'he' is not installed")
    monkeypatch.setenv("SOLERA_KEYS", str(tmp_path))
    so.keys.create(tmp_path, "pair", so.keys.SMALL)
    for finish, ensemble in (
        ("client", None),
        ("coordinator", None),
        ("coordinator", so.RandomPatches(2)),
    ):
        encryption = so.Encryption("pair", finish=finish)
        asks, plan = fit_and_compare(so.FedHEONN(encrypt=encryption, ensemble=ensemble), "classes")
        last = asks[-1]
        assert last.task == "heonn.statistics"
        for encrypt in (None, {**last.payload["encrypt"], "key": "mine"}):
            payload = {**last.payload, "encrypt": encrypt}
            assert "encrypt.key" in objection(plan, {}, last.task, last.version, payload)
    assert "heonn.rotation_keys" in {ask.task for ask in asks}
    plain = so.FedHEONN().asks(rows("classes").schema)
    sealed = {**last.payload, "patches": None, "row_share": None, "row_replacement": None}
    assert "encrypt = " in objection(plain, {}, last.task, last.version, sealed)


def test_the_comparison_finds_what_departs():
    """Each way to depart from a plan, taken by a driver, is found by the comparison above."""
    learner = so.Pipeline(so.FedBins(3), so.FedEncoder(), so.FedLinear(rounds=3, epochs=2))
    asks, plan = fit_and_compare(learner, "classes")
    train = next(entry for entry in plan if entry.task == "linear.train")
    last = asks[-1]
    assert last.task == train.task
    others = [entry for entry in plan if entry is not train]
    for wrong, why in (
        ([*others, PlannedTask(train.task, 3, 2, train.where)], "3 asks, not at most 2"),
        ([*others, PlannedTask(train.task, 1, 3, train.where)], "version 3, not version 1"),
        (others, "'linear.train' is not planned"),
        ([e for e in plan if e.task != "prepare.FedBins"], "'prepare.FedBins' is not planned"),
    ):
        found, _ = departures(wrong, asks)
        assert found
        assert all(why in objection for objection in found)
    for changed in ({"epochs": 3}, {"lr": 0.2}, {"loss": "squared"}, {"batch_size": None}):
        payload = {**last.payload, **changed}
        said = objection(plan, {}, last.task, last.version, payload)
        assert next(iter(changed)) in said
    more = objection(plan, {}, last.task, last.version, {**last.payload, "mu": 1.0})
    assert "mu = 1.0, which is not planned" in more
    other = describe(so.FedBins(300))["params"]
    assert "bins = 300" in objection(plan, {}, "prepare.FedBins", 1, other)


def test_every_selector_and_every_learner_says_what_it_asks():
    for cls in registered(Selector):
        asked = cls().asks(so.FedLinear(), 10, 5)
        assert all(1 <= entry.most <= 10_000 for entry in asked), cls


def test_a_learner_that_says_nothing_is_told_how():
    class Silent(so.FedLinear, abstract=True):
        training_asks = so.Learner.training_asks

    with pytest.raises(UsageError, match="does not say what it asks"):
        Silent().asks(None)


def test_rows_that_cannot_be_learned_from_have_no_plan():
    with pytest.raises(so.errors.DataError, match="labels"):
        so.MLFedAvg(so.nn.mlp(5, 9, 6)).asks(rows("classes").schema)


def test_what_depends_on_the_rows_is_open_until_they_are_known():
    known = {e.task: e for e in so.FederatedTree("cart").asks(rows("classes").schema)}
    unknown = {e.task: e for e in so.FederatedTree("cart").asks(None)}
    assert known["trees.grow"].where["width"].allows(5)
    assert not known["trees.grow"].where["width"].allows(6)
    assert unknown["trees.grow"].where["width"].is_open
    assert unknown["trees.grow"].where["max_depth"] == known["trees.grow"].where["max_depth"]
    levels = [e.most for e in so.FedID3().asks(None) if e.task == "trees.count"]
    assert levels == [5001]
    assert np.isfinite(levels[0])

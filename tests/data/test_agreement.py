"""Clients agree on features, categories and classes; who differs is named."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import solera as so
from solera.core.errors import DataError, SchemaError
from solera.core.schema import Feature, Schema, infer
from solera.engines.local import LocalEngine


class Hospitals:
    """Clients with rows and schemas of their own, as on a real network."""

    def __init__(self, *datas):
        self.datas = datas

    clients = property(lambda self: len(self.datas))
    schema = property(lambda self: None)

    def segments(self, clients, part):
        return self.datas[int(clients[0])].segments(np.array([0]), part)

    def sizes(self, part):
        return None


class Engine(LocalEngine):
    def run(self, ask, aggregation):
        for client in ask.clients.tolist():
            one = LocalEngine(_Only(self.source.datas[client], client))
            yield one._runner.block(ask, np.array([client]), {}, aggregation)


class _Only:
    def __init__(self, data, client):
        self.data, self.client = data, client
        self.schema = data.schema

    def segments(self, clients, part):
        return self.data.segments(np.zeros(1, dtype=np.int64), part)

    def sizes(self, part):
        return None


def hospital(names, rows=8, classes=(0, 1), categories=(), gap=None):
    X = np.random.default_rng(len(names)).normal(size=(rows, len(names)))
    if gap is not None:
        X[0, gap] = np.nan
    y = np.resize(np.array(classes), rows)
    features = [Feature(n) for n in names]
    if categories:
        features[-1] = Feature(names[-1], "categorical", tuple(categories))
        X[:, -1] = np.arange(rows) % len(categories)
    schema = Schema(tuple(features), "classes", np.unique(y), len(np.unique(y)))
    return so.data.FederatedData(X, y, np.array([0, rows]), schema=schema)


def federation(*hospitals):
    return so.Federation(Engine(Hospitals(*hospitals)))


def test_classes_and_categories_are_joined():
    schema = so.data.agree(
        federation(
            hospital(["age", "blood"], classes=(0, 2), categories=["A", "B"]),
            hospital(["age", "blood"], classes=(1, 2), categories=["0", "B"]),
        )
    )
    assert schema.classes.tolist() == [0, 1, 2]
    assert schema.features[1].categories == ("0", "A", "B")
    assert schema.outputs == 3


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        (hospital(["age", "weight"]), r"client 2: column 1 is 'weight' \(numeric\).*'bmi'"),
        (hospital(["age"]), r"client 2 has 1 columns, others have 2: 'bmi'"),
        (hospital(["age", "bmi", "iq"]), r"client 2 has 3 columns, others have 2: 'iq'"),
        (hospital(["age", "bmi"], categories=["low"]), r"column 1 is 'bmi' \(categorical\)"),
    ],
)
def test_a_disagreement_names_client_and_column(odd, message):
    usual = [hospital(["age", "bmi"]) for _ in range(4)]
    usual[2] = odd
    with pytest.raises(SchemaError, match=message):
        so.data.agree(federation(*usual))


def test_gaps_and_empty_clients_are_named():
    fed = federation(hospital(["age", "bmi"]), hospital(["age", "bmi"], gap=1))
    with pytest.raises(DataError, match=r"client 1 has missing .* bmi .*FedImputer"):
        so.FedLinear().fit(fed)
    empty = hospital(["age", "bmi"], rows=0)
    with pytest.raises(DataError, match="client 1 has no rows"):
        so.FedLinear().fit(federation(hospital(["age", "bmi"]), empty))


def test_a_simulation_that_knows_of_no_missing_value_accounts_for_the_ask_it_saves(monkeypatch):
    X, y = np.ones((40, 3)), np.arange(40) % 2

    def record():
        fed = so.simulate(X, y, clients=8, validation=0.2)
        so.data.agree(fed, allow_missing=False)
        (asked,) = fed.meter.records
        return asked

    saved = record()
    monkeypatch.setattr(so.Federation, "is_complete", lambda self: False)
    asked = record()
    assert saved.task == asked.task == "data.flaws"
    for name in ("clients", "down", "replied", "up"):
        assert np.array_equal(getattr(saved, name), getattr(asked, name))


def test_clients_are_asked_where_something_may_be_missing():
    X, y = np.ones((40, 3)), np.arange(40) % 2
    assert so.simulate(X, y, clients=8).is_complete()
    assert not so.simulate(
        X, y, clients=8, failures=so.simulation.Failures(dropout=0.1)
    ).is_complete()
    assert not so.simulate(X, y, clients=8, topology=so.simulation.Hierarchy(2)).is_complete()
    X[3, 1] = np.nan
    assert not so.simulate(X, y, clients=8).is_complete()
    empty = so.data.FederatedData(X[:2], y[:2], np.array([0, 2, 2]))
    assert not so.simulate(empty).is_complete()


def of_labels(*names):
    X = np.arange(8.0).reshape(4, 2)
    y = np.array([[0, 1], [1, 0], [1, 1], [0, -1]])
    schema = replace(infer(X, y), target_names=names)
    return so.data.FederatedData(X, y, np.array([0, 4]), schema=schema)


def test_labels_keep_their_names_and_their_order():
    agreed = so.data.agree(federation(of_labels("b", "a"), of_labels("b", "a")))
    assert agreed.label_names == ("b", "a")
    with pytest.raises(SchemaError, match=r"client 1 has a target .*'a', 'b'"):
        so.data.agree(federation(of_labels("b", "a"), of_labels("a", "b")))

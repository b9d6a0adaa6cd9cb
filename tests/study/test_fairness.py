"""Three schemes on every client's own rows, and who wins."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

import solera as so
from solera.core.errors import DataError, UsageError
from solera.study.fairness import three_schemes


@pytest.fixture(scope="module")
def found():
    X, y, *_ = so.datasets.digits()
    fed = so.simulate(X / 16, y, clients=6, partition=so.Dirichlet(0.4), test=0.3, seed=2)
    return fed, three_schemes(so.FedHEONN(lam=0.01), fed.data, seed=2)


def test_the_closed_form_loses_nothing_by_federating(found):
    fed, schemes = found
    lines = {line["scheme"]: line for line in schemes.table()}
    assert list(lines) == ["alone", "federated", "centralised"]
    assert lines["federated"]["accuracy"] == lines["centralised"]["accuracy"]
    direct = so.FedHEONN(lam=0.01).fit(fed).evaluate(fed)
    assert lines["federated"]["accuracy"] == direct["accuracy"]


def test_alone_is_each_client_s_own_model_on_its_own_rows(found):
    fed, schemes = found
    for client in (0, 3):
        rows, test = (fed.data.segments(np.array([client]), p)[0] for p in ("train", "test"))
        own = so.simulate(rows.X, rows.y, clients=1, schema=fed.data.schema, seed=2)
        accuracy = so.FedHEONN(lam=0.01).fit(own).score(test.X, test.y)
        assert schemes["alone"].clients[client]["accuracy"] == pytest.approx(accuracy)
    hits = sum(line["alone"] * line["rows"] for line in schemes.by_client())
    assert schemes["alone"]["accuracy"] == pytest.approx(hits / sum(schemes.rows.values()))


def test_tables_add_up(found):
    _, schemes = found
    clients = schemes.by_client("macro_f1")
    *groups, gap = schemes.by_group(["a", "b"] * 3, "macro_f1")
    assert [line["clients"] for line in groups] == [3, 3]
    mine = [line for line in clients if line["client"] % 2 == 0]
    assert groups[0]["federated"] == pytest.approx(np.mean([line["federated"] for line in mine]))
    assert groups[0]["win"] == sum(line["gain"] > 0 for line in mine)
    assert groups[0]["worst"] == min(line["federated"] for line in mine)
    assert gap["alone"] == pytest.approx(abs(groups[0]["alone"] - groups[1]["alone"]))
    worst = min(line["alone"] for line in schemes.by_client())
    assert schemes.table()[0]["worst"] == worst


def test_sparse_rows_and_clients_without_test_rows():
    X, y, *_ = so.datasets.wine()
    groups = np.zeros(len(y), dtype=int)
    groups[:2] = 1
    fed = so.simulate(sparse.csr_matrix(X), y, partition=so.partitions.ByGroup(groups), test=0.3)
    schemes = three_schemes(so.FedHEONN(), fed.data)
    assert list(schemes.rows) == [0]
    assert [line["client"] for line in schemes.by_client()] == [0]


def test_bad_input(found):
    _, schemes = found
    with pytest.raises(UsageError, match="metric"):
        schemes.table("precision")
    with pytest.raises(UsageError, match="2 groups"):
        schemes.by_group(["a", "b"])
    X, y, *_ = so.datasets.wine()
    with pytest.raises(DataError, match="test rows"):
        three_schemes(so.FedHEONN(), so.simulate(X, y, clients=2).data)

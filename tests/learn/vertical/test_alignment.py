"""Which rows parties share, in which order, and what goes wrong before anything is learned."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import solera as so
from solera.core.errors import DataError, UsageError
from solera.learn.vertical.base import VerticalLearner


class Aligned(VerticalLearner):
    """Learns nothing but who is who."""

    def __init__(self, **common):
        super().__init__(**common)

    def train_parties(self, parties):
        pass

    def predict_parties(self, parties, part):
        pass


def identifiers(fed, model, party):
    order = model.part(fed, party)["trained"]["order"]
    return fed.data.parties[party].identifiers[order]


@pytest.mark.parametrize("parties", [2, 3, 5])
@pytest.mark.parametrize("overlap", [1, 25, 50])
def test_parties_share_exactly_the_common_rows_in_one_order(parties, overlap):
    rng = np.random.default_rng(parties + overlap)
    common = [f"Zoë {i} 東" for i in range(overlap)]
    tables = {}
    for k in range(parties):
        own = [f"only {k} {i}" for i in range(50 - overlap)]
        who = rng.permutation([*common, *own])
        tables[f"p{k}"] = pd.DataFrame({"who": who, f"x{k}": rng.normal(size=50)})
    tables["p1"]["y"] = rng.integers(0, 2, 50)
    fed = so.simulate_vertical(tables, target="y", id="who", seed=parties)
    assert so.learn.common_rows(fed) == overlap
    model = Aligned().fit(fed)
    assert model.rows_ == overlap
    found = [identifiers(fed, model, k) for k in range(parties)]
    assert set(found[0]) == set(common)
    for other in found[1:]:
        assert (other == found[0]).all()
    if overlap > 20:
        assert list(found[0]) != sorted(found[0])


def test_no_row_in_common(people, columns):
    tables = {
        "bank": people[["id", "age", "y"]].head(40),
        "shop": people[["id", "visits"]].tail(40),
    }
    fed = so.simulate_vertical(tables, target="y", id="id")
    assert so.learn.common_rows(fed) == 0
    with pytest.raises(DataError, match="no identifier in common"):
        Aligned().fit(fed)


def test_different_people_are_not_joined_unless_a_looser_rule_is_named():
    tables = {
        "bank": pd.DataFrame({"id": [-5, 7, 12], "age": [20, 30, 40], "y": [0, 1, 0]}),
        "shop": pd.DataFrame({"id": [5, 7, -12], "visits": [1, 2, 3]}),
    }
    fed = so.simulate_vertical(tables, target="y", id="id")
    assert so.learn.common_rows(fed) == 1
    assert so.learn.common_rows(fed, normalise="digits") == 3
    tables["shop"]["id"] = [" 7", "O'Hara", "1-2"]
    tables["bank"]["id"] = ["7 ", "o'hara", "12"]
    fed = so.simulate_vertical(tables, target="y", id="id")
    assert so.learn.common_rows(fed) == 2
    assert so.learn.common_rows(fed, normalise="text") == 3


def test_messy_identifiers_are_compared_by_a_declared_rule(people):
    shop = people[["id", "visits"]].copy()
    shop["id"] = [f" {i.lower().replace('-', ' ')} " for i in shop.id]
    tables = {"bank": people[["id", "age", "y"]], "shop": shop}
    fed = so.simulate_vertical(tables, target="y", id="id")
    assert so.learn.common_rows(fed, normalise="exact") == 0
    assert so.learn.common_rows(fed, normalise="text") == 80


def test_duplicates_and_gaps_are_named(people, columns):
    twice = pd.concat([people, people.iloc[[3]]])
    fed = so.simulate_vertical(twice, columns=columns, target="y", id="id")
    with pytest.raises(DataError, match="2 rows share their identifier"):
        Aligned().fit(fed)
    people.loc[4, "id"] = None
    fed = so.simulate_vertical(people, columns=columns, target="y", id="id")
    with pytest.raises(DataError, match="1 identifiers are missing"):
        Aligned().fit(fed)


def test_rows_as_they_are_held_must_be_in_one_order(people, columns):
    fed = so.simulate_vertical(people, columns=columns, target="y")
    assert Aligned(align="order").fit(fed).rows_ == 80
    with pytest.raises(DataError, match="no identifiers"):
        Aligned().fit(fed)
    fed = so.simulate_vertical(people, columns=columns, target="y", id="id")
    with pytest.raises(DataError, match="misaligned identifiers"):
        Aligned(align="order").fit(fed)


def test_labels_at_nobody_or_at_two(people):
    tables = {"bank": people[["id", "age"]], "shop": people[["id", "visits"]]}
    with pytest.raises(DataError, match="no client holds the target"):
        so.simulate_vertical(tables, target="y", id="id")
    both = {"bank": people[["id", "age", "y"]], "shop": people[["id", "visits", "y"]]}
    fed = so.simulate_vertical(both, target="y", id="id")
    with pytest.raises(DataError, match="bank, shop all hold labels"):
        Aligned().fit(fed)
    assert [r.task for r in fed.meter.records] == ["data.describe"]
    assert Aligned(labels="shop").fit(fed).owners_ == [1]
    with pytest.raises(UsageError, match="names several"):
        Aligned(labels=["bank", "shop"]).fit(fed)
    with pytest.raises(UsageError, match="no party 'mill'"):
        Aligned(labels="mill").fit(fed)


def test_rows_are_set_aside_alike(people, columns):
    fed = so.simulate_vertical(people, columns=columns, target="y", id="id", policy="trusted")
    model = Aligned(validation=0.1, test=0.25).fit(fed)
    assert [model.part(fed, k)["trained"]["ends"] for k in (0, 1)] == [[52, 60]] * 2


def test_the_order_is_nobodys_alone(people, columns):
    """Another contribution of one party is another order for all."""
    orders = []
    for seed in (0, 1):
        fed = so.simulate_vertical(people, columns=columns, target="y", id="id", seed=seed)
        orders.append(list(identifiers(fed, Aligned().fit(fed), 0)))
    assert orders[0] != orders[1]
    assert set(orders[0]) == set(orders[1])


def test_a_horizontal_federation_has_no_keys(people):
    fed = so.simulate(people[["age", "visits"]].to_numpy(), people.y.to_numpy(), clients=2)
    with pytest.raises(DataError, match="all hold labels"):
        Aligned().fit(fed)

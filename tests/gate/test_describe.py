"""Counts and products behind ``so.describe``: what a driver learns by asking differently."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.gate.measure import REFUSED, Hostile, Owner, table

from solera.core.schema import Feature, Schema
from solera.trust.gate import find_limits

RNG = np.random.default_rng(3)
ROWS = 70
TOWNS = ("Lugo", "Ourense", "Vigo")
X = RNG.normal(size=(ROWS, 3))
X[:, 2] = np.where(np.arange(ROWS) < 3, 1, np.where(np.arange(ROWS) < 30, 0, 2))
X[5:8, 0] = np.nan  # three gaps, and three rows of Ourense
Y = (np.arange(ROWS) % 3 == 0).astype(np.int64)
SCHEMA = Schema(
    (Feature("a"), Feature("b"), Feature("town", "categorical", TOWNS)), "classes", np.arange(2), 2
)


def payload(*towns: str, classes: Any = (0, 1)) -> dict[str, Any]:
    columns = [{"categories": []}, {"categories": []}, {"categories": list(towns)}]
    return {"columns": columns, "classes": np.array(classes, dtype=np.int64)}


def products(mean: Any = 0.0, scale: Any = 1.0) -> dict[str, Any]:
    return {"mean": np.zeros(3) + mean, "scale": np.zeros(3) + scale}


def owner(policy: str = "training") -> Owner:
    return Owner(table(X, Y, SCHEMA), find_limits(policy))


def test_small_cells_are_withheld_and_no_total_gives_them_back():
    reply = owner("statistics").ask("describe.counts", payload(*TOWNS))
    gaps, town = reply["cells"][:4:2], reply["cells"][4:]
    assert gaps.tolist() == [0, 0]
    assert reply["rows"] == ROWS
    assert town[3] == 0
    assert ROWS - town.sum() >= 5
    assert town.max() >= 5
    assert reply["classes"].sum() == ROWS


def test_the_same_rows_under_other_names_tell_no_few_rows():
    hostile = Hostile(X, Y, "training", SCHEMA)
    for towns in (TOWNS, ("Lugo",), ("Lugo", "Ourense"), ("Ourense",), ("Vigo", "Lugo")):
        assert hostile.ask("describe.counts", payload(*towns)) is not REFUSED
    assert hostile.leak().rows >= 5


@pytest.mark.parametrize("columns", [[], [{"categories": [1]}] * 3, [{"categories": []}] * 4])
def test_other_columns_are_refused(columns):
    asked = {"columns": columns, "classes": np.array([0, 1])}
    assert owner().ask("describe.counts", asked) is REFUSED


def test_products_leave_only_where_gram_matrices_may():
    assert owner("statistics").ask("describe.products", products()) is REFUSED
    assert owner().ask("describe.products", products(scale=0.0)) is REFUSED
    few = Owner(table(X[10:17], Y[10:17], SCHEMA), find_limits("training"))
    assert few.ask("describe.products", products()) is REFUSED


def test_products_rest_on_many_rows():
    rows = X.copy()
    rows[5:8, 0] = 0.1
    hostile = Hostile(rows, Y, "training", SCHEMA)
    assert hostile.ask("describe.products", products()) is not REFUSED
    hostile.ask("describe.products", products(mean=rows[20]))
    hostile.ask("describe.products", products(scale=2.0))
    assert hostile.leak().rows >= 5

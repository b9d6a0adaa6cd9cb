"""The table of groups: what tasks of trees see of an owner's rows."""

from __future__ import annotations

import numpy as np
import pytest

from solera.core.clients import Rows
from solera.core.disclosure.grouping import group_rows, persons_among
from solera.core.gate import ReleaseLimits
from solera.core.schema import Feature, Schema

FEW = 5
RNG = np.random.default_rng(3)
N = 400
X = np.stack(
    [
        RNG.normal(size=N),
        np.exp(2 * RNG.normal(size=N)),
        RNG.integers(4, size=N).astype(float),
        np.where(RNG.random(N) < 0.2, np.nan, RNG.normal(size=N)),
        np.where(np.arange(N) == 7, 1e9, 3.0),
    ],
    axis=1,
)
Y = (X[:, 0] + 0.5 * RNG.normal(size=N) > 0).astype(np.int64)
FEATURES = (
    Feature("age"),
    Feature("cost"),
    Feature("kind", "categorical", ("a", "b", "c", "d")),
    Feature("lab"),
    Feature("one"),
)
CLASSES = Schema(FEATURES, "classes", np.array([0, 1, 2]), 3)
NUMBERS = Schema(FEATURES, "numbers", np.empty(0, np.int64), 1)


def spans(groups):
    ends = np.cumsum(groups.sizes)
    return [slice(end - size, end) for size, end in zip(groups.sizes, ends, strict=True)]


@pytest.mark.parametrize("schema", [CLASSES, NUMBERS], ids=["classes", "numbers"])
def test_every_value_of_a_group_stands_for_several_rows(schema):
    y = Y if schema is CLASSES else X[:, 0] + RNG.normal(size=N)
    groups = group_rows(Rows(X, y), schema, FEW)
    assert sorted(groups.rows.tolist()) == list(range(N))
    assert len(groups.sizes) > 5
    assert groups.sizes.min() >= 4 * FEW
    for span in spans(groups):
        own, shown = X[groups.rows[span]], groups.table.X[span]
        if schema is CLASSES:
            assert len(np.unique(y[groups.rows[span]])) == 1
            assert np.array_equal(groups.table.y[span], y[groups.rows[span]])
        for j in (0, 1, 3):
            values, counts = np.unique(shown[:, j], return_counts=True)
            assert counts.min() >= FEW
            ordered = np.sort(own[:, j])
            step = 0.5  # larger than any step of the grid below
            assert np.nanmin(values) >= ordered[FEW - 1] - step or np.isnan(ordered[FEW - 1])
            high = ordered[-FEW]
            assert np.isnan(high) or np.nanmax(values) <= high + step
        names, counts = np.unique(own[:, 2], return_counts=True)
        assert set(shown[:, 2]) <= set(names[counts >= FEW])
    equal = np.unique(
        np.column_stack([np.nan_to_num(groups.table.X, nan=99), groups.table.y]),
        axis=0,
        return_counts=True,
    )[1]
    assert equal.min() >= FEW, "every node, bin and leaf has whole blocks of equal rows"
    assert (groups.table.X[:, 4] == 3.0).all(), "the one other value is in no table"


def test_values_lie_on_a_grid_that_no_single_row_moves():
    groups = group_rows(Rows(X, Y), CLASSES, FEW)
    ages = groups.table.X[:, 0]
    assert np.array_equal(ages, np.round(ages * 16) / 16)
    far = X.copy()
    far[int(np.argmax(X[:, 1])), 1] = 1e12
    moved = group_rows(Rows(far, Y), CLASSES, FEW)
    assert np.array_equal(moved.table.X, groups.table.X, equal_nan=True)


def test_columns_of_a_group_do_not_come_together_as_in_rows():
    pairs = np.repeat(RNG.normal(size=(N, 1)), 2, axis=1)
    schema = Schema((Feature("a"), Feature("b")), "none")
    groups = group_rows(Rows(pairs, None), schema, FEW)
    first = groups.table.X[spans(groups)[0]]
    assert (first[:, 0] != first[:, 1]).any()
    assert np.array_equal(np.sort(first[:, 0]), np.sort(first[:, 1]))


def test_the_order_of_rows_tells_nothing():
    order = RNG.permutation(N)
    here = group_rows(Rows(X, Y), CLASSES, FEW).table
    there = group_rows(Rows(X[order], Y[order]), CLASSES, FEW).table
    assert np.array_equal(here.X, there.X, equal_nan=True)
    assert np.array_equal(here.y, there.y)


@pytest.mark.parametrize(("rare", "gone"), [(3, "and the next class"), (7, "alone")])
def test_rare_classes_are_left_out_and_no_total_gives_them_back(rare, gone):
    y = np.where(np.arange(N) < rare, 2, Y)
    groups = group_rows(Rows(X, y), CLASSES, FEW)
    assert 2 not in groups.table.y
    assert N - len(groups.rows) >= FEW
    assert len(np.unique(groups.table.y)) == (2 if gone == "alone" else 1)


def test_persons_are_counted_where_the_owner_says_so():
    units = np.where(np.arange(N) % 2 == 0, 0, np.arange(N) // 4 + 1)
    groups = group_rows(Rows(X, Y), CLASSES, FEW, units)
    for span in spans(groups):
        assert persons_among(units, groups.rows[span]) >= 2 * FEW - 1
    assert persons_among(units, np.arange(N)) < FEW
    assert not len(groups.rows), "half of the rows are of one person"
    alone = np.arange(N) // 4
    groups = group_rows(Rows(X, Y), CLASSES, FEW, alone)
    assert len(groups.sizes) > 4
    assert min(persons_among(alone, groups.rows[span]) for span in spans(groups)) >= 4 * FEW


def test_no_rows_and_no_columns_make_an_empty_table():
    for rows in (0, 8):
        groups = group_rows(Rows(X[:rows], Y[:rows]), CLASSES, FEW)
        assert groups.table.X.shape == (0, 5)
        assert groups.table.y.shape == (0,)


def test_a_larger_min_count_makes_larger_groups():
    few, many = (group_rows(Rows(X, Y), CLASSES, count) for count in (3, 10))
    assert few.sizes.min() >= 12
    assert many.sizes.min() >= 40
    assert ReleaseLimits().min_count == FEW

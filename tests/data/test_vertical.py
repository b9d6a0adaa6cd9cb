"""Vertical partitions: columns, rows and labels of every client."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solera.core.component import build, describe
from solera.core.errors import DataError, UsageError
from solera.data.vertical import TransferSplit, VerticalSplit

seeds = st.integers(0, 2**32)


def lists(arrays):
    return [array.tolist() for array in arrays]


def shared(arrays):
    return set.intersection(*(set(array.tolist()) for array in arrays))


def test_even_columns_are_neighbours():
    assignment = VerticalSplit().assign(4, 7, clients=3, seed=0)
    assert lists(assignment.columns) == [[0, 1, 2], [3, 4], [5, 6]]
    assert lists(assignment.rows) == [[0, 1, 2, 3]] * 3
    assert assignment.label_owners == (0,)
    assert assignment.clients == 3
    assert assignment.left_over == 0


@settings(deadline=None)
@given(
    how=st.sampled_from(["even", "random"]),
    width=st.integers(1, 40),
    clients=st.integers(1, 8),
    overlap=st.integers(0, 10),
    seed=seeds,
)
def test_columns_overlap_exactly_as_asked(how, width, clients, overlap, seed):
    split = VerticalSplit(how, overlap=overlap, label_owner=clients - 1)
    if width - overlap < clients:
        with pytest.raises(UsageError, match="overlap leaves"):
            split.assign(5, width, clients=clients, seed=seed)
        return
    assignment = split.assign(5, width, clients=clients, seed=seed)
    times = np.bincount(np.concatenate(assignment.columns), minlength=width)
    assert sorted(times.tolist()) == sorted([1] * (width - overlap) + [clients] * overlap)
    assert np.ptp([len(own) for own in assignment.columns]) <= 1
    assert all(np.array_equal(own, np.unique(own)) for own in assignment.columns)


def test_random_columns_follow_the_seed():
    def columns(seed):
        return lists(VerticalSplit("random").assign(5, 20, clients=2, seed=seed).columns)

    assert columns(1) == columns(1)
    assert columns(1) != columns(2)


def test_columns_may_be_listed_by_name_or_number():
    split = VerticalSplit([["sex", "age"], ["age", 3]], label_owner=[0, 1])
    assignment = split.assign(5, ["age", "sex", "bmi", "smoker", "sbp"], seed=0)
    assert lists(assignment.columns) == [[0, 1], [0, 3]]
    assert assignment.label_owners == (0, 1)
    assert assignment.left_over == 2


@settings(deadline=None)
@given(
    rows=st.integers(8, 80),
    width=st.integers(8, 30),
    clients=st.integers(2, 4),
    common=st.tuples(st.integers(0, 4), st.integers(0, 4)),
    seed=seeds,
)
def test_transfer_shares_few_rows_and_few_columns(rows, width, clients, common, seed):
    split = TransferSplit(common[0], shared_columns=common[1])
    assignment = split.assign(rows, width, clients=clients, seed=seed)
    for held, total, in_common in [
        (assignment.rows, rows, common[0]),
        (assignment.columns, width, common[1]),
    ]:
        assert len(shared(held)) == in_common
        assert sum(map(len, held)) == total + (clients - 1) * in_common
        assert set(np.concatenate(held).tolist()) == set(range(total))
        assert all(np.array_equal(own, np.unique(own)) for own in held)


def test_splits_are_components():
    for split in [VerticalSplit([[0], [1]]), TransferSplit(3, shared_columns=1, label_owner=1)]:
        assert split.clone() == split
        assert build(describe(split)) == split


@pytest.mark.parametrize(
    ("make", "clients", "message"),
    [
        (lambda: VerticalSplit(), None, "clients must be a whole number of at least 1"),
        (lambda: VerticalSplit(), 0, "clients must be a whole number of at least 1"),
        (lambda: VerticalSplit(), 9, "leaves 6 of 6 columns to divide among 9 clients"),
        (lambda: VerticalSplit("odd"), 2, r"VerticalSplit\(columns='odd'\): columns must be"),
        (lambda: VerticalSplit(overlap=-1), 2, "overlap must be a whole number of at least 0"),
        (lambda: VerticalSplit(overlap=5), 2, "share at most 4 or use fewer clients"),
        (lambda: VerticalSplit([[0], [1]]), 3, "clients=3 but columns are listed for 2"),
        (lambda: VerticalSplit([[0], [1]], overlap=1), None, "overlap=1 contradicts"),
        (lambda: VerticalSplit([[0], ["bmi"]]), None, "columns='bmi'.* of client 1 is unknown"),
        (lambda: VerticalSplit([[0], [6]]), None, "columns=6.* of client 1 is unknown"),
        (lambda: VerticalSplit([[0, 0], [1]]), None, "client 0 has the columns"),
        (lambda: VerticalSplit([[0], []]), None, "client 1 has the columns"),
        (lambda: VerticalSplit([0, 1]), None, "columns must be"),
        (lambda: VerticalSplit(7), 2, "must be between 1 and the 6 columns"),
        (lambda: VerticalSplit((3, 2)), 2, "must be between 1 and the 6 columns"),
        (lambda: VerticalSplit((2, 3), overlap=1), 2, "contradicts columns drawn by client"),
        (lambda: VerticalSplit(label_owner=2), 2, "different clients of 0 … 1"),
        (lambda: VerticalSplit(label_owner=[]), 2, "label_owner must be"),
        (lambda: VerticalSplit(label_owner=[1, 1]), 2, "label_owner must be"),
        (lambda: VerticalSplit(label_owner="0"), 2, "label_owner must be"),
        (lambda: VerticalSplit(label_owner=None), 2, "label_owner must be"),
        (lambda: TransferSplit(9, shared_columns=1), 2, "shared_rows leaves 1 of 10 rows"),
        (lambda: TransferSplit(2, shared_columns=7), 2, "shared_columns leaves 0 of 6 columns"),
        (lambda: TransferSplit(0.5, shared_columns=1), 2, "shared_rows must be a whole number"),
    ],
)
def test_contradictions_are_refused(make, clients, message):
    with pytest.raises(UsageError, match=message):
        make().assign(10, 6, clients=clients, seed=0)


def test_an_empty_table_is_refused():
    with pytest.raises(DataError, match="0 rows and 3 columns is empty"):
        VerticalSplit().assign(0, 3, clients=1, seed=0)


def test_columns_per_client_as_a_number_or_a_range():
    """FLEX's features per node: every client draws its own, whatever the others hold."""
    fixed = VerticalSplit(4).assign(5, 10, clients=30, seed=0)
    assert [len(columns) for columns in fixed.columns] == [4] * 30
    assert len({tuple(columns) for columns in fixed.columns}) > 5
    ranged = VerticalSplit((2, 5)).assign(5, 10, clients=60, seed=0)
    assert {len(columns) for columns in ranged.columns} == {2, 3, 4, 5}
    assert all(len(set(columns)) == len(columns) for columns in ranged.columns)
    few = VerticalSplit(1).assign(5, 10, clients=2, seed=0)
    assert few.left_over == 10 - len({int(columns[0]) for columns in few.columns})

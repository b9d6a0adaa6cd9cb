"""Rows of cells: the fast passes equal the obvious loops, and asks that do not fit are refused."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import solera as so
from solera.core.clients import Client, Draws
from solera.core.errors import DataError, Refusal
from solera.learn.trees.binned_rows import add_up, move
from solera.learn.trees.boosting.histograms import STATE, HistBins, histograms

seeds = st.integers(0, 2**32 - 1)


def some_rows(draw, rows, sizes):
    """Cells of columns with these many cells each, and where the columns start."""
    starts = np.concatenate([[0], np.cumsum(sizes)])
    cells = np.stack([draw.integers(0, size, rows) for size in sizes], axis=1) + starts[:-1]
    return cells.astype(np.int32), starts


def move_one(row, node, splits, starts):
    while splits[0, node] >= 0:
        column, cut, missing_left, left = splits[:, node]
        missing = row[column] == starts[column + 1] - 1
        goes_left = bool(missing_left) if missing else row[column] <= cut
        node = left if goes_left else left + 1
    return node


def a_tree(draw, starts, inner):
    """Splits of a tree grown at random; the cut may be the last known cell of its column."""
    splits, leaves = np.zeros((4, 2 * inner + 1), dtype=np.int64), [0]
    splits[0] = -1
    for i in range(inner):
        node = leaves.pop(draw.integers(len(leaves)))
        column = draw.integers(len(starts) - 1)
        cut = draw.integers(starts[column], starts[column + 1] - 1)
        splits[:, node] = column, cut, draw.integers(2), 2 * i + 1
        leaves += [2 * i + 1, 2 * i + 2]
    return splits


@given(seed=seeds, rows=st.integers(0, 60), inner=st.integers(0, 12))
@settings(max_examples=60, deadline=None)
def test_rows_move_as_one_by_one(seed, rows, inner):
    draw = np.random.default_rng(seed)
    cells, starts = some_rows(draw, rows, [2, 5, 9])
    splits = a_tree(draw, starts, inner)
    at = draw.integers(0, splits.shape[1], rows)
    before = at.copy()
    reached = move(cells, at, splits, starts)
    assert np.array_equal(at, before)
    wanted = [move_one(row, node, splits, starts) for row, node in zip(cells, at, strict=True)]
    assert reached.tolist() == wanted


@given(seed=seeds, clients=st.integers(1, 5), wide=st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_sums_are_those_of_a_loop(seed, clients, wide):
    draw = np.random.default_rng(seed)
    sizes = draw.integers(0, 20, clients)
    cells, starts = some_rows(draw, int(sizes.sum()), [3, 2, 7])
    at = draw.integers(0, 6, len(cells))
    wanted = draw.permutation(8)[: draw.integers(1, 5)]
    values = draw.integers(-(2**40), 2**40, (len(cells), wide)).astype(float)
    slow = np.zeros((clients, len(wanted), starts[-1], wide))
    for row, node, owner, value in zip(
        cells, at, np.repeat(np.arange(clients), sizes), values, strict=True
    ):
        for place in np.flatnonzero(wanted == node):
            slow[owner, place, row] += value
    assert np.array_equal(add_up(cells, at, sizes, wanted, values, int(starts[-1])), slow)


def test_an_ask_that_does_not_fit_the_rows_is_refused():
    draw = np.random.default_rng(0)
    cells, starts = some_rows(draw, 30, [3, 4])
    at, sizes, wanted = np.zeros(30, dtype=np.int64), np.array([30]), np.array([0])
    for wrong in (cells, cells - np.int32(starts[-1])):
        with pytest.raises(DataError, match="these rows have others"):
            add_up(wrong, at, sizes, wanted, np.ones((30, 2)), int(starts[-1]) - 4)


@pytest.mark.parametrize(
    ("rows", "error", "match"), [(20, DataError, "HistBins"), (0, Refusal, "no rows")]
)
def test_rows_that_cannot_be_counted(rows, error, match):
    data = so.data.FederatedData(
        np.zeros((rows, 2)), np.zeros(rows, dtype=int), np.array([0, rows])
    )
    client = Client(0, data, Draws(0, "", 0), {})
    with pytest.raises(error, match=match):
        histograms(
            client, {"step": np.array([0, 0, 30, 20, 5, 1, 0]), "starts": np.array([0, 2, 4])}
        )
    assert STATE not in client.state


def test_a_group_that_changes_from_ask_to_ask_grows_the_same_trees():
    """States of all clients lie in one array until a client fails; then they are put together."""
    draw = np.random.default_rng(3)
    X = draw.normal(size=(400, 3))
    y = (X[:, 0] * X[:, 1] > 0).astype(int)
    trees = []
    for memory in (1, 10**4, 10**8):  # every client alone, some together, all together
        failing = so.simulation.Failures(dropout=0.2)
        fed = so.simulate(X, y, clients=8, failures=failing, seed=1, memory=memory)
        trees.append(so.FedHistGBDT(rounds=6, max_depth=3, min_rows=3).fit(fed).trees_)
    assert trees[0] == trees[1] == trees[2]


def test_bins_are_cells_of_32_bits():
    X = np.random.default_rng(0).normal(size=(50, 3))
    assert HistBins(16).fit(so.simulate(X, clients=2)).transform(X).dtype == np.int32

"""Compiled loops say what the passes of NumPy say, to the bit, and look where they read."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest

import solera as so
from solera.core.errors import DataError
from solera.learn.trees import compiled as module
from solera.learn.trees.binned_rows import add_up, move
from solera.learn.trees.boosting.histograms import HistBins, Units
from solera.learn.trees.boosting.level_growth import GrowingTree, Limits
from solera.learn.trees.compiled import _compile, _loops, compiled
from solera.learn.trees.fusion.rule_merging import merge
from solera.learn.trees.fusion.rules import RuleSet

pytest.importorskip("numba")
HOW = {"rounds": 4, "max_depth": 4, "min_rows": 3}


@contextmanager
def worthwhile(numbers):
    """Compiled loops from so many numbers on; 0 means always."""
    before, module.WORTHWHILE = module.WORTHWHILE, numbers
    try:
        yield
    finally:
        module.WORTHWHILE = before


def both(work):
    """What work gives with passes of NumPy and with compiled loops."""
    found = []
    for numbers in (1 << 60, 0):
        with worthwhile(numbers):
            found.append(work())
    return found


def some_rows(target, rows=500):
    draw = np.random.default_rng(5)
    X = draw.normal(size=(rows, 4)).round(1)
    z = X[:, 0] + X[:, 1] * X[:, 2]
    X[draw.random(X.shape) < 0.1] = np.nan
    X[:, 3] = np.where(np.isnan(X[:, 3]), 0.0, X[:, 3])  # a column that misses nothing
    y = {"two": z > 0, "three": np.digitize(z, [-0.5, 0.5]), "numbers": 1000 * z}[target]
    return X, y if target == "numbers" else y.astype(int)


@pytest.mark.parametrize("target", ["two", "three", "numbers"])
@pytest.mark.parametrize("l2", [0.0, 1.5])
def test_boosted_trees_are_the_same(target, l2):
    X, y = some_rows(target)

    def fitted():
        model = so.FedHistGBDT(l2=l2, **HOW).fit(so.simulate(X, y, clients=3, seed=0))
        return model.trees_, [entry["loss"] for entry in model.history_]

    passes, loops = both(fitted)
    assert passes == loops


def test_catching_up_and_noise_are_the_same():
    X, y = some_rows("two")

    def fitted():
        failing = so.simulation.Failures(dropout=0.3)
        left = so.FedHistGBDT(**HOW).fit(so.simulate(X, y, clients=6, failures=failing, seed=1))
        dp = so.DP(epsilon=8.0, delta=1e-5, level="record")
        noised = so.FedHistGBDT(**HOW, dp=dp).fit(so.simulate(X, y, clients=3, seed=0))
        return left.trees_, noised.trees_

    passes, loops = both(fitted)
    assert passes == loops


@pytest.mark.parametrize("packed", [True, False])
def test_levels_divide_alike(packed):
    """Also with rows in sums of their own, as with a quarter of a million rows and more."""
    X, _ = some_rows("two")
    bins = HistBins(16).fit(so.simulate(X, clients=2))
    cells, starts = bins.transform(X), bins.starts_
    draw = np.random.default_rng(2)
    units = Units(20, 10, 12, packed, False)
    g, h = draw.integers(-(2**20), 2**20, len(X)), draw.integers(1, 2**8, len(X))
    carried = [g, h * 2**units.rows + 1] if packed else [g, h, np.ones(len(X))]
    values = np.stack(carried, axis=1).astype(float)

    def grown():
        tree, at = GrowingTree(bins, units, Limits(0.5, 0.1, 5)), np.zeros(len(X), np.int64)
        for _ in range(4):
            sums = add_up(cells, at, np.array([len(X)]), tree.wanted, values, int(starts[-1]))
            tree.grow(sums[0])
            at = move(cells, at, tree.last_splits(), starts)
        return tree.builder.build(), at.tolist()

    (tree, at), loops = both(grown)
    assert (tree, at) == loops
    assert len(tree) > 20


def a_ruleset(draw, client):
    cut = np.sort(draw.normal(size=5)).round(2)
    lower, upper = np.array([-np.inf, *cut])[:, None], np.array([*cut, np.inf])[:, None]
    weights = draw.integers(0, 9, (6, 2)).astype(float)  # some leaves have no rows
    return RuleSet.of(lower, upper, np.ones((6, 1), bool), weights, client)


def test_expected_rows_are_the_same():
    draw = np.random.default_rng(4)
    rules = a_ruleset(draw, 0)
    for client in range(1, 6):
        rules = merge(rules, a_ruleset(draw, client))
    passes, loops = both(lambda: rules.expected_rows().tolist())
    assert passes == loops
    with worthwhile(0):
        assert rules.take(np.arange(0)).expected_rows().tolist() == []
        with pytest.raises(DataError, match="leaves"):
            rules.replaced(leaf=rules.leaf + np.int32(1)).expected_rows()


def test_nothing_is_read_beside_the_arrays():
    cells = np.array([[0, 3], [2, 4]], dtype=np.int32)
    starts, splits = np.array([0, 3, 5]), np.array([[1, -1, -1], [3, 0, 0], [0, 0, 0], [1, 0, 0]])
    at, one, values = np.zeros(2, np.int64), np.array([2]), np.ones((2, 2))
    with worthwhile(0):
        assert move(cells, at, splits, starts).tolist() == [1, 2]
        wrong = [
            (cells, at + 3, splits, starts),
            (cells, at - 1, splits, starts),
            (cells[:, :1].copy(), at, splits, starts),
            (cells, at[:1], splits, starts),
            (cells, at, splits[:, :2].copy(), starts),
            (cells, at, splits + 5, starts),
        ]
        for case in wrong:
            with pytest.raises(DataError, match="splits"):
                move(*case)
        assert add_up(cells, at, one, at[:1], values, 5).sum() == 8
        for others in (cells + np.int32(1), cells - np.int32(1)):
            with pytest.raises(DataError, match="others"):
                add_up(others, at, one, at[:1], values, 5)
        for rows, carried in ((at - 1, values), (at[:1], values), (at, values[:1])):
            with pytest.raises(DataError, match="others"):
                add_up(cells, rows, one, at[:1], carried, 5)


def test_without_numba_or_with_little_to_do_numpy_serves(monkeypatch):
    assert compiled(module.WORTHWHILE - 1) is None
    assert compiled(module.WORTHWHILE) is not None
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    _loops.cache_clear()
    try:
        assert compiled(module.WORTHWHILE) is None
    finally:
        monkeypatch.undo()
        _loops.cache_clear()


def test_a_loop_that_cannot_be_kept_is_compiled_all_the_same():
    names = {}
    exec("def double(x):\n    return 2 * x", names)  # of no file, beside which it could be kept
    from numba import int64

    assert _compile(names["double"], int64)(21) == 42

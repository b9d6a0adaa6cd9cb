"""Effective rows against the definition, rows and persons, whatever the form of the evidence."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from solera.core.disclosure.evidence import Persons, Sums, cells, effective_beyond_mean, everyone
from solera.core.disclosure.memory import Memory, row_digests

NUMBERS = st.floats(-100, 100).filter(lambda x: x == 0 or abs(x) > 1e-6)


def by_definition(right, left, persons=None):
    """(Σ|c|)² / Σc², written out."""
    given_ = right[:, :, None] * left[:, None, :]
    if persons is not None:
        given_ = np.stack([given_[persons == p].sum(axis=0) for p in np.unique(persons)])
    squares = (given_**2).sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(squares > 0, np.abs(given_).sum(axis=0) ** 2 / squares, np.inf)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 12), st.integers(1, 3), st.integers(1, 3), st.booleans())
def test_effective_rows_are_as_defined(data, rows, k, j, persons):
    right = data.draw(arrays(float, (rows, k), elements=NUMBERS))
    left = data.draw(arrays(float, (rows, j), elements=NUMBERS))
    whose = data.draw(arrays(int, rows, elements=st.integers(0, 3))) if persons else None
    if whose is not None:
        whose = np.unique(whose, return_inverse=True)[1]
    found = Sums(right, left).effective(Persons(whose))
    assert np.allclose(found, by_definition(right, left, whose), rtol=1e-6)


def test_a_count_is_its_rows_and_a_dominated_sum_is_one():
    marks = cells(np.array([0, 0, 0, 1, -1]), 2)
    assert marks.effective(Persons()).tolist() == [[3.0], [1.0]]
    assert marks.counts(Persons()).tolist() == [3, 1]
    assert marks.counts(Persons(np.array([0, 0, 1, 1, 2]))).tolist() == [2, 1]
    heavy = Sums(np.array([[1e9], [1.0], [1.0]]))
    assert heavy.effective(Persons())[0, 0] == pytest.approx(1.0, abs=1e-6)
    assert everyone(7).effective(Persons()).item() == 7


# --- memory ---


def test_what_is_withheld_stands_for_no_other_cell_of_its_ask():
    """Else 36 rows of 39 would be told in place of 33, and 39 less 36 are three rows."""
    sums = Sums(np.arange(60)[:, None] < [36, 33])
    withheld = np.array([[True], [False]])
    conflict, instead = Memory().earlier(sums, Persons(), 5)
    assert conflict[1, 0]
    assert instead[1, 0] == 36
    assert not Memory().earlier(sums, Persons(), 5, withheld)[0][1, 0]


def test_an_almost_equal_count_gets_the_earlier_number():
    memory = Memory()
    rows = np.arange(40)
    first = Sums((rows < 20)[:, None])
    conflict, _ = memory.earlier(first, Persons(), 5)
    assert not conflict.any()
    assert memory.keep(first, np.array([[20.0]])) == 1
    near, far = Sums((rows < 22)[:, None]), Sums((rows < 25)[:, None])
    conflict, instead = memory.earlier(near, Persons(), 5)
    assert (conflict.item(), instead.item()) == (True, 20.0)
    assert not memory.earlier(far, Persons(), 5)[0].any()
    assert not memory.earlier(first, Persons(), 5)[0].any(), "an equal cell has an equal number"
    assert memory.keep(first, np.array([[20.0]])) == 0, "nothing new"


def test_counts_are_compared_with_nobody_and_everybody_and_within_an_ask():
    rows = np.arange(40)
    cuts = np.array([3, 10, 12, 37])
    conflict, instead = Memory().earlier(Sums(rows[:, None] < cuts), Persons(), 5)
    assert conflict[:, 0].tolist() == [True, False, True, True]
    assert instead[:, 0].tolist() == [0, 10, 10, 40]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=30))
def test_no_two_counts_that_leave_differ_by_a_few_rows(cuts):
    """A grid of edges, in one ask or in many, gives no step of fewer than five rows."""
    memory, seen = Memory(), {0.0, 60.0}
    rows = np.arange(60)
    for start in range(0, len(cuts), 4):
        sums = Sums(rows[:, None] < np.array(cuts[start : start + 4]))
        conflict, instead = memory.earlier(sums, Persons(), 5)
        leaves = np.where(conflict, instead, sums.right.sum(axis=0)[:, None].astype(float))
        memory.keep(sums, leaves)
        seen |= set(leaves[:, 0].tolist())
    steps = np.diff(sorted(seen))
    assert (steps >= 5).all()


def test_sums_of_the_same_rows_are_compared_by_what_rows_gave():
    memory = Memory()
    X = np.random.default_rng(0).normal(size=(30, 2))
    error = np.random.default_rng(1).normal(size=(30, 1))
    memory.keep(Sums(error, X), np.array([[1.0, 2.0]]))
    one_row = error.copy()
    one_row[7] += 3.0
    conflict, instead = memory.earlier(Sums(one_row, X), Persons(), 5)
    assert conflict.all()
    assert instead.tolist() == [[1.0, 2.0]]
    conflict, _ = memory.earlier(Sums(1.1 * error, X), Persons(), 5)
    assert not conflict.any()


def test_a_memory_is_told_as_plain_data():
    memory = Memory()
    memory.check_rows(np.arange(5), 5)
    memory.keep(Sums(np.ones((5, 1), bool)), np.array([[5.0]]))
    memory.spend(3, 10)
    again = Memory.from_payload(memory.to_payload())
    assert (again.numbers, again.rows.tolist()) == (3, list(range(5)))
    assert again.keep(Sums(np.ones((5, 1), bool)), np.array([[5.0]])) == 0


def test_row_digests_tell_rows_apart_in_any_order():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(50, 3)), rng.integers(3, size=50)
    order = rng.permutation(50)
    assert np.array_equal(row_digests(X, y), row_digests(X[order], y[order]))
    changed = X.copy()
    changed[3, 1] += 1e-12
    assert len(np.setxor1d(row_digests(X, y), row_digests(changed, y))) == 2
    assert len(np.unique(row_digests(X, y))) == 50


def test_a_mean_is_judged_by_what_rows_give_beyond_it():
    """Rows that give 1 and one that gives 3: without the mean, 11 of 12 rows tell nothing."""
    rng = np.random.default_rng(0)
    alike = np.ones((12, 1))
    alike[0] = 3.0
    assert Sums(alike).effective(Persons())[0, 0] > 9
    assert Sums(alike, mean=True).effective(Persons())[0, 0] < 5
    assert Sums(np.ones((12, 1)), margin=2.0).effective(Persons())[0, 0] == 6
    right = rng.normal(size=(300, 2)) * np.exp(rng.normal(size=(300, 2)))
    left = np.exp(2 * rng.normal(size=(300, 4)))
    given = right[:, :, None] * left[:, None, :]
    given = given - given.mean(axis=0)
    true = np.abs(given).sum(axis=0) ** 2 / (given**2).sum(axis=0)
    found = effective_beyond_mean(right, left, Persons(), 50.0)
    assert (found <= true * (1 + 1e-9)).all()
    np.testing.assert_allclose(found[found < 50], true[found < 50])

"""Sets of rows whose sizes left: none differs in a few rows from another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from solera.core.disclosure.evidence import Persons
from solera.core.disclosure.row_sets import RowSets

LEAST = 5


def of(*sets: Any) -> RowSets:
    rows = [np.array(sorted(one), dtype=np.int64) for one in sets]
    return RowSets(np.concatenate(rows), np.cumsum([len(one) for one in rows]))


def test_a_set_near_to_an_earlier_one_has_its_number():
    first, numbers, new = RowSets().with_more(of(range(10), range(10, 20)), 50, LEAST)
    assert (len(first), numbers.tolist(), new.tolist()) == (2, [10, 10], [True, True])
    after, numbers, new = first.with_more(
        of(range(8), range(1, 11), range(15), range(20, 30), range(22, 30)), 50, LEAST
    )
    assert numbers.tolist() == [10, 10, 15, 10, 10]
    assert new.tolist() == [False, False, True, True, False]
    assert len(after) == 4
    again, numbers, new = after.with_more(of(range(15), range(22, 30)), 50, LEAST)
    assert (len(again), numbers.tolist(), new.any()) == (4, [15, 10], False)


def test_nearly_all_rows_are_all_rows():
    kept, numbers, new = RowSets().with_more(of(range(47), range(44)), 50, LEAST)
    assert (len(kept), numbers.tolist(), new.tolist()) == (1, [50, 44], [False, True])
    kept, numbers, _ = RowSets().with_more(of(range(0, 94, 2), range(40)), 100, LEAST, everyone=50)
    assert (len(kept), numbers.tolist()) == (1, [50, 40]), "of 100 rows 50 count"


@pytest.mark.parametrize("most", [1, 1 << 24])
def test_no_two_sets_are_near_whatever_comes(monkeypatch, most):
    monkeypatch.setattr("solera.core.disclosure.row_sets._MOST", most)
    rng = np.random.default_rng(4)
    centres = rng.random((6, 40)) < 0.4
    known = RowSets()
    for _ in range(12):
        asked = centres[rng.integers(6, size=10)] ^ (rng.random((10, 40)) < 0.05)
        asked = asked[asked.sum(axis=1) >= LEAST]
        known, numbers, new = known.with_more(of(*(np.flatnonzero(a) for a in asked)), 40, LEAST)
        assert (numbers[new] == asked.sum(axis=1)[new]).all()
        assert not new.all()
    marks = np.zeros((len(known), 40), dtype=bool)
    marks[np.repeat(np.arange(len(known)), known.sizes), known.rows] = True
    apart = (marks[:, None] != marks).sum(axis=2)[~np.eye(len(known), dtype=bool)]
    assert len(known) > 6
    assert apart.min() >= LEAST


@pytest.mark.parametrize("most", [1, 1 << 24])
@pytest.mark.parametrize("persons", [None, np.arange(40) // 2])
def test_cells_that_differ_from_a_set_by_few_rows_are_found(monkeypatch, persons, most):
    monkeypatch.setattr("solera.core.disclosure.row_sets._MOST", most)
    rng, whose = np.random.default_rng(5), Persons(persons)
    first = whose.first_rows(40)
    sets = (rng.random((8, 40)) < 0.5) & first
    cells = (sets[rng.integers(8, size=30)] ^ (rng.random((30, 40)) < 0.06)).T
    cells[:, :2] = sets[:2].T
    differences = cells[:, None].astype(float) - sets.T[:, :, None]
    absolute, squares = whose.sums(differences)
    wanted = (squares > 0) & (absolute**2 < LEAST * squares)
    found = of(*(np.flatnonzero(one) for one in sets)).near(whose.at_first_rows(cells), LEAST)
    assert 5 < wanted.sum() < 200
    assert sorted(map(list, found)) == np.argwhere(wanted).tolist()


def test_what_left_first_stands_for_a_set():
    """Set 0 left after one cell, set 1 after three; the new one is near both and two cells."""
    known = RowSets(np.r_[0:10, 2:14].astype(np.int32), np.array([10, 22]), np.array([1, 3]))
    for cell, number in ((0, 77), (1, 10), (2, 10)):
        kept, numbers, new = known.with_more(of(range(1, 12)), 50, LEAST, cells={0: (cell, 77)})
        assert (len(kept), numbers.tolist(), new.tolist()) == (2, [number], [False])

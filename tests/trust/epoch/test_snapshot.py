"""Row order, folds and commitments follow from rows and secret, and tell nobody else anything."""

from dataclasses import replace

import numpy as np
import pytest
from tests.trust.epoch.hospitals import DICTIONARY, four

from solera.core.errors import DataError
from solera.trust.epoch import Snapshot


def test_the_order_of_the_table_does_not_matter():
    first = four()[0]
    mixed = np.random.default_rng(0).permutation(100)
    other = replace(
        first, values=first.values[mixed], persons=[first.persons[i] for i in mixed]
    ).snapshot()
    taken = first.snapshot()
    assert other.commitment == taken.commitment
    np.testing.assert_array_equal(first.values[taken.order], first.values[mixed][other.order])
    np.testing.assert_array_equal(taken.folds, other.folds)


def test_another_secret_another_value_another_dictionary_another_commitment():
    first = four()[0]
    values = first.values.copy()
    values[0, 0] += 1
    others = [
        replace(first, secret=bytes(32 * [9])).snapshot(),
        replace(first, values=values).snapshot(),
        replace(first, values=first.values[1:], persons=first.persons[1:]).snapshot(),
        replace(first, persons=["other", *first.persons[1:]]).snapshot(),
        first.snapshot(replace(DICTIONARY, populations=())),
    ]
    commitments = {taken.commitment for taken in (first.snapshot(), *others)}
    assert len(commitments) == 6


def test_folds_are_of_persons_and_for_good():
    first = four()[0]
    twice = replace(
        first, values=np.repeat(first.values, 2, axis=0), persons=list(np.repeat(first.persons, 2))
    ).snapshot()
    assert twice.person_count == 100
    of_person = {}
    for person, fold in zip(twice.persons, twice.folds, strict=True):
        assert of_person.setdefault(person, fold) == fold
    half = replace(first, values=first.values[:50], persons=first.persons[:50]).snapshot()
    assert all(of_person[p] == f for p, f in zip(half.persons, half.folds, strict=True))
    assert set(twice.folds) == set(range(10))


def test_nobody_without_the_secret_knows_a_fold_or_a_person():
    first = four()[0]
    other = replace(first, secret=bytes(32 * [9]))
    one, two = first.snapshot(), other.snapshot()
    assert not set(one.persons) & set(two.persons)
    assert not set(one.rows) & set(two.rows)
    by_row = [dict(zip(s.order.tolist(), s.folds.tolist(), strict=True)) for s in (one, two)]
    assert sum(by_row[0][i] == by_row[1][i] for i in range(100)) < 30


def test_rows_of_a_part_are_those_of_its_folds_and_population():
    first = four()[0]
    taken = first.snapshot()
    everyone = np.concatenate([taken.chosen([fold]) for fold in range(10)])
    assert sorted(everyone) == list(range(100))
    elderly = taken.chosen(range(10), "elderly")
    assert (first.values[elderly, 0] >= 65).all()
    assert len(elderly) == taken.persons_in("elderly") == (first.values[:, 0] >= 65).sum()


def test_equal_rows_without_identifiers_are_one_person():
    values = np.array([[50.0, 0, 1], [50.0, 0, 1], [60.0, 1, np.nan]])
    taken = Snapshot.of(bytes(32), DICTIONARY, values)
    assert taken.person_count == 2
    assert taken.known.tolist() == [2, 2, 1]


def test_minus_zero_and_every_nan_are_one_value():
    plain = np.array([[0.0, np.nan, 1.0]])
    other = np.array([[-0.0, -np.nan, 1.0]])
    assert len({Snapshot.of(bytes(32), DICTIONARY, v).commitment for v in (plain, other)}) == 1


def test_no_rows_are_refused():
    with pytest.raises(DataError, match="no rows"):
        Snapshot.of(bytes(32), DICTIONARY, np.empty((0, 3)))

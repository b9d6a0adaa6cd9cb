"""Every form of contribution against plain loops: numbers, persons, sensitivity, stacked form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import solera as so
from solera.core.errors import TaskError, UsageError
from solera.trust.board.cell_keys import keyed_sums
from solera.trust.cells import Behind
from solera.trust.contributions import Contribution, Joint
from solera.trust.members import symmetric

ROWS = 30


def draw(seed: int) -> dict[str, Any]:
    """Rows to make contributions of."""
    rng = np.random.default_rng(seed)
    return {
        "cell": rng.integers(-1, 4, ROWS),
        "several": rng.integers(-1, 4, (ROWS, 2)),
        "marks": rng.random((ROWS, 3)) < 0.4,
        "x": np.where(rng.random(ROWS) < 0.2, np.nan, rng.normal(size=ROWS)),
        "X": rng.normal(size=(ROWS, 2)),
        "w": rng.random((ROWS, 2)) * (rng.random((ROWS, 2)) < 0.8),
        "where": rng.random((ROWS, 2)) < 0.7,
        "rows": rng.permutation(ROWS)[:20],
    }


def some(r: dict[str, Any], rows: Any) -> dict[str, Any]:
    """The same of some rows."""
    return {name: value[rows] for name, value in r.items() if name != "rows"} | {"rows": None}


FORMS: dict[str, Any] = {
    "one cell": lambda r: so.count_by(None),
    "cells": lambda r: so.count_by(r["cell"], 4),
    "several cells": lambda r: so.count_by(r["several"], 4),
    "marks": lambda r: so.count_by(r["marks"]),
    "one mark": lambda r: so.count_by(r["marks"][:, 0]),
    "intervals": lambda r: so.count_by(so.intervals(r["x"], [-0.5, 0.0, 1.0])),
    "intervals of columns": lambda r: so.count_by(so.intervals(r["X"], [[-0.5, 0.5], [-1.0, 1.0]])),
    "axes": lambda r: so.count_by((r["cell"], r["marks"][:, 0].astype(int)), (4, 2)),
    "axes that broadcast": lambda r: so.count_by(
        (r["cell"], np.arange(2)[None], r["several"]), (4, 2, 4)
    ),
    "axis of intervals": lambda r: so.count_by((r["cell"], so.intervals(r["x"], [0.0])), (4, 2)),
    "sum of all": lambda r: so.sum_by(None, r["X"], bound=1.5),
    "sum of numbers": lambda r: so.sum_by(r["cell"], r["X"][:, 0], 4, bound=1.5),
    "sum": lambda r: so.sum_by(r["cell"], r["X"], 4, bound=1.5),
    "sum in several cells": lambda r: so.sum_by(r["several"], r["X"], 4, bound=1.5),
    "sum by marks": lambda r: so.sum_by(r["marks"], r["X"], bound=1.5),
    "sum where": lambda r: so.sum_by(r["cell"], r["X"], 4, where=r["where"], bound=1.5),
    "sum by columns": lambda r: so.sum_by(r["cell"], r["X"], 4, bound=[0.5, 1.5]),
    "joint": lambda r: so.sum_by(
        [r["cell"], r["marks"]], [r["X"], r["X"][:, :1]], [4, None], bound=1.5
    ),
    "gram": lambda r: so.gram(r["X"], bound=(1.5, 1.0)),
    "weighted gram": lambda r: so.gram(r["X"], weights=r["w"][:, 0], bound=(1.5, 0.8)),
    "gram by output": lambda r: so.gram(r["X"], weights=r["w"], bound=(1.5, 0.8)),
    "gram of two": lambda r: so.gram(r["X"], r["w"], bound=(1.5, 0.8)),
    "gram by cell": lambda r: so.gram(r["X"], cell=r["cell"], cells=4, bound=(1.5, 1.0)),
}


def loop(form: str, r: dict[str, Any]) -> Any:
    """Each row's own numbers, added up one after the other."""
    total: Any = None
    for i in range(len(r["cell"])):
        row = FORMS[form](some(r, slice(i, i + 1))).numbers(Behind(1))
        row = [np.asarray(one, dtype=float) for one in (row if isinstance(row, list) else [row])]
        total = row if total is None else [a + b for a, b in zip(total, row, strict=True)]
    return total


def as_list(numbers: Any) -> list[Any]:
    return numbers if isinstance(numbers, list) else [numbers]


@pytest.mark.parametrize("form", FORMS)
@given(seed=st.integers(0, 10_000))
@settings(max_examples=10, deadline=None)
def test_numbers_are_those_of_a_loop_over_rows(form, seed):
    r = draw(seed)
    numbers = as_list(FORMS[form](r).numbers(Behind(ROWS)))
    for found, expected in zip(numbers, loop(form, r), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
@given(seed=st.integers(0, 10_000))
@settings(max_examples=10, deadline=None)
def test_stacked_numbers_are_those_of_each_client(form, seed):
    r = draw(seed)
    owners = np.sort(np.random.default_rng(seed).integers(0, 4, ROWS))
    stacked = as_list(FORMS[form](r).numbers(Behind(ROWS, owners, 4)))
    for client in range(4):
        mine = owners == client
        alone = as_list(FORMS[form](some(r, mine)).numbers(Behind(int(mine.sum()))))
        for one, other in zip(stacked, alone, strict=True):
            np.testing.assert_allclose(one[client], other, rtol=1e-12, atol=1e-12)


def persons_of(contribution: Contribution, behind: Behind) -> Any:
    if isinstance(contribution, Joint):
        return [persons_of(one, behind) for one in contribution.sums]
    persons = keyed_sums(contribution, behind, np.zeros(behind.rows, dtype=np.int64))[..., 0]
    tail = np.ndim(contribution.numbers(behind)) - persons.ndim
    return persons.reshape(persons.shape + (1,) * tail)


@pytest.mark.parametrize("form", [form for form in FORMS if "gram" not in form])
@given(seed=st.integers(0, 10_000), persons=st.integers(3, 12))
@settings(max_examples=10, deadline=None)
def test_persons_behind_a_number_are_those_without_whom_it_may_be_another(form, seed, persons):
    """By brute force: a person is behind a count if the rows of nobody else are in the cell."""
    r = draw(seed)
    units = np.random.default_rng(seed).integers(0, persons, ROWS)
    found = as_list(persons_of(FORMS[form](r), Behind(ROWS, units=units)))
    expected = [0.0 * np.asarray(count) for count in found]
    for person in range(persons):
        mine = units == person
        contribution = FORMS[form](some(r, mine))
        counts = as_list(persons_of(contribution, Behind(int(mine.sum()))))
        for k, count in enumerate(counts):
            expected[k] = expected[k] + (np.asarray(count) > 0)
    for count, known in zip(found, expected, strict=True):
        np.testing.assert_array_equal(np.broadcast_to(count, np.shape(known)), known)


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("form", FORMS)
def test_no_row_moves_the_numbers_farther_than_the_sensitivity(form, norm):
    worst = 0.0
    for seed in range(20):
        r = draw(seed)
        r["X"] *= 3  # many rows are longer than their bound
        whole = FORMS[form](r)
        most = whole.sensitivity(norm, None)
        numbers = flat(whole.bounded(None), ROWS)
        for i in range(ROWS):
            others = np.delete(np.arange(ROWS), i)
            moved = numbers - flat(FORMS[form](some(r, others)).bounded(None), ROWS - 1)
            length = np.abs(moved).sum() if norm == "l1" else np.linalg.norm(moved)
            worst = max(worst, float(length) / most)
    assert 0.4 < worst <= 1.0 + 1e-9, "neither broken nor far too careful"


def flat(contribution: Contribution, rows: int) -> Any:
    numbers = as_list(contribution.numbers(Behind(rows)))
    return np.concatenate([np.ravel(np.asarray(one, dtype=float)) for one in numbers])


def test_rows_that_are_not_finite_give_nothing_with_noise():
    X = np.array([[1.0, 2.0], [np.inf, 0.0], [np.nan, 1.0]])
    bounded = so.sum_by(None, X, bound=10.0).bounded(None)
    assert bounded.numbers(Behind(3)).tolist() == [1.0, 2.0]


def test_an_update_is_clipped_as_one():
    contribution = so.update({"a": np.array([3.0, 0.0]), "b": [np.array([4.0])]}, bound=1.0)
    clipped = contribution.bounded(None).numbers(Behind(5))
    assert clipped["a"] == pytest.approx([0.6, 0.0])
    assert clipped["b"][0] == pytest.approx([0.8])
    assert contribution.sensitivity("l2", None) == 2.0  # a row may turn it round
    assert contribution.sensitivity("l1", None) == pytest.approx(2 * 3**0.5)
    endless = so.update(np.array([np.inf, 1.0]), bound=1.0).bounded(None)
    assert endless.numbers(Behind(5)).tolist() == [0.0, 0.0]


def test_some_rows_of_a_part():
    r = draw(3)
    chosen = so.count_by(r["cell"][r["rows"]], 4, rows=r["rows"])
    behind = Behind(ROWS, units=np.arange(ROWS) // 2).among(chosen.rows)
    assert chosen.numbers(behind).sum() == (r["cell"][r["rows"]] >= 0).sum()
    assert not chosen.repeats_rows
    assert so.count_by(None, rows=[1, 1, 2]).repeats_rows


def test_a_triangle_is_a_symmetric_matrix():
    X = draw(0)["X"]
    np.testing.assert_allclose(symmetric(so.gram(X).numbers(Behind(ROWS))), X.T @ X, rtol=1e-12)


def test_sparse_rows_add_up_as_dense_ones():
    from scipy.sparse import csr_matrix

    r = draw(1)
    sparse = csr_matrix(np.where(r["where"], r["X"], 0.0))
    dense = sparse.toarray()
    for one, other in (
        (so.sum_by(r["cell"], sparse, 4), so.sum_by(r["cell"], dense, 4)),
        (so.gram(sparse, weights=r["w"][:, 0]), so.gram(dense, weights=r["w"][:, 0])),
    ):
        np.testing.assert_allclose(
            one.numbers(Behind(ROWS)), other.numbers(Behind(ROWS)), rtol=1e-12, atol=1e-12
        )


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: so.count_by(np.array([0, 4]), 4), "a row is in cell 4"),
        (lambda: so.count_by(np.array([0, -2]), 4), "a row is in cell -2"),
        (lambda: so.count_by(np.array([0, 1])), "cells= is missing"),
        (lambda: so.count_by(np.array([0.5])), "values of type float64"),
        (lambda: so.count_by((np.array([0]), np.array([1])), 4), "cell= has 2 axes"),
        (lambda: so.count_by((np.array([0]), np.array([3])), (1, 3)), "an axis of cell= holds 3"),
        (lambda: so.sum_by(None, np.ones((2, 1))).sensitivity("l2", None), "dp= needs bound="),
    ],
)
def test_what_makes_no_sense_is_an_error_with_the_way_out(call, words):
    with pytest.raises(UsageError, match=words) as caught:
        call()
    assert caught.value.hint


@so.task("contributions.draws", many=True)
def draws(client, ask):
    return {"rows": so.count_by(client.rng.random(len(client.data)) < 0.5)}


def test_a_task_that_works_row_by_row_has_nothing_of_the_client_but_its_rows():
    fed = so.simulate(np.ones((30, 1)), clients=3, seed=0)
    with pytest.raises(TaskError, match=r"asks for client\.rng, which is not of a row"):
        fed.ask(draws).fold(so.aggregations.Sum())

"""The gate on contributions: thresholds of persons, kinds, noise that a ledger counts."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.gate.measure import REFUSED, Owner, table

import solera as so
from solera.core.accounting import Event, epsilon_of
from solera.core.clients import Client, Draws
from solera.core.task import find_task
from solera.trust.gate import POLICIES, numbers_of
from solera.trust.noise import SPENT

RNG = np.random.default_rng(11)
X = RNG.normal(size=(60, 3))
Y = np.repeat([0, 1, 2], [40, 17, 3])
NOISE = {"mechanism": "gaussian", "noise": 5.0, "share": 1, "clip": 2.0}


@so.task("trust.classes")
def classes(client: Any, ask: Any) -> Any:
    """Counts, column sums and products of every class."""
    rows = client.data
    return {
        "counts": so.count_by(rows.y, 3),
        "sums": so.sum_by(rows.y, rows.X, 3),
        "all": so.sum_by(None, rows.X, bound=1.0),
        "known": so.sum_by(None, rows.X, where=rows.X > 0, bound=1.0),
        "kind": so.fact("classes"),
    }


@so.task("trust.products", leaves="gram")
def products(client: Any, ask: Any) -> Any:
    return {"gram": so.gram(client.data.X, weights=client.data.y[:, None] == np.arange(3))}


@so.task("trust.steps", leaves="update")
def steps(client: Any, ask: Any) -> Any:
    return {"rows": so.count_by(None), "model": so.update({"coef": client.data.X.mean(axis=0)})}


def owner(policy: Any = "training", **changed: Any) -> Owner:
    limits = POLICIES[policy] if isinstance(policy, str) else policy
    return Owner(table(X, Y), replace(limits, **changed))


def plain(task: str, payload: Any = None) -> Any:
    """The numbers without a policy."""
    found = find_task(task)
    client = Client(0, table(X, Y), Draws(0, task, 0), {})
    return numbers_of(found, client, payload, found.one(client, payload))


def test_a_number_leaves_exactly_from_min_count_persons_on():
    for least in range(1, 45):
        asked = owner(min_count=least)
        reply = asked.ask("trust.classes", None)
        absent = asked.absent.get("counts", np.zeros(3, bool))
        rows = np.array([40, 17, 3])
        assert (absent | (rows >= least)).all()
        assert (rows[absent].sum() >= least) or not absent.any() or absent.all()
        np.testing.assert_array_equal(reply["counts"], np.where(absent, 0, rows))
        expected = plain("trust.classes")["sums"]
        np.testing.assert_array_equal(reply["sums"], np.where(absent[:, None], 0, expected))
        assert reply["kind"] == "classes"


def test_entries_of_a_sum_count_the_persons_that_gave_any():
    least = int((X > 0).sum(axis=0).min()) + 1
    asked = owner(min_count=least)
    reply = asked.ask("trust.classes", None)
    few = (X > 0).sum(axis=0) < least
    assert few.any()
    np.testing.assert_array_equal(asked.absent["known"], few)
    np.testing.assert_array_equal(reply["known"][few], 0)
    assert "all" not in asked.absent


def test_persons_are_counted_and_not_rows():
    asked = owner(unit="patient", min_rows=5)
    asked.data.units = lambda client, part: np.arange(60) // 5  # type: ignore[attr-defined]
    reply = asked.ask("trust.classes", None)
    assert reply["counts"].tolist() == [40, 0, 0], "17 rows are of four persons"
    assert asked.absent["counts"].tolist() == [False, True, True]


def test_matrices_of_few_rows_are_absent_one_by_one():
    asked = owner()
    reply = asked.ask("trust.products", None)
    full = plain("trust.products")["gram"]
    np.testing.assert_array_equal(reply["gram"], full * [[1], [1], [0]])
    assert asked.absent["gram"].all(axis=1).tolist() == [False, False, True]


def test_kinds_that_may_not_leave_are_refused():
    assert owner("evaluation").ask("trust.products", None) == REFUSED
    assert owner("statistics").ask("trust.steps", None) == REFUSED
    assert owner("training").ask("trust.steps", None) != REFUSED
    encrypted = owner(encrypted=frozenset({"gram"}))
    assert encrypted.ask("trust.products", None) == REFUSED
    assert "secure sum" in encrypted.why


@so.task("trust.chosen")
def chosen(client: Any, ask: Any) -> Any:
    """Sums over rows that the asker names, perhaps several times."""
    rows = np.asarray(ask)
    return {
        "rows": so.count_by(None, rows=rows),
        "sums": so.sum_by(None, client.data.X[rows], rows=rows),
        "model": so.update(client.data.X[rows].mean(axis=0), rows=rows),
    }


def test_a_row_that_comes_several_times_is_one_person():
    for policy in ("statistics", "training"):
        assert owner(policy).ask("trust.chosen", [7] * 30) == REFUSED, "an update of one row"
    asked = owner(parameters=1e9, min_rows=1)
    reply = asked.ask("trust.chosen", [7] * 30)
    assert asked.absent["rows"].all()
    assert not reply["sums"].any()
    assert asked.ask("trust.chosen", [7, 8, 9, 10] * 9)["rows"] == 0
    assert asked.ask("trust.chosen", [7, 8, 9, 10, 11])["rows"] == 5


# --- noise ---


def test_noise_is_of_the_derived_size_and_only_counted_noise_opens_the_gate():
    without = owner()
    assert without.ask("trust.classes", {"privacy": NOISE}) == REFUSED
    assert "no budget" in without.why
    exact = plain("trust.classes")
    draws = []
    for round in range(400):
        asked = owner(budget=(50.0, 1e-5))
        reply = asked.ask("trust.classes", {"privacy": NOISE}, round=round)
        assert reply != REFUSED, asked.why
        draws.append([reply["all"], reply["counts"] - exact["counts"]])
    deviations = [np.std([draw[i] for draw in draws]) for i in range(2)]
    assert deviations[0] == pytest.approx(5.0 * 1.0 * math.sqrt(4), rel=0.1)  # bound=1, 4 entries
    assert deviations[1] == pytest.approx(5.0 * 1.0 * math.sqrt(4), rel=0.1)
    assert asked.state[SPENT] == [Event(5.0).to_payload()]


def test_rows_are_bounded_before_noise():
    far = X.copy()
    far[0] = 1e9
    quiet = {**NOISE, "noise": 1e-6}
    client = Client(0, table(far, Y), Draws(0, "trust.classes", 0), {})
    found = find_task("trust.classes")
    payload = {"privacy": quiet}
    total = numbers_of(found, client, payload, found.one(client, payload))["all"]
    lengths = np.linalg.norm(far, axis=1, keepdims=True)
    np.testing.assert_allclose(total, (far / np.maximum(lengths, 1)).sum(axis=0), atol=1e-3)


def test_a_budget_ends():
    asked = owner(budget=(epsilon_of([Event(5.0)] * 3, 1e-5) * 1.001, 1e-5))
    answers = [asked.ask("trust.classes", {"privacy": NOISE}, round=r) for r in range(4)]
    assert [answer == REFUSED for answer in answers] == [False, False, False, True]
    assert "the privacy budget is" in asked.why


def test_noise_of_rows_protects_no_person_with_several():
    asked = owner(budget=(50.0, 1e-5), unit="patient")
    asked.data.units = lambda client, part: np.arange(60) // 2  # type: ignore[attr-defined]
    assert asked.ask("trust.classes", {"privacy": NOISE}) == REFUSED
    assert "may have several" in asked.why


@pytest.mark.parametrize(
    "wrong",
    [{}, {"noise": 0.0}, {"noise": -5.0}, {"noise": float("nan")}, {"share": 0}, {"clip": -1.0},
     {"mechanism": "none"}],
    ids=str,
)  # fmt: skip
def test_what_is_no_noise_opens_nothing_and_costs_nothing(wrong):
    asked = owner(budget=(50.0, 1e-5))
    assert asked.ask("trust.classes", {"privacy": {**NOISE, **wrong} if wrong else {}}) == REFUSED
    assert SPENT not in asked.state


def test_a_sum_without_a_bound_is_refused_before_the_budget_is_charged():
    asked = owner(budget=(50.0, 1e-5))
    unbounded = {name: value for name, value in NOISE.items() if name != "clip"}
    assert asked.ask("trust.classes", {"privacy": unbounded}) == REFUSED
    assert "needs bound=" in asked.why
    assert SPENT not in asked.state


def test_noise_on_sums_does_not_open_what_has_none():
    """Three rows are of class 2: its name is withheld, whatever is added to the ask."""
    for payload in (None, {"privacy": NOISE}):
        asked = owner(budget=(50.0, 1e-5))
        assert list(asked.ask("data.describe", payload)["classes"]) == [0, 1]

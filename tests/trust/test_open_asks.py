"""Open asks: nothing under ``sums``, counted noise on bounded sums under ``noise``, all else under
``trusted``."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from tests.trust.owner import REFUSED, Owner, table

import solera as so
from solera.core.accounting import Event, epsilon_of
from solera.core.clients import Client, Draws
from solera.core.component import describe
from solera.core.errors import NotEnoughReplies, PolicyRefusal, Refusal, UsageError
from solera.core.schema import infer
from solera.core.task import find_task
from solera.serve.agent.error_codes import code_of
from solera.trust.noise import SPENT
from solera.trust.open_asks import numbers_of
from solera.trust.policy import Policy

RNG = np.random.default_rng(11)
X = RNG.normal(size=(60, 3))
Y = np.repeat([0, 1, 2], [40, 17, 3])
NOISE = {"mechanism": "gaussian", "noise": 5.0, "share": 1, "clip": 2.0}
BUDGET = (50.0, 1e-5)


@so.task("trust.classes")
def classes(client: Any, ask: Any) -> Any:
    """Counts and column sums of every class, and a fact."""
    rows = client.data
    return {
        "counts": so.count_by(rows.y, 3),
        "sums": so.sum_by(rows.y, rows.X, 3),
        "all": so.sum_by(None, rows.X, bound=1.0),
        "known": so.sum_by(None, rows.X, where=rows.X > 0, bound=1.0),
        "kind": so.fact("classes"),
    }


@so.task("trust.bare")
def bare(client: Any, ask: Any) -> Any:
    """A row as it is, beside a sum."""
    return {"rows": so.count_by(None), "first": client.data.X[0]}


@so.task("trust.twice")
def twice(client: Any, ask: Any) -> Any:
    """A row that comes thirty times."""
    rows = np.full(30, 7)
    return {"sums": so.sum_by(None, client.data.X[rows], rows=rows, bound=1.0)}


@so.task("trust.quotes")
def quotes(client: Any, ask: Any) -> Any:
    raise Refusal(f"the first row is {client.data.X[0, 0]}")


RAN = []


@so.task("trust.runs")
def runs(client: Any, ask: Any) -> Any:
    RAN.append(client.id)
    return {"rows": so.count_by(None)}


def owner(name: Any = "noise", **changed: Any) -> Owner:
    return Owner(table(X, Y), Policy(name, **changed))


def plain(task: str, payload: Any = None) -> Any:
    """The numbers without a policy."""
    found = find_task(task)
    client = Client(0, table(X, Y), Draws(0, task, 0), {})
    return numbers_of(found, client, payload, found.one(client, payload))


# --- sums ---


@pytest.mark.parametrize("engine", ["local", "processes"])
def test_under_sums_nothing_runs_and_the_line_to_write_is_named(engine):
    RAN.clear()
    with (
        so.simulate(X, Y, clients=3, policy="sums", engine=engine, workers=1) as fed,
        pytest.raises(PolicyRefusal, match="answer no open ask") as refused,
    ):
        fed.ask("trust.runs", {"privacy": NOISE}).fold(so.aggregations.Sum())
    assert "learner.fit(federation)" in str(refused.value.hint)
    assert not RAN


def test_an_owner_under_sums_answers_nothing_whatever_the_engine():
    for payload in (None, {"privacy": NOISE}):
        asked = owner("sums", budget=BUDGET)
        assert asked.ask("trust.classes", payload) == REFUSED
        assert SPENT not in asked.state


# --- trusted ---


def test_under_trusted_everything_leaves_as_it_is():
    exact = plain("trust.classes")
    reply = owner("trusted").ask("trust.classes", None)
    for entry, value in exact.items():
        np.testing.assert_array_equal(reply[entry], value)
    assert (owner("trusted").ask("trust.bare", None)["first"] == X).all(axis=1).any()


def test_learners_get_the_same_under_trusted_as_without_a_policy():
    learners = [
        so.FedLinear(rounds=2),
        so.FedHEONN(),
        so.FedForest(trees=6, seed=0) if hasattr(so.FedForest, "seed") else so.FedHEONN(),
        so.Pipeline(so.FedScaler(), so.FedLinear(rounds=2)),
    ]
    for learner in learners:
        free = learner.clone().fit(so.simulate(X, Y, clients=3, seed=1))
        trusted = learner.clone().fit(so.simulate(X, Y, clients=3, seed=1, policy="trusted"))
        np.testing.assert_array_equal(free.predict(X), trusted.predict(X))


# --- noise ---


def test_what_has_no_noise_does_not_leave_but_facts_do():
    asked = owner(budget=BUDGET)
    assert asked.ask("trust.classes", None) == REFUSED
    assert "the ask states none" in asked.why
    assert asked.ask("trust.bare", {"privacy": NOISE}) == REFUSED
    assert "nothing says which rows gave entry 'first'" in asked.why
    assert SPENT not in asked.state

    @so.task("trust.fact")
    def fact(client: Any, ask: Any) -> Any:
        return {"kind": so.fact("classes")}

    assert asked.ask("trust.fact", None) == {"kind": "classes"}


@pytest.mark.parametrize(
    ("task", "payload"),
    [("data.describe", None), ("data.flaws", None), ("select.rows", None),
     ("vertical.rows", {}), ("linear.train", None)],
)  # fmt: skip
@pytest.mark.parametrize("noise", [False, True])
def test_names_rows_and_models_do_not_leave_under_noise(task, payload, noise):
    if noise:
        payload = {**(payload or {}), "privacy": NOISE}
    asked = owner(budget=BUDGET)
    reply = asked.ask(task, payload)
    assert reply == REFUSED or (task == "select.rows" and noise)


def test_noise_is_of_the_derived_size_and_needs_a_budget():
    without = owner()
    assert without.ask("trust.classes", {"privacy": NOISE}) == REFUSED
    assert "no budget" in without.why
    exact = plain("trust.classes")
    draws = []
    for round in range(400):
        asked = owner(budget=BUDGET)
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


def test_a_row_that_comes_several_times_has_no_bound():
    asked = owner(budget=BUDGET)
    assert asked.ask("trust.twice", {"privacy": NOISE}) == REFUSED
    assert "more than once" in asked.why
    assert SPENT not in asked.state


def test_a_budget_ends():
    asked = owner(budget=(epsilon_of([Event(5.0)] * 3, 1e-5) * 1.001, 1e-5))
    answers = [asked.ask("trust.classes", {"privacy": NOISE}, round=r) for r in range(4)]
    assert [reply == REFUSED for reply in answers] == [False, False, False, True]
    assert "the privacy budget is" in asked.why


def test_noise_of_rows_protects_no_person_with_several():
    asked = owner(budget=BUDGET, unit="patient")
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
    asked = owner(budget=BUDGET)
    assert asked.ask("trust.classes", {"privacy": {**NOISE, **wrong} if wrong else {}}) == REFUSED
    assert SPENT not in asked.state


def test_a_sum_without_a_bound_is_refused_before_the_budget_is_charged():
    asked = owner(budget=BUDGET)
    unbounded = {name: value for name, value in NOISE.items() if name != "clip"}
    assert asked.ask("trust.classes", {"privacy": unbounded}) == REFUSED
    assert "needs bound=" in asked.why
    assert SPENT not in asked.state


# --- noise that the task adds itself ---

NET = so.nn.mlp(3, 5, 3)
TRAINING = {
    "loss": "softmax",
    "lr": 0.1,
    "optimiser": "sgd",
    "momentum": 0.0,
    "l2": 0.0,
    "epochs": 1,
    "steps": None,
    "batch_size": 10,
}
PRIVACY = {
    "level": "client",
    "noise": 4.0,
    "clip": 1.0,
    "share": 1,
    "below": None,
    "rate": None,
}


def train(**changed: Any) -> dict[str, Any]:
    """An ask of ``averaging.train`` with noise."""
    return {
        "model": describe(NET),
        "weights": np.zeros(3 * 5 + 5 + 5 * 3 + 3),
        "classes": np.arange(3),
        "training": TRAINING,
        "private": [],
        "send": "difference",
        "steps": [],
        "device": None,
        "privacy": {**PRIVACY, **changed},
    }


def test_with_noise_a_network_of_any_size_leaves_within_the_budget():
    pytest.importorskip("torch")
    asked = owner(budget=BUDGET)
    reply = asked.ask("averaging.train", train())
    assert reply != REFUSED, asked.why
    assert set(reply) == {"update", "rows"}
    assert reply["rows"] == 1, "the number of rows is no noised number"
    assert owner().ask("averaging.train", train()) == REFUSED
    small = owner(budget=(0.1, 1e-5))
    assert small.ask("averaging.train", train()) == REFUSED
    assert "budget is ε = 0.1" in small.why


@pytest.mark.parametrize(
    "wrong",
    [{"noise": -4.0}, {"noise": math.nan}, {"clip": 0.0}, {"share": 0}, {"level": "nobody"},
     {"level": "record", "rate": -0.5}, {"level": "record", "rate": 2.0}],
    ids=str,
)  # fmt: skip
def test_noise_of_updates_that_is_none_opens_nothing_and_costs_nothing(wrong):
    pytest.importorskip("torch")
    asked = owner(budget=BUDGET)
    assert asked.ask("averaging.train", train(**wrong)) == REFUSED
    assert SPENT not in asked.state


def test_what_protects_clients_protects_persons_of_several_rows():
    pytest.importorskip("torch")
    asked = owner(budget=BUDGET, unit="person")
    asked.data.units = lambda client, part: np.arange(60) // 4  # type: ignore[attr-defined]
    assert asked.ask("averaging.train", train()) != REFUSED, asked.why
    assert asked.ask("averaging.train", train(level="record", rate=0.5)) == REFUSED
    assert "protects rows" in asked.why


# --- words ---


def failure(policy: Any, task: Any, payload: Any = None) -> BaseException:
    with (
        so.simulate(X, Y, clients=3, policy=policy) as fed,
        pytest.raises(NotEnoughReplies) as caught,
    ):
        fed.ask(task, payload, to=[0]).collect()
    (failed,) = caught.value.failures
    assert failed.kind == "refused"
    return failed.error


def test_a_task_that_refuses_is_not_quoted_and_the_policy_is():
    schema = infer(X, Y)
    error = failure("trusted", quotes)
    assert "the first row is" in str(error)
    assert code_of(error, "trust.quotes", schema).startswith("declined: ")
    error = failure("noise", "trust.classes")
    assert isinstance(error, PolicyRefusal)
    assert code_of(error, "trust.classes", schema) == str(error)


def test_vertical_learners_say_that_they_need_trust():
    import pandas as pd

    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(target=(Y > 0).astype(int))
    columns = {"bank": ["a"], "shop": ["b", "c"]}
    for policy in ("sums", "noise", {"policy": "trusted", "jobs": ["training"]}):
        with pytest.raises(UsageError, match="which is no sum") as refused:
            so.simulate_vertical(frame, columns=columns, policy=policy)
        assert '"trusted"' in str(refused.value.hint)
    so.simulate_vertical(frame, columns=columns, policy="trusted")

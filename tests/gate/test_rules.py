"""The rules of the gate, each with a task made for it: what leaves, what does not, and why."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, TypedDict

import numpy as np
import pytest
from tests.gate.measure import REFUSED, Owner, table

import solera as so
from solera.core.clients import FloatArray
from solera.core.component import describe_fitted
from solera.core.constraints import Count
from solera.core.errors import NotEnoughReplies, Refusal, UsageError
from solera.core.schema import Feature, Schema
from solera.core.task import task
from solera.learn.base import Learner
from solera.trust.cells import Behind
from solera.trust.declared import Classes, Fitted, Shape, check_payload, check_state
from solera.trust.gate import POLICIES, find_limits
from solera.trust.release import Facts, RowsOut

SCHEMA = Schema((Feature("a"), Feature("b")), "classes", np.array([0, 1]), 2)
RNG = np.random.default_rng(5)
X = RNG.normal(size=(40, 2))
Y = (X[:, 0] > 0).astype(np.int64)


class Cut(TypedDict):
    at: float


@task("gate.above", ask=Cut)
def above(client: Any, ask: Any) -> Any:
    """Rows and column sums on either side of a cut."""
    right = (client.data.X[:, 0] > ask["at"]).astype(int)
    return {"rows": so.count_by(right, 2), "sums": so.sum_by(right, client.data.X, 2)}


@task("gate.silent")
def silent(client: Any, ask: Any) -> Any:
    return {"rows": len(client.data)}


@task("gate.more", release=[Facts("fact")])
def more(client: Any, ask: Any) -> Any:
    return {"fact": 1, "first": client.data.X[0]}


@task("gate.rows", release=[RowsOut("X")])
def rows(client: Any, ask: Any) -> Any:
    return {"X": client.data.X}


@task("gate.weights", leaves="update")
def weights(client: Any, ask: Any) -> Any:
    return {"rows": so.count_by(None), "model": so.update(np.zeros(ask))}


@task("gate.gram", leaves="gram")
def products(client: Any, ask: Any) -> Any:
    return so.gram(np.tile(client.data.X, ask))


def owner(policy: Any = "training") -> Owner:
    return Owner(table(X, Y, SCHEMA), find_limits(policy))


def test_a_bare_number_is_refused_with_the_line_to_write():
    asked = owner()
    assert asked.ask("gate.silent", None) == REFUSED
    assert "so.count_by(cell)" in asked.why
    assert "'rows'" in asked.why
    assert asked.ask("gate.more", None) == REFUSED
    assert "'first'" in asked.why
    assert owner("trusted").ask("gate.silent", None) == {"rows": 40}


def test_kinds_that_a_policy_does_not_name_are_refused():
    for name, limits in POLICIES.items():
        asked = owner(name)
        refused = isinstance(asked.ask("gate.rows", None), str)
        assert refused == ("rows" not in limits.allows), name
    with pytest.raises(UsageError, match="there is no policy 'traning'"):
        find_limits("traning")


def test_small_cells_are_absent_with_their_sums_and_not_by_subtraction():
    values = np.sort(X[:, 0])
    asked = owner()
    few = asked.ask("gate.above", {"at": float(values[-4])})
    assert few["rows"].tolist() == [0, 0], "37 and 3: the total would give the 3 back"
    assert not few["sums"].any()
    assert asked.absent["rows"].all()
    assert asked.absent["sums"].shape == (2, 2)
    many = asked.ask("gate.above", {"at": float(values[19])})
    assert many["rows"].tolist() == [20, 20]
    assert not asked.absent
    assert np.allclose(many["sums"].sum(axis=0), X.sum(axis=0))


def test_few_rows_say_nothing():
    few = Owner(table(X[:9], Y[:9], SCHEMA), find_limits("statistics"))
    assert few.ask("gate.above", {"at": 0.0}) == REFUSED
    assert "min_rows = 10" in few.why


def test_an_update_has_at_most_so_many_parameters_as_rows_allow():
    assert owner().ask("gate.weights", 13)["model"].tolist() == [0.0] * 13
    large = owner()
    assert large.ask("gate.weights", 14) == REFUSED
    assert "14 parameters need 42 rows" in large.why
    assert owner("statistics").ask("gate.weights", 1) == REFUSED
    assert owner("trusted").ask("gate.weights", 500) != REFUSED


def test_a_gram_matrix_needs_rows_for_its_columns():
    asked = owner()
    assert np.allclose(asked.ask("gate.gram", 6), so.gram(np.tile(X, 6)).numbers(Behind(40)))
    assert not asked.absent
    assert not asked.ask("gate.gram", 7).any(), "14 columns need 42 rows"
    assert asked.absent[""].all()


def test_persons_are_counted_where_the_owner_says_who_they_are():
    """40 rows of 8 persons: a cell of 20 rows of 4 persons is small."""
    data = table(X, Y, SCHEMA)
    order = data.segments(np.array([0]), "train")[0].X[:, 0].argsort().argsort()
    data.units = lambda client, part: order // 5  # type: ignore[attr-defined]
    limits = replace(find_limits("statistics"), unit="patient_id", min_rows=5)
    asked = Owner(data, limits)
    values = np.sort(X[:, 0])
    assert not asked.ask("gate.above", {"at": float(values[19])})["rows"].any()
    assert Owner(data, replace(limits, min_count=4)).ask("gate.above", {"at": float(values[19])})[
        "rows"
    ].tolist() == [20, 20]
    without = Owner(table(X, Y, SCHEMA), limits)
    assert without.ask("gate.above", {"at": 0.0}) == REFUSED
    assert "whose rows these are" in without.why


def test_a_simulation_passes_the_gate_when_asked_and_shows_refusals():
    fed = so.simulate(X, Y, clients=2, policy="training", schema=SCHEMA)
    assert fed.ask("gate.above", {"at": 0.0}).fold(so.aggregations.Sum())["rows"].sum() > 0
    with pytest.raises(NotEnoughReplies, match="nothing says which rows"):
        fed.ask("gate.silent").collect()
    open_ = so.simulate(X, Y, clients=2, schema=SCHEMA)
    assert len(open_.ask("gate.silent").collect()) == 2


def test_a_gated_simulation_gives_the_same_on_both_engines():
    def answers(engine: str) -> Any:
        with so.simulate(X, Y, clients=4, policy="training", engine=engine, seed=2) as fed:
            asked = [fed.ask("gate.above", {"at": at}).collect() for at in (0.0, 0.05, 0.4)]
            return [[r.payload["sums"].tobytes() for r in replies] for replies in asked]

    assert answers("local") == answers("processes")


# --- what comes in ---


class Everything(TypedDict):
    coef: Annotated[FloatArray, Shape("columns", "outputs", most=10)]
    centres: Annotated[FloatArray, Shape("k", "columns", longest=50)]
    weights: Annotated[FloatArray, Shape("k")]
    classes: Annotated[Any, Classes()]
    epochs: Count | None
    parts: list[Cut]


SOUND = {
    "coef": np.zeros((2, 2)),
    "centres": np.zeros((3, 2)),
    "weights": np.zeros(3),
    "classes": np.array([0, 1]),
    "epochs": 2,
    "parts": [{"at": 0.5}],
}


@task("gate.everything", ask=Everything, release=[Facts("nothing")])
def everything(client: Any, ask: Any) -> Any:
    return {"nothing": 0}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"coef": np.zeros((2, 40))}, "coef has 40 where the outputs are 2"),
        ({"coef": np.zeros((40, 2))}, "coef has 40 where the columns are 2"),
        ({"coef": np.zeros(2)}, "coef has 1 axes, 2 are declared"),
        ({"coef": np.full((2, 2), np.nan)}, "coef holds numbers that are not finite"),
        ({"coef": np.full((2, 2), 1e300)}, "coef holds numbers outside -inf to 10"),
        ({"coef": [[0, 0], [0, 0]]}, "coef is no array"),
        ({"coef": np.array([["a", "b"], ["c", "d"]])}, "coef holds <U1"),
        ({"weights": np.zeros(4)}, "weights has 4 where the k are 3"),
        ({"centres": np.zeros((51, 2)), "weights": np.zeros(51)}, "centres has 51 k, at most 50"),
        ({"epochs": 0}, "epochs"),
        ({"epochs": float("nan")}, "epochs"),
        ({"parts": [{"at": float("inf")}]}, r"parts\[0\]: at is not finite"),
        ({"parts": [{"at": 1.0, "of": 2}]}, r"parts\[0\]: 'of' is not declared"),
        ({"parts": {"at": 1.0}}, "parts is no list"),
        ({"classes": np.array([0, 0])}, "classes holds a class twice"),
        ({"more": 1}, "'more' is not declared"),
        ({"epochs": None}, None),
    ],
)
def test_payloads_are_bound_to_the_clients_schema(change, why):
    payload = {**SOUND, **change}
    if why is None:
        check_payload(everything, payload, SCHEMA)
        return
    with pytest.raises(Refusal, match=why):
        check_payload(everything, payload, SCHEMA)


def test_an_entry_that_is_missing_is_named():
    with pytest.raises(Refusal, match="'coef' is missing"):
        check_payload(everything, {k: v for k, v in SOUND.items() if k != "coef"}, SCHEMA)
    with pytest.raises(Refusal, match="is no table"):
        check_payload(everything, 3, SCHEMA)


def test_a_scaler_with_a_line_per_row_is_refused():
    scaler = so.FedScaler()
    scaler.schema_ = SCHEMA
    scaler.mean_, scaler.scale_ = np.zeros(2), np.ones(2)
    check_state(scaler, SCHEMA)
    scaler.scale_ = np.ones((40, 2))
    with pytest.raises(Refusal, match="FedScaler: scale_ has 2 axes, 1 are declared"):
        check_state(scaler, SCHEMA)
    scaler.scale_ = np.ones(2)
    scaler.other_ = np.ones(40)
    with pytest.raises(Refusal, match="FedScaler does not declare its other_"):
        check_state(scaler, SCHEMA)
    hostile = so.FedScaler()
    hostile.schema_, hostile.mean_, hostile.scale_ = SCHEMA, np.zeros(2), np.full(2, np.nan)
    assert owner().ask("gate.above", {"at": 0.0}, [hostile]) == REFUSED


def test_a_model_from_the_wire_is_checked_as_a_whole():
    model = so.FedLinear(rounds=1, lr=0.1).fit(so.simulate(X, Y, clients=2))
    rule = Fitted(Learner)
    assert rule.objection(describe_fitted(model), SCHEMA) is None
    model.intercept_ = np.zeros((40, 2))
    assert "intercept_ has 2 axes" in rule.objection(describe_fitted(model), SCHEMA)
    assert "is no fitted component" in rule.objection({"made": 1}, SCHEMA)

"""The rules of the gate, each with a task made for it: what leaves, what does not, and why."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, TypedDict

import numpy as np
import pytest
from tests.gate.measure import REFUSED, Hostile, Owner, table

import solera as so
from solera.core.clients import FloatArray
from solera.core.component import describe_fitted
from solera.core.constraints import Count
from solera.trust.declared import Classes, Fitted, Shape, check_payload, check_state
from solera.core.disclosure.evidence import Persons, Sums, cells, everyone
from solera.core.disclosure.memory import Memory
from solera.core.errors import NotEnoughReplies, Refusal, UsageError
from solera.trust.gate import POLICIES, find_limits
from solera.core.release import Cells, Facts, RowsOut
from solera.core.schema import Feature, Schema
from solera.core.task import task
from solera.learn.base import Learner

SCHEMA = Schema((Feature("a"), Feature("b")), "classes", np.array([0, 1]), 2)
RNG = np.random.default_rng(5)
X = RNG.normal(size=(40, 2))
Y = (X[:, 0] > 0).astype(np.int64)


class Cut(TypedDict):
    at: float


@task(
    "gate.above",
    ask=Cut,
    release=[
        Cells(
            "rows",
            "sums",
            behind=lambda client, ask, reply: {
                "rows": cells((client.data.X[:, 0] > ask["at"]).astype(int), 2),
                "sums": cells((client.data.X[:, 0] > ask["at"]).astype(int), 2, client.data.X),
            },
        )
    ],
)
def above(client: Any, ask: Any) -> Any:
    """Rows and column sums on either side of a cut."""
    right = (client.data.X[:, 0] > ask["at"]).astype(int)
    sums = np.stack([client.data.X[right == side].sum(axis=0) for side in (0, 1)])
    return {"rows": np.bincount(right, minlength=2), "sums": sums}


def _below(client: Any, ask: Any) -> Any:
    return (client.data.X[:, [1]] < ask["at"]).astype(float)


@task(
    "gate.below",
    ask=Cut,
    release=[
        Cells("sums", behind=lambda c, ask, reply: {"sums": Sums(_below(c, ask), c.data.X)}),
    ],
)
def below(client: Any, ask: Any) -> Any:
    """Sums of the columns over rows below a cut."""
    return {"sums": _below(client, ask).T @ client.data.X}


@task("gate.silent")
def silent(client: Any, ask: Any) -> Any:
    return {"rows": len(client.data)}


@task("gate.more", ask=None, release=[Facts("fact")])
def more(client: Any, ask: Any) -> Any:
    return {"fact": 1, "first": client.data.X[0]}


@task("gate.rows", ask=None, release=[RowsOut("X")])
def rows(client: Any, ask: Any) -> Any:
    return {"X": client.data.X}


def owner(policy: Any = "training") -> Owner:
    return Owner(table(X, Y, SCHEMA), find_limits(policy))


def test_a_task_that_does_not_say_what_leaves_is_refused():
    asked = owner()
    assert asked.ask("gate.silent", None) == REFUSED
    assert "does not declare" in asked.why
    assert asked.ask("gate.more", None) == REFUSED
    assert "'first'" in asked.why


def test_kinds_that_a_policy_does_not_name_are_refused():
    for name, limits in POLICIES.items():
        asked = owner(name)
        refused = isinstance(asked.ask("gate.rows", None), str)
        assert refused == ("rows" not in limits.allows), name
    with pytest.raises(UsageError, match="there is no policy 'traning'"):
        find_limits("traning")


def test_small_cells_are_withheld_with_their_sums_and_not_by_subtraction():
    values = np.sort(X[:, 0])
    few = owner().ask("gate.above", {"at": float(values[-4])})
    assert few["rows"].tolist() == [0, 0], "37 and 3: the total would give the 3 back"
    assert not few["sums"].any()
    many = owner().ask("gate.above", {"at": float(values[19])})
    assert many["rows"].tolist() == [20, 20]
    assert np.allclose(many["sums"].sum(axis=0), X.sum(axis=0))


def test_two_cuts_next_to_each_other_give_the_first_twice():
    values = np.sort(X[:, 0])
    hostile = Hostile(X, Y, "statistics", SCHEMA)
    answers = [hostile.ask("gate.above", {"at": float(values[k])}) for k in (19, 20, 22, 24, 25)]
    assert [int(a["rows"][0]) for a in answers] == [20, 20, 20, 25, 25]
    assert hostile.leak().rows >= 5
    assert np.array_equal(answers[0]["sums"], answers[1]["sums"])


def test_without_the_memory_two_cuts_give_a_row(monkeypatch):
    monkeypatch.setattr("solera.core.disclosure.memory.Memory.keep", lambda self, sums, leaves: 0)
    values = np.sort(X[:, 0])
    hostile = Hostile(X, Y, "statistics", SCHEMA)
    for k in (19, 20):
        hostile.ask("gate.above", {"at": float(values[k])})
    assert hostile.leak().rows < 1.5


def test_numbers_are_counted_and_limited():
    limits = replace(find_limits("statistics"), numbers=6 / 80)
    asked = owner(limits)
    assert asked.ask("gate.above", {"at": 0.0}) != REFUSED
    assert asked.gate.memory.numbers == 6
    assert asked.ask("gate.above", {"at": 0.0}) != REFUSED, "the same again is nothing new"
    assert asked.ask("gate.above", {"at": 0.7}) == REFUSED
    assert "6 numbers have left" in asked.why


def test_few_rows_say_nothing_and_few_new_rows_say_nothing_new():
    few = Owner(table(X[:9], Y[:9], SCHEMA), find_limits("statistics"))
    assert few.ask("gate.above", {"at": 0.0}) == REFUSED
    assert "min_rows = 10" in few.why
    asked = Owner(table(X[:30], Y[:30], SCHEMA), find_limits("statistics"))
    assert asked.ask("gate.above", {"at": 0.0}) != REFUSED
    asked.data = table(X[:33], Y[:33], SCHEMA)
    assert asked.ask("gate.above", {"at": 0.0}) == REFUSED
    assert "fewer than 5 rows have changed" in asked.why
    asked.data = table(X[:35], Y[:35], SCHEMA)
    assert asked.ask("gate.above", {"at": 0.0}) != REFUSED


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
    with pytest.raises(NotEnoughReplies, match="does not declare"):
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
    with pytest.raises(Refusal, match="is not empty"):
        check_payload(more, {"a": 1}, SCHEMA)


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


def test_evidence_that_does_not_match_the_reply_is_an_error():
    @task(
        "gate.short",
        ask=None,
        release=[Cells("rows", behind=lambda client, ask, reply: {"rows": everyone(40)})],
    )
    def short(client: Any, ask: Any) -> Any:
        return {"rows": np.arange(3)}

    asked = owner()
    assert asked.ask("gate.short", None) == REFUSED
    assert "3 numbers" in asked.why


def test_one_row_that_outweighs_the_others_is_withheld():
    @task(
        "gate.heavy",
        ask=None,
        release=[
            Cells(
                "total",
                behind=lambda client, ask, reply: {"total": Sums(client.data.X[:, :1] ** 40)},
            )
        ],
    )
    def heavy(client: Any, ask: Any) -> Any:
        return {"total": float((client.data.X[:, 0] ** 40).sum())}

    hostile = Hostile(X, Y, "statistics", SCHEMA)
    assert hostile.ask("gate.heavy", None)["total"] == 0.0
    ungated = replace(find_limits("statistics"), min_count=1)
    told = Hostile(X, Y, ungated, SCHEMA)
    assert told.ask("gate.heavy", None)["total"] > 0
    assert told.leak().rows < 2


def test_a_withheld_number_is_no_earlier_one():
    """Row 0 outweighs the others of its column: its sum is withheld, the one without it leaves."""
    values = np.ones((20, 2))
    values[0, 0] = 1e6
    with_it = np.arange(20)[:, None] < 12
    without = with_it & (np.arange(20)[:, None] > 0)
    memory = Memory()
    memory.keep(Sums(with_it, values), np.array([[np.nan, 12.0]]))
    conflict, instead = memory.earlier(Sums(without, values), Persons(), 5)
    assert conflict.tolist() == [[False, True]]
    assert instead[0, 1] == 12.0
    one = Owner(
        table(np.c_[values[:, 0], np.arange(20.0)], np.arange(20) % 2), find_limits("training")
    )
    sums = [one.ask("gate.below", {"at": at})["sums"][0] for at in (11.5, 11.5)]
    assert sums[0].tolist() == sums[1].tolist() == [0.0, sum(range(12))]

"""Asking: replies, failures, quorum, payloads of one's own, bytes."""

from __future__ import annotations

import gc
import warnings

import numpy as np
import pytest

import solera as so
from solera.core.errors import (
    NotEnoughReplies,
    PayloadTooLarge,
    Refusal,
    TaskError,
    TaskVersionMismatch,
    UnknownTask,
    UsageError,
)
from solera.core.federation import UnsentAsk
from solera.core.payload import encoded_size
from solera.core.task import find_task

X = np.arange(60.0).reshape(30, 2)
Y = np.arange(30) % 3


@so.task("test.sum")
def total(client, ask):
    return {"sum": client.data.X.sum(axis=0), "rows": len(client.data)}


@so.task("test.moody")
def moody(client, ask):
    if client.id == ask["refuses"]:
        raise Refusal("not today")
    if client.id == ask["fails"]:
        raise ZeroDivisionError("oops")
    if client.id == ask["unsendable"]:
        return {"what": object()}
    return {"value": float("nan") if client.id == ask["nan"] else 1.0}


def _broken_many(group, ask):
    raise RuntimeError("always")


@so.task("test.broken-many", many=_broken_many)
def fine_alone(client, ask):
    return {"rows": len(client.data)}


@so.task("test.mutates")
def mutates(client, ask):
    ask["weights"][0] += 1
    return {"x": 1}


@pytest.fixture(params=["local", "processes"])
def fed(request):
    options = {"workers": 2} if request.param == "processes" else {}
    with so.simulate(X, Y, clients=10, seed=1, engine=request.param, **options) as federation:
        yield federation


def test_fold_collect_and_iterate_agree(fed):
    folded = fed.ask("test.sum").fold(so.aggregations.Sum())
    collected = fed.ask("test.sum").collect()
    iterated = list(fed.ask("test.sum"))
    assert (folded["sum"] == X.sum(axis=0)).all()
    assert folded["rows"] == 30
    assert [r.client for r in collected] == list(range(10)) == [r.client for r in iterated]
    assert sum(r["rows"] for r in collected) == 30


def test_partial_is_merged_later(fed):
    first = fed.ask("test.sum", to=[0, 1, 2]).partial(so.aggregations.Sum())
    rest = fed.ask("test.sum", to=range(3, 10)).partial(so.aggregations.Sum())
    assert (so.aggregations.Sum().merge(rest, first)["sum"] == X.sum(axis=0)).all()


def test_one_failing_client_loses_nobody(fed):
    ask = {"refuses": 2, "fails": 4, "unsendable": 6, "nan": 8}
    replies = fed.ask("test.moody", ask)
    assert [r.client for r in replies] == [0, 1, 3, 5, 7, 9]
    assert [(f.client, f.kind) for f in replies.failures] == [
        (2, "refused"),
        (4, "failed"),
        (6, "failed"),
        (8, "invalid"),
    ]
    reasons = {f.client: f.reason for f in replies.failures}
    assert "not today" in reasons[2]
    assert "ZeroDivisionError: oops" in reasons[4]
    assert "object" in reasons[6]
    assert "NaN" in reasons[8]
    replies = fed.ask("test.moody", ask)
    assert replies.fold(so.aggregations.Sum()) == {"value": 6.0}
    assert len(replies.failures) == 4


def test_quorum(fed):
    ask = {"refuses": 0, "fails": 1, "unsendable": 2, "nan": 3}
    assert fed.ask("test.moody", ask, quorum=0.6).fold(so.aggregations.Sum()) == {"value": 6.0}
    with pytest.raises(
        NotEnoughReplies, match=r"6 of 10 .* 7 are needed: client 0 refused"
    ) as info:
        fed.ask("test.moody", ask, quorum=7).fold(so.aggregations.Sum())
    assert len(info.value.failures) == 4
    only_bad = fed.ask("test.moody", ask, to=[0, 1], quorum=0)
    assert only_bad.collect() == []
    assert len(only_bad.failures) == 2
    with pytest.raises(NotEnoughReplies):
        fed.ask("test.moody", ask, to=[0, 1]).collect()
    for bad in (-1, 11, 1.5):
        with pytest.raises(UsageError, match="quorum"):
            fed.ask("test.sum", quorum=bad)


def test_the_cause_of_a_failure_is_kept_in_this_process():
    fed = so.simulate(X, Y, clients=3)
    with pytest.raises(NotEnoughReplies) as info:
        fed.ask("test.moody", {"fails": 1, "refuses": -1, "unsendable": -1, "nan": -1},
                to=[1]).collect()  # fmt: skip
    assert isinstance(info.value.__cause__, ZeroDivisionError)


def test_a_payload_for_each(fed):
    @so.task("test.echo")
    def echo(client, ask):
        return {"got": ask["n"], "id": client.id}

    replies = fed.ask(
        "test.echo", so.messages.PerClient({i: {"n": i * i} for i in range(10)}), to=[3, 5]
    )
    assert [r["got"] for r in replies] == [9, 25]
    with pytest.raises(UsageError, match="client 5"):
        fed.ask("test.echo", so.messages.PerClient({3: {"n": 0}}), to=[3, 5])


def test_meter_counts_exact_bytes(fed):
    ask = {"note": "x" * 100}
    replies = fed.ask("test.sum", ask).collect()
    record = fed.meter.records[-1]
    assert (record.down == encoded_size(ask)).all()
    assert record.up.tolist() == [encoded_size(r.payload) for r in replies]
    assert fed.meter.total().up == record.up.sum()
    down, up = fed.meter.per_client(10)
    assert down.sum() == 10 * encoded_size(ask)
    assert up.tolist() == record.up.tolist()
    assert record.wall > 0


def test_wrong_asks(fed):
    with pytest.raises(UnknownTask, match=r"test\.sum"):
        fed.ask("test.sun")
    with pytest.raises(UsageError, match="no client 10"):
        fed.ask("test.sum", to=[10])
    with pytest.raises(UsageError, match="no client -1"):
        fed.ask("test.sum", to=[-1])
    with pytest.raises(UsageError, match="whole numbers"):
        fed.ask("test.sum", to=[0.5])
    with pytest.raises(UsageError, match="no client to ask"):
        fed.ask("test.sum", to=[])
    with pytest.raises(UsageError, match="deadline"):
        fed.ask("test.sum", deadline=0)
    with pytest.raises(UsageError, match="aggregation"):
        fed.ask("test.sum").fold(sum)


def test_a_payload_that_is_too_large():
    fed = so.simulate(X, Y, clients=3, limits=so.messages.Limits(size=1000))
    with pytest.raises(PayloadTooLarge, match=r"limit of 1,000 .*Limits"):
        fed.ask("test.sum", np.zeros(1000))


def test_replies_are_read_once_and_not_forgotten(fed):
    replies = fed.ask("test.sum")
    replies.collect()
    with pytest.raises(UsageError, match="already"):
        replies.fold(so.aggregations.Sum())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fed.ask("test.sum")
        gc.collect()
    assert any(w.category is UnsentAsk for w in caught)


def test_leaving_an_iteration_early_does_no_harm(fed):
    for _ in fed.ask("test.sum"):
        break
    assert fed.ask("test.sum").fold(so.aggregations.Sum())["rows"] == 30


def test_clients_cannot_change_what_was_asked(fed):
    weights = np.zeros(3)
    replies = fed.ask("test.mutates", {"weights": weights}, quorum=0)
    assert replies.collect() == []
    assert "read-only" in replies.failures[0].reason
    assert (weights == 0).all()


def test_a_many_that_fails_alone_is_a_bug_and_says_so(fed):
    with pytest.raises(TaskError, match="one by one succeeded"):
        fed.ask("test.broken-many").collect()


def test_tasks_have_versions_and_one_owner():
    with pytest.raises(TaskVersionMismatch, match="version 9 asked for, version 1 installed"):
        find_task("test.sum", 9)
    with pytest.raises(TaskError, match="already installed"):
        so.task("data.describe")(lambda client, ask: None)


def test_hierarchy_folds_at_the_aggregators(fed):
    fed = so.Federation(fed.engine, topology=so.simulation.Hierarchy(3))
    assert (fed.ask("test.sum").fold(so.aggregations.Sum())["sum"] == X.sum(axis=0)).all()
    assert fed.meter.relayed > 0
    assert len(fed.meter.records) == 1
    assert fed.meter.total().up == fed.meter.records[0].up.sum() > 0


def test_replies_and_states_that_cannot_travel_fail_alone(fed):
    @so.task("test.awkward")
    def awkward(client, ask):
        if client.id == 1:
            return {"n": 2**70}
        if client.id == 2:
            return {"n": "\ud800"}
        if client.id == 3:
            client.state["x"] = object()
        return {"n": 1}

    replies = fed.ask("test.awkward")
    assert replies.fold(so.aggregations.Sum()) == {"n": 7}
    assert [f.client for f in replies.failures] == [1, 2, 3]


def test_unlike_replies_are_turned_away(fed):
    @so.task("test.odd", like=lambda ask: {"x": np.zeros(ask["n"])})
    def odd(client, ask):
        if client.id == 4:
            return {"y": np.zeros(2)}
        return {"x": np.ones(3 if client.id == 5 else 2)}

    replies = fed.ask("test.odd", {"n": 2})
    assert replies.fold(so.aggregations.Sum())["x"].tolist() == [8, 8]
    assert [(f.client, f.kind) for f in replies.failures] == [(4, "invalid"), (5, "invalid")]
    each = fed.ask("test.odd", so.messages.PerClient({k: {"n": 3} for k in range(10)}))
    assert [r.client for r in each] == [5]


def test_custom_aggregations_with_code_work_everywhere(fed):
    class Longest(so.aggregations.Aggregation):
        def __init__(self, key):
            self.key = key

        def lift(self, reply):
            return reply.payload

        def combine(self, a, b):
            return max(a, b, key=self.key)

    best = fed.ask("test.sum").fold(Longest(lambda p: p["sum"][0]))
    rows = [client.sum(axis=0)[0] for client in np.split(fed.data.X, fed.data.offsets[1:-1])]
    assert best["sum"][0] == max(rows)

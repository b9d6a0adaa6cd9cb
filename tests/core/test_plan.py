"""Plans: ranges that payloads span, what departs from a plan, plans put together."""

from __future__ import annotations

import numpy as np
import pytest

from solera.core.errors import PayloadError
from solera.core.payload import decode, encode
from solera.core.plan import (
    PlannedTask,
    in_turn,
    objection,
    one_of,
    plan_from_payload,
    plan_to_payload,
)
from solera.core.ranges import OPEN, Range, range_objection, ranges_of

FIRST = {
    "lr": 0.1,
    "epochs": 2,
    "batch_size": None,
    "loss": "softmax",
    "weights": np.zeros(3),
    "fast": True,
    "training": {"mu": 0.5, "names": ["a", "b"]},
    "steps": [{"kind": "clip"}],
}
LATER = {**FIRST, "lr": 0.3, "batch_size": 8, "training": {"mu": 0.5, "names": []}}


def test_ranges_span_what_payloads_hold() -> None:
    ranges = ranges_of(FIRST, LATER)
    assert ranges == {
        "lr": Range(0.1, 0.3),
        "epochs": Range(2, 2),
        "batch_size": Range(8, 8, optional=True),
        "loss": Range(among=("softmax",)),
        "fast": Range(among=(True,)),
        "training.mu": Range(0.5, 0.5),
        "training.names": Range(among=("a", "b"), max_length=2),
        "weights": OPEN,
        "steps": Range(max_length=1),
        "steps.0.kind": Range(among=("clip",)),
    }
    assert all(ranges[n].allows(p[n]) for n in ("lr", "loss", "fast") for p in (FIRST, LATER))
    assert not ranges["lr"].allows(0.31)
    assert not ranges["fast"].allows(1)
    assert not ranges["training.names"].allows(["a", "b", "a"])
    assert range_objection(ranges, FIRST) is None
    for steps in ([{"kind": "noise"}], [{"kind": "clip"}, {"kind": "clip"}], [], None):
        assert "steps" in str(range_objection(ranges, {**FIRST, "steps": steps}))
    assert ranges_of(None) == ranges_of(np.eye(2)) == {}


def test_a_parameter_that_is_none_must_stay_so_and_a_table_is_ranged_by_its_parts() -> None:
    absent = ranges_of({"encrypt": None})["encrypt"]
    assert absent.allows(None)
    assert not absent.allows({"key": "k"})
    assert str(absent) == "absent"
    some = ranges_of({"hidden": None}, {"hidden": {"width": 7}})
    assert some == {"hidden.width": Range(7, 7, optional=True)}
    assert ranges_of({"patches": None}, {"patches": np.eye(2)}) == {"patches": OPEN}
    assert ranges_of({"k": 1}, {"k": "a"}) == {"k": OPEN}


PLAN = (
    PlannedTask("linear.train", 2, 3, ranges_of(FIRST, LATER)),
    PlannedTask("prepare.FedBins", 1, 3, {"bins": Range(3, 3)}),
    PlannedTask("data.describe", 1, 3),
    PlannedTask(
        "select.value", 1, 3, {"model.made.$component": Range(among=("A",)), "model": OPEN}
    ),
)


@pytest.mark.parametrize(
    ("asked", "task", "version", "payload", "why"),
    [
        (0, "linear.train", 2, FIRST, None),
        (2, "linear.train", 2, LATER, None),
        (3, "linear.train", 2, FIRST, "4 asks, not at most 3"),
        (0, "linear.train", 1, FIRST, "version 1, not version 2"),
        (0, "linear.train", 2, {**FIRST, "epochs": 3}, "epochs = 3, which must be 2"),
        (0, "linear.train", 2, {**FIRST, "lr": float("nan")}, "lr = nan"),
        (0, "linear.train", 2, {}, "lr = nothing"),
        (0, "linear.train", 2, {**FIRST, "mu": 1}, "mu = 1, which is not planned"),
        (0, "linear.train", 2, {**FIRST, "mask": np.eye(2), "mu": None}, None),
        (0, "linear.train", 2, {**FIRST, "a": {"b": [{"c": "d"}]}}, "a.b.0.c = 'd'"),
        (0, "data.describe", 1, None, None),
        (0, "data.describe", 1, "all", "the payload 'all'"),
        (0, "data.describe", 1, {"part": "test"}, "part = 'test'"),
        (0, "select.value", 1, {"model": {"made": {"$component": "A", "k": 1}}}, None),
        (0, "select.value", 1, {"model": {"made": {"$component": "B"}}}, "model.made.$component"),
        (0, "linear.train", 2, None, "lr = nothing"),
        (0, "linear.trains", 2, FIRST, "'linear.trains' is not planned"),
        (0, "prepare.FedBins", 1, {"bins": 3}, None),
        (0, "prepare.FedBins", 1, {"bins": 400}, "bins = 400"),
        (0, "prepare.FedScaler", 1, {}, "is not planned"),
    ],
)
def test_objection_names_what_departs(asked, task, version, payload, why) -> None:  # type: ignore[no-untyped-def]
    said = objection(PLAN, {task: asked}, task, version, payload)
    assert said is None if why is None else why in str(said)


def test_plans_in_turn_add_up_and_either_takes_the_larger() -> None:
    a = (PlannedTask("t", 1, 2, {"k": Range(1, 1), "x": Range(2, 2)}), PlannedTask("u", 1, 1))
    b = (PlannedTask("t", 1, 3, {"k": Range(4, 4)}, optional=True),)
    x = {"x": Range(2, 2, optional=True)}
    both = (PlannedTask("t", 1, 5, {"k": Range(1, 4), **x}), PlannedTask("u", 1, 1))
    assert in_turn(a, b) == both
    assert one_of(a, b) == (  # k depends on which of the two it is
        PlannedTask("t", 1, 3, {"k": OPEN, **x}, optional=True),
        PlannedTask("u", 1, 1, optional=True),
    )
    texts = [(PlannedTask("t", 1, 1, {"k": Range(among=(k,))}),) for k in "ab"]
    assert one_of(*texts) == (PlannedTask("t", 1, 1, {"k": Range(among=("a", "b"))}),)
    assert one_of(a, a) == a
    text_or_number = in_turn(
        (PlannedTask("t", 1, 1, {"k": Range(1, 1)}),),
        (PlannedTask("t", 1, 1, {"k": Range(among=("a",))}),),
    )
    assert text_or_number == (PlannedTask("t", 1, 2, {"k": OPEN}),)


def test_a_plan_travels_and_what_is_none_is_refused() -> None:
    assert plan_from_payload(decode(encode(plan_to_payload(PLAN)))) == PLAN
    for wrong in (
        None,
        [1],
        [{}],
        [{**plan_to_payload(PLAN)[0], "most": None}],
        [{**plan_to_payload(PLAN)[0], "most": -1}],
        [{**plan_to_payload(PLAN)[0], "where": {"lr": {"min": "a"}}}],
        [{**plan_to_payload(PLAN)[0], "where": {"lr": {"least": 1}}}],
        [{**plan_to_payload(PLAN)[0], "more": 1}],
    ):
        with pytest.raises(PayloadError, match="not a plan"):
            plan_from_payload(wrong)

"""The text of a job: one way to write it, plain parameters, and who is whom."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from board_owners import EPOCH

import solera as so
from solera.core.errors import PayloadError, UsageError
from solera.trust.board.text import JobText, canonical, jid, parse, seed_of

KEY = bytes(range(32))


def text(learner: Any = None, **more: Any) -> JobText:
    more = {"researcher": "R", "researcher_key": KEY, **more}
    learner = so.FedLinear() if learner is None else learner
    return JobText(more.pop("kind", "training"), learner, **more)


def test_a_text_is_read_as_it_was_written() -> None:
    early = so.callbacks.EarlyStopping("loss", patience=3)
    pipeline = so.Pipeline(so.FedScaler(), so.FedAvg(so.nn.mlp(6, 8, 2), lr=0.05))
    written = text(
        pipeline,
        columns=("age", "größe"),
        target="died",
        training=(0, 1, 2),
        test=(8, 9),
        callbacks=(early,),
        model="ab" * 32,
        repeat=3,
    )
    content = canonical(written)
    assert parse(content) == written
    assert canonical(parse(content)) == content
    from solera.core.component import build

    assert build(parse(content).learner) == pipeline
    assert build(parse(content).callbacks[0]) == early


@pytest.mark.parametrize("bad", [b"", b"{}", b"[]", b"null", b"\xff", b'{"kind":"training"}'])
def test_what_is_no_text_is_refused(bad: bytes) -> None:
    with pytest.raises(PayloadError):
        parse(bad)


def test_another_way_to_write_it_is_refused() -> None:
    content = json.loads(canonical(text()))
    for other in (json.dumps(content), json.dumps({**content, "more": 1}, sort_keys=True)):
        with pytest.raises(PayloadError):
            parse(other.encode())
    content["learner"]["params"]["lr"] = 0.1234
    with pytest.raises(PayloadError, match="significant digits"):
        parse(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


@pytest.mark.parametrize("lr", [0.1, 1e-3, 0.125, 123.0, 1e-12, 0.333])
def test_three_digits_are_carried(lr: float) -> None:
    assert parse(canonical(text(so.FedLinear(lr=lr)))).learner["params"]["lr"] == lr


def test_more_digits_are_refused_with_the_rounded_value() -> None:
    with pytest.raises(UsageError, match=r"learner.lr=0.3333.*\(lr=0.333\)"):
        text(so.FedLinear(lr=0.3333))
    with pytest.raises(UsageError, match=r"learner.steps.1.lr=0.1001"):
        text(so.Pipeline(so.FedScaler(), so.FedLinear(lr=0.1001)))


def test_arrays_state_and_code_are_refused() -> None:
    with pytest.raises(UsageError, match=r"learner\.init holds ndarray"):
        text(so.FedKMeans(2, init=np.zeros((2, 3))))
    with pytest.raises(PayloadError, match="Python code"):
        text(so.FedAvg(so.nn.mlp(2, 2), weight=lambda reply: 1.0))
    fitted = so.FedScaler().fit(np.ones((9, 2)), np.ones(9))
    assert b"mean_" not in canonical(text(fitted))


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "vertical"},
        {"repeat": 10},
        {"repeat": -1},
        {"repeat": 1.0},
        {"training": (0, 10)},
        {"training": (0, 1), "test": (1, 2)},
        {"patience": 0},
        {"researcher_key": bytes(32)},
        {"researcher_key": b"short"},
        {"learner": [], "training": (0,), "validation": (1,)},
        {"learner": [so.FedGLM()], "training": (0,), "validation": (1,)},
        {"learner": [so.FedLinear(), so.FedGLM()], "validation": ()},
    ],
)
def test_entries_that_mean_nothing_are_refused(wrong: Any) -> None:
    with pytest.raises(UsageError):
        text(**wrong)


def test_every_entry_is_in_the_jid() -> None:
    texts = [
        text(),
        text(so.FedLinear(rounds=51)),
        text([so.FedLinear(), so.FedGLM()], training=(0,), validation=(1,)),
        text([so.FedGLM(), so.FedLinear()], training=(0,), validation=(1,)),
        text(positive="yes"),
        text(kind="statistics"),
        text(population="elderly"),
        text(columns=("a",)),
        text(target="y"),
        text(training=(0,)),
        text(test=(), validation=(), training=(1,)),
        text(metrics=("loss",)),
        text(model="00"),
        text(repeat=1),
        text(patience=8),
        text(researcher="S"),
        text(researcher_key=KEY[::-1]),
    ]
    ids = {jid(EPOCH, canonical(one)) for one in texts}
    ids |= {jid(b"another", canonical(text()))}
    assert len(ids) == len(texts) + 1


def test_points_of_a_grid_share_their_draws() -> None:
    assert seed_of(EPOCH, "FedLinear", 0) == seed_of(EPOCH, "FedLinear", 0)
    seeds = {seed_of(EPOCH, name, i) for name in ("FedLinear", "FedAvg") for i in range(10)}
    assert len(seeds) == 20

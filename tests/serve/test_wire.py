"""Messages are checked when they are read, on every side, and their errors repeat nothing."""

from __future__ import annotations

import msgspec
import pytest

from solera.core.errors import PayloadError
from solera.serve import wire

DIGEST = "ab" * 32
ASK = {"task": "t", "version": 1, "payload": DIGEST, "round": 0, "clients": [1, 0]}
JOB = {"id": "j", "kind": "driven", "spec": DIGEST, "seed": 7, "owner": "ana"}
REPLY = {"status": "ok", "digest": DIGEST, "size": 3, "signature": "cd" * 64}
WRONG = [
    (wire.NewAsk, ASK, {"task": "t" * 201}),
    (wire.NewAsk, ASK, {"version": -1}),
    (wire.NewAsk, ASK, {"version": 2**31}),
    (wire.NewAsk, ASK, {"payload": "../x"}),
    (wire.NewAsk, ASK, {"payload": DIGEST + "\n"}),
    (wire.NewAsk, ASK, {"payload": {"0": "x"}}),
    (wire.NewAsk, ASK, {"payload": {"zero": DIGEST}}),
    (wire.NewAsk, ASK, {"clients": []}),
    (wire.NewAsk, ASK, {"seconds": 0}),
    (wire.NewJob, JOB, {"id": "a/b"}),
    (wire.NewJob, JOB, {"kind": "odd"}),
    (wire.NewJob, JOB, {"spec": "../x"}),
    (wire.NewJob, JOB, {"seed": 2**63}),
    (wire.NewReply, REPLY, {"status": "late"}),
    (wire.NewReply, REPLY, {"digest": "../x"}),
    (wire.NewReply, REPLY, {"size": 2**50}),
    (wire.NewReply, REPLY, {"signature": ""}),
    (wire.NewReply, REPLY, {"reason": "x" * 2001}),
]


@pytest.mark.parametrize(("kind", "good", "change"), WRONG)
def test_what_is_out_of_bounds_is_no_message(kind, good, change):
    assert isinstance(wire.read(msgspec.json.encode(good), kind), kind)
    with pytest.raises(PayloadError, match=next(iter(change))):
        wire.read(msgspec.json.encode(good | change), kind)
    for name in good:
        rest = {key: value for key, value in good.items() if key != name}
        if name != "digest":
            with pytest.raises(PayloadError, match=name):
                wire.read(msgspec.json.encode(rest), kind)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"state": "\xff"}',
        b'{"state": "\\ud800"}',
        b'{"x":' + b"[" * 10**5,
    ],
    ids=["empty", "torn", "a list", "null", "not UTF-8", "half a character", "deep"],
)
def test_what_is_not_json_is_no_message(content):
    with pytest.raises(PayloadError):
        wire.read(content, wire.NewState)


def test_an_error_does_not_repeat_what_was_sent():
    content = b'{"state": "secret \\" secret"}'
    with pytest.raises(PayloadError) as error:
        wire.read(content, wire.NewState)
    assert "secret" not in str(error.value)


def test_a_field_of_an_ask_is_in_all_its_forms():
    from solera.serve.coordinator.store.tables import AskRow, QuestionRow

    call = set(wire.Call.__struct_fields__)
    for kind in (wire.NewAsk, wire.PendingAsk, AskRow, QuestionRow):
        assert issubclass(kind, wire.Call)
        assert call <= set(kind.__struct_fields__)


def test_a_message_takes_fields_from_its_sources():
    ask = wire.NewAsk(**ASK)
    call = wire.Call.of(ask, version=2)
    assert (call.task, call.version, call.payload) == ("t", 2, DIGEST)

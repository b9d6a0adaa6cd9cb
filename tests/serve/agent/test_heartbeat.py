"""What the coordinator keeps of a client that lives, and of one that leaves, in both databases."""

from __future__ import annotations

import threading
import time

import pytest
from liar import Liar
from store_rows import NOW, add_ask, client, digest, enrol, reply

for library in ("httpx", "sqlalchemy", "alembic", "cryptography"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

from solera.serve import wire  # noqa: E402
from solera.serve.agent import heartbeat  # noqa: E402
from solera.serve.agent.heartbeat import Heartbeat  # noqa: E402
from solera.serve.connection import Connection  # noqa: E402
from solera.serve.coordinator.store.base import NotFound  # noqa: E402

ONE, TWO, OTHER = ("11" * 32, "22" * 32, "ff" * 32)


def test_a_heartbeat_is_kept(store):
    enrol(store, 2)
    store.heartbeat("cardio", 0, NOW, "linear.train", (1, ONE))
    row = client(store, 0)
    assert (row.seen, row.doing, row.head) == (NOW, "linear.train", [1, ONE])
    store.heartbeat("cardio", 0, NOW + 1, "", (2, TWO))
    row = client(store, 0)
    assert (row.seen, row.doing, row.head) == (NOW + 1, "", [2, TWO])
    assert client(store, 1).head is None
    with pytest.raises(NotFound):
        store.heartbeat("cardio", 9, NOW, "", (1, ONE))


def test_a_log_that_goes_back_is_noted_once_and_its_head_stays(store):
    enrol(store, 1)
    store.heartbeat("cardio", 0, NOW, "", (2, TWO))
    for head in ((1, ONE), (1, ONE), (2, OTHER), (0, ONE), (2, TWO), (1, ONE)):
        store.heartbeat("cardio", 0, NOW + 1, "", head)
        assert client(store, 0).head == [2, TWO]
    cuts = store.events(federation="cardio", client=0, event="log cut")
    assert [e.facts["said"] for e in cuts] == [[1, ONE], [2, OTHER], [0, ONE]]
    assert cuts[0].reason == "its audit log ended at line 2, now at line 1"
    store.heartbeat("cardio", 0, NOW + 2, "", (3, OTHER))
    assert client(store, 0).head == [3, OTHER]


def test_the_blobs_of_a_client_are_what_it_sent_and_what_was_meant_for_it(store, job):
    own = {0: digest("for 0"), 1: digest("for 1")}
    add_ask(store, 0, payload=own, clients=[0, 1])
    add_ask(store, 1)
    reply(store, 0)
    reply(store, 0, 1)
    mine = {digest("for 0"), digest((0, 0)), digest((1, 0))}
    assert store.client_digests("cardio", 0) == mine
    assert store.client_digests("cardio", 1) == {digest("for 1")}
    store.fail_open(job, 0, "late", "no reply", NOW + 99)
    assert store.held("cardio", 1)["deliveries"] == 2, "a late ask's payload is held, too"
    store.forget_client("cardio", 1)
    store.forget_client("cardio", 0)
    assert store.client_digests("cardio", 0) == store.client_digests("cardio", 1) == set()
    assert not (mine | {digest("for 1")}) & store.digests()


def line_to(liar):
    return Connection(liar.url, lambda *_: {}, patience=0)


def wait_for_beats(liar, count):
    deadline = time.monotonic() + 600
    while len(liar.beats) < count:
        assert time.monotonic() < deadline, f"{len(liar.beats)} of {count} beats"
        time.sleep(0.01)


def test_what_lasts_is_told_soon_and_silence_is_broken(monkeypatch):
    monkeypatch.setattr(heartbeat, "_LOOK_SECONDS", 0.02)
    now = {"doing": "", "head": [0, ONE]}
    with Liar() as liar:
        with Heartbeat(line_to(liar), lambda: wire.Heartbeat(**now)):
            wait_for_beats(liar, 1)
            time.sleep(0.3)
            assert [beat["doing"] for beat in liar.beats] == [""], "once, at the start"
            now["doing"] = "t"
            wait_for_beats(liar, 2)
            time.sleep(0.1)
            assert [beat["doing"] for beat in liar.beats] == ["", "t"]
            liar.dead, began = True, time.monotonic()
            monkeypatch.setattr(heartbeat, "_SECONDS", 0.2)
            wait_for_beats(liar, 5)  # again and again, though nobody answers
            assert len(liar.beats) <= 3 + (time.monotonic() - began) / 0.2, "but not all the time"
            liar.dead = False
            now["head"] = [5, TWO]
        assert liar.beats[-1] == {"doing": "", "version": "", "policy": "", "head": [5, TWO]}


def test_a_coordinator_that_hangs_does_not_keep_an_agent_from_ending(monkeypatch):
    monkeypatch.setattr(heartbeat, "_LAST_SECONDS", 0.2)
    with Liar() as liar:
        liar.hung = threading.Event()
        began = time.monotonic()
        with Heartbeat(line_to(liar), lambda: wire.Heartbeat(head=(0, ONE))):
            pass
        assert time.monotonic() - began < 50, "it hangs for a minute"
        liar.hung.set()

"""What clients are asked is remembered, and never told once it is no longer so."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from store_rows import NOW, add_ask, add_job, add_reply, answer, checkpoint, digest, enrol, reply

from solera.serve.coordinator.notifier import Notifier
from solera.serve.coordinator.pending import PendingWork
from solera.serve.wire import Call

ME = ("cardio", 1)


@pytest.fixture
def pending(store):
    enrol(store, 3)
    add_job(store)
    store.set_job_state("j", "running", "", NOW)
    return PendingWork(store, lambda digest: "frame")


def seqs(asks):
    return None if asks is None else [ask.sequence for ask in asks]


CHANGES = {
    "asked": lambda store: add_ask(store, 1),
    "answered": lambda store: reply(store, 1),
    "refused": lambda store: reply(store, 1, status="refused", digest=None),
    "late": lambda store: store.fail_open("j", 0, "late", "too late", NOW),
    "cancelled": lambda store: store.set_job_state("j", "cancelled", "", NOW),
    "no longer needed": lambda store: checkpoint(store, 0, 1, "state"),
    "revoked": lambda store: store.revoke("cardio", 1, "gone"),
    "left": lambda store: store.forget_client("cardio", 1),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_has_changed_is_looked_up_again(store, pending, change):
    add_ask(store)
    assert seqs(pending.look(ME)) == seqs(pending.known(ME)) == [0]
    CHANGES[change](store)
    assert pending.known(ME) is None
    assert seqs(pending.look(ME)) == seqs(pending.known(ME)) == ([0, 1] * (change == "asked"))


def test_a_contribution_is_looked_up_again(store, pending):
    add_job(store, "s", kind="standing")
    store.set_job_state("s", "running", "", NOW)
    store.set_question("s", Call(task="t", version=1, payload=digest("q")))
    assert pending.look(ME) == pending.known(ME) == []
    store.ask_newcomers("cardio", NOW)
    assert pending.known(ME) is None
    (asked,) = pending.look(ME)
    add_reply(store, "s", asked.sequence, *ME, answer(status="ok", digest=digest(1)), NOW)
    assert pending.look(ME) == []
    store.contribute("s", 1, NOW)
    assert pending.known(ME) is None
    assert len(pending.look(ME)) == 1


def test_what_others_write_down_costs_no_query(store, pending):
    add_ask(store)
    pending.look(ME)
    store.heartbeat("cardio", 0, NOW, "nothing", (1, "0" * 64))
    store.log("round", NOW, federation="cardio")
    store.add_invite("cardio", "somebody", b"token", NOW)
    store.seen_all({("cardio", 0): NOW})
    store.forget_routine(0, (0, ""))
    store.pending_of = None
    assert seqs(pending.known(ME)) == [0]


def test_what_changes_during_a_query_is_looked_up_again(store, pending):
    look = store.pending_of

    def slowly(*arguments):
        found = look(*arguments)
        add_ask(store)
        return found

    store.pending_of = slowly
    assert pending.look(ME) == []
    assert pending.known(ME) is None


def test_what_is_remembered_is_bounded(store, pending, monkeypatch):
    monkeypatch.setattr("solera.serve.coordinator.pending._REMEMBERED", 2)
    for client in range(3):
        pending.look(("cardio", client))
    assert [pending.known(("cardio", client)) for client in range(3)] == [None, [], []]
    for seq in range(3):
        add_ask(store, seq)
    pending._inline = lambda digest: "x" * 2000
    assert seqs(pending.look(ME)) == [0, 1, 2]
    assert pending.known(ME) is None, "too long to be remembered"


def test_who_waits_with_nothing_known_to_do_is_woken(store, pending):
    """A long poll that began without a query sees the ask that comes a moment later."""
    assert pending.look(ME) == []
    notifier = Notifier()

    def ask():
        while not notifier.waiting:
            time.sleep(0.001)
        add_ask(store)
        notifier.notify(ME)

    asking = threading.Thread(target=ask)
    asking.start()
    waiting = notifier.until(ME, lambda: pending.find(ME), 20, known=lambda: pending.known(ME))
    assert seqs(asyncio.run(waiting)) == [0]
    asking.join()

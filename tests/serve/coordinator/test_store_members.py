"""Who takes part, and what is let go of: invitations, clients, pruning, leaving, events."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from store_rows import NOW, add_ask, checkpoint, client, digest, enrol, reply, waiting

from solera.serve.coordinator.store.base import Conflict, Denied, NotFound
from solera.serve.coordinator.store.blobs import Blobs
from solera.serve.wire import Checkpoint

# --- members -------------------------------------------------------------------------------------


FUTURE = time.time() + 1e6


def join(store, name, token):
    return store.enrol("cardio", name, name.encode(), name.encode(), {}, token_hash=token)


def test_an_invite_works_once(store):
    store.add_invite("cardio", "north", b"t", FUTURE)
    store.add_invite("cardio", "south", b"u", time.time() - 1)
    assert join(store, "north", b"t").name == "north"
    for name, token, why in [
        ("east", b"t", "used"),
        ("south", b"u", "expired"),
        ("w", b"?", "no su"),
    ]:
        with pytest.raises(Denied, match=why):
            join(store, name, token)
    with pytest.raises(Conflict):
        store.add_invite("cardio", "west", b"t", NOW)
    with pytest.raises(NotFound, match="'cardoi'"):
        store.add_invite("cardoi", "west", b"v", NOW)


def test_only_one_of_many_uses_an_invite(store):
    store.add_invite("cardio", "north", b"t", FUTURE)

    def use(number: int) -> bool:
        key = f"key {number}".encode()
        try:
            return bool(store.enrol("cardio", "north", key, key, {}, token_hash=b"t"))
        except (Denied, Conflict):
            return False

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(use, range(16))) == 1


def test_client_numbers_count_up_and_are_never_reused(store):
    with ThreadPoolExecutor(8) as pool:
        keys = [f"key {i}".encode() for i in range(20)]
        made = list(pool.map(lambda k: store.enrol("cardio", k.decode(), k, k, {"t": 1}), keys))
    assert sorted(c.id for c in made) == list(range(20))
    assert store.clients("cardio") == sorted(made, key=lambda c: c.id)
    store.forget_client("cardio", 19)
    assert store.enrol("cardio", "new", b"new", b"new", {}).id == 20
    assert 19 not in {row.id for row in store.clients("cardio")}


def test_enrolling_again_is_harmless_and_stealing_a_name_is_not(store):
    store.add_invite("cardio", "north", b"t", 4e9)
    first = store.enrol("cardio", "north", b"k", b"s", {"t": 1}, token_hash=b"t")
    assert store.enrol("cardio", "north", b"k", b"s", {"t": 1}, token_hash=b"t") == first
    assert store.client_by_key(b"k") == first
    assert store.client_by_key(b"other") is None
    for name, sign, seal in [("north", b"x", b"s"), ("north", b"k", b"x"), ("south", b"k", b"s")]:
        with pytest.raises(Conflict):
            store.enrol("cardio", name, sign, seal, {})
    store.add_invite("cardio", "south", b"u", 4e9)
    with pytest.raises(Denied, match="'south'"):
        store.enrol("cardio", "west", b"w", b"w", {}, token_hash=b"u")
    assert join(store, "south", b"u").id == 1
    store.revoke("cardio", first.id, "lost laptop")
    with pytest.raises(Denied, match="lost laptop"):
        store.enrol("cardio", "north", b"k", b"s", {})
    assert len(store.clients("cardio")) == 2


def test_a_client_is_seen_and_one_that_left_is_no_error(store):
    enrol(store, 1)
    store.seen_all({("cardio", 0): NOW, ("cardio", 1): NOW})
    assert client(store, 0).seen == NOW


def test_revoking_takes_effect_at_once(store, job):
    add_ask(store)
    reply(store, 0)
    assert store.revoke("cardio", 1, "stolen key").revoked
    assert store.pending("cardio", 1, 10) == []
    assert waiting(store) == [2]
    with pytest.raises(Denied, match="stolen key"):
        reply(store, 1)
    add_ask(store, 1)
    assert [(r.client, r.status) for r in store.replies(job, 1)] == [(1, "failed")]


# --- pruning and leaving -------------------------------------------------------------------------


def test_a_checkpoint_lets_go_of_earlier_blobs(store, job, tmp_path):
    blobs = Blobs(tmp_path / "blobs")
    names = ["spec", "model 0", "model 1", (0, 0), (0, 1), (1, 0), "state", "final"]
    for name in names:
        blobs.put(str(name).encode())
    for seq in (0, 1):
        add_ask(store, seq, payload=digest(f"model {seq}"))
        reply(store, 0, seq)
    reply(store, 1)
    assert store.checkpoint(job, 0) == Checkpoint()
    checkpoint(store, 0, 1, "state")
    assert store.checkpoint(job, 0) == Checkpoint(1, digest("state"))
    kept = {digest(name) for name in ("spec", "model 1", (1, 0), "state")}
    assert store.digests() == kept
    assert blobs.collect(store.digests(), grace=-1) == 4
    assert all(name in blobs for name in kept)
    assert [(r.status, r.digest, r.pruned) for r in store.replies(job, 0)] == [
        ("ok", None, True),
        ("ok", None, True),
        ("dropped", None, True),
    ]
    assert reply(store, 1) is False
    assert [a.sequence for a in store.pending("cardio", 2, 9)] == [1]
    with pytest.raises(Conflict, match="later than 0"):
        checkpoint(store, 0, 0, "old")
    with pytest.raises(Conflict, match="running"):
        store.prune(job)
    checkpoint(store, 0, 2, "final")
    store.set_job_state(job, "finished", "", NOW)
    store.prune(job)
    assert store.digests() == {digest("spec"), digest("final")}


def test_leaving_deletes_what_is_listed(store, job):
    store.add_invite("cardio", "site 1", b"t", NOW)
    add_ask(store)
    add_ask(store, 1)
    reply(store, 1)
    reply(store, 0)
    store.log("refused", NOW, federation="cardio", job=job, client=1, reason="policy")
    store.log("refused", NOW, federation="cardio", job=job, client=0, reason="policy")
    held = store.held("cardio", 1)
    assert held == {
        "deliveries": 2, "approvals": 0, "events": 3, "epoch_parts": 0, "invites": 1, "clients": 1
    }  # fmt: skip
    assert store.forget_client("cardio", 1) == held
    assert set(store.held("cardio", 1).values()) == {0}
    assert digest((0, 1)) not in store.digests()
    assert store.replies(job, 0)[1].reason == "left the federation"
    assert add_ask(store).clients == [0, 1, 2]
    add_ask(store, 2)
    assert waiting(store, 2) == [0, 2]
    with pytest.raises(NotFound):
        store.forget_client("cardio", 1)


def test_events_are_kept_in_order_and_filtered(store):
    first = store.log("opened", NOW, federation="cardio")
    second = store.log(
        "refused", NOW + 1, federation="cardio", job="j", client=3, reason="nul \0 in a reason"
    )
    third = store.log("failed", NOW + 2, federation="other", job="j")
    assert [e.id for e in store.events()] == [first, second, third]
    assert [e.id for e in store.events(after=first, limit=1)] == [second]
    assert [e.id for e in store.events(federation="cardio")] == [first, second]
    assert [e.id for e in store.events(job="j")] == [second, third]
    (event,) = store.events(federation="cardio", job="j", client=3)
    assert (event.event, event.reason, event.time) == ("refused", "nul � in a reason", NOW + 1)

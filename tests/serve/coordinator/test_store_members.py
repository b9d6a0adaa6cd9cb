"""Who takes part, and what is let go of: invitations, clients, pruning, leaving, events."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from store_rows import NOW, add_ask, add_job, digest, enrol, reply

from solera.serve.coordinator.store.blobs import Blobs
from solera.serve.coordinator.store.store import Conflict, Denied, NotFound

# --- members -------------------------------------------------------------------------------------


def test_an_invite_works_once(store):
    store.add_invite("cardio", "north", b"t", NOW + 10)
    store.add_invite("cardio", "south", b"u", NOW + 10)
    assert store.use_invite(b"t", NOW).name == "north"
    for token, now, why in [(b"t", NOW, "used"), (b"u", NOW + 10, "expired"), (b"?", NOW, "no su")]:
        with pytest.raises(Denied, match=why):
            store.use_invite(token, now)
    with pytest.raises(Conflict):
        store.add_invite("cardio", "west", b"t", NOW)
    with pytest.raises(NotFound, match="'cardoi'"):
        store.add_invite("cardoi", "west", b"v", NOW)


def test_only_one_of_many_uses_an_invite(store):
    store.add_invite("cardio", "north", b"t", NOW)

    def use(_: int) -> bool:
        try:
            return bool(store.use_invite(b"t", NOW - 1))
        except Denied:
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
    with pytest.raises(NotFound):
        store.client("cardio", 19)


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
    assert store.use_invite(b"u", NOW).used == NOW
    store.revoke("cardio", first.id, "lost laptop")
    with pytest.raises(Denied, match="lost laptop"):
        store.enrol("cardio", "north", b"k", b"s", {})
    assert len(store.clients("cardio")) == 1


def test_a_client_is_seen_with_its_tasks(store):
    enrol(store, 1)
    store.seen("cardio", 0, NOW)
    store.seen("cardio", 0, NOW + 1, {"t": 2})
    assert (store.client("cardio", 0).seen, store.client("cardio", 0).tasks) == (NOW + 1, {"t": 2})
    with pytest.raises(NotFound):
        store.seen("cardio", 1, NOW)


def test_revoking_takes_effect_at_once(store, job):
    add_ask(store)
    reply(store, 0)
    assert store.revoke("cardio", 1, "stolen key").revoked
    assert store.pending("cardio", 1, 10) == []
    assert store.open_deliveries(job, 0) == [2]
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
    assert store.checkpoint(job, 0) is None
    store.save_checkpoint(job, 0, 1, digest("state"), NOW)
    assert store.checkpoint(job, 0) == (1, digest("state"))
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
    assert [a.seq for a in store.pending("cardio", 2, 9)] == [1]
    with pytest.raises(Conflict, match="later than 0"):
        store.save_checkpoint(job, 0, 0, digest("old"), NOW)
    with pytest.raises(Conflict, match="running"):
        store.prune(job)
    store.save_checkpoint(job, 0, 2, digest("final"), NOW)
    store.set_job_state(job, "finished", "", NOW)
    store.prune(job)
    assert store.digests() == {digest("spec"), digest("final")}


def test_leaving_deletes_what_is_listed(store, job):
    store.add_invite("cardio", "site 1", b"t", NOW)
    add_ask(store)
    add_ask(store, 1)
    reply(store, 1)
    reply(store, 0)
    store.approve(job, 1, "dr. b", "h")
    store.log("cardio", job, 1, "refused", "policy", NOW)
    store.log("cardio", job, 0, "refused", "policy", NOW)
    held = store.held("cardio", 1)
    assert held == {"deliveries": 2, "approvals": 1, "events": 3, "invites": 1, "clients": 1}
    assert store.forget_client("cardio", 1) == held
    assert set(store.held("cardio", 1).values()) == {0}
    assert digest((0, 1)) not in store.digests()
    assert store.replies(job, 0)[1].reason == "left the federation"
    assert add_ask(store).clients == [0, 1, 2]
    add_ask(store, 2)
    assert store.open_deliveries(job, 2) == [0, 2]
    with pytest.raises(NotFound):
        store.forget_client("cardio", 1)


def test_a_federation_can_be_forgotten_and_others_stay(store, job):
    store.add_federation("other")
    enrol(store, 2, "other")
    add_job(store, "o", "other")
    store.log("other", "o", None, "started", "", NOW)
    other = store.held("other")
    add_ask(store)
    reply(store, 0)
    store.save_checkpoint(job, 0, 0, digest("state"), NOW)
    store.log("cardio", job, 0, "refused", "policy", NOW)
    held = store.held("cardio")
    assert held == {
        "deliveries": 3, "asks": 1, "approvals": 0, "checkpoints": 1, "events": 8, "jobs": 1,
        "invites": 0, "clients": 4, "federations": 1, "questions": 0, "models": 0,
    }  # fmt: skip
    assert store.forget_federation("cardio") == held
    assert set(store.held("cardio").values()) == {0}
    assert store.held("other") == other
    assert [f.name for f in store.federations()] == ["other"]
    with pytest.raises(NotFound):
        store.forget_federation("cardio")


def test_events_are_kept_in_order_and_filtered(store):
    first = store.log("cardio", None, None, "opened", "", NOW)
    second = store.log("cardio", "j", 3, "refused", "nul \0 in a reason", NOW + 1)
    third = store.log("other", "j", None, "failed", "", NOW + 2)
    assert [e.id for e in store.events()] == [first, second, third]
    assert [e.id for e in store.events(after=first, limit=1)] == [second]
    assert [e.id for e in store.events("cardio")] == [first, second]
    assert [e.id for e in store.events(job="j")] == [second, third]
    (event,) = store.events("cardio", "j", 3)
    assert (event.event, event.reason, event.time) == ("refused", "nul � in a reason", NOW + 1)

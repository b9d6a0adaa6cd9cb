"""Closed jobs at the coordinator: texts, verdicts, posts, results; SQLite and PostgreSQL."""

from __future__ import annotations

import pytest
from store_rows import NOW, client, digest, enrol

for library in ("fastapi", "httpx", "sqlalchemy"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

from solera.serve.closed import Ending, NewVerdict  # noqa: E402
from solera.serve.coordinator.store.base import Conflict, NotFound  # noqa: E402
from solera.serve.coordinator.store.closed import KEEP_SECONDS  # noqa: E402
from solera.serve.coordinator.store.closed_tables import PostRow, TextRow  # noqa: E402

JID = digest("a text")
YES = NewVerdict("approved", person="ana")


@pytest.fixture
def text(store):
    """A text of three of four clients."""
    enrol(store, 4)
    owners = [client(store, i).sign_key.hex() for i in (2, 0, 1)]
    return store.add_text(
        TextRow(JID, "cardio", digest("epoch"), b"{}", owners, "waiting", "", NOW, NOW)
    )


@pytest.fixture
def running(store, text):
    for i in (0, 1, 2):
        store.decide(JID, client(store, i), YES, NOW)
    return store.text(JID)


def post(store, owner, step="start", content="x", now=NOW):
    row = PostRow(JID, step, owner, digest((owner, step, content)), 99, b"s" * 64, now)
    (stored,) = store.add_posts([row])
    if isinstance(stored, Exception):
        raise stored
    return stored


def test_a_text_runs_once_all_have_approved(store, text):
    assert store.decide(JID, client(store, 0), YES, NOW).state == "waiting"
    assert store.decide(JID, client(store, 0), YES, NOW).state == "waiting"
    assert [o.name for o in store.closed_job(JID).awaited] == ["site 2", "site 1"]
    store.decide(JID, client(store, 1), YES, NOW)
    assert store.decide(JID, client(store, 2), YES, NOW).state == "running"


def test_one_refusal_ends_it(store, text):
    store.decide(JID, client(store, 0), YES, NOW)
    refused = store.decide(JID, client(store, 1), NewVerdict("refused", reason="no"), NOW)
    assert (refused.state, refused.reason) == ("refused", "site 1: no")
    assert store.decide(JID, client(store, 2), YES, NOW).state == "refused"


def test_who_is_no_owner_of_the_epoch_finds_nothing(store, text):
    with pytest.raises(NotFound):
        store.decide(JID, client(store, 3), YES, NOW)


def test_a_text_is_registered_once(store, text):
    assert store.add_text(text) == text
    text.owners = text.owners[::-1]
    with pytest.raises(Conflict, match="other owners"):
        store.add_text(text)


def test_one_post_of_an_owner_for_a_step(store, running):
    assert post(store, 1)
    assert not post(store, 1), "the same again is fine"
    with pytest.raises(Conflict, match="another post for start"):
        post(store, 1, content="y")
    (second,) = store.events(event="second post")
    assert second.facts["signature"] == (b"s" * 64).hex()
    assert [row.owner for row in store.posts(JID, "start")] == [1]
    assert store.posts_of(JID, 1) == {"start": digest((1, "start", "x"))}


def test_nothing_is_posted_before_it_runs_or_after(store, text):
    with pytest.raises(Conflict, match="waiting"):
        post(store, 0)


def test_evidence_ends_the_run(store, running):
    post(store, 0, "evidence")
    assert store.text(JID).state == "ended"
    with pytest.raises(Conflict, match="ended"):
        post(store, 1, "sum0")
    assert post(store, 1, "evidence")


def test_who_is_waited_for(store, running):
    for owner in (0, 1, 2):
        post(store, owner, "sum0", now=NOW + 1)
    for owner in (0, 2):
        post(store, owner, "sum1", now=NOW + 2)
    job = store.closed_job(JID)
    assert (job.step, job.since, job.sums) == ("sum1", NOW + 2, 1)
    assert [owner.name for owner in job.awaited] == ["site 0"]


def test_posts_are_let_go_when_nobody_needs_them(store, running):
    post(store, 0)
    store.finish(JID, digest("sealed"), NOW)
    assert store.finish(JID, digest("another"), NOW).result == digest("sealed")
    for i in (0, 1, 2):
        store.end(JID, client(store, i), Ending(finished=True), NOW)
    assert not store.prune_posts(NOW), "the researcher has yet to fetch the result"
    store.fetched(JID, NOW)
    assert {digest((0, "start", "x")), digest("sealed")} <= store.digests()
    assert store.prune_posts(NOW) == 1
    assert digest((0, "start", "x")) not in store.digests()
    assert store.posts(JID, "start")[0].signature == b"s" * 64, "signatures stay for good"


def test_posts_of_a_job_that_ended_go_after_a_month(store, running):
    post(store, 0)
    ended = store.end(JID, client(store, 0), Ending(finished=False), NOW)
    assert (ended.state, ended.reason) == ("ended", "ended at start")
    assert not store.prune_posts(NOW + 1)
    assert store.prune_posts(NOW + KEEP_SECONDS + 1) == 1


def test_who_leaves_takes_its_posts_along_and_ends_what_runs(store, running):
    post(store, 0)
    post(store, 1)
    assert store.held("cardio", 2)["closed_posts"] == 1, "owner 0 is client 2"
    assert store.forget_client("cardio", 2)["closed_posts"] == 1
    assert [row.pruned for row in store.posts(JID, "start")] == [True, False]
    assert (store.text(JID).state, store.text(JID).reason) == ("ended", "an owner has left")
    assert store.closed_job(JID).owners[0].name == "(has left)"

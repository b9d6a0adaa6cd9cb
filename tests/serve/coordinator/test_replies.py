"""Replies that carry their blob: taken once, signed for this ask, and from who was asked."""

from __future__ import annotations

import asyncio
import hashlib
import time

import pytest
from store_rows import NOW, add_ask, add_job, answer, digest, enrol, reply

for library in ("fastapi", "httpx", "sqlalchemy"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

from fastapi.testclient import TestClient  # noqa: E402

from solera.serve.coordinator.app import create_app  # noqa: E402
from solera.serve.coordinator.batches import Batches  # noqa: E402
from solera.serve.coordinator.middleware import LARGEST_BODY  # noqa: E402
from solera.serve.coordinator.notifier import Notifier  # noqa: E402
from solera.serve.coordinator.store.base import Conflict  # noqa: E402
from solera.serve.coordinator.store.blobs import Blobs  # noqa: E402
from solera.serve.coordinator.store.store import Store  # noqa: E402
from solera.serve.identity import (  # noqa: E402
    Identity,
    new_token,
    reply_message,
    sign_request,
    token_hash,
)

FRAME = bytes(range(256)) * 1000
OTHER = FRAME[::-1]
TOKEN = new_token()


@pytest.fixture
def file(tmp_path):
    """A store in a file."""
    with Store(f"sqlite:///{tmp_path / 'store.db'}") as store:
        store.add_federation("cardio")
        yield store


@pytest.fixture
def here(file, tmp_path):
    """A service with one client, which is asked one thing."""
    store, identity = file, Identity.create(tmp_path / "keys")
    store.enrol("cardio", "north", identity.sign_key, identity.seal_key, {})
    add_job(store)
    store.set_job_state("j", "running", "", NOW)
    add_ask(store, clients=[0])
    app = create_app(store, Blobs(tmp_path / "blobs"), token_hash(TOKEN), uploads=len(FRAME))
    with TestClient(app) as http:
        yield Here(http, app.state.coordinator, identity)


class Here:
    def __init__(self, http, coordinator, identity):
        self.http, self.coordinator, self.identity = http, coordinator, identity

    def send(self, frame, *, signed=None, body=None, sequence=0):
        """Answer with a frame; ``signed`` is what is signed as the reply, ``body`` what is sent."""
        asked = self.coordinator.store.asked("j", 0, "cardio", 0).digest
        said = frame if signed is None else signed
        what = ("cardio", "j", sequence, "0", asked, "ok", sha(said), len(said))
        signature = self.identity.sign(reply_message(*what)).hex()
        path = f"/v1/jobs/j/asks/{sequence}/reply?signature={signature}"
        about = ("PUT", path, sha(frame), time.time(), self.coordinator.start)
        headers = sign_request(self.identity, "cardio", *about)
        return self.http.put(path, content=frame if body is None else body, headers=headers)

    def blobs(self):
        folder = self.coordinator.blobs.folder
        assert not list((folder / "parts").iterdir()), "nothing is left of what is refused"
        return {path.parent.name + path.name for path in folder.glob("[0-9a-f][0-9a-f]/*")}


def sha(data):
    return hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("frame", [FRAME, b"short"])
def test_a_reply_and_its_blob_come_in_one_request(here, frame):
    assert here.send(frame).json() == {"stored": True}
    assert here.send(frame).json() == {"stored": False}, "the same again changes nothing"
    (row,) = here.coordinator.store.replies("j", 0)
    assert (row.digest, row.size) == (sha(frame), len(frame))
    assert here.blobs() == {sha(frame)}


def test_a_blob_that_the_reply_does_not_sign_for_is_not_kept(here):
    assert here.send(FRAME, signed=OTHER).status_code == 401
    assert here.send(FRAME, body=OTHER).status_code == 401, "not the body of the request"
    assert here.blobs() == set()


def test_who_has_answered_stores_nothing_more(here):
    here.send(FRAME)
    assert here.send(OTHER).status_code == 409
    assert here.blobs() == {sha(FRAME)}


def test_who_was_not_asked_stores_nothing(here):
    assert here.send(FRAME, sequence=1).status_code == 403
    here.coordinator.store.set_job_state("j", "cancelled", "", NOW)
    assert here.send(FRAME).status_code == 409
    assert here.coordinator.store.replies("j", 0) == []
    assert here.blobs() == set()


def test_a_reply_has_the_bounds_of_an_upload(here):
    assert here.send(FRAME + b"x").status_code == 413, "more than a client may have uploaded"
    assert here.send(bytes(LARGEST_BODY + 1)).status_code == 413
    assert here.blobs() == set()


def test_only_the_replies_of_some_clients_are_told(file, tmp_path):
    store = file
    enrol(store, 3)
    add_job(store)
    store.set_job_state("j", "running", "", NOW)
    add_ask(store)
    blobs = Blobs(tmp_path / "blobs")
    frames = [blobs.put(str(client).encode()) for client in range(3)]
    for client in (0, 2):
        reply(store, client, digest=frames[client])
    app = create_app(store, blobs, token_hash(TOKEN))
    with TestClient(app, headers={"Authorization": f"Bearer {TOKEN}"}) as http:

        def told(query):
            answer = http.get(f"/v1/jobs/j/asks/0/replies?{query}").json()
            return answer["complete"], [row["client"] for row in answer["replies"]]

        assert told("first=0&last=0") == (True, [0])
        assert told("first=1&last=2") == (False, [2])
        assert told("first=1&last=1") == (False, [])
        assert told("") == (False, [0, 2])


# --- together ------------------------------------------------------------------------------------


def test_one_bad_reply_does_not_take_the_others_with_it(store):
    enrol(store, 3)
    add_job(store)
    store.set_job_state("j", "running", "", NOW)
    add_ask(store)
    reply(store, 0)
    new = [answer(status="ok", digest=digest(f"new {client}")) for client in range(3)]
    new[1] = answer(status="ok", digest=digest("bad"), size=2**70)
    batch = [("j", 0, "cardio", client, new[client], NOW) for client in range(3)]
    taken, refused, stored = store.add_replies(batch)
    assert isinstance(taken, Conflict)
    assert isinstance(refused, Exception)
    assert stored is True
    assert [row.client for row in store.replies("j", 0)] == [0, 2]


def test_calls_are_made_together_while_others_are_under_way():
    batches = []

    def run(arguments):
        batches.append(list(arguments))
        return [ValueError("odd") if a % 2 else a for a in arguments]

    async def call():
        together = Batches(run)
        return await asyncio.gather(*map(together, range(300)), return_exceptions=True)

    results = asyncio.run(call())
    assert [r for r in results if not isinstance(r, ValueError)] == list(range(0, 300, 2))
    assert [len(batch) for batch in batches] == [128, 128, 44]
    assert [argument for batch in batches for argument in batch] == list(range(300))


def test_an_error_of_a_batch_is_everybodys_and_the_next_goes_on():
    def run(arguments):
        if 0 in arguments:
            raise ValueError("away")
        return arguments

    async def call():
        together = Batches(run)
        first = await asyncio.gather(together(0), together(1), return_exceptions=True)
        return first, await together(2)

    (zero, one), two = asyncio.run(call())
    assert isinstance(zero, ValueError)
    assert isinstance(one, ValueError)
    assert two == 2


def waited(come):
    """Who waits for fifty replies: what it sees at each look while they come, and what it says."""
    stored, looks = [0], []

    async def look():
        looks.append(stored[0])
        return stored[0] == 50

    async def wait():
        notifier = Notifier()
        waiting = asyncio.ensure_future(
            notifier.until("job", look, 30, missing=lambda: 50 - stored[0])
        )
        while not notifier.waiting:
            await asyncio.sleep(0)
        come(stored, notifier)
        return await asyncio.wait_for(waiting, 25)

    return looks, asyncio.run(wait())


def test_who_waits_for_many_looks_when_they_are_there():
    """And not each time that one of them comes."""

    def one_by_one(stored, notifier):
        for _ in range(50):
            stored[0] += 1
            notifier.notify("job")

    looks, _ = waited(one_by_one)
    assert looks[0] == 0
    assert looks[-1] == 50
    assert len(looks) < 10


def test_news_that_is_not_told_one_by_one_is_found_too():
    def at_once(stored, notifier):
        stored[0] = 50
        notifier.notify("job")

    assert waited(at_once)[1] is True

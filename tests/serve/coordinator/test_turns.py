"""Turns of large bodies: a few at a time, and nobody keeps theirs by not reading the answer."""

from __future__ import annotations

import asyncio
import os
from threading import Semaphore

import pytest

from solera.serve.coordinator import middleware
from solera.serve.coordinator.app import create_app
from solera.serve.coordinator.store.blobs import Blobs
from solera.serve.coordinator.store.store import Store
from solera.serve.identity import new_token, token_hash

TOKEN = new_token()


@pytest.fixture
def app(tmp_path):
    with Store(f"sqlite:///{tmp_path / 'store.db'}") as store:
        yield create_app(store, Blobs(tmp_path / "blobs"), token_hash(TOKEN))


def upload(app, send):
    """A piece of a driver's upload, which is read whole; what the service says goes to ``send``."""
    body = os.urandom(middleware._SMALL + 1)
    headers = [
        (b"authorization", f"Bearer {TOKEN}".encode()),
        (b"content-length", str(len(body)).encode()),
    ]
    scope = {
        "type": "http", "method": "PUT", "path": f"/v1/uploads/{os.urandom(32).hex()}",
        "query_string": b"offset=0",
        "headers": headers, "client": ("127.0.0.1", 1), "scheme": "https",
    }  # fmt: skip
    left = [{"type": "http.request", "body": body}]

    async def receive():
        return left.pop() if left else await asyncio.Event().wait()

    return asyncio.create_task(app(scope, receive, send))


def test_who_does_not_read_the_answer_keeps_no_turn(app):
    async def run():
        told = []

        async def unread(message):
            told.append(message)
            await asyncio.Event().wait()  # as when the other side reads nothing

        async def read(message):
            answers.append(message)

        answers = []
        stuck = [upload(app, unread) for _ in range(2 * middleware._AT_ONCE)]
        try:
            while len(told) < len(stuck):
                await asyncio.sleep(0.01)
            await asyncio.wait_for(upload(app, read), 60)
        finally:
            for task in stuck:
                task.cancel()
            await asyncio.wait(stuck)
        return answers[0]["status"]

    assert asyncio.run(asyncio.wait_for(run(), 120)) == 200


def test_no_more_bodies_are_read_at_once_than_there_are_turns(app, monkeypatch):
    here, most = 0, 0
    append = Blobs.append

    def slowly(self, *piece):
        nonlocal here, most
        here += 1
        most = max(most, here)
        entered.release()
        leave.acquire()
        here -= 1
        return append(self, *piece)

    async def run():
        async def send(message):
            pass

        uploads = [upload(app, send) for _ in range(2 * middleware._AT_ONCE)]
        for _ in range(middleware._AT_ONCE):
            await asyncio.to_thread(entered.acquire)
        await asyncio.sleep(0.2)  # who has no turn would come in now
        for _ in uploads:
            leave.release()
        await asyncio.wait_for(asyncio.gather(*uploads), 60)

    entered, leave = Semaphore(0), Semaphore(0)
    monkeypatch.setattr(Blobs, "append", slowly)
    asyncio.run(asyncio.wait_for(run(), 120))
    assert most == middleware._AT_ONCE

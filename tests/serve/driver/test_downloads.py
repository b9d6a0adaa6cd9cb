"""Replies are downloaded several at a time, and read in their order."""

from __future__ import annotations

import threading
import time

import pytest

pytest.importorskip("httpx", reason="the extra 'serve' is not installed")

from solera.core.errors import PayloadError
from solera.serve.connection import CoordinatorError
from solera.serve.driver.downloads import frames_of
from solera.serve.wire import Reply


class Store:
    """Gives what was put into it, the first piece only once ``until`` others were given."""

    def __init__(self, until: int = 0) -> None:
        self.left = threading.Semaphore(0)
        self.until, self.given = until, []

    def download(self, digest: str, inline: str | None) -> bytes:
        self.given.append(digest)
        if digest == "0":
            for _ in range(self.until):
                assert self.left.acquire(timeout=600)
        elif digest == "bad":
            raise PayloadError("not what it says")
        elif digest == "gone":
            raise CoordinatorError("nobody there")
        elif digest == "slow":
            time.sleep(0.2)
        self.left.release()
        return digest.encode()


def reply(digest: str | None, status: str = "ok") -> Reply:
    return Reply(client=0, status=status, digest=digest, size=1, reason="")


def test_others_are_downloaded_while_one_waits_and_all_keep_their_order():
    store = Store(until=10)  # never, if they came one after the other
    replies = [reply(str(k)) for k in range(20)]
    assert list(frames_of(store, replies)) == [str(k).encode() for k in range(20)]


def test_what_is_wrong_with_one_reply_is_its_own():
    replies = [reply("1"), None, reply("bad"), reply(None, "refused"), reply("2")]
    one, nothing, wrong, refused, two = frames_of(Store(), replies)
    assert (one, nothing, refused, two) == (b"1", None, None, b"2")
    assert isinstance(wrong, PayloadError)


def test_without_a_coordinator_the_rest_is_not_tried():
    store = Store()
    replies = [reply("gone"), *(reply("slow") for _ in range(500))]  # 25 s of four threads
    with pytest.raises(CoordinatorError):
        list(frames_of(store, replies))
    assert len(store.given) < 501

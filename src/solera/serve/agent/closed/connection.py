"""The board of one closed job, as an owner meets it over TLS: post, and read what others posted.

Nothing that comes from here is believed: :class:`~solera.trust.board.run.OwnerRun` checks it all.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from solera.serve.closed import LARGEST_POST, ClosedJob, Ending, NewPost, OwnPosts, Posts
from solera.serve.connection import LONGEST_PAUSE, Connection, CoordinatorError
from solera.trust.board.run import RunEnded

T = TypeVar("T")

_SOON, _WAIT = 2.0, 20.0
"""Seconds: who is not there soon is waited for, and the pages say so."""
_EVIDENCE_SECONDS = 10.0
"""How long the others' evidence is waited for: it names who is to blame, nothing else."""


class Interrupted(BaseException):
    """The run goes on later: the agent was told to end, or rows or disk are away.

    No learner and no run may take it for the run's end.
    """


class BoardClient:
    """A :class:`~solera.trust.board.run.BoardConnection` for one text.

    ``waits(step, missing)`` is told for which owners it waits, and returns since when that is so;
    a wait of more than ``patience`` seconds ends the run.
    """

    def __init__(
        self,
        connection: Connection,
        jid: str,
        owners: int,
        waits: Callable[[str, Sequence[int]], float],
        patience: float,
        stop: threading.Event,
    ) -> None:
        self._connection, self._owners = connection, owners
        self._waits, self._patience = waits, patience
        self._stop = stop
        self._path = f"/v1/closed/{jid}"
        mine = self._again(lambda: connection.call("GET", f"{self._path}/mine", OwnPosts))
        self._posted = dict(mine.digests)

    def post(self, step: str, content: bytes) -> None:
        """Post for a step; the same again is fine.

        An agent that was restored from an old copy of its folder finds its post there already. If
        it would say something else now, it says nothing: two posts for one step would name it.
        """
        digest = hashlib.sha256(content).hexdigest()
        if step in self._posted and self._posted[step] != digest:
            raise RunEnded(f"{step}: another post of mine is there; was my folder set back?")
        self._posted[step] = digest
        path = f"{self._path}/posts/{step}"
        try:
            self._again(lambda: self._put(path, content))
        except CoordinatorError as error:
            raise RunEnded(str(error)) from None

    def read(self, step: str, owners: Sequence[int]) -> list[bytes]:
        """The posts of these owners, waited for."""
        here: dict[int, bytes] = {}
        wait, waited = _SOON, False
        path = f"{self._path}/posts/{step}?owners={','.join(map(str, owners))}"
        while True:
            query = f"{path}&wait={wait:g}"
            found = self._again(lambda: self._connection.call("GET", query, Posts))  # noqa: B023
            for post in found.posts:
                if post.owner in owners and post.owner not in here:
                    here[post.owner] = self._content(step, post.owner, post.digest, post.frame)
            missing = [owner for owner in owners if owner not in here]
            if waited or missing:
                since, waited = self._waits(step, missing), True
            if not missing:
                return [here[owner] for owner in owners]
            if found.over:
                raise RunEnded("another owner ended the run")
            if time.time() - since > self._patience:
                raise RunEnded(f"{step}: owner {missing[0]} is away for too long")
            wait = _WAIT

    def evidence(self) -> list[bytes]:
        """What owners have published at the end, once all have or a while has passed."""
        ends = time.monotonic() + _EVIDENCE_SECONDS
        query = f"{self._path}/posts/evidence?wait=2"
        while True:
            posts = self._again(lambda: self._connection.call("GET", query, Posts)).posts
            if len(posts) == self._owners or time.monotonic() > ends:
                return [self._content("evidence", p.owner, p.digest, p.frame) for p in posts]

    def leave_result(self, sealed: bytes) -> None:
        """The result for the researcher, sealed; one of the owners is the first."""
        if self._again(lambda: self._connection.call("GET", self._path, ClosedJob)).going_on:
            self._again(lambda: self._put(f"{self._path}/result", sealed))

    def end(self, *, finished: bool) -> None:
        """Tell that the job is over here."""
        path = f"{self._path}/over"
        self._again(lambda: self._connection.request("POST", path, json=Ending(finished)))

    def _put(self, path: str, content: bytes) -> None:
        """In one request, or as a blob, in pieces that resume."""
        if len(content) <= LARGEST_POST:
            self._connection.request("PUT", path, body=content)
        else:
            digest = self._connection.upload(content)
            self._connection.request("POST", path, json=NewPost(digest))

    def _content(self, step: str, owner: int, digest: str, frame: str | None) -> bytes:
        place = f"{self._path}/posts/{step}/{owner}"
        return self._again(lambda: self._connection.download(digest, frame, place=place))

    def _again(self, request: Callable[[], T]) -> T:
        """The answer, however long the coordinator is away."""
        while not self._stop.is_set():
            try:
                return request()
            except CoordinatorError as error:
                if error.status is not None:
                    raise
            self._stop.wait(LONGEST_PAUSE)
        raise Interrupted("the agent was told to end")

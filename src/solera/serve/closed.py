"""Every message about closed jobs between driver, coordinator and agent, each defined once.

A researcher registers a text; it is named by its ``jid``, a hash of the epoch and the text. Every
owner approves or refuses it. Then the owners post and read, step by step, and one of them leaves
the sealed result. Posts are bytes that only owners can read; see :mod:`solera.trust.board`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

from solera.serve.wire import Digest, Frame, Message, Number, Person, Reason, Size

STEP = r"^(start|keys|have|sum[0-9]{1,7}|end|evidence)$"
LARGEST_POST = 4 << 20
"""Bytes that are posted, or read, in one request; more go as a blob, in pieces."""
LONGEST_TEXT = 40_000
MOST_OWNERS = 64

Step = Annotated[str, Meta(pattern=STEP[:-1] + r"\Z", examples=["sum3"])]
State: TypeAlias = Literal["waiting", "running", "finished", "ended", "refused"]
"""Of a closed job: waits for approvals; runs; has a result; ended without one; was refused."""
GOING_ON = ("waiting", "running")
Verdict: TypeAlias = Literal["approved", "refused"]


class NewText(Message):
    """A text to approve, in base64, and the public keys of the owners of its epoch, in order."""

    epoch: Digest
    text: Frame
    owners: Annotated[
        list[Digest], Meta(min_length=3, max_length=MOST_OWNERS, examples=[3 * ["9f86d081" * 8]])
    ]


class NewVerdict(Message):
    """What an owner says of a text; ``person`` is who decided there, if a person did."""

    verdict: Verdict
    person: Person = ""
    reason: Reason = ""


class OwnerState(Message):
    """How far an owner is: its verdict, and whether the others wait for it."""

    name: str
    key: Digest
    verdict: str = ""
    person: str = ""
    reason: str = ""
    decided: float | None = None
    seen: float | None = None
    doing: str = ""
    awaited: bool = False


class ClosedJob(Message):
    """A text and how far it is.

    ``step`` is the newest one of which there is a post, ``since`` when its first post came,
    ``sums`` how many are complete. ``fetched``: the researcher has the result.
    """

    jid: Digest
    federation: str
    epoch: Digest
    text: str
    state: State
    reason: str
    created: float
    changed: float
    owners: list[OwnerState]
    step: str = ""
    since: float | None = None
    sums: int = 0
    fetched: bool = False

    @property
    def going_on(self) -> bool:
        return self.state in GOING_ON

    @property
    def awaited(self) -> list[OwnerState]:
        """Those for whom the others wait."""
        return [owner for owner in self.owners if owner.awaited]


class ClosedJobs(Message):
    """Closed jobs; ``version`` changes when one of them does."""

    jobs: list[ClosedJob]
    version: str


class NewPost(Message):
    """A post whose bytes were uploaded as a blob before."""

    digest: Digest


class Post(Message):
    """What an owner has posted for a step; ``frame``, if it is small, in base64."""

    owner: Number
    digest: Digest
    size: Size
    frame: str | None = None


class Posts(Message):
    """The posts of a step so far. ``over``: the job has ended, no more will come."""

    posts: list[Post]
    over: bool


class OwnPosts(Message):
    """By step: the digest of what this owner has posted."""

    digests: dict[str, Digest]


class Ending(Message):
    """How a job ended at an owner: with the result or not, whatever the reason was."""

    finished: Annotated[bool, Meta(examples=[True])]


def version_of(jobs: Sequence[ClosedJob], *, steps: bool = True) -> str:
    """Changes whenever one of these jobs does, or, with ``steps``, gets further."""
    facts = [
        (job.jid, job.state, [owner.verdict for owner in job.owners])
        + ((job.step, job.sums, [owner.awaited for owner in job.owners]) if steps else ())
        for job in jobs
    ]
    return hashlib.sha256(repr(facts).encode()).hexdigest()

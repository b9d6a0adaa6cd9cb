"""What a coordinator asks of a client, checked before anything is done with it."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from solera.serve.connection import CoordinatorError

Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Word = Annotated[str, Meta(max_length=200)]
Number = Annotated[int, Meta(ge=0, lt=2**31)]


class Order(msgspec.Struct, frozen=True):
    """One ask. ``hash`` is the digest of the job's description, which people approve."""

    job: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")]
    sequence: Number
    kind: Word
    hash: Digest
    owner: Word
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    task: Word
    version: Number
    payload: Digest
    prepare: Digest | None
    round: Number
    frame: str | None = None


class _Work(msgspec.Struct):
    asks: list[Order]


class Enrolled(msgspec.Struct):
    """What a coordinator says to a client that has joined."""

    client: Number
    name: Word
    federation: Word


_work = msgspec.json.Decoder(_Work)
_enrolled = msgspec.json.Decoder(Enrolled)


def read_orders(content: bytes) -> list[Order]:
    """The asks in the coordinator's answer."""
    try:
        return _work.decode(content).asks
    except msgspec.MsgspecError as error:
        raise _nonsense(error) from None


def read_enrolled(content: bytes) -> Enrolled:
    """The client's number and name in the coordinator's answer."""
    try:
        return _enrolled.decode(content)
    except msgspec.MsgspecError as error:
        raise _nonsense(error) from None


def _nonsense(error: Exception) -> CoordinatorError:
    return CoordinatorError(
        f"what the coordinator says makes no sense: {error}",
        hint="is the address right, and are both sides of the same version?",
    )

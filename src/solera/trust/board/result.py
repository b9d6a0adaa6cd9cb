"""The result of a closed job: signed by all owners, sealed to the researcher, who checks it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from solera.core.errors import PayloadError
from solera.core.payload import decode, encode
from solera.trust.board.hashing import digest
from solera.trust.board.keys import is_signed
from solera.trust.board.text import jid
from solera.trust.sealed import open_sealed, seal

if TYPE_CHECKING:
    from solera.trust.sealed import PrivateKey

_CONTEXT = b"solera closed result 1"


class NotOfThisJob(PayloadError):
    """A result that not all owners of the epoch have signed for this job."""


@dataclass(frozen=True)
class Closed:
    """How a run ended well.

    ``content`` is what owners keep: the job, a salt and the ``result``; later texts name it by its
    ``digest``. ``sealed`` is for the researcher.
    """

    content: bytes
    digest: bytes
    result: bytes
    sealed: bytes


def pack(content: bytes, head: bytes, signatures: Sequence[bytes], researcher: bytes) -> bytes:
    """A result with the signatures of its end, sealed to the researcher's key."""
    told = {"content": content, "head": head, "signatures": list(signatures)}
    return seal(researcher, encode(told), context=_CONTEXT)


def open_result(
    sealed: bytes, private: PrivateKey, *, epoch: bytes, keys: Sequence[bytes], text: bytes
) -> Closed:
    """The researcher's side: unseal, and check that every owner has signed this for this job.

    ``keys`` are the owners' public keys in the epoch's order.
    """
    told = decode(open_sealed(private, sealed, context=_CONTEXT))
    try:
        content, head, signatures = told["content"], told["head"], told["signatures"]
        end = digest(content)
        inside = decode(content)
        job, result = inside["job"], inside["result"]
    except (TypeError, LookupError):
        raise NotOfThisJob("this is no result of a closed job") from None
    if job != jid(epoch, text):
        raise NotOfThisJob("this is the result of another job")
    if len(signatures) != len(keys):
        raise NotOfThisJob(f"{len(signatures)} owners have signed, the epoch has {len(keys)}")
    for j, (key, signature) in enumerate(zip(keys, signatures, strict=True)):
        if not is_signed(key, signature, "end", head, j, digest(end)):
            raise NotOfThisJob(f"owner {j} has not signed this result")
    return Closed(content, end, result, sealed)

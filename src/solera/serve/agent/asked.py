"""What the coordinator asks: the blobs that an ask names, read as what they must be.

Nothing here is believed: a blob is what its digest says, and the hash of a job is worked out from
its description, whatever hash the coordinator names.
"""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

import msgspec
import numpy as np
from msgspec.structs import replace

from solera.core.engine import Ask, Preparation
from solera.core.errors import PayloadError
from solera.core.payload import decode, encode
from solera.serve import wire
from solera.serve.agent import home
from solera.serve.agent.attempts import AskKey
from solera.serve.connection import Connection, CoordinatorError
from solera.serve.description import Description, job_hash

_NOT_FOUND = 404
_MOST_DESCRIPTIONS = 16


class Asked:
    """Reads what a client of a folder is asked, over a connection."""

    def __init__(self, folder: Path, place: home.Place, connection: Connection) -> None:
        self.place, self.connection = place, connection
        self._secret = home.read_secret(folder)
        self._descriptions: dict[str, Description] = {}

    def hash(self, pending: wire.PendingAsk) -> str:
        """What people approve of this ask's job, whatever hash the coordinator names."""
        return job_hash(self.place.federation, pending.job, pending.spec)

    def description(self, pending: wire.PendingAsk) -> Description:
        """What the job of this ask is; the bytes are those that the hash covers."""
        known = self._descriptions.get(pending.spec)
        if known is None:
            known = Description.from_bytes(self.frame(pending))
            if len(self._descriptions) >= _MOST_DESCRIPTIONS:
                self._descriptions.clear()
            self._descriptions[pending.spec] = known
        return known

    def frame(self, pending: wire.PendingAsk) -> bytes:
        """The bytes of the description."""
        return self._download(pending.spec)

    def ask(self, pending: wire.PendingAsk) -> Ask:
        """The ask with its payload and the preparation of the rows."""
        steps = decode(self._download(pending.prepare)) if pending.prepare else []
        if not isinstance(steps, list):
            raise PayloadError("the preparation is not a list of transformers")
        payload, cover = wire.uncovered(decode(self._download(pending.payload, pending.frame)))
        prepare = [Preparation(step, hashlib.sha256(encode(step)).hexdigest()) for step in steps]
        return Ask(
            pending.task,
            pending.version,
            payload,
            np.array([self.place.client], dtype=np.int64),
            pending.seed,
            pending.round,
            prepare=tuple(prepare),
            cover=cover,
            secret=hmac.digest(self._secret, encode(list(key_of(pending))), "sha256"),
        )

    def _download(self, digest: str, inline: str | None = None) -> bytes:
        """A blob that an ask names; one that is not there fails this ask, and holds up no other."""
        try:
            return self.connection.download(digest, inline)
        except CoordinatorError as error:
            if error.status == _NOT_FOUND:
                raise PayloadError(f"the coordinator does not have {digest[:12]}…") from None
            raise


def key_of(pending: wire.PendingAsk) -> AskKey:
    """An ask by its place and all that it says."""
    said = msgspec.json.encode(replace(pending, frame=None, deadline=None))
    return AskKey(pending.job, pending.sequence, hashlib.sha256(said).hexdigest())

"""Forgetting a client: what is kept for it, and the receipt.

A learner whose model is a fold is run again over the replies of the others
(:mod:`solera.engines.kept`): exact. A learner of many rounds goes on from the last round before
the client took part: not exact, since who was drawn in the rounds before depended on who was there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from solera.core.aggregation import Aggregation
from solera.core.engine import Ask, Block
from solera.core.errors import CannotForget
from solera.core.federation import Federation
from solera.core.payload import Limits, decode, encode
from solera.core.private_files import write_file
from solera.core.task import Task
from solera.engines.kept import KeepingEngine, Kept

_LIMITS = Limits(size=1 << 40, structure=1 << 28)


class Signer(Protocol):
    """A key to sign receipts with, such as :class:`solera.serve.identity.Identity`."""

    sign_key: bytes

    def sign(self, message: bytes) -> bytes:
        """The signature of a message."""


def check_can_keep(federation: Federation) -> None:
    """Raise an error where single replies are never seen."""
    if federation.secure is not None:
        raise CannotForget(
            "after a secure sum no reply can be taken out again: only the sum was ever seen",
            hint="fit without the client, model.fit(federation.without(client))",
        )


def write_kept(kept: Kept, path: str | os.PathLike[str]) -> None:
    """Write what was kept to a file for its owner alone: it holds replies of single clients."""
    write_file(Path(path), encode(kept, _LIMITS), 0o600, overwrite=True)


def read_kept(path: str | os.PathLike[str]) -> Kept:
    """What :func:`write_kept` wrote."""
    kept: Kept = decode(Path(path).read_bytes(), _LIMITS)
    return kept


class KeepingRounds(KeepingEngine):
    """Keeps the state before the round in which a client took part for the first time.

    A client takes part where it is asked for ``update``, which changes the model. This is also the
    checkpoint of the loop, to which the state is given after every round.
    """

    checkpoint: Any = None
    """Where the state is kept besides."""

    def __init__(self, federation: Federation, update: Task) -> None:
        super().__init__(federation)
        self._update = update
        self.kept["first"] = {}
        self.kept["states"] = {}
        self.kept["resumed"] = False
        self._last: dict[str, Any] | None = None

    def run(self, ask: Ask, aggregation: Aggregation | None) -> Iterator[Block]:
        """The blocks of the ask; who is asked for the first time is written down."""
        first = self.kept["first"]
        new = [str(c) for c in ask.clients.tolist() if str(c) not in first]
        if new and ask.task == self._update.name:
            first.update(dict.fromkeys(new, ask.round))
            if self._last is not None:
                self.kept["states"][str(ask.round)] = self._last
        yield from self._engine.run(ask, aggregation)

    def write(self, content: Callable[[], dict[str, Any]]) -> None:
        """What comes after a round."""
        now = content()
        self._last = {**now, "history": list(now["history"])}  # which grows in place
        if self.checkpoint is not None:
            self.checkpoint.write(content)

    def read(self) -> dict[str, Any] | None:
        """Where a loop that was interrupted goes on; who took part before that is not known."""
        content: dict[str, Any] | None = None if self.checkpoint is None else self.checkpoint.read()
        self.kept["resumed"] = bool(content and content["next"])
        return content


def first_part(kept: Kept, client: int) -> tuple[int | None, dict[str, Any] | None]:
    """The first round of a client, and the state before it; None for a client without any.

    Without a state the loop begins anew.
    """
    if kept["resumed"]:
        return 0, None
    first = kept["first"].get(str(client))
    state = kept["states"].get(str(first))
    return (first, state) if state is not None or first is None else (0, None)


def keep_earlier(kept: Kept, before: Kept, round: int) -> None:
    """Add to what was kept from a round on what was kept of the rounds before."""
    early = {client: first for client, first in before["first"].items() if first < round}
    kept["first"] = {**kept["first"], **early}
    kept["states"] = {
        **kept["states"],
        **{first: state for first, state in before["states"].items() if int(first) <= round},
    }
    kept["resumed"] = False


class GoOn:
    """A loop that goes on from a state in memory, as from a checkpoint."""

    def __init__(self, content: dict[str, Any]) -> None:
        self._content = content

    def read(self) -> dict[str, Any]:
        """The state."""
        return self._content

    def write(self, content: Callable[[], dict[str, Any]]) -> None:
        """Nothing is kept."""


def receipt(
    key: Signer, *, client: str, before: bytes, after: bytes, exact: bool
) -> dict[str, Any]:
    """A signed statement: this model became that one when the client was forgotten."""
    statement: dict[str, Any] = {
        "forgotten": client,
        "model": sha256(before).hexdigest(),
        "became": sha256(after).hexdigest(),
        "exact": exact,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    signature = key.sign(_message(statement))
    return {**statement, "key": key.sign_key.hex(), "signature": signature.hex()}


def check_receipt(receipt: dict[str, Any], model: bytes | None = None) -> list[str]:
    """What is wrong with a receipt, or with the model that should be the one it names."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    found = []
    statement = {name: receipt.get(name) for name in _FIELDS}
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(receipt["key"]))
        key.verify(bytes.fromhex(receipt["signature"]), _message(statement))
    except (InvalidSignature, ValueError, KeyError, TypeError):
        found.append("the receipt was changed, or another key signed it than it names")
    if model is not None and sha256(model).hexdigest() != receipt.get("became"):
        found.append("the model is not the one that the receipt names")
    return found


_FIELDS = ("forgotten", "model", "became", "exact", "time")


def _message(statement: dict[str, Any]) -> bytes:
    return encode(["solera forgetting 1", *(statement[name] for name in _FIELDS)])

"""What an agent adds to the steps of a secure sum: whose keys are whose.

The tasks of :mod:`solera.privacy.secure_sum.tasks` run in the worker, which holds no key of the
client. The agent draws the keys of a sum and signs them with the enrolled one; and before the
client shares its secrets with others it makes sure that all of their keys are signed by clients of
this federation whose keys it knows, so that a coordinator can neither read what clients seal to
each other nor make up clients.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from solera.core.engine import Ask
from solera.core.errors import Refusal
from solera.privacy.secure_sum.tasks import give_shares, new_keys, public_keys, tell_keys
from solera.serve import wire
from solera.serve.agent.home import Place
from solera.serve.connection import Connection
from solera.serve.identity import Identity, signed_message, verify
from solera.serve.peers import FILE, KnownKeys, WrongKey, find_peers


def vouched(
    ask: Ask, job: str, place: Place, identity: Identity, folder: Path,
    connection: Connection,
) -> Ask:  # fmt: skip
    """The ask with what only the agent knows, in the place of what the coordinator put there."""
    own: dict[str, Any]
    if ask.task == tell_keys.name:
        private = new_keys()
        said = keys_message(place.federation, job, place.client, *public_keys(private))
        own = {
            "private": [private["mask"], private["seal"]],
            "signature": identity.sign(said),
        }
    elif ask.task == give_shares.name:
        known = KnownKeys(folder / FILE)
        try:
            peers = find_peers(connection, place.federation, known)
        except WrongKey as error:
            raise Refusal(f"a secure sum among strangers: {error.message}") from None
        _check_signed(ask.payload, job, place, peers)
        return ask
    else:
        return ask
    return replace(ask, payload={**ask.payload, "own": own}, known_size=None)


def _check_signed(roster: Any, job: str, place: Place, peers: dict[int, wire.Peer]) -> None:
    """Refuse a key that is not signed by its owner."""
    try:
        lines = zip(
            roster["clients"].tolist(), roster["mask_keys"], roster["seal_keys"],
            roster["signatures"], strict=True,
        )  # fmt: skip
        for client, mask, seal, signature in lines:
            mask, seal, signature = (
                np.asarray(v, np.uint8).tobytes() for v in (mask, seal, signature)
            )
            said = keys_message(place.federation, job, client, mask, seal)
            peer = peers.get(client)
            if peer is None or not verify(bytes.fromhex(peer.sign_key), said, signature):
                raise Refusal(f"client {client} has not signed the keys it is said to have")
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
        raise Refusal("this is no list of clients and keys") from None


def keys_message(federation: str, job: str, client: int, mask: bytes, seal: bytes) -> bytes:
    """What a client signs: that these are its keys for a secure sum of this job."""
    return signed_message("secure sum keys", federation, job, client, mask, seal)

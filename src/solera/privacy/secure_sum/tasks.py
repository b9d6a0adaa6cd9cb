"""The client's side of a secure sum: four tasks, and the mask around the reply that is added up.

====================  ===========================================================================
``secure.keys``       draw two pairs of keys and tell the public halves
``secure.shares``     see everyone's keys; give every neighbour a sealed share of two secrets
the ask itself        run the task, add masks (:class:`Masking`); tell the
                      neighbours what was asked
``secure.confirm``    see whose masked replies came, and that these were asked the same; tell the
                      neighbours, and stand by it
``secure.unmask``     give one share of every neighbour: of its own mask's seed if its reply came,
                      of its mask key if it did not
====================  ===========================================================================

A client that was told who answered gives shares only if enough neighbours confirm that they were
told the same, and it gives one kind for each of them: never the seed *and* the key of one client,
which together would lay its reply bare. That all were asked the same keeps a coordinator from
asking all but one for nothing (Pasquini, Francati & Ateniese 2022). A client goes through these
steps in this order, once; what it keeps in between is in its state and gone after the last.

Neither rows nor numbers computed from them are in any of the four replies.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from typing import Any

import numpy as np

from solera.core.aggregation import Aggregation
from solera.core.clients import Array, Client, IntArray
from solera.core.cover import Cover
from solera.core.engine import Ask
from solera.core.errors import PayloadError, Refusal
from solera.core.payload import encode
from solera.core.replies import Reply
from solera.core.task import task
from solera.privacy.secure_sum import keys
from solera.privacy.secure_sum.graph import neighbours, threshold
from solera.privacy.secure_sum.keys import KEY, MAC, OVERHEAD
from solera.privacy.secure_sum.shares import split
from solera.trust.encoding import Encoding, form_of
from solera.trust.masks import KEY as MASK_KEY
from solera.trust.masks import add_masks

STATE = "solera.secure_sum"
"""Where a client's state keeps what it knows of the sum that goes on."""
SIGNATURE = 64
SHARE = 2 * KEY
"""A share of both secrets: the private mask key, then the seed of the client's own mask."""


def new_keys() -> dict[str, bytes]:
    """The private keys of a client for one sum."""
    return {"mask": keys.new_private(), "seal": keys.new_private()}


def public_keys(private: Mapping[str, bytes]) -> tuple[bytes, bytes]:
    """The public halves, mask and seal."""
    return keys.public_of(private["mask"]), keys.public_of(private["seal"])


@task("secure.keys", alone=True)
def tell_keys(client: Client, ask: Any) -> dict[str, Any]:
    """New public keys, with the signature of the client's enrolled key where it has one."""
    own = ask.get("own", {})
    given = own.get("private")
    private = new_keys() if given is None else {"mask": given[0], "seal": given[1]}
    mask, seal = public_keys(private)
    client.state[STATE] = {"step": "keys", **private}
    return {"mask": mask, "seal": seal, "signature": own.get("signature", bytes(SIGNATURE))}


@task("secure.shares", alone=True)
def give_shares(client: Client, ask: Any) -> dict[str, Any]:
    """A share of both secrets for every neighbour, sealed so that only that one can open it."""
    known = _at_step(client, "keys")
    ids = ask["clients"]
    if (np.diff(ids) <= 0).any():
        raise Refusal("the clients of a secure sum are not in order")
    own = np.flatnonzero(ids == client.id)
    mask, seal = public_keys(known)
    mask_keys, seal_keys = ask["mask_keys"], ask["seal_keys"]
    if not len(own) or _line(mask_keys, own[0]) != mask or _line(seal_keys, own[0]) != seal:
        raise Refusal("the keys of this client are not among those of the secure sum")
    place, share = int(own[0]), float(ask["share"])
    if not 0.5 < share <= 1:
        raise Refusal("shares of fewer than half of the clients would open a secret")
    roster = roster_digest(ask)
    around = neighbours(place, len(ids), share, roster)
    needed = threshold(len(around) + 1, share)
    seed = secrets.token_bytes(KEY)
    holders = np.sort(np.append(around, place))
    shares = split(known["mask"] + seed, len(holders), needed)
    sealed = []
    common = []
    own_key = keys.load(known["seal"])
    for holder, piece in zip(holders.tolist(), shares, strict=True):
        if holder == place:
            continue
        key = keys.common_key(own_key, _line(seal_keys, holder), "seal", roster)
        common.append(key)
        sealed.append(keys.seal(key, piece.tobytes(), client.id, int(ids[holder])))
    client.state[STATE] = {
        "step": "shares",
        "mask": known["mask"],
        "seed": seed,
        "own_share": shares[holders == place][0].tobytes(),
        "roster": roster,
        "neighbours": ids[around],
        "mask_keys": mask_keys[around].astype(np.uint8),
        "common": b"".join(common),
        "needed": needed,
    }
    return {"to": ids[around], "sealed": _lines(sealed, SHARE + OVERHEAD)}


class Masking(Cover):
    """Adds up to noise: the reply's terms in fixed point, and all masks of this client.

    Parameters
    ----------
    aggregation: what the terms of a reply are.
    members: the clients whose shares came; masks are in common with neighbours among them.
    clients: how many words must have room for.
    range, precision: see :class:`~solera.trust.encoding.Encoding`.
    """

    def __init__(
        self,
        aggregation: Aggregation,
        members: Any,
        clients: int,
        range: float | None = None,
        precision: float | None = None,
    ) -> None:
        self.aggregation = aggregation
        self.members = members
        self.clients = clients
        self.range = range
        self.precision = precision

    def cover(self, client: Client, ask: Ask, reply: Any) -> Any:
        """The masked words, their form, and word to every neighbour of what was asked."""
        known = _at_step(client, "shares")
        if not self.aggregation.additive:
            raise Refusal(f"{type(self.aggregation).__name__} is no sum")
        others, members = known["neighbours"], np.asarray(self.members)
        with_mask = np.isin(others, members)
        if with_mask.sum() + 1 < known["needed"]:
            raise Refusal(f"fewer than {known['needed']:,} clients share masks with this one")
        terms = self.aggregation.terms(self.aggregation.lift(Reply(client.id, reply)))
        form = form_of(terms)
        encoding = Encoding(self.clients, self.range, self.precision)
        words = encoding.words(terms)
        plus = [own_mask(known["seed"], known["roster"])]
        minus: list[bytes] = []
        own_key = keys.load(known["mask"])
        for other, public in zip(others[with_mask], known["mask_keys"][with_mask], strict=True):
            pair = pair_mask(own_key, public.tobytes(), known["roster"])
            (plus if client.id < other else minus).append(pair)
        add_masks(words, plus, minus)
        asked = ask_digest(ask, client.id)
        said = [
            keys.confirmation(_common(known, other), client.id, int(other), asked)
            for other in others[with_mask]
        ]
        kept = ("own_share", "roster", "neighbours", "common", "needed")
        client.state[STATE] = {
            "step": "masked",
            **{name: known[name] for name in kept},
            "members": others[with_mask],
            "asked": asked,
        }
        return {
            "words": words.tobytes(),
            "form": form,
            "bits": encoding.bits,
            "to": others[with_mask],
            "asked": b"".join(said),
        }


@task("secure.confirm", alone=True)
def confirm(client: Client, ask: Any) -> dict[str, Any]:
    """To every neighbour whose reply came: that this client was told the same as it."""
    known = _at_step(client, "masked")
    view = ask["clients"]
    here = known["members"][np.isin(known["members"], view)]
    if client.id not in view or (np.diff(view) <= 0).any():
        raise Refusal("those who answered are not in order, or this client is not among them")
    if len(here) + 1 < known["needed"]:
        raise Refusal(f"fewer than {known['needed']:,} clients next to this one have answered")
    same = _confirmed(client, known, ask["senders"], ask["asked"], known["asked"])
    if others := [int(other) for other in here if other not in same]:
        raise Refusal(f"client {others[0]} does not say that it was asked the same as this one")
    told = view_digest(known["roster"], view)
    confirmations = [
        keys.confirmation(_common(known, other), client.id, int(other), told) for other in here
    ]
    client.state[STATE] = {**known, "step": "confirmed", "alive": here, "told": told}
    return {"to": here, "confirmations": _lines(confirmations, MAC)}


@task("secure.unmask", alone=True)
def give_up_shares(client: Client, ask: Any) -> dict[str, Any]:
    """One share of every neighbour: of the seed of those who answered, of the key of the others."""
    known = _at_step(client, "confirmed")
    said = ask["confirmed"], ask["confirmations"]
    agreed = _confirmed(client, known, *said, known["told"]).intersection(known["alive"].tolist())
    agreed.add(client.id)
    if len(agreed) < known["needed"]:
        raise Refusal(
            f"{len(agreed):,} clients confirm who has answered, {known['needed']:,} are needed"
        )
    of, shares = [client.id], [known["own_share"][KEY:]]
    for other, sealed in zip(ask["senders"].tolist(), ask["sealed"], strict=True):
        if other not in known["members"] or other in of:
            continue
        data = sealed.astype(np.uint8).tobytes()
        share = keys.open_sealed(_common(known, other), data, other, client.id)
        of.append(other)
        shares.append(share[KEY:] if other in known["alive"] else share[:KEY])
    del client.state[STATE]
    return {"of": np.array(of), "shares": _lines(shares, KEY)}


# --- what both sides compute alike ---


def roster_digest(roster: Mapping[str, Any]) -> bytes:
    """What all that is done in a sum is bound to: who takes part with which keys."""
    parts = [np.asarray(roster["clients"], "<i8").tobytes()]
    for name in ("mask_keys", "seal_keys"):
        parts.append(np.asarray(roster[name], np.uint8).tobytes())
    return keys.digest(*parts, encode(float(roster["share"])))


def view_digest(roster: bytes, survivors: IntArray) -> bytes:
    """Who has answered, in a sum with that roster."""
    return keys.digest(roster, np.asarray(survivors, "<i8").tobytes())


def pair_mask(private: Any, public: bytes, roster: bytes) -> bytes:
    """The key of the mask that two clients have in common, one of them by its loaded key."""
    return keys.common_key(private, public, "pair mask", roster)[:MASK_KEY]


def own_mask(seed: bytes, roster: bytes) -> bytes:
    """The key of the mask that a client alone has."""
    return keys.derive(seed, "own mask", roster)[:MASK_KEY]


def ask_digest(ask: Ask, client: int) -> bytes:
    """What a client was asked, and how its reply is added up."""
    steps = [step.digest for step in ask.prepare]
    said = [ask.task, ask.version, ask.payload_for(client), steps, ask.seed, ask.round, ask.cover]
    return keys.digest(b"asked", encode(said))


def _confirmed(
    client: Client, known: Mapping[str, Any], senders: IntArray, lines: Array, what: bytes
) -> set[int]:
    """The neighbours who say ``what`` to this client."""
    found = set()
    for other, said in zip(senders.tolist(), lines, strict=True):
        if other in known["members"]:
            expected = keys.confirmation(_common(known, other), other, client.id, what)
            if hmac.compare_digest(expected, said.astype(np.uint8).tobytes()):
                found.add(other)
    return found


def _at_step(client: Client, step: str) -> Mapping[str, Any]:
    known = client.state.get(STATE)
    if known is None or known["step"] != step:
        reached = "none is going on" if known is None else f"it is past {known['step']!r}"
        raise Refusal(f"a step of a secure sum out of turn: {reached}, not past {step!r}")
    return known  # type: ignore[no-any-return]


def _common(known: Mapping[str, Any], other: int) -> bytes:
    place = int(np.flatnonzero(known["neighbours"] == other)[0])
    return bytes(known["common"][KEY * place : KEY * (place + 1)])


def _line(lines: Array, place: int) -> bytes:
    return bytes(lines[place].astype(np.uint8).tobytes())


def _lines(pieces: list[bytes], length: int) -> Array:
    if any(len(piece) != length for piece in pieces):
        raise PayloadError(f"pieces of {length} bytes were expected")
    return np.frombuffer(b"".join(pieces), np.uint8).reshape(len(pieces), length)

"""Private set intersection as asks: which rows all parties share, and a random order of them.

1. ``psi.begin``: every party multiplies the points of its identifiers (:mod:`solera.privacy.psi`),
   in a random order of its own, and seals them to the next party. It commits to a contribution.
2. ``psi.multiply``: each multiplies what it got and seals it to the next one, until all have.
   The last one shows the points to the coordinator, which finds what all lists have in common.
   With ``count_only`` parties forget their numbers here: nothing but the count can come of it.
3. ``psi.reveal``: every party hears which of its own points are common, and seals its contribution
   to the others. ``psi.order``: the contributions, checked against their commitments, make the
   order of the common rows.
4. ``vertical.agree``: every party compares a keyed digest of the identifiers in that order with
   what each other party sealed to it. Whoever was told wrong places finds out here.

==============  ==================================================================================
who             learns
==============  ==================================================================================
coordinator     how many identifiers each party has and how many are common to each set of
                parties; no identifier, no hash of one, and not the order in the end
each party      how many identifiers the others have, and which of its own all others have
count_only      the coordinator the same numbers; parties nothing but the others' sizes
==============  ==================================================================================

Parties follow the protocol, and the coordinator does not join forces with one of them: together
they could tell which of that party's identifiers some other party has.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

import numpy as np

from solera.core.clients import Client, IntArray
from solera.core.component import Component
from solera.core.constraints import check_arguments
from solera.core.errors import DataError, Refusal
from solera.core.federation import Federation
from solera.core.sealing import message
from solera.core.task import task
from solera.learn.vertical.parties import Parties
from solera.learn.vertical.party import (
    begin_part,
    ends_of,
    keep_order,
    keep_part,
    part_of,
    private_seed,
)
from solera.privacy import psi
from solera.privacy.identifiers import Normalisation, normalised
from solera.trust.constructors import count_by, fact

UNKNOWN = bytes(32)
"""The digest of a party that has no identifiers, and takes rows as they are."""


@task("psi.begin", sealed=True)
def begin(client: Client, ask: Any) -> dict[str, Any]:
    """Multiply the points of this client's identifiers, and commit to a contribution."""
    identifiers = client.data.identifiers("train")
    if identifiers is None:
        raise DataError(
            "this party has no identifiers",
            hint="so.simulate_vertical(id=…), solera join --id, or align='order'",
        )
    if client.id not in ask["parties"]:
        raise Refusal("this client is not among the parties")
    texts = normalised(identifiers, ask["rule"])
    if not ask["now"]:
        begin_part(client, ask["model"])
    secret = private_seed(client, "psi")
    number, contribution, shuffle = (
        hashlib.sha256(purpose + secret).digest()
        for purpose in (b"number", b"contribution", b"shuffle")
    )
    shuffled = _permutation(shuffle, len(texts))
    points = psi.multiplied(psi.points_of([texts[i] for i in shuffled]), number)
    working = {
        "number": number,
        "contribution": contribution,
        "shuffled": shuffled,
        "rule": ask["rule"],
        "now": ask["now"],
        "parties": list(ask["parties"]),
    }
    keep_part(client, ask["model"], psi=working)
    following = _next(client, ask["parties"])
    return {
        "rows": count_by(None),
        "commitment": fact(psi.commitment(contribution)),
        "sealed": [message(following, multiply, 1, {"points": points})],
    }


@task("psi.multiply", sealed=True)
def multiply(client: Client, ask: Any) -> dict[str, Any]:
    """Multiply points that another party sent, and hand them on; at last show them."""
    working = _working(client, ask["model"])
    (letter,) = ask["sealed"]
    points = psi.multiplied(letter["content"]["points"], working["number"])
    step = ask["step"]
    if step < len(working["parties"]) - 1:
        following = _next(client, working["parties"])
        return {"sealed": [message(following, multiply, step + 1, {"points": points})]}
    if ask["count_only"]:
        keep_part(client, ask["model"], psi={})
    return {"shown": b"".join(psi.shown(points))}


@task("psi.reveal", sealed=True)
def reveal(client: Client, ask: Any) -> dict[str, Any]:
    """Hear which points are common, and reveal the contribution to the other parties."""
    working = _working(client, ask["model"])
    places, own = ask["places"], psi.commitment(working["contribution"])
    if len(np.unique(places)) != len(places) or (places >= len(working["shuffled"])).any():
        raise Refusal("the common rows are no rows of this client")
    if len(ask["commitments"]) != len(working["parties"]) or own not in ask["commitments"]:
        raise Refusal("the commitments are not those of the parties")
    if len(set(ask["commitments"])) != len(ask["commitments"]):
        raise Refusal("two parties have the same commitment")
    changed = {**working, "places": places, "commitments": list(ask["commitments"])}
    keep_part(client, ask["model"], psi=changed)
    content = {"contribution": working["contribution"]}
    return {"sealed": _to_others(client, working, order, content)}


@task("psi.order", sealed=True)
def order(client: Client, ask: Any) -> dict[str, Any]:
    """Put the common rows in the order that all contributions make."""
    working = _working(client, ask["model"])
    given = {client.id: working["contribution"]}
    given |= {m["sender"]: m["content"]["contribution"] for m in ask["sealed"]}
    if sorted(given) != sorted(working["parties"]):
        raise Refusal("a party did not contribute to the order")
    for party, committed in zip(working["parties"], working["commitments"], strict=True):
        if not hmac.compare_digest(psi.commitment(given[party]), committed):
            raise Refusal("a party changed its contribution to the order after it was bound to it")
    seed = psi.together([given[party] for party in working["parties"]])
    common = working["shuffled"][working["places"]]
    rows = common[_permutation(seed, len(common))]
    ends = ends_of(len(rows), ask["validation"], ask["test"])
    keep_order(client, ask["model"], "now" if working["now"] else "trained", rows, ends)
    identifiers = client.data.identifiers("train")
    assert identifiers is not None
    texts = normalised(identifiers, working["rule"])
    digest = hmac.digest(seed, "\n".join(texts[i] for i in rows).encode(), "sha256")
    keep_part(client, ask["model"], psi={"digest": digest, "parties": working["parties"]})
    return {"sealed": _to_others(client, working, agree, {"digest": digest})}


@task("vertical.agree", sealed=True)
def agree(client: Client, ask: Any) -> dict[str, Any]:
    """Make sure that all parties have put the same people in the same order."""
    working = part_of(client, ask["model"]).get("psi", {})
    senders = sorted(m["sender"] for m in ask["sealed"])
    if senders != sorted(set(working.get("parties", ())) - {client.id}):
        raise Refusal("a party did not say how it ordered its rows")
    for m in ask["sealed"]:
        digest = m["content"]["digest"]
        if UNKNOWN not in (digest, working["digest"]) and digest != working["digest"]:
            raise DataError(
                f"misaligned identifiers: party {m['sender']} has other rows, or another order",
                hint="align='psi' finds the common rows and orders them",
            )
    keep_part(client, ask["model"], psi={})
    return {"agreed": fact(True)}


def _working(client: Client, model: str) -> dict[str, Any]:
    working: dict[str, Any] = part_of(client, model).get("psi", {})
    if "number" not in working:
        raise Refusal("no intersection is under way")
    return working


def _next(client: Client, parties: list[int]) -> int:
    return parties[(parties.index(client.id) + 1) % len(parties)]


def _to_others(client: Client, working: Any, reader: Any, content: Any) -> list[dict[str, Any]]:
    return [
        message(party, reader, 0, content) for party in working["parties"] if party != client.id
    ]


def _permutation(seed: bytes, count: int) -> IntArray:
    key = np.frombuffer(seed[:16], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key)).permutation(count)


def intersect(
    parties: Any,
    model: str,
    rule: Normalisation,
    *,
    now: bool = False,
    validation: float = 0.0,
    test: float = 0.0,
) -> int:
    """Let all parties take the rows they share in a common order; how many these are."""
    begun, places = _common(parties, model, rule, now=now, count_only=False)
    if not len(places[0]):
        raise DataError(
            f"{', '.join(parties.names)} have no identifier in common",
            hint=f"identifiers were compared as {rule!r}; normalise='text' leaves out accents, "
            "spaces and punctuation, 'digits' all but digits",
        )
    commitments = [begun[k]["commitment"] for k in range(len(parties))]
    own = {k: {"places": np.array(places[k], dtype=np.int64)} for k in range(len(parties))}
    parties.ask(reveal, {"model": model, "commitments": commitments}, own=own)
    parties.ask(order, {"model": model, "validation": validation, "test": test})
    parties.ask(agree, {"model": model})
    return len(places[0])


def _common(
    parties: Any, model: str, rule: Normalisation, *, now: bool, count_only: bool
) -> tuple[dict[int, Any], list[list[int]]]:
    """What parties said at the beginning, and the places of common identifiers in their lists."""
    many = len(parties)
    asked = {"model": model, "now": now, "rule": rule, "parties": list(parties.numbers)}
    begun = parties.ask(begin, asked)
    shown: dict[int, Any] = {}
    for step in range(1, many):
        payload = {"model": model, "step": step, "count_only": count_only}
        shown = parties.ask(multiply, payload, round=step)
    lists: list[list[bytes]] = [[]] * many
    for party, reply in shown.items():
        content = reply["shown"]
        values = [content[at : at + psi.SHOWN] for at in range(0, len(content), psi.SHOWN)]
        lists[(party + 1) % many] = values  # the list began at the next one of the ring
    return begun, psi.matches(lists)


def common_rows(
    federation: Federation, *, normalise: Normalisation = "plain", deadline: float | None = None
) -> int:
    """How many people all clients of a vertical federation have in common, and nothing else.

    Identifiers are compared as ``normalise`` says, see :mod:`solera.privacy.identifiers`. Parties
    forget the numbers that they multiplied with, so that nothing more can be learned later from
    what they exchanged.
    """
    check_arguments(common_rows, normalise=normalise)
    counting = _Counting()
    with federation.announced(counting):
        parties = Parties(federation, deadline=deadline)
        name = hashlib.sha256(b"count").hexdigest()[:32]
        _, places = _common(parties, name, normalise, now=True, count_only=True)
    return len(places[0])


class _Counting(Component):
    """What a job that only counts says of itself."""

"""Rows that clients allow to be sent to the coordinator while the others train (Hybrid-FL).

Nothing is sent unless the client's own resources say ``upload``: in simulation a few clients are
drawn that do, a real client does only if its owner wrote so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from solera.core.clients import Client, FloatArray, IntArray
from solera.core.engine import PerClient
from solera.core.errors import Refusal
from solera.core.schema import class_codes
from solera.core.selection import Roster
from solera.core.task import task
from solera.data.federated import FederatedData
from solera.engines.local import LocalEngine
from solera.select.reports import own_resources


@task("select.upload")
def upload(client: Client, ask: Any) -> dict[str, Any]:
    """Rows ``first`` … ``first + take`` − 1 of each class, where the client allows it."""
    if not own_resources(client)["upload"]:
        raise Refusal("this client sends no rows")
    codes = class_codes(client.data.y, ask["classes"])
    ranges = zip(ask["first"].tolist(), ask["take"].tolist(), strict=True)
    places = [np.flatnonzero(codes == c)[i : i + n] for c, (i, n) in enumerate(ranges)]
    rows = np.sort(np.concatenate(places))
    X = client.data.X[rows]
    return {"X": X.toarray() if hasattr(X, "toarray") else X, "y": client.data.y[rows]}


def plan_upload(
    links: FloatArray, row_bits: FloatArray, left: IntArray, seconds: float
) -> IntArray:
    """How many rows of each class (columns) each client (rows) sends in so many seconds.

    Classes take turns. A row of a class comes from the client with the fastest link that still has
    one; it takes row_bits / link. It ends when the time is used up or no rows are left.
    """
    left = left.copy()
    taken = np.zeros_like(left)
    by_link = np.argsort(-links, kind="stable")
    cost = row_bits / links
    missing = 0
    turn = 0
    classes = left.shape[1]
    while classes and missing < classes:
        label = turn % classes
        turn += 1
        having = by_link[left[by_link, label] > 0]
        if not len(having):
            missing += 1
            continue
        missing = 0
        who = having[0]
        if cost[who] > seconds:
            break
        seconds -= float(cost[who])
        left[who, label] -= 1
        taken[who, label] += 1
    return taken


def fetch_rows(
    roster: Roster, takes: Mapping[int, tuple[IntArray, IntArray]], round: int
) -> LocalEngine | None:
    """Ask for (first, take) rows of each class; the coordinator becomes a client with them."""
    schema = roster.learner.schema_
    asks = {
        client: {"first": first, "take": take, "classes": schema.classes}
        for client, (first, take) in takes.items()
    }
    if not asks or roster.federation is None:
        return None
    who = np.array(sorted(asks), dtype=np.int64)
    replies = roster.ask(upload, PerClient(asks), who, round)
    sound = [r for r in replies if _is_sound(r.payload, schema.width)]
    if not sound:
        return None
    X = np.concatenate([np.asarray(r["X"]) for r in sound])
    y = np.concatenate([np.asarray(r["y"]) for r in sound])
    data = FederatedData(X, y, np.array([0, len(y)]), schema=schema)
    return LocalEngine(data) if len(y) else None


def _is_sound(payload: Any, width: int) -> bool:
    if not isinstance(payload, Mapping) or set(payload) != {"X", "y"}:
        return False
    X, y = np.asarray(payload["X"]), np.asarray(payload["y"])
    return X.ndim >= 2 and len(X) == len(y) and int(np.prod(X.shape[1:])) == width

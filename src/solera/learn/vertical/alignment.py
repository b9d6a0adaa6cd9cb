"""Agreement on which rows all parties share, and in which order."""

from __future__ import annotations

import hashlib
from typing import Any, Literal

import numpy as np

from solera.core.clients import Client
from solera.core.errors import DataError
from solera.core.sealing import message
from solera.core.task import task
from solera.learn.vertical.parties import Parties
from solera.learn.vertical.party import begin_part, ends_of, keep_order, keep_part
from solera.learn.vertical.psi import UNKNOWN, agree, intersect
from solera.privacy.identifiers import Normalisation, normalised
from solera.trust.constructors import count_by


@task("vertical.rows", sealed=True)
def take_rows_as_held(client: Client, ask: Any) -> dict[str, Any]:
    """Take all rows in the order in which this client holds them, and let others compare it."""
    rows, model = len(client.data), ask["model"]
    if not ask["now"]:
        begin_part(client, model)
    ends = ends_of(rows, ask["validation"], ask["test"])
    keep_order(client, model, "now" if ask["now"] else "trained", np.arange(rows), ends)
    identifiers = client.data.identifiers("train")
    digest = UNKNOWN
    if identifiers is not None:
        texts = normalised(identifiers, ask["rule"])
        digest = hashlib.sha256("\n".join(texts).encode()).digest()
    keep_part(client, model, psi={"digest": digest, "parties": list(ask["parties"])})
    others = [party for party in ask["parties"] if party != client.id]
    return {
        "rows": count_by(None),
        "sealed": [message(party, agree, 0, {"digest": digest}) for party in others],
    }


def align(
    parties: Parties,
    model: str,
    how: Literal["psi", "order"],
    rule: Normalisation,
    *,
    now: bool = False,
    validation: float = 0.0,
    test: float = 0.0,
) -> int:
    """Let all parties take the same rows in the same order; how many these are."""
    if how == "psi":
        return intersect(parties, model, rule, now=now, validation=validation, test=test)
    kept = {"model": model, "now": now, "rule": rule, "parties": list(parties.numbers)}
    told = parties.ask(take_rows_as_held, {**kept, "validation": validation, "test": test})
    rows = [told[k]["rows"] for k in range(len(parties))]
    if len(set(rows)) > 1:
        counts = ", ".join(f"{n} {r:,}" for n, r in zip(parties.names, rows, strict=True))
        raise DataError(
            f"the parties do not hold the same rows: {counts}",
            hint="align='psi' finds the common ones by their identifiers",
        )
    parties.ask(agree, {"model": model})
    return int(rows[0])

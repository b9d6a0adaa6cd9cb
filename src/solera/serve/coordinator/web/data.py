"""The data of a federation as its clients describe it: columns, what misses, and balance.

It is read from answers that clients gave in jobs, as long as these are kept: ``data.describe``,
which every job asks, and ``describe.counts`` of ``so.describe``. What owners withheld is
not in them; a number below five is not shown either, whatever an owner's policy lets out.
"""

from __future__ import annotations

from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from solera.core.errors import SoleraError
from solera.core.payload import decode
from solera.core.replies import Reply
from solera.core.schema import Schema
from solera.data.agreement import SMALLEST_COUNT, SchemaAgreement
from solera.learn.base import from_bytes
from solera.learn.description import MISSING
from solera.serve.coordinator.service import Coordinator
from solera.serve.coordinator.store.watching import KeptReply

_MOST_CATEGORIES = 20
_MOST_COLUMNS = 500
_MOST_BYTES = 1 << 18
_FEW = f"< {SMALLEST_COUNT}"
STRANGE = (SoleraError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError)
"""What reading an answer raises that is not what it should be: a client may send anything."""


def data(coordinator: Coordinator, federation: str) -> dict[str, Any]:
    """The agreed schema, and who holds how much of what."""
    store = coordinator.store
    names = store.client_names(federation)
    replies = store.kept_replies(federation, "data.describe")
    described = [told for reply in replies if (told := _told(coordinator, reply))]
    counted = store.kept_replies(federation, "describe.counts")
    schema, problem = _agreed(described)
    source = replies[0].job if described else ""
    if schema is None and not problem:
        schema, source = _of_newest_model(coordinator, federation)
    shown: dict[str, Any] = {
        "name": federation, "schema": schema, "problem": problem, "source": source,
        "columns": [], "clients": [], "classes": [], "balance": [], "counts": "",
    }  # fmt: skip
    if schema is None:
        return shown
    missing, balance = _counts(coordinator, counted, schema)
    if balance:
        shown["counts"] = counted[0].job
    for j, feature in enumerate(schema.features[:_MOST_COLUMNS]):
        more = len(feature.categories) - _MOST_CATEGORIES
        categories = list(feature.categories[:_MOST_CATEGORIES]) + (
            [f"{more} more"] if more > 0 else []
        )
        misses = missing[j] if missing else _gap_words(sum(j in one.gaps for one in described))
        shown["columns"].append(
            (feature.name, feature.kind, ", ".join(map(str, categories)), misses)
        )
    shown["clients"] = [
        (names.get(one.client, str(one.client)), hidden(one.rows)) for one in described
    ]
    shown["classes"] = [str(c) for c in schema.classes.tolist()]
    shown["balance"] = [(names.get(client, str(client)), row) for client, row in balance]
    return shown


class _Told(NamedTuple):
    """What one client said of its columns, as far as it can be used."""

    client: int
    rows: int
    gaps: frozenset[int]
    lifted: Any


def _told(coordinator: Coordinator, reply: KeptReply) -> _Told | None:
    """An answer to ``data.describe``; None if it is something else."""
    try:
        answer = read_answer(coordinator, reply.digest)
        lifted = SchemaAgreement().lift(Reply(reply.client, answer))
        gaps = frozenset(map(int, answer["gaps"]))
        return _Told(reply.client, int(answer["rows"] or 0), gaps, lifted)
    except STRANGE:
        return None


def read_answer(coordinator: Coordinator, digest: str | None, most: int = _MOST_BYTES) -> Any:
    """What a blob holds that is small enough to be read for a page."""
    frame = None if digest is None else coordinator.blobs.read_small(digest, most)
    if frame is None:
        raise ValueError("too large to be shown")
    return decode(frame)


def _agreed(described: list[_Told]) -> tuple[Schema | None, str]:
    if not described:
        return None, ""
    rule = SchemaAgreement()
    try:
        agreed = rule.finish(reduce(rule.merge, (one.lifted for one in described)))
    except STRANGE as error:
        return None, str(error)
    schema: Schema = agreed["schema"]
    return schema, ""


def _of_newest_model(coordinator: Coordinator, federation: str) -> tuple[Schema | None, str]:
    for job in reversed(coordinator.store.jobs(federation)):
        try:
            content = coordinator.blobs.read(coordinator.store.model(job.id).digest)
            return from_bytes(content).schema_, job.id
        except STRANGE:
            continue
    return None, ""


def _counts(
    coordinator: Coordinator, replies: list[KeptReply], schema: Schema
) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """How many values miss in every column, and the rows of every class at each client."""
    if not replies:
        return [], []
    try:
        ask = read_answer(coordinator, replies[0].payload)
        answers = {r.client: read_answer(coordinator, r.digest) for r in replies}
        tables = [a["columns"] for a in answers.values()]
        missing = np.array(
            [sum(int(t[str(j)][MISSING]) for t in tables) for j in range(len(ask["columns"]))]
        )
        classes = {c: np.asarray(a["classes"]).tolist() for c, a in answers.items()}
        if len(missing) != len(schema.features) or len(ask["classes"]) != len(schema.classes):
            return [], []
        balance = [(client, [hidden(n) for n in row]) for client, row in classes.items()]
        return [hidden(n) for n in missing.tolist()], balance
    except STRANGE:
        return [], []


def _gap_words(clients: int) -> str:
    return f"at {clients} client{'' if clients == 1 else 's'}" if clients else "–"


def hidden(count: Any) -> str:
    """A number as pages show it: small ones are not told."""
    return f"{int(count):,}" if count >= SMALLEST_COUNT else _FEW

"""The first sums of every closed job: how many persons all owners have in each part and class."""

from __future__ import annotations

from typing import Any

import numpy as np

from solera.core.clients import PARTS, Client
from solera.core.schema import class_codes
from solera.core.task import task
from solera.trust.constructors import count_by

PERSONS = "board.persons"


@task(PERSONS)
def count_persons(client: Client, ask: Any) -> dict[str, Any]:
    """The persons in every part of this client's rows, the rows, and those of every class.

    Where noise is to hide targets, ``classes`` are not asked for.
    """
    counts: dict[str, Any] = {"rows": {}}
    for part in PARTS:
        every = np.arange(len(client.data.part(part)))
        counts[part] = count_by(None, rows=_first_rows(client, part), part=part)
        counts["rows"][part] = count_by(None, rows=every, part=part)
    schema, y = client.data.schema, client.data.y
    if not ask["classes"]:
        return counts
    if schema.target == "classes":
        counts["classes"] = count_by(class_codes(y, schema.classes), len(schema.classes))
    elif schema.target == "labels":
        label = np.arange(schema.outputs)[None, :]
        counts["classes"] = count_by((label, np.asarray(y)), cells=(schema.outputs, 2))
    return counts


def _first_rows(client: Client, part: Any) -> Any:
    """One row of every person."""
    units = client.data.units(part)
    if units is None:
        return np.arange(len(client.data.part(part)))
    return np.unique(units, return_index=True)[1]

"""Start from a model instead of from nothing: what must agree, and what is taken over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from solera.core.errors import DataError, UsageError
from solera.core.schema import Schema


def continued_schema(new: Schema, old: Schema) -> Schema:
    """The schema of a model, for rows that it can go on learning from.

    Columns, their kinds and categories must be the model's, so that a code means the same; classes
    may be fewer, not others.
    """
    columns = [(f.name, f.kind) for f in new.features]
    known = [(f.name, f.kind) for f in old.features]
    if columns != known:
        differing = [f"{name} ({kind})" for name, kind in columns if (name, kind) not in known]
        raise DataError(
            f"the model was fitted on {len(known)} columns, these are {len(columns)}; others are "
            f"{', '.join(differing[:5]) or 'their number or order'}",
            hint="start from a model of the same columns",
        )
    for mine, theirs in zip(new.features, old.features, strict=True):
        if mine.categories != theirs.categories:
            raise DataError(
                f"column {mine.name!r} has other categories than in the model: "
                f"{', '.join(mine.categories[:6])}; {', '.join(theirs.categories[:6])}",
                hint="read the rows by the model's: so.simulate(frame, schema=model.schema_)",
            )
    if new.target != old.target:
        raise DataError(f"the model learned {old.target}, the target holds {new.target}")
    if new.target != "classes":
        if new.outputs != old.outputs:
            raise DataError(f"the model has {old.outputs} outputs, the target {new.outputs}")
        return old
    if new.classes.dtype.kind != old.classes.dtype.kind:
        unknown = new.classes.tolist()
    else:
        unknown = np.setdiff1d(new.classes, old.classes).tolist()
    if unknown:
        raise DataError(f"the model knows {old.classes.tolist()}, not the class {unknown[0]!r}")
    return old


def continued_model(
    owner: object, first: Mapping[str, Any], start: Mapping[str, Any]
) -> dict[str, Any]:
    """The arrays of a model to start from, in place of those a learner would start with."""
    taken = {}
    for name, array in first.items():
        found = start.get(name)
        if found is None or np.shape(found) != np.shape(array):
            raise UsageError(
                f"{type(owner).__name__} cannot start from this model: {name} "
                f"{'is missing' if found is None else f'has shape {np.shape(found)}'}, "
                f"{np.shape(array)} is needed",
                hint="start from a model of the same shape",
            )
        taken[name] = np.asarray(found).astype(np.asarray(array).dtype)
    return taken

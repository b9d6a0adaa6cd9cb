"""Numbers that a client withholds: they are absent, never zero.

A reply of which something is withheld travels as ``{VALUE: reply, ABSENT: {entry: marks}}``, with
marks in the form of the entry's numbers; folded replies have in their place how many clients
withheld each number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

VALUE, ABSENT = "solera.value", "solera.absent"

Gaps = dict[str, Any]
"""By entry (``"a.b"`` for nested tables): marks, or numbers of clients."""


def with_gaps(value: Any, gaps: Gaps) -> dict[str, Any]:
    """A reply or a partial, with what is absent from it."""
    return {VALUE: value, ABSENT: gaps}


def split_gaps(value: Any) -> tuple[Any, Gaps]:
    """What a reply or a partial holds, and what is absent from it."""
    if isinstance(value, dict) and len(value) == 2 and VALUE in value and ABSENT in value:
        return value[VALUE], dict(value[ABSENT])
    return value, {}


def add_gaps(a: Gaps, b: Gaps) -> Gaps:
    """How many clients withhold each number, of two sets of clients."""
    total = dict(a)
    for entry, clients in b.items():
        total[entry] = _add(total[entry], clients) if entry in total else clients
    return total


def count_gaps(gaps: Gaps) -> Gaps:
    """Marks of one client as numbers of clients."""
    return {entry: _as_counts(marks) for entry, marks in gaps.items()}


def whole_entries(gaps: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every entry with one array; those of lists are numbered."""
    for entry, clients in gaps.items():
        if isinstance(clients, list):
            yield from whole_entries({f"{entry}.{i}": one for i, one in enumerate(clients)})
        else:
            yield entry, clients


def anything_absent(gaps: Mapping[str, Any]) -> bool:
    """Whether any number is marked; a masked reply marks every number, as absent or not."""
    return any(np.any(marks) for _, marks in whole_entries(gaps))


def _as_counts(marks: Any) -> Any:
    if isinstance(marks, list):
        return [_as_counts(one) for one in marks]
    return np.asarray(marks).astype(np.int64)


def _add(a: Any, b: Any) -> Any:
    if isinstance(a, list):
        return [_add(one, other) for one, other in zip(a, b, strict=True)]
    return a + b

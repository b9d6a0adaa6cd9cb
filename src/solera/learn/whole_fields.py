"""Sums of which nothing may be missing: estimates would be of no rows at all without one."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from solera.core.absent import Gaps, whole_entries
from solera.core.aggregation import Aggregation, Fields
from solera.core.clients import BoolArray, IntArray
from solera.core.errors import PayloadError
from solera.core.replies import Reply

_NAMED = 5


class WholeFields(Fields):
    """:class:`Fields` of replies from which nothing is withheld.

    A client that withholds anything is turned away, with the names of the columns and outputs that
    fewer persons have than its policy's ``min_count``.

    Parameters
    ----------
    fields: an aggregation for each entry.
    columns: the names of the columns of Gram matrices.
    outputs: the names of classes, labels or numbers to predict.
    members: the columns of every member of an ensemble, by number; None: one, with all.
    """

    def __init__(
        self,
        fields: Mapping[str, Aggregation],
        columns: Sequence[str] = (),
        outputs: Sequence[str] = (),
        members: IntArray | None = None,
    ) -> None:
        super().__init__(fields)
        self.columns = columns
        self.outputs = outputs
        self.members = members

    def accepts_gaps(self, entries: Collection[str]) -> bool:
        return False

    def take(self, reply: Reply) -> Any:
        if not reply.absent:
            return self.lift(reply)
        missing = dict(self._missing(dict(reply.absent)))
        names = [name for name, column in missing.items() if column not in missing]
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        raise PayloadError(
            f"fewer persons than min_count have {', '.join(names[:_NAMED])}{more}; leave the "
            "column out (so.learn.FedSelect), merge it with another category or class, or fit "
            "without this client"
        )

    def _missing(self, gaps: Gaps) -> Iterator[tuple[str, str]]:
        """What numbers that are absent are of, by name, and of which column where of a part."""
        members = [list(self.columns)]
        if self.members is not None:
            members = [[self.columns[i] for i in chosen] for chosen in self.members.tolist()]
        width, outputs = len(members[0]), self.outputs
        for entry, absent in whole_entries(gaps):
            marks = np.asarray(absent, dtype=bool)
            if width and marks.shape[-1:] == (width * (width + 1) // 2,):
                matrices = marks.reshape(len(members), -1, marks.shape[-1])
                for names, of_member in zip(members, matrices, strict=True):
                    yield from _of_matrices(of_member, names, outputs)
            elif width and marks.shape[-2:] == (width, len(outputs)):
                moments = marks.reshape(len(members), width, -1)
                for names, of_member in zip(members, moments, strict=True):
                    yield from _of_moments(of_member, names, outputs)
            else:
                yield f"the cells of {entry!r}", ""


def _of_matrices(
    marks: BoolArray, names: Sequence[str], outputs: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Matrices × pairs of columns: a matrix as a whole, a column, or two that go together."""
    i, j = np.triu_indices(len(names))
    before = len(marks) - len(outputs)  # the matrix of all rows, if any, is before the others
    for k, absent in enumerate(marks):
        if absent.all():
            yield (repr(outputs[k - before]) if k >= before else "all columns"), ""
            continue
        alone = {int(b) for a, b in zip(i[absent], j[absent], strict=True) if a in (0, b)}
        yield from ((repr(names[column]), "") for column in sorted(alone))
        for a, b in zip(i[absent].tolist(), j[absent].tolist(), strict=True):
            if a not in alone and b not in alone:
                yield f"both {names[a]!r} and {names[b]!r}", ""


def _of_moments(
    marks: BoolArray, names: Sequence[str], outputs: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Columns × outputs: an output, or a column among the rows of an output or the others."""
    for output, absent in zip(outputs, marks.T, strict=True):
        if absent[0]:
            yield f"{output!r} or the others", ""
        else:
            thin = np.flatnonzero(absent).tolist()
            for name in [repr(names[j]) for j in thin]:
                yield f"{name} in {output!r} or the others", name

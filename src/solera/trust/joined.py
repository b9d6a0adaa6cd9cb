"""One run of a task on the rows of many simulated clients: the client is one more cell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, NoReturn

import numpy as np

from solera.core.clients import Array, ClientGroup, Part, RowParts, Rows
from solera.core.errors import TaskError
from solera.core.replies import Stacked, map_leaves
from solera.core.schema import Schema
from solera.core.task import Many, Task
from solera.trust.cells import Behind
from solera.trust.contributions import Contribution, Counts


class JoinedData(RowParts):
    """The rows of all clients of a group, one after the other."""

    def __init__(self, group: ClientGroup) -> None:
        self._group = group

    def part(self, name: Part) -> Rows:
        return self._group.part(name).joined()

    @property
    def schema(self) -> Schema:
        return self._group.schema


class JoinedClients:
    """The clients of a group, as a task sees them that works row by row."""

    def __init__(self, task: Task, group: ClientGroup) -> None:
        self._task = task
        self.data = JoinedData(group)

    def __getattr__(self, name: str) -> NoReturn:
        raise TaskError(
            f"task {self._task.name!r} asks for client.{name}, which is not of a row",
            hint="without many=True the task runs for each client by itself",
        )


def run_on_joined_rows(task: Task) -> Many:
    """``many=`` of a task that works row by row."""

    def many(group: ClientGroup, ask: Any) -> Stacked:
        return stacked(task.one(JoinedClients(task, group), ask), group)  # type: ignore[arg-type]

    return many


def stacked(reply: Any, group: ClientGroup) -> Stacked:
    """The numbers of all clients of contributions of their :class:`JoinedData`.

    Counts of which only the sum is needed are added up at once.
    """
    rows_of = cache(lambda part: _rows_of(group, part))
    added = {
        entry: leaf.numbers(replace(_behind(leaf, rows_of), owners=None, clients=1))
        for entry, leaf in (reply.items() if isinstance(reply, Mapping) else ())
        if isinstance(leaf, Counts) and leaf.cells.shape and group.adds(entry)
    }
    if added:
        reply = {entry: leaf for entry, leaf in reply.items() if entry not in added}
    fields = map_leaves(lambda leaf: _numbers(leaf, group, rows_of), reply)
    return Stacked(fields, sums=added, replies=len(group))


def _rows_of(group: ClientGroup, part: Part) -> Behind:
    data = group.part(part)
    return Behind(int(data.sizes.sum()), data.owners, len(group))


def _behind(leaf: Contribution, rows_of: Callable[[Part], Behind]) -> Behind:
    behind = rows_of(leaf.part)
    return behind if leaf.rows is None else behind.among(leaf.rows)


def _numbers(leaf: Any, group: ClientGroup, rows_of: Callable[[Part], Behind]) -> Array:
    if not isinstance(leaf, Contribution):
        raise TaskError(f"a bare {type(leaf).__name__} is not of single clients")
    if not leaf.about_rows:
        value = np.asarray(leaf.numbers(Behind(0)))
        return np.broadcast_to(value, (len(group), *value.shape))
    numbers: Array = leaf.numbers(_behind(leaf, rows_of))
    return numbers

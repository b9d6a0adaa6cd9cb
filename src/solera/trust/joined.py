"""One run of a task on the rows of many simulated clients: the client is one more cell."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from solera.core.clients import Array, ClientGroup, Part, Rows
from solera.core.errors import TaskError
from solera.core.replies import Stacked, map_leaves
from solera.core.schema import Schema
from solera.core.task import Many, Task
from solera.trust.cells import Behind
from solera.trust.contributions import Contribution


class JoinedData:
    """The rows of all clients of a group, one after the other."""

    def __init__(self, group: ClientGroup) -> None:
        self._group = group

    def part(self, name: Part) -> Rows:
        return self._group.part(name).joined()

    @property
    def X(self) -> Any:
        return self.part("train").X

    @property
    def y(self) -> Any:
        return self.part("train").y

    @property
    def validation(self) -> Rows:
        return self.part("validation")

    @property
    def test(self) -> Rows:
        return self.part("test")

    @property
    def schema(self) -> Schema:
        return self._group.schema

    def __len__(self) -> int:
        return len(self.part("train"))


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
    """The numbers of all clients of contributions of their :class:`JoinedData`."""
    return Stacked(map_leaves(lambda leaf: _numbers(leaf, group), reply))


def _numbers(leaf: Any, group: ClientGroup) -> Array:
    if not isinstance(leaf, Contribution):
        raise TaskError(f"a bare {type(leaf).__name__} is not of single clients")
    if not leaf.about_rows:
        value = np.asarray(leaf.numbers(Behind(0)))
        return np.broadcast_to(value, (len(group), *value.shape))
    data = group.part(leaf.part)
    behind = Behind(int(data.sizes.sum()), data.owners, len(group))
    numbers: Array = leaf.numbers(behind if leaf.rows is None else behind.among(leaf.rows))
    return numbers

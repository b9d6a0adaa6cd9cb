"""A task is a named function installed at the client: the only thing that can run on its data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal

from solera.core.clients import Client, ClientGroup
from solera.core.errors import TaskError, TaskVersionMismatch, UnknownTask
from solera.core.registry import load_packages, new_registry
from solera.core.replies import Stacked

if TYPE_CHECKING:
    from solera.core.accounting import Event

One = Callable[[Client, Any], Any]
Many = Callable[[ClientGroup, Any], Stacked | Sequence[Any]]
Spends = Callable[[Client, Any], "Sequence[Event]"]
"""(client, ask) → what the noise in a reply is worth, for one row more or less."""


@dataclass(frozen=True)
class Task:
    """What runs at a client when it is asked for ``name``.

    ``one`` returns contributions (:mod:`solera.trust.contributions`), from which the library makes
    numbers. ``many`` serves a group of simulated clients at once and must give the numbers that
    ``one`` would give; True says that ``one`` works row by row, so that it may run on the rows of
    all of them. The coordinator turns replies away that hold NaN or infinite numbers, unless
    ``finite`` is False, and those that differ in keys, shapes or types from the example ``like``
    makes of the ask's payload. ``spends`` says what a reply is worth to which the task itself adds
    noise. ``sealed`` says that it exchanges messages with other clients
    (:mod:`solera.core.sealing`), ``alone`` that its replies may be read one by one where all others
    are only added up: they hold names and keys, on which clients agree first. ``fast`` is ``one``
    for a single client in the way of ``many``, where the other is written to be read.
    ``stacks`` says of which payloads ``many`` serves several clients at once; of all by default.
    """

    name: str
    one: One
    many: Many | Literal[True] | None = None
    version: int = 1
    finite: bool = True
    like: Callable[[Any], Any] | None = None
    spends: Spends | None = None
    sealed: bool = False
    alone: bool = False
    fast: One | None = None
    stacks: Callable[[Any], bool] | None = None

    def __call__(self, client: Client, ask: Any) -> Any:
        return self.one(client, ask)


_tasks: dict[str, Task] = new_registry()


def task(
    name: str,
    *,
    many: Many | Literal[True] | None = None,
    version: int = 1,
    finite: bool = True,
    like: Callable[[Any], Any] | None = None,
    spends: Spends | None = None,
    sealed: bool = False,
    alone: bool = False,
    fast: One | None = None,
    stacks: Callable[[Any], bool] | None = None,
) -> Callable[[One], Task]:
    """Install a function ``(client, ask) -> reply`` as the task ``name``.

    >>> @task("demo.rows")
    ... def rows(client, ask):
    ...     return {"rows": so.count_by(None)}
    """

    def install(one: One) -> Task:
        known = _tasks.get(name)
        if known is not None and _origin(known.one) != _origin(one):
            raise TaskError(
                f"task {name!r} is already installed by {known.one.__module__}",
                hint="choose another name; names are shared by all packages",
            )
        rest = (version, finite, like, spends, sealed, alone, fast, stacks)
        _tasks[name] = Task(name, one, many, *rest)
        return _tasks[name]

    return install


def _origin(function: One) -> tuple[str, str]:
    return (function.__module__, function.__qualname__)


def installed_tasks() -> dict[str, Task]:
    """All tasks by name, including those of packages with a ``solera.tasks`` entry point."""
    load_packages("solera.tasks")
    return dict(_tasks)


def find_task(name: str, version: int | None = None) -> Task:
    """The installed task of that name, in that version if one is given."""
    task = _tasks.get(name) or installed_tasks().get(name)
    if task is None:
        near = get_close_matches(name, installed_tasks(), n=1)
        hint = f"did you mean {near[0]!r}?" if near else "import the module that defines it"
        raise UnknownTask(f"no task {name!r} is installed", hint=hint)
    if version is not None and task.version != version:
        raise TaskVersionMismatch(
            f"task {name!r}: version {version} asked for, version {task.version} installed",
            hint="update the older side",
        )
    return task

"""The parts of a policy, each as a file may write it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import time, timedelta
from typing import Annotated, Any, Literal

import msgspec

from solera.core.ranges import Range, range_objection
from solera.trust.release import Kind

Count = Annotated[int, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
PublicKey = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
Category = str | int | float | bool


@dataclass(frozen=True, slots=True)
class TaskRule:
    """[[task]]"""

    name: str
    version: int | None = None
    where: Mapping[str, Range] = field(default_factory=dict)
    only: bool = False

    def covers(self, task: str) -> bool:
        if self.name.endswith("*"):
            return task.startswith(self.name[:-1])
        return task == self.name

    def objection(self, version: int, payload: Any) -> str | None:
        """What this entry has against a task, or None."""
        if self.version not in (None, version):
            return f"version {version}, only with version {self.version}"
        if outside := range_objection(self.where, payload):
            return outside
        given = payload if isinstance(payload, Mapping) else {"payload": payload}
        known = {name.partition(".")[0] for name in self.where}
        if self.only and payload is not None and (others := [n for n in given if n not in known]):
            return f"{str(others[0])[:80]!r}, which it does not name"
        return None

    def __str__(self) -> str:
        version = "" if self.version is None else f" version {self.version}"
        said = [f"{name} {allowed}" for name, allowed in self.where.items()]
        said += ["nothing else"] if self.only else []
        return f"{self.name}{version}" + (f": {'; '.join(said)}" if said else "")


@dataclass(frozen=True, slots=True)
class DataRules:
    """[data]: which columns tasks see, whose rows they are, and how many there must be."""

    min_rows: Count | None = None
    columns: tuple[str, ...] = ()
    unit: str | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """An entry of [columns]: where a column comes from, in which unit and by which names.

    A number becomes (value + ``plus``) × ``times``; a category the name that ``categories`` gives,
    and what it does not list is missing.
    """

    source: str
    plus: float = 0.0
    times: float = 1.0
    categories: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ApprovalRules:
    """[approval]"""

    mode: Literal["auto", "ask"] = "auto"
    approvers: Mapping[str, PublicKey] = field(default_factory=dict)
    days: Annotated[float, msgspec.Meta(gt=0, le=3650)] = 30.0

    def lasts(self, seconds: float | None) -> timedelta:
        """How long an approval holds of a job that wants so many seconds."""
        most = self.days * 86400
        return timedelta(seconds=most if seconds is None else min(seconds, most))


@dataclass(frozen=True, slots=True)
class NotifyRules:
    """[notify]: whom to tell of what waits for people, a command or a web address."""

    command: tuple[str, ...] = ()
    webhook: Annotated[str, msgspec.Meta(pattern=r"^(https?://.+)?$")] = ""


@dataclass(frozen=True, slots=True)
class Hours:
    """[hours]: from ``start`` until just before ``end``, perhaps of the next day."""

    start: time
    end: time

    def __contains__(self, moment: time) -> bool:
        if self.start < self.end:
            return self.start <= moment < self.end
        return moment >= self.start or moment < self.end

    def __str__(self) -> str:
        return f"from {self.start:%H:%M} to {self.end:%H:%M}"


@dataclass(frozen=True, slots=True)
class OutputRules:
    """[output]: what is None is as the named policy says, see ``ReleaseLimits``."""

    max_bytes: Count | None = None
    allows: frozenset[Kind] | None = None
    min_count: Count | None = None
    parameters: Positive | None = None
    gram_rows: Positive | None = None
    categories: Count | None = None
    category_share: Share | None = None
    encrypted: frozenset[Kind] | None = None
    noised: frozenset[Kind] | None = None
    only_sums: bool = False
    min_peers: Count | None = None
    keep_copies: str = ""

    @property
    def peers_needed(self) -> int:
        """Known clients that must be in a secure sum; 2 where only sums may leave."""
        if self.min_peers is not None:
            return self.min_peers
        return 2 if self.only_sums else 0


@dataclass(frozen=True, slots=True)
class Budget:
    """[privacy]: ε and δ of all that leaves with noise; ``ledger`` is another file to count in."""

    epsilon: Annotated[float, msgspec.Meta(gt=0)]
    delta: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    ledger: str = ""


def components_in(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every component that a description would build, the nested ones too."""
    if isinstance(tree, Mapping):
        if "$component" in tree:
            yield tree["$component"], tree.get("params")
        for value in tree.values():
            yield from components_in(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from components_in(value)

"""Entries of a reply that are no contributions, and the rule by which they leave.

A task that returns contributions (:mod:`.contributions`) need not declare anything. What is none
of them, names of categories, ciphertexts, trees, rows, is listed with the task
(``@task(…, release=[…])``); a bare number that nothing covers leaves in simulations and under the
policy ``trusted`` only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from solera.core.clients import Client
from solera.core.errors import GateRefusal
from solera.core.task import Task
from solera.trust.cells import count_distinct

if TYPE_CHECKING:
    from solera.trust.gate import ReleaseLimits

Kind = Literal[
    "facts", "cells", "gram", "update", "tree", "extremes", "categories", "cipher", "rows"
]


@dataclass
class OutgoingReply:
    """A reply on its way out, and whose it is."""

    task: str
    client: Client
    ask: Any
    reply: Any
    limits: ReleaseLimits

    def get(self, entry: str) -> Any:
        """The value of an entry; "" is the whole reply."""
        value = self.reply
        for key in entry.split(".") if entry else ():
            value = value[key]
        return value

    def put(self, entry: str, value: Any) -> None:
        """Change an entry in a copy of the reply."""
        self.reply = with_entry(self.reply, entry, value)

    def holds(self, entry: str) -> bool:
        value = self.reply
        for key in entry.split(".") if entry else ():
            if not isinstance(value, Mapping) or key not in value:
                return False
            value = value[key]
        return True

    def refuse(self, why: str) -> GateRefusal:
        return GateRefusal(f"task {self.task!r}: {why}")


class Release(ABC):
    """Entries of a reply and the rule by which they leave."""

    kind: ClassVar[Kind]
    says: ClassVar[str]
    about_rows: ClassVar[bool] = True
    tells_rows: ClassVar[bool] = False
    """Whether it may tell single rows: it leaves with noise, or under the policy ``trusted``."""
    instead: ClassVar[str] = ""
    """What may be asked for in its place where it does not leave, as people are told."""

    def __init__(self, *entries: str) -> None:
        self.entries = entries

    def can_leave(self, limits: ReleaseLimits) -> bool:
        """Whether anything of it leaves under such limits, whatever the rows are."""
        return self.kind in limits.allows and (limits.trusted or not self.tells_rows)

    @abstractmethod
    def judge(self, outgoing: OutgoingReply) -> Any:
        """The reply as it may leave, or a :class:`GateRefusal`."""


class Facts(Release):
    """Entries that follow from the ask or from the client's set-up, whatever its rows are."""

    kind = "facts"
    says = "facts that do not depend on rows"
    about_rows = False

    def judge(self, outgoing: OutgoingReply) -> Any:
        return outgoing.reply


class Categories(Release):
    """Names of categories and classes: those of at least ``min_count`` persons, or listed.

    ``keep``: changes the outgoing reply; it is given what may be named of a column's values.
    """

    kind = "categories"
    says = "names of categories and classes that at least min_count rows have"

    def __init__(
        self, *entries: str, keep: Callable[[OutgoingReply, Callable[[str, Any], Any]], None]
    ) -> None:
        super().__init__(*entries)
        self.keep = keep

    def judge(self, outgoing: OutgoingReply) -> Any:
        self.keep(outgoing, lambda column, values: self.common(outgoing, column, values))
        return outgoing.reply

    def common(self, outgoing: OutgoingReply, column: str, values: Any) -> list[Any]:
        """The values of a column, one per row, that may be named."""
        limits = outgoing.limits
        values = np.asarray(values)
        names, codes = np.unique(values, return_inverse=True)
        units = limits.units_of(outgoing.client, "train")
        units = np.arange(len(values)) if units is None else units
        persons = count_distinct(units, codes.reshape(-1), len(names))
        listed = set(limits.listed.get(column, ()))
        common = persons >= limits.min_count
        kept = [name for name, enough in zip(names.tolist(), common, strict=True) if enough]
        most = min(limits.categories, int(limits.category_share * len(values)))
        if len(kept) > most:
            raise outgoing.refuse(f"column {column!r} has more than {most} categories")
        return sorted({*kept, *listed}, key=names.tolist().index if not listed else str)


class Extremes(Release):
    """Smallest and largest values, or powers of two above them: those of the policy's bounds.

    ``bound``: (client, ask, bounds) → the entry from the owner's bounds by column, not from rows.
    """

    kind = "extremes"
    says = "bounds of columns, as the owner's policy gives them"
    about_rows = False

    def __init__(
        self, *entries: str, bound: Callable[[Client, Any, Mapping[str, Any]], Mapping[str, Any]]
    ) -> None:
        super().__init__(*entries)
        self.bound = bound

    def judge(self, outgoing: OutgoingReply) -> Any:
        bounds = outgoing.limits.bounds
        for entry, value in self.bound(outgoing.client, outgoing.ask, bounds).items():
            outgoing.put(entry, value)
        return outgoing.reply


class Cipher(Release):
    """Ciphertexts of what would be allowed to leave in the clear.

    ``inside``: (client, ask) → the contributions in the ciphertexts, which are judged as if they
    left; where a number of them is withheld, nothing is encrypted. It is empty where the ask wants
    them in the clear, which is refused where the owner's policy says ``encrypted`` for their kind,
    ``of``.
    """

    kind = "cipher"
    says = "encrypted numbers"

    def __init__(
        self,
        *entries: str,
        inside: Callable[[Client, Any], Mapping[str, Any]],
        of: Kind | None = None,
    ) -> None:
        super().__init__(*entries)
        self.inside = inside
        self.of = of

    def judge(self, outgoing: OutgoingReply) -> Any:
        from solera.trust.gate import judge_contributions

        inside = self.inside(outgoing.client, outgoing.ask)
        if not inside and self.of is not None and self.of in outgoing.limits.encrypted:
            raise outgoing.refuse(f"{Contributed.about[self.of]} leave encrypted only")
        _, gaps = judge_contributions(outgoing, inside)
        if gaps:
            raise outgoing.refuse(f"{sorted(gaps)[0]!r} rests on too few rows to be encrypted")
        return outgoing.reply


class Decrypted(Release):
    """Numbers that the client decrypts for the driver, where its policy trusts the driver.

    Nobody sees of a ciphertext what is inside: it may be the moments of a single client.
    """

    kind = "cipher"
    says = "what the owner's key opens"
    tells_rows = True

    def judge(self, outgoing: OutgoingReply) -> Any:
        raise outgoing.refuse("opens any ciphertext of the key, which needs the policy 'trusted'")


class Trees(Release):
    """Trees, and sums, scores and hashes along trees: under ``trusted``, or with noise.

    A tree follows from comparisons of all rows with each other, and a sum of gradients from scores
    that the asker chooses: no rule on how many rows a node holds bounds what either tells.
    """

    kind = "tree"
    says = "trees, or sums of gradients along trees"
    tells_rows = True
    instead = (
        "counts (FederatedTree(by_counts=True), FedID3), or sums with noise within a budget "
        "(FedHistGBDT(dp=so.DP(level='record', …)))"
    )

    def judge(self, outgoing: OutgoingReply) -> Any:
        raise _of_single_rows(outgoing, self)


class SingleRows(Release):
    """Numbers that depend on which single rows were chosen: under ``trusted``.

    ``instead``: what may be asked for in their place.
    """

    kind = "update"
    says = "sums around rows that are chosen one by one"
    tells_rows = True

    def __init__(self, *entries: str, instead: str) -> None:
        super().__init__(*entries)
        self.instead = instead  # type: ignore[misc]

    def judge(self, outgoing: OutgoingReply) -> Any:
        raise outgoing.refuse(
            f"{self.says} may tell single rows; ask with {self.instead}, or under the policy "
            "'trusted'"
        )


class RowsOut(Release):
    """Rows, or what rows can be computed from."""

    kind = "rows"
    says = "rows themselves"

    def judge(self, outgoing: OutgoingReply) -> Any:
        return outgoing.reply


class Contributed(Release):
    """What the contributions of a reply are, for those who plan before anything is computed.

    With noise that a budget counts, every kind that is allowed may leave.
    """

    about: ClassVar[dict[str, str]] = {
        "facts": "facts that do not depend on rows",
        "cells": "counts and sums over at least min_count rows",
        "gram": "Gram matrices, of enough rows for their columns",
        "update": "parameters of a model after steps over the rows",
        "tree": "sums of gradients along trees",
    }

    def __init__(self, kind: Any, takes_noise: bool) -> None:
        super().__init__("")
        self.kind = kind  # type: ignore[misc]
        self.says = self.about[kind]  # type: ignore[misc]
        self.about_rows = kind != "facts"  # type: ignore[misc]
        self.tells_rows = kind == "tree"  # type: ignore[misc]
        self.instead = Trees.instead if kind == "tree" else ""  # type: ignore[misc]
        self.takes_noise = takes_noise

    def can_leave(self, limits: ReleaseLimits) -> bool:
        noised = self.takes_noise and limits.budget is not None and self.kind in limits.allows
        return noised or super().can_leave(limits)

    def judge(self, outgoing: OutgoingReply) -> Any:
        if self.tells_rows:
            raise _of_single_rows(outgoing, self)
        return outgoing.reply


def _of_single_rows(outgoing: OutgoingReply, release: Release) -> GateRefusal:
    return outgoing.refuse(
        f"{release.says} may tell single rows; ask for {release.instead}, or under the policy "
        "'trusted'"
    )


def releases_of(task: Task) -> tuple[Release, ...]:
    """What leaves with the replies to a task, for those who plan before anything is computed."""
    listed = task.release or ()
    if task.release is not None and task.leaves is None:
        return listed
    keys = {
        *getattr(task.ask, "__required_keys__", ()),
        *getattr(task.ask, "__optional_keys__", ()),
    }
    return (Contributed(task.leaves or "cells", "privacy" in keys), *listed)


def with_entry(tree: Any, entry: str, value: Any) -> Any:
    """The tree with another value at an entry."""
    return _with(tree, entry.split(".") if entry else [], value)


def _with(tree: Any, keys: Sequence[str], value: Any) -> Any:
    if not keys:
        return value
    return {**tree, keys[0]: _with(tree[keys[0]], keys[1:], value)}

"""What leaves with a reply, declared with the task and judged by the gate.

A task lists its releases (``@task(…, release=[…])``); each names the entries of the reply that it
covers (``"a.b"`` reaches into nested tables) and, where rows stand behind them, a function
``(client, ask, reply) -> {entry: Sums}`` that says which rows. The rules are here, once for all
tasks; a reply with an entry that no release covers does not leave.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from solera.core.clients import Array, BoolArray, Client, FloatArray, IntArray
from solera.core.disclosure.evidence import Persons, Sums
from solera.core.disclosure.memory import Memory, row_digests
from solera.core.errors import GateRefusal

if TYPE_CHECKING:
    from solera.trust.gate import Gate, ReleaseLimits

Kind = Literal[
    "facts", "cells", "gram", "update", "tree", "extremes", "categories", "cipher", "rows"
]
Behind = Callable[[Client, Any, Any], Mapping[str, Sums]]
"""(client, ask, reply) → the rows behind each entry."""


@dataclass
class Leaving:
    """A reply on its way out, and whose it is."""

    task: str
    client: Client
    ask: Any
    reply: Any
    gate: Gate
    outcome: dict[str, Any] = field(default_factory=dict)
    """What became of every number of an entry, in its shape: sent (0), withheld (1), or an earlier
    one (2); other marks where something else stands for it (3 and 4: another number of the cell
    became 1 or 2 before)."""
    merged: dict[str, Any] = field(default_factory=dict)
    """Entries with cells merged, before they are compared with earlier numbers."""

    def __post_init__(self) -> None:
        self._given = self.reply
        self._behind: dict[Behind, Mapping[str, Sums]] = {}

    def behind(self, says: Behind) -> Mapping[str, Sums]:
        """The rows behind the reply that the task gave; releases that ask the same share it."""
        if says not in self._behind:
            self._behind[says] = says(self.client, self.ask, self._given)
        return self._behind[says]

    @property
    def limits(self) -> ReleaseLimits:
        return self.gate.limits

    @property
    def memory(self) -> Memory:
        return self.gate.memory

    def persons(self, sums: Sums) -> Persons:
        return self.gate.persons(self.client, sums.part)

    def undeclared(self, releases: Sequence[Release]) -> str | None:
        """An entry of the reply that no release covers."""
        covered = {key for release in releases for key in release.entries}
        return _first_uncovered(self.reply, covered, "")

    def get(self, entry: str) -> Any:
        """The value of an entry; "" is the whole reply."""
        value = self.reply
        for key in entry.split(".") if entry else ():
            value = value[key]
        return value

    def put(self, entry: str, value: Any) -> None:
        """Change an entry in a copy of the reply."""
        self.reply = _with(self.reply, entry.split(".") if entry else [], value)

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
    tells_rows: bool = False
    """Whether it may tell single rows: it leaves with noise, or under the policy ``trusted``."""
    instead: str = ""
    """What may be asked for in its place where it does not leave, as people are told."""

    def __init__(self, *entries: str) -> None:
        self.entries = entries

    def can_leave(self, limits: ReleaseLimits) -> bool:
        """Whether anything of it leaves under such limits, whatever the rows are."""
        return self.kind in limits.allows and (limits.trusted or not self.tells_rows)

    @abstractmethod
    def judge(self, leaving: Leaving) -> Any:
        """The reply as it may leave, or a :class:`GateRefusal`."""


class Facts(Release):
    """Entries that follow from the ask or from the client's set-up, whatever its rows are."""

    kind = "facts"
    says = "facts that do not depend on rows"
    about_rows = False

    def judge(self, leaving: Leaving) -> Any:
        return leaving.reply


class Cells(Release):
    """Counts and sums over rows, cell by cell.

    A cell with fewer than ``min_count`` persons is withheld in all its entries, and so is a number
    that rests on fewer effective rows. What is withheld becomes ``neutral`` (0 by default). Within
    each of the ``margins`` (all cells, by default) never fewer than ``min_count`` rows are
    withheld, so that a total does not give them back.

    Parameters
    ----------
    entries: of the reply; each is as large as its :class:`Sums`, cells first.
    behind: (client, ask, reply) → :class:`Sums` of every entry.
    margins: (ask) → for every cell the total that others know.
    neutral: (ask, reply) → what stands for a withheld number, by entry; the entries before it are
        as they leave. It stands for a number that is too near to an earlier one, too, and for all
        numbers of a cell of which another entry could not leave as it is: a mean is a sum over a
        count of the same rows.
    whole: a cell of which one number is withheld is withheld in all its entries: a variance
        without its mean would be another one.
    read, write: (ask, entry, value) → numbers, cells first; and (ask, entry, numbers, value) back;
        for entries that are no arrays with the cells first.
    """

    kind = "cells"
    says = "counts and sums over at least min_count rows"

    def __init__(
        self,
        *entries: str,
        behind: Behind,
        margins: Callable[[Any], IntArray] | None = None,
        neutral: Callable[[Any, Any], Mapping[str, Any]] | None = None,
        whole: bool = False,
        read: Callable[[Any, str, Any], Array] | None = None,
        write: Callable[[Any, str, Array, Any], Any] | None = None,
    ) -> None:
        super().__init__(*entries)
        self.behind = behind
        self.margins = margins
        self.neutral = neutral
        self.whole = whole
        self.read = read
        self.write = write

    def judge(self, leaving: Leaving) -> Any:
        if not any(map(leaving.holds, self.entries)):
            return leaving.reply
        found = leaving.behind(self.behind)
        behind = {
            entry: sums
            for entry, sums in found.items()
            if entry in self.entries and leaving.holds(entry)
        }
        missing = [e for e in self.entries if leaving.holds(e) and e not in behind]
        if missing:
            raise leaving.refuse(f"nothing says which rows are behind {missing[0]!r}")
        numbers = {
            entry: (self._read(leaving, entry, sums) - sums.base) / sums.scale
            for entry, sums in behind.items()
        }
        withheld = self._withheld(leaving, behind)
        changed: BoolArray = np.zeros(len(next(iter(withheld.values()), ())), dtype=bool)
        became: IntArray = np.zeros(len(changed), dtype=np.int64)
        outcomes: dict[str, Any] = {}
        for entry, sums in behind.items():
            neutral = {} if self.neutral is None else self.neutral(leaving.ask, leaving.reply)
            stands = entry in neutral
            instead = np.zeros(sums.shape)
            if stands:
                instead = (np.reshape(neutral[entry], sums.shape) - sums.base) / sums.scale
                withheld[entry] |= changed[:, None]
            leaves = release_numbers(
                leaving, entry, sums, numbers[entry], withheld[entry], instead, stands=stands
            )
            if not stands and len(leaves) == len(changed):
                changed |= (leaves != numbers[entry]).any(axis=1)
                became = np.maximum(became, leaving.outcome[entry].max(axis=1, initial=0))
            told = sums.base + sums.scale * leaves
            if stands:  # exactly, since base may follow from what is withheld
                gone = leaving.outcome[entry] == 1
                told = np.where(gone, np.reshape(neutral[entry], sums.shape), told)
                of_cell = np.where(gone & changed[:, None], 2 + became[:, None], 0)
                leaving.outcome[entry] = np.maximum(leaving.outcome[entry], of_cell)
            outcomes[entry] = self._like(leaving, entry, leaving.outcome[entry])
            self._write(leaving, entry, told)
        leaving.outcome |= outcomes
        return leaving.reply

    def _read(self, leaving: Leaving, entry: str, sums: Sums) -> FloatArray:
        value = leaving.get(entry)
        if self.read is not None:
            value = self.read(leaving.ask, entry, value)
        numbers = np.asarray(value, dtype=float)
        if numbers.size != sums.shape[0] * sums.shape[1]:
            raise leaving.refuse(f"{entry!r} has {numbers.size} numbers, {sums.shape} are declared")
        return numbers.reshape(sums.shape)

    def _write(self, leaving: Leaving, entry: str, numbers: FloatArray) -> None:
        value = leaving.get(entry)
        after = self._like(leaving, entry, numbers)
        if isinstance(value, np.ndarray | np.generic | int | float):
            after = after.astype(np.asarray(value).dtype)
        leaving.put(entry, after if isinstance(value, np.ndarray | list) else after.item())

    def _like(self, leaving: Leaving, entry: str, numbers: Array) -> Any:
        """Numbers of the cells in the order and shape of the entry."""
        value = leaving.get(entry)
        if self.write is not None:
            numbers = self.write(leaving.ask, entry, numbers, value)
        return numbers if isinstance(value, list) else numbers.reshape(np.shape(value))

    def _withheld(self, leaving: Leaving, behind: Mapping[str, Sums]) -> dict[str, BoolArray]:
        """Which numbers of every entry are withheld."""
        least = leaving.limits.min_count
        small: Any = False
        counts: Any = None
        for sums in behind.values():
            rows = sums.counts(leaving.persons(sums))
            small = small | ((rows > 0) & (rows < least))
            counts = rows if counts is None else np.maximum(counts, rows)
        small = self._not_by_subtraction(leaving, np.asarray(small), counts, least)
        few = {
            e: sums.effective(leaving.persons(sums), least) < least for e, sums in behind.items()
        }
        if self.whole:
            small = np.logical_or.reduce([small, *(marks.any(axis=1) for marks in few.values())])
        return {entry: small[:, None] | marks for entry, marks in few.items()}

    def _not_by_subtraction(
        self, leaving: Leaving, small: BoolArray, counts: IntArray, least: int
    ) -> BoolArray:
        """Withhold the next smallest cells too, where a total would give the small ones back."""
        margins = np.zeros(len(small)) if self.margins is None else self.margins(leaving.ask)
        small = small.copy()
        for margin in np.unique(margins[small]):
            inside = np.flatnonzero((margins == margin) & (counts > 0))
            for cell in inside[np.argsort(counts[inside], kind="stable")]:
                if counts[inside][small[inside]].sum() >= least:
                    break
                small[cell] = True
        return small


def release_numbers(
    leaving: Leaving,
    entry: str,
    sums: Sums,
    numbers: FloatArray,
    withheld: BoolArray,
    instead: Array,
    *,
    stands: bool = False,
) -> FloatArray:
    """The numbers that leave: none withheld, none whose difference to an earlier one is small.

    ``instead`` stands for those withheld, and for those near to an earlier one where it ``stands``.
    """
    persons, least = leaving.persons(sums), leaving.limits.min_count
    conflict, earlier = leaving.memory.earlier(sums, persons, least, withheld)
    if stands:
        withheld = withheld | conflict
    again, told = leaving.memory.told(sums)
    leaves = np.where(withheld, instead, np.where(conflict, earlier, numbers))
    gone = again[:, None] & np.isnan(told)  # what was withheld then is so again
    leaves = np.where(gone, instead, np.where(again[:, None], told, leaves))
    outcome = np.where(withheld, 1, np.where(conflict, 2, 0))
    outcome = outcome if stands else np.where(again[:, None], 2, outcome)
    leaving.outcome[entry] = np.where(gone, 1, outcome)
    new = ~(withheld | conflict).all(axis=1)
    kept = np.where(withheld | gone, np.nan, leaves)  # what did not leave tells nothing
    fresh = leaving.memory.keep(replace(sums, right=sums.right[:, new]), kept[new])
    rows, width = len(sums.right), leaving.client.data.schema.width
    leaving.memory.spend(fresh, leaving.limits.numbers * max(1, rows * width))
    return leaves


class Update(Release):
    """Parameters of a linear model after steps over the rows.

    Distinct rows used are at least ``min_rows`` and as many as ``parameters`` allows, weights stay
    below saturation before and after, and every parameter rests on ``min_count`` effective rows;
    one that does not stays as it was sent. Everything larger, and every neural network (``behind``
    is None), leaves only where the policy trusts the driver with rows.

    Parameters
    ----------
    weights: (ask or reply) → weights, columns × outputs.
    """

    kind = "update"
    says = "parameters of a model after steps over the rows"

    def __init__(
        self,
        *entries: str,
        behind: Behind | None = None,
        weights: Callable[[Any], Array] | None = None,
        read: Callable[[Any, str, Any], Array] | None = None,
        write: Callable[[Any, str, Array, Any], Any] | None = None,
    ) -> None:
        super().__init__(*entries)
        self.behind = behind
        self.weights = weights
        self.read = read
        self.write = write
        self.tells_rows = behind is None or weights is None

    def judge(self, leaving: Leaving) -> Any:
        if leaving.limits.trusted:
            return leaving.reply
        if self.behind is None or self.weights is None:
            raise leaving.refuse(
                "an update of this size tells rows; it needs noise or the policy 'trusted'"
            )
        limits = leaving.limits
        found = leaving.behind(self.behind)
        behind = {entry: found[entry] for entry in self.entries}
        rows = leaving.client.data.X
        X = np.asarray(rows.toarray() if hasattr(rows, "toarray") else rows, dtype=float)
        X = X.reshape(len(X), -1)
        distinct = len(np.unique(row_digests(X + 0.0)))  # 0 and −0 are the same
        parameters = sum(int(np.prod(sums.shape)) for sums in behind.values())
        if distinct < limits.min_rows or parameters > limits.parameters * distinct:
            raise leaving.refuse(
                f"{parameters:,} parameters need "
                f"{max(limits.min_rows, parameters / limits.parameters):,.0f} distinct rows, since "
                f"the policy's `parameters` allows {limits.parameters:.3g} of them per row; fewer "
                "columns, more rows per client, or an owner who allows more"
            )
        for weights in (self.weights(leaving.ask), self.weights(leaving.reply)):
            if (np.abs(weights).max(axis=1) * X.std(axis=0) > limits.saturation).any():
                raise leaving.refuse(f"a weight times its column's spread is > {limits.saturation}")
        cells = Cells(*self.entries, behind=lambda *_: behind, read=self.read, write=self.write)
        return cells.judge(leaving)


class Categories(Release):
    """Names of categories and classes: those of at least ``min_count`` rows, or listed.

    ``names``: (client, ask) → {entry: {column: codes or values of its rows}}.
    """

    kind = "categories"
    says = "names of categories and classes that at least min_count rows have"

    def __init__(
        self, *entries: str, keep: Callable[[Leaving, Callable[[str, Any], Any]], None]
    ) -> None:
        super().__init__(*entries)
        self.keep = keep

    def judge(self, leaving: Leaving) -> Any:
        self.keep(leaving, lambda column, values: self.common(leaving, column, values))
        return leaving.reply

    def common(self, leaving: Leaving, column: str, values: Any) -> list[Any]:
        """The values of a column, one per row, that may be named."""
        limits = leaving.limits
        values = np.asarray(values)
        names, codes = np.unique(values, return_inverse=True)
        units = limits.units_of(leaving.client, "train")
        rows = Persons(units).count(codes.reshape(-1)[:, None] == np.arange(len(names)))
        listed = set(limits.listed.get(column, ()))
        kept = [n for n, r in zip(names.tolist(), rows, strict=True) if r >= limits.min_count]
        most = min(limits.categories, int(limits.category_share * len(values)))
        if len(kept) > most:
            raise leaving.refuse(f"column {column!r} has more than {most} categories")
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

    def judge(self, leaving: Leaving) -> Any:
        if leaving.limits.trusted:
            return leaving.reply
        for entry, value in self.bound(leaving.client, leaving.ask, leaving.limits.bounds).items():
            leaving.put(entry, value)
        return leaving.reply


class RowsOut(Release):
    """Rows, or what rows can be computed from."""

    kind = "rows"
    says = "rows themselves"

    def judge(self, leaving: Leaving) -> Any:
        return leaving.reply


def _first_uncovered(value: Any, covered: set[str], at: str) -> str | None:
    if at in covered:
        return None
    if not isinstance(value, Mapping):
        return at or "the reply"
    for key, inner in value.items():
        found = _first_uncovered(inner, covered, f"{at}.{key}" if at else str(key))
        if found is not None:
            return found
    return None


def _with(tree: Any, keys: Sequence[str], value: Any) -> Any:
    """The tree with another value at these keys."""
    return {**tree, keys[0]: _with(tree[keys[0]], keys[1:], value)} if keys else value

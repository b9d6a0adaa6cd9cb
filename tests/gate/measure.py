"""How many rows stand behind what leaves a client, measured from outside.

Every ask is answered by a client that holds all rows and by one client for each row left out, each
with a memory of its own. With eᵢ the change of a number when row i is left out, its effective rows
are (Σ|eᵢ|)² / Σeᵢ². So are those of the difference of two numbers of one name, of one reply or of
two, whose changes are the differences of theirs: of any two counts, since the asker may put cells
in any order, and of two sums of the same column, be they of other cells.

What is compared with what, and why:

- The gate says what became of a number (``Gate.outcome``), but is not believed. A number counts as
  *sent as it is* only if it is the number that the task gave; else, such as a count that the gate
  takes from intervals, it is compared with what clients send that say the same of theirs. So is a
  number that the gate calls *an earlier one*, unless the same number left before or leaves beside
  it under that name.
- A number sent as it is, is compared with what the client without row i would send *without a
  gate*, where that one withholds it or refuses. A sum just above the limit falls below it with some
  of its rows, and those may be few: its change would be the whole sum for these, and the measure
  would tell of the decision, not of the number. For the same reason a withheld number is compared
  with withheld ones only. Where the gate merges cells (``Gate.merged``), that is what it would send
  had nothing left before. That a decision itself can rest on few rows stays possible, and
  docs/explanation/gate.md says so.
- A row that turns a decision is *unknown* in a number that the gate changed, and in differences
  with it; a number that is sent as it is knows all rows. Left out altogether, unknown rows can make
  others look alone that are not. So two things are looked at before such a number is said to rest
  on few rows. An unknown row counts with what it changes of the number *as told* where that is like
  the largest change of a known one (:data:`ALIKE`): who sees it cannot tell the two rows apart. By
  a smaller or larger change they could, and it counts for nothing. And the same asks are put to one
  client for each row that has it *twice*. A sum or a mean changes with a row once more as it does
  with the row once less; a decision is turned on one side of its limit only: five rows are one too
  few without one of them, not with one more. The number is believed to rest on ``min_count`` rows
  only if so many are seen to change it. One that no row changes by being there twice, such as a
  largest value, is told by the rows left out. A decision that :data:`DECIDED` or more rows turn is
  none of few rows: where there are as many unknown ones on both sides, a number is not measured.
- An earlier number that is sent again was measured when it left first, with all its differences.
- What stands for a withheld number does not depend on rows, or is measured by itself; subtracted
  from another number it gives that number. So does a number that no row changes but by turning the
  decision.
- Changes below the rounding of sums (:data:`ROUNDING`) are none: nobody could tell them from the
  order in which rows are added. Where the largest is above it, but at most ten times, all are
  kept: the others would be none for being just below.
- An earlier number may be sent in other units, as weights of another start are: it is known by what
  rows change of it, which is what they changed of the earlier one but where fewer than
  :data:`DECIDED` rows turn the decision. One that is merged may be spread over other cells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np

from solera.core.clients import Client, Draws
from solera.trust.declared import check_state
from solera.core.disclosure.memory import row_digests
from solera.trust.gate import Gate, ReleaseLimits, find_limits
from solera.core.release import Update
from solera.core.schema import Schema, infer
from solera.core.task import find_task
from solera.data.federated import FederatedData
from solera.data.partition import IID

REFUSED = "refused"
DECIDED = 8
"""Rows that turn a decision of the gate: with so many it rests on more than ``min_count``."""
ALIKE = 2.0
"""Two changes are alike where one is at most so many times the other."""
ROUNDING = 1e-14
"""Of a number: some ten times what adding up its rows in another order changes."""
MOST_PARTS = 12
"""Cells over which merged counts are spread here."""
SENT, EARLIER, CHANGED = 0, 2, -1
"""What became of a number: as the gate says, or sent but not the one that the task gave."""


def table(X: Any, y: Any, schema: Schema | None = None) -> FederatedData:
    """The rows as one client's."""
    schema = infer(X, y) if schema is None else schema
    assignment = IID().assign(len(X), y, clients=1, seed=0)
    return FederatedData.of(X, y, assignment, schema=schema)


@dataclass
class Owner:
    """One client behind its gate, without a network in between."""

    data: FederatedData
    limits: ReleaseLimits
    state: dict[str, Any] = field(default_factory=dict)
    ungated: Any = None
    """What the task gave last, None where it was not run."""
    asked: Any = None
    """The task that was asked for last, and its payload."""

    def __post_init__(self) -> None:
        self.gate = Gate(self.limits)

    def ask(self, task: str, payload: Any, prepare: Sequence[Any] = (), *, round: int = 0) -> Any:
        """The reply as it leaves, or :data:`REFUSED`."""
        found = find_task(task)
        self.ungated, self.asked = None, (found, payload)
        rows = self.data.segments(np.array([0]), "train")[0]
        before = dict(self.state)
        try:
            self.gate.memory.check_rows(row_digests(rows.X, rows.y), self.limits.min_count)
            schema = self.data.schema
            for step in prepare:
                check_state(step, schema)
                schema = step.transform_schema(schema)
            source = self.data.prepared(prepare) if prepare else self.data
            client = Client(0, source, Draws(0, task, round), before)
            self.gate.admit(found, client, payload)
            self.ungated = found.one(client, payload)
            reply = self.gate.release(found, client, payload, self.ungated)
        except Exception as error:  # at an agent a failure of a task is a code and nothing else
            self.why = str(error)
            return REFUSED
        self.state = before
        return reply


@dataclass
class Leak:
    """The number that rests on the fewest rows."""

    rows: float
    where: str


@dataclass
class Changes:
    """Numbers of one name, and what each row changes of them: rows × numbers, NaN if unknown."""

    values: Any
    of_rows: Any
    as_told: Any
    """The same with what is seen to change where that is unknown."""
    where: list[str]
    """Of which ask each number is, and which one."""
    places: Any
    columns: Any
    """Numbers are subtracted from those with the same: 0 for counts, the column for sums."""
    alone: Any
    """Marks what stands for a withheld number or is constant, and is not subtracted from others."""


class Hostile:
    """A driver that asks and subtracts, and knows what each row would have changed."""

    def __init__(
        self,
        X: Any,
        y: Any,
        policy: str | ReleaseLimits = "training",
        schema: Schema | None = None,
        rows: Sequence[int] | None = None,
    ) -> None:
        limits = find_limits(policy)
        schema = infer(X, y) if schema is None else schema
        left_out = range(len(X)) if rows is None else rows
        self.whole = Owner(table(X, y, schema), limits)
        self.without = [
            Owner(table(np.delete(X, i, axis=0), np.delete(y, i, axis=0), schema), limits)
            for i in left_out
        ]
        self.twice: Callable[[], list[Owner]] = lambda: [
            Owner(table(_with_twice(X, i), _with_twice(y, i), schema), limits) for i in left_out
        ]
        self.asks = 0
        self.answers: list[dict[str, Changes]] = []
        self._asked: list[tuple[Any, _Told]] = []
        self._endless: set[str] = set()
        self._seen_twice: list[dict[str, Changes]] = []

    def ask(self, task: str, payload: Any, prepare: Sequence[Any] = ()) -> Any:
        """Ask everybody; the reply of the client with all rows."""
        self.asks += 1
        reply = self.whole.ask(task, payload, prepare)
        if isinstance(reply, str):
            return reply
        self._asked.append(((task, payload, prepare), _Told(reply, self.whole)))
        self._endless |= {
            f"ask {len(self.answers)}: {name}"
            for name, values in self._asked[-1][1].values.items()
            if not np.isfinite(values).all()
        }
        ask_neighbours(self.without, *self._asked[-1], self.answers)
        return reply

    def leak(self, *, same_place: bool = False) -> Leak:
        """The fewest effective rows of any number, or of the difference of two of one name.

        Numbers of a type for whole ones are counts, whatever their names are. ``same_place``: only
        differences of two replies, each number less the one at its place.
        """
        if self._endless:  # a single row can make a sum so
            return Leak(0.0, min(self._endless))
        worst = Leak(np.inf, "")
        for names in self._alike(same_place):
            changes = _of_names(names, self.answers)
            twice = cache(partial(self._with_rows_twice, names))
            size, where = np.abs(changes.values), changes.where
            rows = self._rows(np.asarray, changes, twice, size)
            if rows.min(initial=np.inf) < worst.rows:
                worst = Leak(float(rows.min()), where[rows.argmin()])
            some = np.flatnonzero(~changes.alone & np.isfinite(changes.of_rows).any(axis=0))
            for k, a in enumerate(some[1:], 1):
                before = some[:k]
                alike = changes.places if same_place else changes.columns
                before = before[alike[before] == alike[a]]
                rows = self._rows(
                    lambda of_rows, a=a, before=before: of_rows[:, [a]] - of_rows[:, before],
                    changes,
                    twice,
                    np.maximum(size[before], size[a]),
                )
                if rows.min(initial=np.inf) < worst.rows:
                    worst = Leak(float(rows.min()), f"{where[a]} - {where[before[rows.argmin()]]}")
        return worst

    def _alike(self, same_place: bool) -> Iterator[list[str]]:
        """Names of numbers that are subtracted from each other."""
        names = dict.fromkeys(name for answer in self.answers for name in answer)
        told = [told for _, told in self._asked]
        sums = {name for reply in told for name in reply.values if name not in reply.counts}
        whole = [name for name in names if name not in sums and not same_place]
        yield from ([name] for name in names if name not in whole)
        if whole:
            yield whole

    def _rows(
        self,
        taken: Callable[[Any], Any],
        changes: Changes,
        twice: Callable[[], Changes],
        size: Any,
    ) -> Any:
        """The effective rows of what is ``taken`` of numbers, infinite if unknown."""
        rows, unknown = effective(taken(changes.of_rows), taken(changes.as_told), size)
        few = np.flatnonzero((rows < self.whole.limits.min_count - 1e-6) & (unknown > 0))
        rows[unknown >= DECIDED] = np.inf
        if len(few):
            of_rows, as_told = taken(twice().of_rows)[:, few], taken(twice().as_told)[:, few]
            more, unknown = effective(of_rows, as_told, size[few])
            known = (unknown < DECIDED) & np.isfinite(more)
            before = np.where(np.isfinite(rows[few]), rows[few], 0.0)
            rows[few] = np.where(known, np.maximum(before, more), rows[few])
        return rows

    def _with_rows_twice(self, names: list[str]) -> Changes:
        """What every row changes that is there twice, of numbers of these names."""
        if len(self._seen_twice) < len(self._asked):
            owners = self.twice()
            self._seen_twice = []
            for asked, here in self._asked:
                ask_neighbours(owners, asked, here, self._seen_twice)
        return _of_names(names, self._seen_twice)


def ask_neighbours(
    owners: Sequence[Owner], asked: Any, here: _Told, answers: list[dict[str, Changes]]
) -> None:
    """Put an ask to clients whose tables differ in a row each, and add what that changes.

    ``here`` is what the client with all rows told, ``answers`` what changed of earlier ones.
    """
    others = [_Told(owner.ask(*asked), owner) for owner in owners]
    at = f"ask {len(answers)}"
    answers.append({name: _changes(at, name, here, others, answers) for name in here.values})


def _changes(
    at: str,
    name: str,
    here: _Told,
    others: Sequence[_Told],
    answers: Sequence[dict[str, Changes]],
) -> Changes:
    """What every row changes of the numbers of a name."""
    value, mark = here.values[name], here.marks[name]
    left = [0.0, float(len(others)), *value[mark != EARLIER]]
    left += [number for answer in answers if name in answer for number in answer[name].values]
    again = (mark == EARLIER) & np.isin(value, left)
    if name in here.merged:  # perhaps in other parts than before
        again |= (mark == EARLIER) & np.isin(_whole(value), _whole(left)).any(axis=0)
    changes = np.full((len(others), len(value)), np.nan)
    as_told, nothing = changes.copy(), np.full(len(value), np.nan)
    for i, other in enumerate(others):
        there, told, plain = (
            of[name] if name in of and of[name].shape == value.shape else nothing
            for of in (other.marks, other.values, other.plain)
        )
        sent = (there == SENT) | (there == CHANGED)
        same = np.where(mark == SENT, np.where(sent, told, plain), np.nan)
        same = np.where((mark == CHANGED) & sent, told, same)
        same = np.where((mark > SENT) & (there == mark), told, same)
        changes[i] = value - same
        as_told[i] = value - np.where(np.isnan(same), told, same)
    again |= (mark == EARLIER) & _in_other_units(name, changes, answers)
    changes[:, again] = np.nan
    where = [f"{at}: {name}[{k}]" for k in range(len(value))]
    places = np.arange(len(value))
    columns = here.columns[name]
    if np.array_equal(value, np.rint(value)):
        columns = np.zeros_like(places)
    unchanged = (np.nan_to_num(changes) == 0).all(axis=0)
    alone = unchanged | ((mark > SENT) & (mark != EARLIER))
    return Changes(value, changes, as_told, where, places, columns, alone)


def _in_other_units(name: str, changes: Any, answers: Sequence[dict[str, Changes]]) -> Any:
    """Which numbers change as the one at their place in an earlier answer, times a factor."""
    same = np.zeros(changes.shape[1], dtype=bool)
    for answer in answers:
        before = answer[name].of_rows if name in answer else changes[:, :0]
        if before.shape != changes.shape:
            continue
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = changes / before
        ratio[~np.isfinite(ratio)] = np.nan
        some = ~np.isnan(ratio).all(axis=0)
        usual = np.nanmedian(ratio[:, some], axis=0)
        other = ~np.isclose(changes[:, some], usual * before[:, some], rtol=1e-6, atol=0)
        same[some] |= other.sum(axis=0) < DECIDED
    return same


def _of_names(names: list[str], answers: Sequence[dict[str, Changes]]) -> Changes:
    """All numbers of these names."""
    found = [answer[name] for answer in answers for name in names if name in answer]
    return Changes(
        np.concatenate([c.values for c in found]),
        np.concatenate([c.of_rows for c in found], axis=1),
        np.concatenate([c.as_told for c in found], axis=1),
        [where for c in found for where in c.where],
        np.concatenate([c.places for c in found]),
        np.concatenate([c.columns for c in found]),
        np.concatenate([c.alone for c in found]),
    )


class _Told:
    """The numbers of a reply by name, what became of each, and what the task gave."""

    def __init__(self, reply: Any, owner: Owner) -> None:
        refused = isinstance(reply, str)
        arrays = {} if refused else _arrays(reply)
        self.values = {n: a.reshape(-1).astype(float) for n, a in arrays.items()}
        self.counts = {name for name, value in arrays.items() if value.dtype.kind in "iu"}
        self.columns = {n: _columns(n, a, *owner.asked) for n, a in arrays.items()}
        self.plain = _numbers(owner.ungated)
        self.merged = {} if refused else owner.gate.merged
        for entry, numbers in self.merged.items():
            self.plain |= _numbers(numbers, entry)
        became: dict[str, Any] = {}
        for entry, marks in owner.gate.outcome.items():
            became |= _numbers(marks, entry)
        self.marks = {name: self._mark(name, became.get(name)) for name in self.values}

    def _mark(self, name: str, became: Any) -> Any:
        value, plain = self.values[name], self.plain.get(name)
        if became is None or became.shape != value.shape:
            became = np.zeros(value.shape)
        as_given = plain is not None and plain.shape == value.shape
        near = np.isclose(value, plain, rtol=1e-12, atol=0) if as_given else False
        return np.where((became == SENT) & ~np.asarray(near), CHANGED, became)


def _columns(name: str, array: Any, task: Any, payload: Any) -> Any:
    """Of which column each number is: its place on the last axis as the gate reads it."""
    places = np.arange(array.size).reshape(array.shape)
    for release in task.release:
        if isinstance(release, Update) and name in release.entries and release.read:
            places = release.read(payload, name, places)
    columns = np.empty(array.size, dtype=int)
    columns[places.reshape(-1)] = np.arange(array.size) % max(1, (1, *places.shape)[-1])
    return columns


def _with_twice(rows: Any, i: int) -> Any:
    return np.insert(rows, i, rows[i], axis=0)


def _whole(parts: Any) -> Any:
    """What numbers may be equal parts of: so many times each of them."""
    return np.round(np.multiply.outer(np.arange(1, MOST_PARTS + 1), parts), 6)


def _numbers(reply: Any, at: str = "") -> dict[str, Any]:
    return {name: a.reshape(-1).astype(float) for name, a in _arrays(reply, at).items()}


def _arrays(reply: Any, at: str = "") -> dict[str, Any]:
    """Every array or number of a reply by its path."""
    if isinstance(reply, dict):
        found: dict[str, Any] = {}
        for key, value in reply.items():
            found |= _arrays(value, f"{at}.{key}" if at else str(key))
        return found
    if isinstance(reply, list):
        found = {}
        for i, value in enumerate(reply):
            found |= _arrays(value, f"{at}[{i}]")
        return found
    if isinstance(reply, bool | int | float | np.generic | np.ndarray):
        value = np.asarray(reply)
        if value.dtype.kind in "biuf":
            return {at: value}
    return {}


def effective(changes: Any, as_told: Any, size: Any) -> tuple[Any, Any]:
    """The effective rows of every number, and how many are unknown.

    Infinite where no row is known to change it. Unknown ``changes`` are those ``as_told`` where
    these are like the largest known one.
    """
    unknown = ~np.isfinite(changes)
    changes = np.where(unknown, 0.0, changes)
    largest = np.abs(changes).max(axis=0, initial=0.0)
    near = (largest > ROUNDING * size) & (largest <= 10 * ROUNDING * size)
    changes[(np.abs(changes) <= ROUNDING * size) & ~near] = 0.0
    seen = np.abs(np.nan_to_num(as_told))
    alike = unknown & (seen > 0) & (seen >= largest / ALIKE) & (seen <= largest * ALIKE)
    changes = np.where(alike, as_told, changes)
    squares = (changes**2).sum(axis=0)
    rows = np.full(squares.shape, np.inf)
    np.divide(np.abs(changes).sum(axis=0) ** 2, squares, out=rows, where=squares > 0)
    return rows, unknown.sum(axis=0)

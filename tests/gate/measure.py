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
  gate*, where that one withholds it. A sum just above the limit falls below it with some of its
  rows, and those may be few: its change would be the whole sum for these, and the measure would
  tell of the decision, not of the number. For the same reason a withheld number is compared with
  withheld ones only. Where the gate merges cells (``Gate.merged``), that is what it would send had
  nothing left before. That a decision itself can rest on few rows stays possible, and
  docs/explanation/gate.md says so. A decision that :data:`DECIDED` or more rows turn is none of
  few rows, and such a number is not measured.
- An earlier number that is sent again was measured when it left first, with all its differences.
- What stands for a withheld number does not depend on rows, or is measured by itself; subtracted
  from another number it gives that number. So does an earlier number that no row changes but by
  turning the decision.
- Changes below the rounding of sums (:data:`ROUNDING`) are none: nobody could tell them from the
  order in which rows are added. Where the largest is above it, but at most ten times, all are
  kept: the others would be none for being just below.
- An earlier number may be sent in other units, as weights of another start are: it is known by what
  rows change of it, which is what they changed of the earlier one but where fewer than
  :data:`DECIDED` rows turn the decision. One that is merged may be spread over other cells.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from solera.core.clients import Client, Draws
from solera.core.disclosure.declared import check_state
from solera.core.disclosure.memory import row_digests
from solera.core.gate import Gate, ReleaseLimits, find_limits
from solera.core.schema import Schema, infer
from solera.core.task import find_task
from solera.data.federated import FederatedData
from solera.data.partition import IID

REFUSED = "refused"
DECIDED = 8
"""Rows that turn a decision of the gate: with so many it rests on more than ``min_count``."""
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

    def __post_init__(self) -> None:
        self.gate = Gate(self.limits)

    def ask(self, task: str, payload: Any, prepare: Sequence[Any] = (), *, round: int = 0) -> Any:
        """The reply as it leaves, or :data:`REFUSED`."""
        found = find_task(task)
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
    where: list[str]
    """Of which ask each number is, and which one."""
    places: Any
    columns: Any
    """Numbers are subtracted from those with the same: 0 for counts, the last axis for sums."""
    alone: Any
    """Marks what stands for a withheld number, which is not subtracted from others."""


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
        self.asks = 0
        self.answers: list[dict[str, Changes]] = []
        self._left: dict[str, set[float]] = {}

    def ask(self, task: str, payload: Any, prepare: Sequence[Any] = ()) -> Any:
        """Ask everybody; the reply of the client with all rows."""
        self.asks += 1
        reply = self.whole.ask(task, payload, prepare)
        if isinstance(reply, str):
            return reply
        here = _Told(reply, self.whole)
        others = [
            None if isinstance(other, str) else _Told(other, owner)
            for owner in self.without
            for other in (owner.ask(task, payload, prepare),)
        ]
        at = f"ask {len(self.answers)}"
        self.answers.append({name: self._changes(at, name, here, others) for name in here.values})
        return reply

    def _changes(self, at: str, name: str, here: _Told, others: Sequence[_Told | None]) -> Changes:
        """What every row changes of the numbers of a name."""
        value, mark = here.values[name], here.marks[name]
        left = self._left.setdefault(name, {0.0, float(len(self.without))})
        left.update(value[mark != EARLIER].tolist())
        again = (mark == EARLIER) & np.isin(value, [*left])
        if name in self.whole.gate.merged:  # perhaps in other parts than before
            again |= (mark == EARLIER) & np.isin(_whole(value), _whole([*left])).any(axis=0)
        left.update(value.tolist())
        changes = np.full((len(others), len(value)), np.nan)
        for i, other in enumerate(others):
            if other is None or name not in other.values or other.values[name].shape != value.shape:
                continue
            there, told = other.marks[name], other.values[name]
            plain = other.plain.get(name, np.full(value.shape, np.nan))
            sent = (there == SENT) | (there == CHANGED)
            same = np.where(mark == SENT, np.where(sent, told, plain), np.nan)
            same = np.where((mark == CHANGED) & sent, told, same)
            same = np.where((mark > SENT) & (there == mark), told, same)
            changes[i] = value - same
        again |= (mark == EARLIER) & self._in_other_units(name, changes)
        changes[:, again] = np.nan
        where = [f"{at}: {name}[{k}]" for k in range(len(value))]
        places = np.arange(len(value))
        columns = places % here.widths[name]
        if np.array_equal(value, np.rint(value)):
            columns = np.zeros_like(places)
        unchanged = (np.nan_to_num(changes) == 0).all(axis=0)
        alone = (mark > SENT) & ((mark != EARLIER) | unchanged)
        return Changes(value, changes, where, places, columns, alone)

    def _in_other_units(self, name: str, changes: Any) -> Any:
        """Which numbers change as the one at their place in an earlier answer, times a factor."""
        same = np.zeros(changes.shape[1], dtype=bool)
        for answer in self.answers:
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

    def leak(self, *, same_place: bool = False) -> Leak:
        """The fewest effective rows of any number, or of the difference of two of one name.

        ``same_place``: only differences of two replies, each number less the one at its place.
        """
        worst = Leak(np.inf, "")
        for changes in self._by_name():
            size, where = np.abs(changes.values), changes.where
            rows = effective(changes.of_rows, size)
            if rows.min(initial=np.inf) < worst.rows:
                worst = Leak(float(rows.min()), where[rows.argmin()])
            some = np.flatnonzero(~changes.alone & np.isfinite(changes.of_rows).any(axis=0))
            for k, a in enumerate(some[1:], 1):
                before = some[:k]
                alike = changes.places if same_place else changes.columns
                before = before[alike[before] == alike[a]]
                apart = changes.of_rows[:, [a]] - changes.of_rows[:, before]
                rows = effective(apart, np.maximum(size[before], size[a]))
                if rows.min(initial=np.inf) < worst.rows:
                    worst = Leak(float(rows.min()), f"{where[a]} - {where[before[rows.argmin()]]}")
        return worst

    def _by_name(self) -> Iterator[Changes]:
        names = dict.fromkeys(name for answer in self.answers for name in answer)
        for name in names:
            found = [answer[name] for answer in self.answers if name in answer]
            yield Changes(
                np.concatenate([c.values for c in found]),
                np.concatenate([c.of_rows for c in found], axis=1),
                [where for c in found for where in c.where],
                np.concatenate([c.places for c in found]),
                np.concatenate([c.columns for c in found]),
                np.concatenate([c.alone for c in found]),
            )


class _Told:
    """The numbers of a reply by name, what became of each, and what the task gave."""

    def __init__(self, reply: Any, owner: Owner) -> None:
        arrays = _arrays(reply)
        self.values = {name: value.reshape(-1) for name, value in arrays.items()}
        self.widths = {n: a.shape[-1] if a.ndim > 1 else max(1, a.size) for n, a in arrays.items()}
        self.plain = _numbers(owner.ungated)
        for entry, numbers in owner.gate.merged.items():
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


def _whole(parts: Any) -> Any:
    """What numbers may be equal parts of: so many times each of them."""
    return np.round(np.multiply.outer(np.arange(1, MOST_PARTS + 1), parts), 6)


def _numbers(reply: Any, at: str = "") -> dict[str, Any]:
    return {name: value.reshape(-1) for name, value in _arrays(reply, at).items()}


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
            return {at: value.astype(float)}
    return {}


def effective(changes: Any, size: Any) -> Any:
    """The effective rows of every number, infinite where no row changes it or too many decide."""
    unknown = ~np.isfinite(changes)
    changes = np.where(unknown, 0.0, changes)
    largest = np.abs(changes).max(axis=0, initial=0.0)
    near = (largest > ROUNDING * size) & (largest <= 10 * ROUNDING * size)
    changes[(np.abs(changes) <= ROUNDING * size) & ~near] = 0.0
    squares = (changes**2).sum(axis=0)
    rows = np.full(squares.shape, np.inf)
    some = (squares > 0) & (unknown.sum(axis=0) < DECIDED)
    return np.divide(np.abs(changes).sum(axis=0) ** 2, squares, out=rows, where=some)

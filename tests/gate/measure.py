"""How many rows stand behind what leaves a client, measured from outside.

Every ask is answered by a client that holds all rows and by one client for each row left out, each
with a memory of its own. With eᵢ the change of a number when row i is left out, its effective rows
are (Σ|eᵢ|)² / Σeᵢ². A number that the client with all rows withholds has no difference.
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
MEASURED = 0.8
"""A number is measured when so many of the clients without a row release it as well."""


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
            seen = self.gate.source(found, self.data)
            source = seen.prepared(prepare) if prepare else seen
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
        self.answers: list[tuple[dict[str, Any], list[dict[str, Any] | None]]] = []
        self.sent: list[dict[str, Any]] = []

    def ask(self, task: str, payload: Any, prepare: Sequence[Any] = ()) -> Any:
        """Ask everybody; the reply of the client with all rows."""
        self.asks += 1
        reply = self.whole.ask(task, payload, prepare)
        if isinstance(reply, str):
            return reply
        outcome = self.whole.gate.outcome
        replies = []
        for owner in self.without:
            other = owner.ask(task, payload, prepare)
            replies.append(None if isinstance(other, str) else _same(other, owner, outcome))
        self.answers.append((_new(reply, outcome), replies))
        self.sent.append(_sent(reply, outcome))
        return reply

    def leak(self, *, pairs: bool = True) -> Leak:
        """The fewest effective rows of any number, or of the difference of two of one name."""
        worst = Leak(np.inf, "")
        for a, (now, others) in enumerate(self.answers):
            worst = min(worst, _fewest(now, others, f"ask {a}"), key=lambda leak: leak.rows)
            for b, (before, earlier) in enumerate(self.answers[:a] if pairs else ()):
                change = _subtract(_only(now, self.sent[a]), _only(before, self.sent[b]))
                changes = [
                    None if x is None or y is None else _subtract(x, y)
                    for x, y in zip(others, earlier, strict=True)
                ]
                found = _fewest(change, changes, f"ask {a} minus ask {b}")
                worst = min(worst, found, key=lambda leak: leak.rows)
        return worst

    def small_share(self, least: float) -> float:
        """The share of numbers, of those that any row changes, with fewer effective rows."""
        found = [n for now, others in self.answers for _, n in _effective(now, others)]
        rows = np.concatenate([*found, [np.inf]])
        changing = np.isfinite(rows)
        return float((rows[changing] < least - 1e-6).mean()) if changing.any() else 0.0


def _new(reply: Any, outcome: dict[str, Any]) -> dict[str, Any]:
    """Numbers of a reply, NaN where an earlier one was sent again, which was measured then."""
    numbers = _numbers(reply)
    for entry, became in outcome.items():
        value = numbers.get(entry)
        if value is not None and value.size == became.size:
            became = became.T if value.shape != became.shape == value.shape[::-1] else became
            numbers[entry] = np.where(became.reshape(value.shape) == 2, np.nan, value)
    return numbers


def _sent(reply: Any, outcome: dict[str, Any]) -> dict[str, Any]:
    """Marks the numbers of a reply that were not withheld: less a known one, a number is itself."""
    sent = {name: np.ones(value.shape, dtype=bool) for name, value in _numbers(reply).items()}
    for entry, became in outcome.items():
        value = sent.get(entry)
        if value is not None and value.size == became.size:
            became = became.T if value.shape != became.shape == value.shape[::-1] else became
            sent[entry] = (became.reshape(value.shape) == 0) | (became.reshape(value.shape) == 2)
    return sent


def _only(numbers: dict[str, Any], sent: dict[str, Any]) -> dict[str, Any]:
    return {name: np.where(sent[name], value, np.nan) for name, value in numbers.items()}


def _same(reply: Any, owner: Owner, outcome: dict[str, Any]) -> dict[str, Any]:
    """Numbers that can be compared with those of the client with all rows, NaN for the others.

    Where that client sends a number and this one does not, what this one would send without a gate
    is compared: a number just above the limit must not be judged by those few rows without which
    it stays above.
    """
    numbers, ungated = _numbers(reply), _numbers(owner.ungated)
    for entry, here in owner.gate.outcome.items():
        there = outcome.get(entry)
        if there is None or entry not in numbers:
            continue
        value = numbers[entry]
        if here.shape != there.shape or here.size != value.size:
            numbers[entry] = np.full_like(value, np.nan)
            continue
        if value.shape != there.shape == value.shape[::-1]:
            here, there = here.T, there.T
        here, there = here.reshape(value.shape), there.reshape(value.shape)
        plain = np.where(there == 0, ungated[entry], np.nan)
        numbers[entry] = np.where(here == there, value, plain)
    return numbers


def _numbers(reply: Any, at: str = "") -> dict[str, Any]:
    """Every array or number of a reply, by its path."""
    if isinstance(reply, dict):
        found: dict[str, Any] = {}
        for key, value in reply.items():
            found |= _numbers(value, f"{at}.{key}" if at else str(key))
        return found
    if isinstance(reply, list):
        found = {}
        for i, value in enumerate(reply):
            found |= _numbers(value, f"{at}[{i}]")
        return found
    if isinstance(reply, bool | int | float | np.generic | np.ndarray):
        value = np.asarray(reply)
        if value.dtype.kind in "biuf":
            return {at: value.astype(float)}
    return {}


def _subtract(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    return {n: a[n] - b[n] for n in a if n in b and a[n].shape == b[n].shape}


def _fewest(now: dict[str, Any], others: Sequence[Any], where: str) -> Leak:
    worst = Leak(np.inf, "")
    for name, rows in _effective(now, others):
        if rows.min(initial=np.inf) < worst.rows:
            worst = Leak(float(rows.min()), f"{where}: {name}[{rows.argmin()}]")
    return worst


def _effective(now: dict[str, Any], others: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """The effective rows of every number by name, infinite where no row changes it."""
    for name, value in now.items():
        changes = np.stack(
            [
                np.full_like(value, np.nan)
                if other is None or name not in other or other[name].shape != value.shape
                else value - other[name]
                for other in others
            ]
        ).reshape(len(others), -1)
        measured = np.isfinite(changes).mean(axis=0) > MEASURED
        changes = np.nan_to_num(changes)
        size = np.abs(value).reshape(-1)
        changes[:, np.abs(changes).max(axis=0) <= 1e-13 * size] = 0.0  # rounding, and no row's
        changes[np.abs(changes) <= 1e-15 * size] = 0.0
        squares = (changes**2).sum(axis=0)
        rows = np.full(squares.shape, np.inf)
        some = (squares > 0) & measured
        yield name, np.divide(np.abs(changes).sum(axis=0) ** 2, squares, out=rows, where=some)

"""The privacy ledger: what left a data set with noise, over all jobs, on disk before it leaves.

Events are stored as they are and composed by the accountant each time, so that ε is never added up.
A reply is put down in the transaction that finds it within the budget, under the lock of the
database: neither a crash nor another job, nor another agent that is told the same file, makes the
ledger count less than was spent. An ask that is tried again has the same noise, and counts once.
All of a closed job is put down before it begins, under its hash.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from solera.core.accounting import Event
from solera.serve.agent import home
from solera.serve.agent.database import Database
from solera.serve.agent.policy import OwnerPolicy
from solera.trust.noise import check_budget, worth

_TABLES = """
CREATE TABLE IF NOT EXISTS spent (
    place INTEGER PRIMARY KEY, key TEXT, job TEXT, task TEXT, time TEXT, events TEXT
);
CREATE INDEX IF NOT EXISTS by_key ON spent (key);
CREATE TABLE IF NOT EXISTS budget (one INTEGER PRIMARY KEY, epsilon REAL, delta REAL);
"""


@dataclass(frozen=True)
class Spending:
    """What one task of one job has taken: ε is what it would be worth if there were no other."""

    job: str
    task: str
    replies: int
    epsilon: float
    first: str
    last: str


@dataclass(frozen=True)
class Statement:
    """What was spent of a budget, as far as one is known, and by whom."""

    epsilon: float
    budget: float | None
    delta: float
    jobs: list[Spending]


class Ledger:
    """The file of what one data set has spent. ``job`` is whose asks come now.

    ``last`` is by how much the replies since :meth:`begin` have raised ε.
    """

    def __init__(self, path: Path) -> None:
        self._database = Database(path, _TABLES, durable=True)
        self.job = ""
        self.last = 0.0

    def begin(self, job: str) -> None:
        """An ask of this job comes."""
        self.job, self.last = job, 0.0

    def spend(
        self, key: str, task: str, events: Sequence[Event], epsilon: float, delta: float
    ) -> None:
        """Put down events, or refuse them; see :class:`solera.trust.noise.Ledger`."""
        with self._database.write() as db:
            known = db.execute("SELECT 1 FROM spent WHERE key = ? AND key != ''", (key,))
            if known.fetchone():
                return
            before = _events(db)
            check_budget(before, events, epsilon, delta)
            now = datetime.now(UTC).isoformat(timespec="seconds")
            row = (key, self.job, task, now, _written(events))
            db.execute(
                "INSERT INTO spent (key, job, task, time, events) VALUES (?, ?, ?, ?, ?)", row
            )
            db.execute("INSERT OR REPLACE INTO budget VALUES (1, ?, ?)", (epsilon, delta))
        self.last += worth([*before, *events], delta) - worth(before, delta)

    def give_back(self, key: str) -> None:
        """Take back a closed job of which nothing has left."""
        with self._database.write() as db:
            db.execute("DELETE FROM spent WHERE key = ?", (key,))

    def statement(self, delta: float | None = None) -> Statement:
        """What was spent, at this δ or at that of the budget."""
        with self._database.write() as db:
            known = db.execute("SELECT epsilon, delta FROM budget").fetchone()
            rows = db.execute("SELECT job, task, time, events FROM spent ORDER BY place").fetchall()
        budget, own = known or (None, 1e-6)
        delta = own if delta is None else delta
        by_task: dict[tuple[str, str], list[tuple[str, list[Event]]]] = {}
        for job, task, time, events in rows:
            by_task.setdefault((job, task), []).append((time, _read(events)))
        jobs = [
            Spending(
                *who,
                len(replies),
                worth([event for _, events in replies for event in events], delta),
                replies[0][0],
                replies[-1][0],
            )
            for who, replies in by_task.items()
        ]
        total = worth([event for *_, events in rows for event in _read(events)], delta)
        return Statement(total, budget, delta, jobs)

    def close(self) -> None:
        self._database.close()


def ledger_of(folder: Path, policy: OwnerPolicy | None) -> Path:
    """Where a client counts: in the file that its policy names, or in its folder."""
    budget = None if policy is None else policy.privacy
    return Path(budget.ledger) if budget is not None and budget.ledger else folder / home.LEDGER


def _events(db: sqlite3.Connection) -> list[Event]:
    return [
        event for (events,) in db.execute("SELECT events FROM spent") for event in _read(events)
    ]


def _written(events: Sequence[Event]) -> str:
    return msgspec.json.encode([event.to_payload() for event in events]).decode()


def _read(events: str) -> list[Event]:
    return [Event.from_payload(event) for event in msgspec.json.decode(events)]

"""What left a client's data set, over all its jobs, on disk before the reply leaves.

The gate compares every number with those that left before (:mod:`solera.core.disclosure.memory`).
Here they survive the process: what an ask adds is appended in one transaction, so that neither a
crash nor another job makes the client forget what it has told.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from solera.core.disclosure.memory import Memory
from solera.core.payload import decode, encode
from solera.serve.agent.database import Database

_TABLES = """
CREATE TABLE IF NOT EXISTS known (one INTEGER PRIMARY KEY, facts BLOB);
CREATE TABLE IF NOT EXISTS released (
    place INTEGER PRIMARY KEY, family TEXT, rows_gave BLOB, numbers BLOB
);
"""


class Releases:
    """The memory of the gate in a file: :meth:`read` once, :meth:`keep` after every ask."""

    def __init__(self, path: Path) -> None:
        self._database = Database(path, _TABLES, durable=True)
        self._facts: bytes | None = None
        self.kept = self.read()

    def read(self) -> dict[str, Any]:
        """What the file holds, in the form of ``Memory.to_payload``."""
        families: dict[str, list[tuple[Any, Any]]] = {}
        with self._database.write() as db:
            known = db.execute("SELECT facts FROM known").fetchone()
            pieces = db.execute("SELECT family, rows_gave, numbers FROM released ORDER BY place")
            for family, rows_gave, numbers in pieces:
                families.setdefault(family, []).append((decode(rows_gave), decode(numbers)))
        self._facts = None if known is None else known[0]
        facts = Memory().to_payload() if known is None else decode(known[0])
        return facts | {"families": {name: _joined(parts) for name, parts in families.items()}}

    def keep(self, after: Mapping[str, Any]) -> int:
        """Write down what an ask has added to what left; how many numbers it counts.

        An ask that adds nothing costs no write.
        """
        before, new = self.kept, dict(after)
        old, families = before["families"], new["families"]
        facts = encode({name: value for name, value in new.items() if name != "families"})
        known = {family: _known(old.get(family), gave) for family, (gave, _) in families.items()}
        same = all(known[family] == gave.shape[1] for family, (gave, _) in families.items())
        if same and old.keys() == families.keys() and facts == self._facts:
            return 0
        with self._database.write() as db:
            db.execute("INSERT OR REPLACE INTO known VALUES (1, ?)", (facts,))
            for family in old.keys() - families.keys():
                db.execute("DELETE FROM released WHERE family = ?", (family,))
            for family, (gave, numbers) in families.items():
                _add(db, family, known[family], gave, numbers)
        self.kept, self._facts = new, facts
        return int(new["numbers"] - before["numbers"])

    def close(self) -> None:
        self._database.close()


def _joined(parts: list[tuple[Any, Any]]) -> list[Any]:
    gave = np.concatenate([part[0] for part in parts], axis=1)
    return [gave, np.concatenate([part[1] for part in parts])]


def _known(before: Any, gave: Any) -> int:
    """How many columns of a family are in the file; none where the earlier ones have changed."""
    if before is None or (len(before[0]), before[0].dtype) != (len(gave), gave.dtype):
        return 0
    return int(before[0].shape[1])


def _add(db: sqlite3.Connection, family: str, known: int, gave: Any, numbers: Any) -> None:
    """Append the columns that are new; all of them where none is known."""
    if not known:
        db.execute("DELETE FROM released WHERE family = ?", (family,))
    if gave.shape[1] > known:
        row = (family, encode(np.ascontiguousarray(gave[:, known:])), encode(numbers[known:]))
        db.execute("INSERT INTO released (family, rows_gave, numbers) VALUES (?, ?, ?)", row)

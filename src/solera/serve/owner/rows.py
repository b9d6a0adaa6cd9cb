"""The rows that tasks would see, read beside the pages: a query may take its time."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path

from solera.core.errors import SoleraError
from solera.serve.agent.dry_run import dry_run
from solera.serve.agent.policy import OwnerPolicy
from solera.serve.agent.started import Started


@dataclass
class Rows:
    """What was read last, in lines for people; ``problem`` if it could not be read."""

    lines: list[str] = field(default_factory=list)
    problem: str = ""


class RowReader:
    """Reads the rows of a client once for every policy."""

    def __init__(self, folder: Path, started: Started | None) -> None:
        self._folder, self._started = folder, started
        self._lock = threading.Lock()
        self._policy = ""
        self._rows: Rows | None = None

    def look(self, policy: OwnerPolicy) -> Rows | None:
        """What tasks would see under a policy; None while the rows are being read."""
        if self._started is None:
            return Rows(problem="where the rows come from is known once `solera join` has run")
        with self._lock:
            if self._policy != policy.hash():
                self._policy, self._rows = policy.hash(), None
                threading.Thread(target=self._read, args=(policy,), daemon=True).start()
            return self._rows

    def forget(self) -> None:
        """Read again when next asked."""
        with self._lock:
            self._policy = ""

    def _read(self, policy: OwnerPolicy) -> None:
        assert self._started is not None
        found = Rows()
        try:
            rows = self._started.rows(self._folder, policy)
            found.lines = list(dry_run(lambda columns: rows(columns=columns), policy))
        except SoleraError as error:
            found.problem = str(error)
        except Exception as error:  # a function of the owner's own, or the driver of a database
            found.problem = f"the rows cannot be read: {type(error).__name__}: {error}"
        with self._lock:
            if self._policy == policy.hash():
                self._rows = found

"""What a client keeps from task to task, and its last reply, in one file replaced in one step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import asdict

from solera.core.errors import PayloadError, UsageError
from solera.core.payload import decode, encode
from solera.core.private_files import write_file
from solera.serve import wire
from solera.serve.agent.home import CLOSED, MEMORY, read_place
from solera.serve.identity import ask_digest


class Memory(msgspec.Struct, frozen=True):
    """The last reply, and what this client keeps of every job from task to task."""

    job: str | None
    sequence: int | None
    status: wire.Status
    reason: str
    frame: bytes
    states: dict[str, Any]
    ask: str = ""
    epsilon: float = 0.0

    def answers(self, ask: wire.PendingAsk) -> bool:
        """Whether the reply is to this ask: of this number, and with these very words."""
        known = (self.job, self.sequence, self.ask)
        return known == (ask.job, ask.sequence, digest_of(ask))

    def has_answered(self, ask: wire.PendingAsk) -> bool:
        """Whether the last reply of this job was to the same words, under an earlier number."""
        return self.status == "ok" and (self.job, self.ask) == (ask.job, digest_of(ask))

    @classmethod
    def read(cls, path: Path) -> Memory:
        """What the file holds; nothing if there is none."""
        try:
            return msgspec.convert(decode(path.read_bytes()), Memory)
        except FileNotFoundError:
            return NOTHING
        except (PayloadError, msgspec.ValidationError):
            raise UsageError(
                f"{path} is damaged, which holds what this client keeps from task to task",
                hint="restore it from a copy, or delete it to begin without",
            ) from None

    def write(self, path: Path) -> None:
        """Replace what the file holds."""
        write_file(path, encode(asdict(self)), 0o600, overwrite=True)


def own_model(learner: Any, folder: Path) -> Any:
    """The model of a folder's client, by what it keeps of the job that trained it."""
    trained = learner._trained_with or {}
    state = _part_of_closed(folder, trained.get("closed_result"))
    state = state or Memory.read(folder / MEMORY).states.get(trained.get("job", ""), {})
    if not learner.is_personal or not state:
        raise UsageError(
            f"the client of {folder} keeps no part of this {type(learner).__name__}",
            hint="solera predict MODEL ROWS, without --folder, where all share one model",
        )
    return learner.with_part(state, read_place(folder).name)


def _part_of_closed(folder: Path, result: str | None) -> Any:
    """What a closed job left with this client alone."""
    from solera.serve.agent.closed.store import ClosedStore

    if result is None:
        return {}
    store = ClosedStore(folder / CLOSED)
    try:
        kept = store.result(result)
    finally:
        store.close()
    return {} if kept is None else decode(kept[1])


def digest_of(ask: wire.PendingAsk) -> str:
    """SHA-256 of what is asked, by which a reply names it."""
    said = (ask.task, ask.version, ask.payload, ask.prepare, ask.round, ask.seed)
    return ask_digest(*said)


NOTHING = Memory(None, None, "ok", "", b"", {})

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


class Memory(msgspec.Struct, frozen=True):
    """The last reply, and what this client keeps of every job from task to task."""

    job: str | None
    sequence: int | None
    status: wire.Status
    reason: str
    frame: bytes
    states: dict[str, Any]

    def answers(self, ask: wire.PendingAsk) -> bool:
        """Whether the reply is to this ask."""
        return (self.job, self.sequence) == (ask.job, ask.sequence)

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


NOTHING = Memory(None, None, "ok", "", b"", {})

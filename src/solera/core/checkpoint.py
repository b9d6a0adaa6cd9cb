"""Where an interrupted loop goes on: what is kept, where, and for which run."""

from __future__ import annotations

import os
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

from solera.core.engine import CheckpointStore
from solera.core.errors import CheckpointError, PayloadError
from solera.core.payload import decode, encode
from solera.core.private_files import write_file


class CheckpointFile:
    """Keeps the state of a loop in a file, replaced in one step."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def __str__(self) -> str:
        return str(self.path)

    def read(self) -> bytes | None:
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return None

    def write(self, content: Callable[[], bytes]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_file(self.path, content(), 0o600, overwrite=True)


class Checkpoint:
    """Where an interrupted run goes on: its state, kept somewhere, and the run it belongs to."""

    def __init__(self, store: CheckpointStore, fingerprint: str) -> None:
        self.store = store
        self.fingerprint = fingerprint

    def write(self, content: Callable[[], dict[str, Any]]) -> None:
        """Replace what is kept, so that a crash leaves the old or the new state."""
        self.store.write(lambda: encode({"run": self.fingerprint, **content()}))

    def read(self) -> dict[str, Any] | None:
        """What was written last, or None when there is nothing yet."""
        frame = self.store.read()
        if frame is None:
            return None
        try:
            content = decode(frame)
        except PayloadError as error:
            raise CheckpointError(
                f"checkpoint {self.store} is damaged: {error.message}",
                hint="delete it to start from the first round",
            ) from error
        if not isinstance(content, dict) or content.get("run") != self.fingerprint:
            raise CheckpointError(
                f"checkpoint {self.store} belongs to another run",
                hint="the learner's parameters, the seed or the clients have changed; "
                "use another file or job, or delete this one",
            )
        return content


def fingerprint(*parts: Any) -> str:
    """A digest of payloads that identifies a run."""
    return blake2b(encode(list(parts)), digest_size=16).hexdigest()

"""Frames of payloads in shared memory, between processes of one machine."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from typing import Any

from solera.core.errors import SoleraError
from solera.core.payload import encode_pieces
from solera.engines.asks import UNLIMITED


@dataclass(slots=True)
class Frames:
    """One end of a piece of shared memory that holds one frame at a time.

    The writer moves to a larger piece when it must; the reader attaches anew. A ``guest`` is
    another program's process: whatever becomes of it, the memory stays with who made it.
    """

    memory: SharedMemory | None = None
    turn: int = 0
    guest: bool = False

    def write(self, payload: Any) -> list[Any]:
        """Write a frame; the answer tells others where it lies."""
        pieces = encode_pieces(payload, UNLIMITED)
        self.reserve(sum(map(len, pieces)))
        return self.fill(pieces)

    def fill(self, pieces: list[Any]) -> list[Any]:
        """Write the pieces of a frame, for which there is room."""
        position = 0
        for piece in pieces:
            self._bytes[position : position + len(piece)] = piece
            position += len(piece)
        self.turn += 1
        return [self.name, position, self.turn]

    def reserve(self, size: int) -> None:
        """Have room for a frame of so many bytes."""
        if self.size < size:
            self.close(remove=True)
            self.memory = _allocate(max(1 << 16, 2 * size))

    def read(self, place: list[Any]) -> bytes:
        """The frame that lies there."""
        name, size, _ = place
        self.attach(name)
        return bytes(self._bytes[:size])

    def attach(self, name: str) -> None:
        """Turn to the memory of this name; one that cannot be opened is an OSError."""
        if self.memory is not None and self.name == name:
            return
        self.close()
        self.memory = SharedMemory(name)
        if self.guest:  # its tracker would remove the memory at its end; Python 3.13: track=False
            resource_tracker.unregister(f"/{name}", "shared_memory")

    @property
    def name(self) -> str:
        return "" if self.memory is None else self.memory.name

    @property
    def size(self) -> int:
        return 0 if self.memory is None else self.memory.size

    @property
    def _bytes(self) -> memoryview:
        assert self.memory is not None
        assert self.memory.buf is not None
        return self.memory.buf

    def close(self, *, remove: bool = False) -> None:
        """Let go of the memory and, where nobody else will, remove it."""
        if self.memory is None:
            return
        self.memory.close()
        if remove:
            with suppress(FileNotFoundError):
                self.memory.unlink()
        self.memory = None


def _allocate(size: int) -> SharedMemory:
    """New shared memory; too little room is an error here rather than a bus error later."""
    folder = "/dev/shm"
    if os.path.isdir(folder) and (free := shutil.disk_usage(folder).free) < size:
        raise SoleraError(
            f"{size:,} bytes of shared memory are needed, {folder} has {free:,} left",
            hint="make it larger (docker run --shm-size=2g) or use engine='local'",
        )
    return SharedMemory(create=True, size=size)

"""Who gets results: a name, and a key that only the researcher has."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from solera.core.errors import UsageError
from solera.core.payload import decode, encode
from solera.core.private_files import read_private, write_file
from solera.trust.board.keys import new_private, public_of

KEY = "SOLERA_RESEARCHER_KEY"
"""Names the file of the key."""
_KIND = "solera researcher 1"


@dataclass(frozen=True)
class Researcher:
    """A researcher; ``private`` opens results, ``public`` is part of every text."""

    name: str
    private: bytes

    @property
    def public(self) -> bytes:
        return public_of(self.private)

    @classmethod
    def load(cls, name: str, path: str | os.PathLike[str] | None = None) -> Self:
        """The researcher of a key's file, which is made the first time.

        A text names the key: whoever runs the same call with another key asks for another job.
        """
        file = Path(path or os.environ.get(KEY) or _default())
        if not file.exists():
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            fields = {"kind": _KIND, "private": new_private()}
            write_file(file, encode(fields), 0o600, overwrite=False)
        try:
            fields = decode(read_private(file))
            if fields["kind"] == _KIND:
                return cls(name, fields["private"])
        except (LookupError, TypeError, ValueError):
            pass
        raise UsageError(f"{file} is no researcher's key", hint=f"{KEY}=FILE names another")


def _default() -> Path:
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "solera" / "researcher.key"

"""A policy that is read again when its file changes, so that no agent needs a restart."""

from __future__ import annotations

from pathlib import Path

from solera.core.errors import SoleraError, UsageError
from solera.serve.agent.policy import OwnerPolicy


class PolicyBroken(SoleraError):
    """The policy's file was changed and makes no sense: nothing runs until it does.

    The owner wanted another policy, perhaps a stricter one, so the old one does not count either.
    """


class PolicyFile:
    """A policy's file. ``policy`` is what it said when it was last read."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._seen = self._stamp()
        self.policy = OwnerPolicy.read(self.path)

    def refresh(self) -> bool:
        """Read the file if it has changed; whether the policy is another one now."""
        stamp = self._stamp()
        if stamp == self._seen:
            return False
        before = self.policy
        try:
            self.policy = OwnerPolicy.read(self.path)
        except UsageError as error:
            raise PolicyBroken(f"nothing runs: {error.message}", hint=error.hint) from None
        self._seen = stamp
        return self.policy != before

    def _stamp(self) -> tuple[int, ...]:
        try:
            status = self.path.stat()
        except OSError:
            return ()
        return status.st_mtime_ns, status.st_size, status.st_ino

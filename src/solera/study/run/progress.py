"""What shows how far a study is."""

from __future__ import annotations

from solera.core.rounds import Callback


class Progress:
    """What is called as a study goes on; this one shows nothing."""

    def stage(self, text: str) -> None:
        """What happens now, until the next stage or the next rounds."""

    def watch(self, title: str) -> Callback:
        """A callback that shows the rounds of the next fit."""
        return Callback()

    def cells(self, finished: int, total: int, detail: str) -> None:
        """How many cells of a study are finished, and what the last one came to."""


SILENT = Progress()

"""What shows how far a study is."""

from __future__ import annotations

from typing import Protocol

from solera.core.rounds import Callback


class Progress(Protocol):
    """Something that shows how far a study is."""

    def stage(self, text: str) -> None:
        """What happens now, until the next stage or the next rounds."""

    def watch(self, title: str) -> Callback:
        """A callback that shows the rounds of the next fit."""

    def cells(self, finished: int, total: int, detail: str) -> None:
        """How many cells of a study are finished, and what the last one came to."""


class Silent:
    """Shows nothing."""

    def stage(self, text: str) -> None: ...

    def watch(self, title: str) -> Callback:
        return Callback()

    def cells(self, finished: int, total: int, detail: str) -> None: ...


SILENT = Silent()

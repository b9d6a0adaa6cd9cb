"""Progress on stderr: bars in a terminal, otherwise one line for everything that is finished."""

from __future__ import annotations

from typing import Any, Self

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from solera.cli.output import stderr
from solera.core.meter import size
from solera.core.rounds import Callback, Round, logged
from solera.evaluation.figure import in_words
from solera.study.run.progress import Progress as StudyProgress


class Bars(StudyProgress):
    """One bar for every fit, and a line that says what happens between fits.

    Use it in a ``with`` block. It is what studies take as ``progress``.
    """

    def __init__(self) -> None:
        self.console = stderr()
        self.open = False
        self.display = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            _Count(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[detail]}", style="dim"),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self._cells: Any = None
        self._stage = self.display.add_task("", total=None, detail="", visible=False)

    def __enter__(self) -> Self:
        self.open = True
        self.display.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.open = False
        self.display.update(self._stage, visible=False)
        self.display.stop()

    def stage(self, text: str) -> None:
        """Show what happens now."""
        self.display.reset(self._stage, description=text, visible=True)

    def watch(self, title: str) -> Callback:
        """A callback that shows the rounds of a fit."""
        return _RoundBar(self, title)

    def cells(self, finished: int, total: int, detail: str) -> None:
        """Show how many cells of a study are finished."""
        if self._cells is None:
            self._cells = self.start("cells", total, finished)
        self.display.update(self._cells, completed=finished, total=total, detail=detail)

    def start(self, title: str, total: int, completed: int) -> Any:
        """A new bar, in place of the stage."""
        self.display.update(self._stage, visible=False)
        return self.display.add_task(title, total=total, completed=completed, detail="")

    def finish(self, line: str) -> None:
        """Say in one line what is finished, where there are no bars to show it."""
        if self.open and not self.console.is_terminal:
            self.console.print(line, soft_wrap=True)


class _Count(MofNCompleteColumn):
    """How many of how many, where that is known."""

    def render(self, task: Task) -> Text:
        return Text() if task.total is None else super().render(task)


class _RoundBar(Callback):
    """Rounds, what the learner logs, how many clients took part, and the bytes so far."""

    def __init__(self, bars: Bars, title: str) -> None:
        self.bars = bars
        self.title = title
        self.bytes = 0
        self.rounds = 0
        self.detail = ""

    def on_start(self, learner: Any, rounds: int, start: int) -> None:
        self.rounds = start
        self.bytes = sum(r["bytes_down"] + r["bytes_up"] for r in learner.history_)
        self.bar = self.bars.start(self.title, rounds, start)

    def on_round(self, learner: Any, round: Round) -> None:
        metrics = round.metrics
        self.rounds += 1
        self.bytes += metrics["bytes_down"] + metrics["bytes_up"]
        numbers = [f"{name} {in_words(value)}" for name, value in logged(metrics).items()]
        clients = f"{metrics['clients']:,} clients"
        if metrics["failures"]:
            clients += f", {metrics['failures']:,} failed"
        self.detail = " · ".join([*numbers, clients, size(self.bytes)])
        self.bars.display.update(self.bar, advance=1, detail=self.detail)

    def on_end(self, learner: Any) -> None:
        details = f" · {self.detail}" if self.detail else ""
        self.bars.finish(f"{self.title}: {self.rounds} rounds{details}")

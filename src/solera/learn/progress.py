"""A bar for the rounds of ``fit``: a line in a terminal, a line of HTML in a notebook.

Nothing is drawn in the first second of a fit, nor more than a few times a second, so that the bar
costs next to nothing however short the rounds are; ``benchmarks/progress_bar.py`` measures it.
"""

from __future__ import annotations

import shutil
import sys
from html import escape
from time import perf_counter
from typing import Any

from solera.core.rounds import Callback, Round, logged
from solera.evaluation.figure import in_words

_PATIENCE = 1.0  # seconds before the first picture
_PAUSE = 0.25  # seconds between two
_WIDTH = 24


def is_wanted(progress: bool | None) -> bool:
    """What the user says or, by default, whether somebody is looking: a terminal or a notebook."""
    if progress is not None:
        return progress
    return _notebook() is not None or (sys.stderr is not None and sys.stderr.isatty())


def _notebook() -> Any:
    """The display function of a Jupyter kernel; None elsewhere."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from IPython.display import display

    return display


class RoundBar(Callback):
    """Rounds done, time, time left, and what the learner logged last."""

    def __init__(self) -> None:
        self._line: _TerminalLine | _NotebookLine | None = None

    def on_start(self, learner: Any, rounds: int, start: int) -> None:
        self._name, self._rounds = type(learner).__name__, rounds
        self._start = self._done = start
        self._latest: dict[str, Any] = {}
        self._began = self._drawn = perf_counter()
        self._line = None

    def on_round(self, learner: Any, round: Round) -> None:
        self._done = round.index + 1
        self._latest = round.metrics
        now = perf_counter()
        if now - self._drawn >= (_PATIENCE if self._line is None else _PAUSE):
            self._draw(now)

    def on_end(self, learner: Any) -> None:
        if self._line is not None:
            self._draw(perf_counter())
            self._line.close()
            self._line = None

    def _draw(self, now: float) -> None:
        display = _notebook()
        if self._line is None:
            self._line = _TerminalLine() if display is None else _NotebookLine(display)
        self._drawn = now
        seconds = now - self._began
        here = self._done - self._start
        left = seconds / here * (self._rounds - self._done) if here else 0.0
        times = f"{seconds:.0f} s" + (f", {left:.0f} s left" if left >= 1 else "")
        numbers = [f"{name} {in_words(value)}" for name, value in logged(self._latest).items()]
        share = self._done / max(self._rounds, 1)
        self._line.show(share, f"{self._done}/{self._rounds}", self._name, [times, *numbers])


class _TerminalLine:
    """One line that is written over."""

    def show(self, share: float, count: str, name: str, details: list[str]) -> None:
        full = round(share * _WIDTH)
        text = f"{name} {'━' * full}{'─' * (_WIDTH - full)} {count} · {' · '.join(details)}"
        sys.stderr.write(f"\r\x1b[2K{text[: shutil.get_terminal_size().columns - 1]}")
        sys.stderr.flush()

    def close(self) -> None:
        sys.stderr.write("\n")
        sys.stderr.flush()


class _NotebookLine:
    """One output that is replaced."""

    def __init__(self, display: Any) -> None:
        self._display = display
        self._handle: Any = None

    def show(self, share: float, count: str, name: str, details: list[str]) -> None:
        from IPython.display import HTML

        text = escape(f"{count} · {' · '.join(details)}")
        bar = f'<progress value="{share:.4f}" max="1"></progress>'
        content = HTML(f"<div>{escape(name)} {bar} {text}</div>")
        if self._handle is None:
            self._handle = self._display(content, display_id=True)
        else:
            self._handle.update(content)

    def close(self) -> None:
        """The last picture stays."""

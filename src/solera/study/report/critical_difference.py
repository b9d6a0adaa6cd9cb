"""The critical-difference diagram of Demšar (2006, figure 1) as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np
from numpy.typing import ArrayLike

from solera.core.errors import UsageError

_WIDTH, _LABEL, _LINE = 780.0, 240.0, 22.0
_AXIS_Y, _FIRST_Y = 52.0, 92.0


def cliques(ranks: ArrayLike, cd: float) -> list[tuple[int, int]]:
    """Groups of methods that do not differ: first and last place in the order of mean ranks.

    A group is as large as it can be: its best and worst differ by less than ``cd``, and it is part
    of no other group. Methods that differ from all others are in none.
    """
    ordered = np.sort(np.asarray(ranks, dtype=float))
    last = np.searchsorted(ordered, ordered + cd, side="left") - 1
    found: list[tuple[int, int]] = []
    for first, end in enumerate(last.tolist()):
        if end > first and not (found and found[-1][1] >= end):
            found.append((first, end))
    return found


def critical_difference(names: Sequence[object], ranks: ArrayLike, cd: float) -> str:
    """Methods along the axis of mean ranks, best to the left; bars join those that do not differ.

    Text and lines are black, bars blue, so that a page can recolour them like its other pictures.
    """
    mean = np.asarray(ranks, dtype=float)
    k = len(mean)
    if len(names) != k or k < 2:
        raise UsageError(f"critical_difference: {len(names)} names for {k} mean ranks")
    if not (np.isfinite(mean).all() and cd > 0):
        raise UsageError.of("critical_difference", "cd", cd, "must be > 0, and ranks finite")
    order = np.argsort(mean, kind="stable").tolist()
    groups = cliques(mean, cd)
    left = (k + 1) // 2
    bars_y = _AXIS_Y + 14
    first_y = max(_FIRST_Y, bars_y + 10 * len(groups) + 18)
    height = first_y + _LINE * (left - 1) + 16
    low = float(np.floor(mean.min()))
    high = max(float(np.ceil(mean.max())), low + 1)

    def x(rank: float) -> float:
        return _LABEL + (rank - low) / (high - low) * (_WIDTH - 2 * _LABEL)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:g} {height:g}" '
        f'width="100%" font-family="sans-serif" font-size="13" role="img">',
        f"<title>Critical difference {cd:.3f}</title>",
        _line(x(low), _AXIS_Y, x(high), _AXIS_Y),
    ]
    for tick in np.arange(low, high + 1):
        parts.append(_line(x(tick), _AXIS_Y - 6, x(tick), _AXIS_Y))
        parts.append(_text(x(tick), _AXIS_Y - 11, f"{tick:g}", "middle"))
    reach = min(x(low + cd), _WIDTH - 4)
    parts.append(_line(x(low), 18, reach, 18, width=2))
    parts.append(_text((x(low) + reach) / 2, 12, f"CD = {cd:.3f}", "middle"))
    for place, method in enumerate(order):
        on_left = place < left
        y = first_y + _LINE * (place if on_left else k - 1 - place)
        end = _LABEL - 12 if on_left else _WIDTH - _LABEL + 12
        at = x(mean[method])
        parts.append(_line(at, _AXIS_Y, at, y))
        parts.append(_line(at, y, end, y))
        label = f"{_short(str(names[method]))} ({mean[method]:.2f})"
        anchor, shift = ("end", -5) if on_left else ("start", 5)
        parts.append(_text(end + shift, y + 4, label, anchor))
    for i, (a, b) in enumerate(groups):
        y = bars_y + 10 * i
        ends = x(mean[order[a]]) - 4, x(mean[order[b]]) + 4
        parts.append(_line(ends[0], y, ends[1], y, width=5, colour="#0072b2"))
    return "\n".join([*parts, "</svg>"])


def _short(name: str, most: int = 26) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def _line(
    x1: float, y1: float, x2: float, y2: float, *, width: float = 1, colour: str = "#000000"
) -> str:
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width:g}" stroke-linecap="round"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} fill="#000000">{escape(text)}</text>'

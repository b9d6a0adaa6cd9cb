"""Pictures of reports: curves, densities, spreads, confusion matrices, bars.

Colours are those of Okabe & Ito (2008), which colour-blind readers can tell apart. Inside a page
black becomes the text colour and blue the page's.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from hashlib import blake2s
from html import escape
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from solera.core.rounds import logged
from solera.evaluation.curves import GRID, Curves
from solera.evaluation.metrics import metric_label
from solera.study.report import blocks
from solera.study.run.results import Result

BLUE, ORANGE, GREEN, RED = "#0072b2", "#e69f00", "#009e73", "#d55e00"
PALETTE = (BLUE, RED, GREEN, "#cc79a7", ORANGE, "#56b4e9", "#999999", "#b0a000")
"""Colours of several curves, told apart by their line style too."""
STYLES = ("solid", "dashed", "dashdot", "dotted")
MOST_TICKS, MOST_NUMBERS = 30, 12
"""So many classes of a confusion matrix are named, and its cells have numbers."""
MOST_SERIES = 8
"""More curves than colours cannot be told apart."""
MOST_POINTS = 24
"""More marks of a scatter plot have no room in its legend."""
Series = Mapping[str, Sequence[Result]]


def drawn(figure: Any, caption: str, *, shown: bool = True) -> blocks.Figure:
    """A matplotlib figure for a report; the caption is read to the blind even if not shown."""
    for ax in figure.axes:
        for part in (ax, *ax.child_axes):
            part.set_facecolor("none")
    text = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": caption}):
        figure.savefig(text, format="svg", facecolor="none", metadata={"Date": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", svg)  # a page needs no address of any kind
    svg = svg.replace("#000000", "currentColor").replace(BLUE, "var(--accent)")
    prefix = "f" + blake2s(caption.encode(), digest_size=6).hexdigest()
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}-", svg)
    label = escape(caption, quote=True)
    svg = svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
    return blocks.Figure(svg, caption if shown else "")


def standalone(svg: str) -> str:
    """A picture outside its page: colours of its own and the namespaces a file needs."""
    svg = svg.replace("var(--accent)", BLUE).replace("currentColor", "#000000")
    spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    return svg.replace("<svg", f"<svg {spaces}", 1) + "\n"


def _axes(x: str, y: str, *, rows: Sequence[str] = (), row_height: float = 0.45) -> tuple[Any, Any]:
    """Axes for numbers against numbers, or for ``rows`` from top to bottom."""
    height = 1.2 + row_height * len(rows) if rows else 3.6
    figure = Figure(figsize=(7, height), layout="constrained")
    ax = figure.add_subplot(xlabel=x, ylabel=y)
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="x" if rows else "y", alpha=0.25)
    if rows:
        ax.set_yticks(np.arange(len(rows)), rows)
        ax.invert_yaxis()
        return figure, ax
    for axis, label in ((ax.xaxis, x), (ax.yaxis, y)):
        axis.set_major_locator(MaxNLocator("auto", integer=label in ("round", "clients")))
    return figure, ax


def logged_name(results: Sequence[Result]) -> str | None:
    """What learning curves show: the loss, or else whatever the learner logged first."""
    names = [name for result in results for entry in result.history for name in logged(entry)]
    return "loss" if "loss" in names else next(iter(names), None)


def curves(series: Series, name: str) -> Any:
    """Mean over seeds of every series, with a band from the lowest to the highest."""
    figure, ax = _axes("round", metric_label(name))
    for i, (label, results) in enumerate(series.items()):
        length = max(len(r.history) for r in results)
        table = np.full((len(results), length), np.nan)
        for row, result in zip(table, results, strict=True):
            values = np.array([entry.get(name) for entry in result.history], dtype=float)
            row[: len(values)] = np.where(np.isfinite(values), values, np.nan)
        rounds = np.arange(1, length + 1)
        known = ~np.isnan(table).all(axis=0)
        table, rounds = table[:, known], rounds[known]
        colour, style = _look(i)
        low, high = np.nanmin(table, axis=0), np.nanmax(table, axis=0)
        ax.fill_between(rounds, low, high, color=colour, alpha=0.15, linewidth=0)
        mean = np.nanmean(table, axis=0)
        ax.plot(rounds, mean, color=colour, linestyle=style, linewidth=2, label=label)
    _legend(ax, len(series))
    return figure


def selection(series: Series) -> Any:
    """How evenly clients are chosen: the density of the share of rounds a client took part in."""
    figure, ax = _axes("share of rounds in which a client took part", "clients")
    for i, (label, results) in enumerate(series.items()):
        shares = np.concatenate([np.array(r.selected) / max(r.rounds, 1) for r in results])
        counts, edges = np.histogram(shares, bins=np.linspace(0, 1, 21))
        colour, style = _look(i)
        heights = counts / len(results)
        ax.stairs(heights, edges, color=colour, linestyle=style, linewidth=2, label=label)
        ax.stairs(heights, edges, color=colour, alpha=0.12, fill=True)
    _legend(ax, len(series))
    return figure


def spreads(values: Mapping[str, Sequence[float]], name: str) -> Any:
    """A box for every series: quartiles, whiskers to the worst and the best, dots for clients."""
    figure, ax = _axes(name, "", rows=list(values))
    for row, scores in enumerate(values.values()):
        dots = np.sort(np.asarray(scores))
        dots = dots[np.linspace(0, len(dots) - 1, min(len(dots), 80)).astype(int)]
        shift = 0.18 * np.sin(np.arange(len(dots)) * 2.4)
        ax.plot(dots, row + shift, ".", color="0.6", markersize=3, zorder=1)
    ax.boxplot(
        [np.asarray(scores) for scores in values.values()],
        positions=np.arange(len(values)),
        orientation="horizontal",
        widths=0.5,
        whis=(0, 100),
        manage_ticks=False,
        boxprops={"color": BLUE, "linewidth": 1.5},
        medianprops={"color": RED, "linewidth": 2},
        whiskerprops={"color": BLUE},
        capprops={"color": BLUE},
    )
    return figure


def confusion(matrix: Any, classes: Sequence[str]) -> Any:
    """Rows are true classes, columns predicted ones; each row adds up to one."""
    from sklearn.metrics import ConfusionMatrixDisplay

    counts = np.asarray(matrix, dtype=float)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    k = len(counts)
    side = 2 + min(k, MOST_TICKS) * 0.22
    figure = Figure(figsize=(min(side + 1.5, 7), min(side, 6)), layout="constrained")
    ax = figure.add_subplot()
    names = list(classes) if len(classes) == k else [str(i) for i in range(k)]
    display = ConfusionMatrixDisplay(shares, display_labels=names).plot(
        cmap="cividis",
        ax=ax,
        include_values=k <= MOST_NUMBERS,
        im_kw={"vmin": 0, "vmax": 1},
        text_kw={"fontsize": 7},
        xticks_rotation=90 if max(map(len, names)) > 3 else 0,
    )
    for (i, j), text in np.ndenumerate(display.text_ if k <= MOST_NUMBERS else []):
        text.set_text(f"{counts[i, j]:.0f}" if counts[i, j] else "")
    ticks = np.arange(0, k, -(-k // MOST_TICKS))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_ticks(ticks, [names[i] for i in ticks])
    return figure


def bars(values: Mapping[str, float], x: str) -> Any:
    """One horizontal bar each."""
    figure, ax = _axes(x, "", rows=list(values), row_height=0.32)
    ax.barh(np.arange(len(values)), list(values.values()), height=0.7, color=BLUE)
    return figure


def judged(series: Mapping[str, Sequence[Curves]], clients: Sequence[Curves]) -> Any:
    """ROC, precision–recall and calibration: a line each, a band and thin lines for clients."""
    figure = Figure(figsize=(8.4, 3.4), layout="constrained")
    panels = figure.subplots(1, 3)
    for ax, get in zip(panels, (_roc, _precision, _calibration), strict=True):
        each = [get(curves) for curves in clients]
        if len(each) > 1:
            x, heights = each[0][0], np.array([y for _, y in each])
            if get is not _calibration:
                low, high = heights.min(axis=0), heights.max(axis=0)
                ax.fill_between(x, low, high, color=BLUE, alpha=0.12, linewidth=0)
            for own_x, own_y in each:
                ax.plot(own_x, own_y, color="0.65", linewidth=0.6)
        for i, (name, found) in enumerate(series.items()):
            colour, style = _look(i)
            lines = np.array([get(curves) for curves in found])
            x, y = _column_means(lines[:, 0]), _column_means(lines[:, 1])
            ax.plot(x, y, color=colour, linestyle=style, linewidth=2, label=name)
    for ax in (panels[0], panels[2]):
        ax.plot([0, 1], [0, 1], color="0.6", linestyle=":", linewidth=1)
    axes = (
        ("false positive rate", "true positive rate"),
        ("recall", "precision"),
        ("score", "share of positives"),
    )
    for ax, (x_label, y_label) in zip(panels, axes, strict=True):
        ax.set(xlabel=x_label, ylabel=y_label, xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        ax.spines[["top", "right"]].set_visible(False)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=3, frameon=False, fontsize=8)
    return figure


def _roc(curves: Curves) -> tuple[Any, Any]:
    return GRID, np.array(curves.roc)


def _precision(curves: Curves) -> tuple[Any, Any]:
    return GRID, np.array(curves.precision)


def _calibration(curves: Curves) -> tuple[Any, Any]:
    return np.array(curves.score, dtype=float), np.array(curves.share, dtype=float)


def _column_means(table: Any) -> Any:
    """Means over seeds; a tenth without rows in any of them stays empty."""
    known = ~np.isnan(table)
    totals = np.where(known, table, 0.0).sum(axis=0)
    counts = known.sum(axis=0)
    return np.divide(totals, counts, out=np.full(len(totals), np.nan), where=counts > 0)


def scatter(points: Mapping[str, tuple[float, float]], x: str, y: str) -> Any:
    """One mark for each name; the cheap and good ones are at the top left."""
    figure, ax = _axes(x, y)
    for i, (name, (across, up)) in enumerate(points.items()):
        colour, _ = _look(i)
        mark = "osD^vP*X"[i // len(PALETTE) % 8]
        ax.plot([across], [up], mark, color=colour, markersize=8, label=name)
    costs = np.array([across for across, _ in points.values()])
    if (costs > 0).all() and costs.max() > 20 * costs.min():
        ax.set_xscale("log")
    _legend(ax, len(points))
    return figure


def slopes(scores: Mapping[str, Mapping[int, float]], name: str, names: Sequence[str]) -> Any:
    """A line for every client from scheme to scheme; the mean of all is thick."""
    figure, ax = _axes("", name)
    shared = sorted(set.intersection(*(set(by_client) for by_client in scores.values())))
    table = np.array([[scores[scheme][client] for scheme in scores] for client in shared])
    places = np.arange(len(scores))
    for client, line in zip(shared, table, strict=True):
        ax.plot(places, line, color="0.65", linewidth=0.8, marker=".", markersize=4)
        if len(shared) <= MOST_NUMBERS:
            label = names[client] if names else f"client {client}"
            ax.annotate(label, (places[-1], line[-1]), (6, 0), textcoords="offset points",
                        va="center", fontsize=7)  # fmt: skip
    ax.plot(places, table.mean(axis=0), color=BLUE, linewidth=2.5, marker="o")
    ax.set_xticks(places, list(scores))
    ax.set_xlim(-0.3, places[-1] + (0.8 if len(shared) <= MOST_NUMBERS else 0.3))
    return figure


def heat_map(scores: Mapping[str, Mapping[int, float]], name: str, names: Sequence[str]) -> Any:
    """Clients from left to right, worst first; a line for every method."""
    clients = sorted({client for by_client in scores.values() for client in by_client})
    table = np.array([[by.get(c, np.nan) for c in clients] for by in scores.values()])
    order = np.argsort(_column_means(table), kind="stable")
    height = 1.6 + 0.32 * len(scores)
    figure = Figure(figsize=(7, height), layout="constrained")
    ax = figure.add_subplot(xlabel="clients, worst first")
    image = ax.imshow(table[:, order], aspect="auto", cmap="cividis", interpolation="nearest")
    ax.set_yticks(np.arange(len(scores)), list(scores), fontsize=8)
    if len(clients) <= MOST_TICKS:
        labels = [names[clients[i]] if names else str(clients[i]) for i in order]
        turned = 90 if max(map(len, labels)) > 3 else 0
        ax.set_xticks(np.arange(len(clients)), labels, fontsize=7, rotation=turned)
    figure.colorbar(image, ax=ax, label=name)
    return figure


def _look(series: int) -> tuple[str, str]:
    """The colour and the line style of a series."""
    return PALETTE[series % len(PALETTE)], STYLES[series % len(STYLES)]


def _legend(ax: Any, lines: int) -> None:
    if lines > 1:
        ax.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2, fontsize=8)

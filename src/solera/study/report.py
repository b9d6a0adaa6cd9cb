"""One HTML file that shows a run: words, tables and pictures, without a server or the internet.

Everything that is not markup of this module passes through :func:`html.escape`. Pictures are SVG
inside the page; their black becomes the text colour and their blue the page's, so that they follow
the reader's light or dark preference. Colours are those of Okabe & Ito (2008), which colour-blind
readers can tell apart.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from solera.data.dataset import Dataset
from solera.data.federated import FederatedData
from solera.study.runner import Result, headline, logged
from solera.study.spec import Spec
from solera.study.wording import mean_and_spread, number, size, spelled

BLUE, ORANGE, GREEN, RED = "#0072b2", "#e69f00", "#009e73", "#d55e00"


class Section(NamedTuple):
    """A heading and the HTML below it."""

    title: str
    body: str


def report(
    spec: Spec,
    results: Sequence[Result],
    dataset: Dataset,
    data: FederatedData,
    extra: Sequence[Section] = (),
) -> str:
    """The page about a run; ``data`` shows who held which rows with the first seed."""
    sections = [
        Section("Summary", summary(spec, results, dataset, data)),
        Section("Results", result_table(results)),
        *extra,
        *learning_curves(results),
        Section("Partition", partition(spec, data, dataset, results[0].seed)),
        Section("Clients", fairness(results)),
        Section("Traffic", traffic(results, data.clients)),
        Section("Run file", f"<pre>{escape(spec.text)}</pre>"),
    ]
    return page(spec.name, sections)


# --- sections ---


def summary(spec: Spec, results: Sequence[Result], dataset: Dataset, data: FederatedData) -> str:
    """What was done and what came out, in words."""
    seeds = f"{len(results)} seed{'s' if len(results) > 1 else ''}"
    if len(results) < len(spec.seeds):
        seeds += f" of {len(spec.seeds)} (the others are not finished)"
    text = (
        f"{spec.learner!r} was trained on {dataset.name} ({dataset.title}): {data.offsets[-1]:,} "
        f"rows held by {data.clients:,} clients, divided by {spec.partition!r}, with {seeds}. "
    )
    score = results[0].score
    if score is not None and results[0].metrics:
        value = mean_and_spread([r.metrics.get(score) for r in results])
        rows = dataset.X_test.shape[0]
        text += f"On the {rows:,} test rows no client has it reached {spelled(score)} {value}. "
    if any(r.clients for r in results):
        worst = mean_and_spread([min(r.clients.values(), default=None) for r in results])
        text += f"On its own test rows the worst client saw {worst}. "
    per_client = float(np.mean([r.bytes_up + r.bytes_down for r in results])) / data.clients
    text += f"Training exchanged {size(per_client)} with each client."
    return paragraph(text)


def result_table(results: Sequence[Result]) -> str:
    """Mean and standard deviation over seeds, then each seed."""
    columns = [(spelled(n), [r.metrics.get(n) for r in results]) for n in headline(results)]
    score = results[0].score
    if score is not None and any(r.client_metrics for r in results):
        kept = [r.client_metrics.get(score) for r in results]
        columns.append((f"{spelled(score)}, clients' own rows", kept))
    header = ["seed", *(name for name, _ in columns), "rounds", "seconds"]
    rows = [
        [r.seed, *(number(values[i]) for _, values in columns), r.rounds, f"{r.seconds:.1f}"]
        for i, r in enumerate(results)
    ]
    if len(results) > 1:
        rows.insert(0, ["all", *(mean_and_spread(values) for _, values in columns), "", ""])
    note = "Mean ± standard deviation over the seeds." if len(results) > 1 else ""
    return table(rows, header) + paragraph(note)


def learning_curves(results: Sequence[Result]) -> list[Section]:
    """The loss (or else whatever the learner logged first) of every round."""
    names = [name for result in results for entry in result.history for name in logged(entry)]
    name = "loss" if "loss" in names else next(iter(names), None)
    if name is None:
        return []
    curves = np.full((len(results), max(r.rounds for r in results)), np.nan)
    for curve, result in zip(curves, results, strict=True):
        values = np.array([entry.get(name) for entry in result.history], dtype=float)
        curve[: len(values)] = np.where(np.isfinite(values), values, np.nan)
    if np.isnan(curves).all():
        return []
    figure, ax = _axes("round", spelled(name))
    rounds = np.arange(1, curves.shape[1] + 1)
    if len(results) > 1:
        ax.fill_between(
            rounds, curves.min(axis=0), curves.max(axis=0), color=BLUE, alpha=0.2, linewidth=0
        )
    ax.plot(rounds, curves.mean(axis=0), color=BLUE, linewidth=2)
    ax.set_ylim(bottom=min(0.0, float(np.nanmin(curves))))
    spread = "mean over the seeds; the band reaches from the lowest to the highest"
    caption = f"{spelled(name).capitalize()} of every round" + (
        f" ({spread})." if len(results) > 1 else "."
    )
    return [Section("Learning curve", figure_svg(figure, caption) + paragraph(caption))]


def partition(spec: Spec, data: FederatedData, dataset: Dataset, seed: int) -> str:
    """Which client holds how many rows of which class."""
    names = {"class_names": dataset.class_names} if dataset.class_names else {}
    held = "client" if data.class_counts() is None else "client and class"
    caption = f"Rows per {held} with seed {seed}, divided by {spec.partition!r}."
    rows = [line.split(":", 1) for line in str(data.summary()).splitlines()]
    return figure_svg(data.plot(**names), caption) + paragraph(caption) + table(rows)


def fairness(results: Sequence[Result]) -> str:
    """How differently clients fare with the same model."""
    scores = np.array([score for r in results for score in r.clients.values()])
    if not len(scores):
        return paragraph(
            "No client keeps rows to test on. client_test = 0.2 in the [data] table sets a fifth "
            "of every client's rows aside and shows here how each client fares."
        )
    name = spelled(next((r.score for r in results if r.score), None) or "score")
    figure, ax = _axes(f"{name} on the client's own test rows", "clients")
    ax.hist(scores, bins=np.histogram_bin_edges(scores, bins=20), color=BLUE, alpha=0.75)
    marks = {"worst": RED, "median": ORANGE, "best": GREEN}
    values = dict(zip(marks, np.quantile(scores, [0, 0.5, 1]), strict=True))
    styles = ("solid", "dashed", "dotted")
    for (mark, colour), style in zip(marks.items(), styles, strict=True):
        label = f"{mark} {values[mark]:.3f}"
        ax.axvline(values[mark], color=colour, linewidth=2, linestyle=style, label=label)
    ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(0, 1.15), ncols=3)
    caption = f"{name.capitalize()} of the clients, each on its own test rows, over all seeds."
    return figure_svg(figure, caption) + paragraph(caption)


def traffic(results: Sequence[Result], clients: int) -> str:
    """Bytes that training sent, where a learner without rounds counts as one round with all."""
    rounds = np.array([max(r.rounds, 1) for r in results])
    turns = np.array([sum(h["clients"] for h in r.history) or clients for r in results])
    rows = []
    for way, name in (("to clients", "bytes_down"), ("from clients", "bytes_up")):
        total = np.array([getattr(r, name) for r in results], dtype=float)
        rows.append(
            [way, *(size(float(each.mean())) for each in (total, total / rounds, total / turns))]
        )
    note = "Sizes of the encoded payloads, mean over the seeds."
    return table(rows, ["", "in all", "per round", "per client and round"]) + paragraph(note)


# --- pieces of a page ---


def page(title: str, sections: Sequence[Section]) -> str:
    """A whole HTML document; ``sections`` hold markup, ``title`` is text."""
    body = "\n".join(
        f"<section>\n<h2>{escape(section.title)}</h2>\n{section.body}\n</section>"
        for section in sections
    )
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n<h1>{escape(title)}</h1>\n{body}\n</main>\n</body>\n</html>\n"
    )


def paragraph(text: str) -> str:
    """Text as a paragraph; nothing for no text."""
    return f"<p>{escape(text)}</p>" if text else ""


def table(rows: Sequence[Sequence[Any]], header: Sequence[str] = ()) -> str:
    """Rows as a table; the first column names the row. Without a header it holds facts in words."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in header)
    lines = []
    for first, *rest in rows:
        cells = "".join(f"<td>{escape(str(cell).strip())}</td>" for cell in rest)
        lines.append(f'<tr><th scope="row">{escape(str(first))}</th>{cells}</tr>')
    body = "\n".join(lines)
    if not head:
        return f'<table class="facts"><tbody>\n{body}\n</tbody></table>'
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def figure_svg(figure: Any, caption: str) -> str:
    """A matplotlib figure as SVG for the inside of a page; ``caption`` is read to the blind."""
    for ax in figure.axes:
        for part in (ax, *ax.child_axes):
            part.set_facecolor("none")
    text = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": caption}):
        figure.savefig(text, format="svg", facecolor="none", metadata={"Date": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", svg)
    svg = svg.replace("#000000", "currentColor").replace(BLUE, "var(--accent)")
    prefix = re.sub(r"\W+", "-", caption)[:40]
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}-", svg)
    label = escape(caption, quote=True)
    return svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)


def _axes(x: str, y: str) -> tuple[Any, Any]:
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    ax = figure.add_subplot()
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", alpha=0.25)
    for axis, label in ((ax.xaxis, x), (ax.yaxis, y)):
        axis.set_major_locator(MaxNLocator("auto", integer=label in ("round", "clients")))
    return figure, ax


_STYLE = """
:root { --ink: #1b1f24; --faint: #5b6570; --paper: #ffffff; --line: #d8dee4; --wash: #f5f7f9;
  --accent: #0072b2 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ec; --faint: #9aa5b1; --paper: #14181c; --line: #343b43; --wash: #1d2329;
    --accent: #56b4e9 }
}
* { box-sizing: border-box }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif }
main { max-width: 52rem; margin: 0 auto; padding: 1.5rem 1rem 4rem }
h1 { font-size: 1.8rem; margin: .5rem 0; overflow-wrap: anywhere }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .75rem; padding-bottom: .25rem;
  border-bottom: 1px solid var(--line) }
p { overflow-wrap: anywhere }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .5rem 0 }
th, td { padding: .35rem .6rem; text-align: right; border-bottom: 1px solid var(--line) }
th { font-weight: 600 }
thead th { color: var(--faint); font-weight: 500; vertical-align: bottom }
tbody th, thead th:first-child { text-align: left; white-space: nowrap }
td { white-space: nowrap }
.facts th { padding-left: 0 }
.facts td { text-align: left; white-space: normal }
svg { display: block; width: 100%; max-width: 44rem; height: auto; color: var(--ink) }
svg text { fill: currentColor; font-family: inherit !important }
section > svg + p, .wide + p { color: var(--faint); font-size: .9rem }
pre { overflow-x: auto; padding: 1rem; background: var(--wash); border-radius: .4rem;
  font-size: .9rem }
"""

"""One HTML file that shows a run: words, tables and pictures, without a server or the internet."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from solera.data.dataset import Dataset
from solera.data.federated import FederatedData
from solera.study.files.tables import Spec
from solera.study.formatting import mean_and_spread, number, size, spelled
from solera.study.report import sections
from solera.study.report.html import (
    BLUE,
    GREEN,
    ORANGE,
    RED,
    Section,
    axes,
    figure_svg,
    page,
    paragraph,
    table,
)
from solera.study.run.results import Result, headline, logged


def report(
    spec: Spec,
    results: Sequence[Result],
    dataset: Dataset,
    data: FederatedData,
    extra: Sequence[Section] = (),
    learned: Sequence[Section] = (),
) -> str:
    """The page about a run; ``data`` shows who held which rows with the first seed.

    ``extra`` sections come after the results, ``learned`` are what the learner has to show.
    """
    content = [
        Section("Summary", summary(spec, results, dataset, data)),
        Section("Results", result_table(results)),
        *extra,
        *learning_curves(results),
        Section("Partition", partition(spec, data, dataset, results[0].seed)),
        Section("Clients", fairness(results)),
        *sections.selection({spec.name: results}),
        *sections.confusion({"": results}, dataset.class_names),
        *learned,
        Section("Traffic", traffic(results, data.clients)),
        *sections.energy({spec.name: results}),
        Section("Run file", f"<pre>{escape(spec.text)}</pre>"),
    ]
    return page(spec.name, content)


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
    figure, ax = axes("round", spelled(name))
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
    figure, ax = axes(f"{name} on the client's own test rows", "clients")
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

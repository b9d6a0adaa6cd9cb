"""Sections about what came out: words, tables of scores, curves, confusion, learners."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from solera.core.meter import size
from solera.evaluation.curves import Curves
from solera.evaluation.metrics import metric_label, sign
from solera.learn.base import load as load_model
from solera.study.files.tables import SCHEMES
from solera.study.formatting import capital, mean_and_spread
from solera.study.names import chain_of
from solera.study.report import figures
from solera.study.report.blocks import (
    Block,
    Blocks,
    Heading,
    Marked,
    Paragraph,
    Preformatted,
    Section,
    Table,
)
from solera.study.report.clients import client_means
from solera.study.report.groups import (
    Division,
    Group,
    StudyResults,
    best,
    value_of,
    whose_rows,
)
from solera.study.report.significance import comparison_blocks, friedman_words
from solera.study.run.cells import CellStore
from solera.study.run.results import Result
from solera.study.run.schemes import divided, load

# --- words ---


def summary(study: StudyResults) -> Blocks:
    """What was done and what came out, in words."""
    run = study.run
    one = len(study.groups) == 1
    done = _one_configuration(study.groups[0]) if one else _many_configurations(study)
    words = [f"{done} {len(run.finished)} of {len(run.cells)} cells are finished."]
    if not one:
        words += [_leader(study.metric, *item) for item in study.shown_divisions]
    if study.comparison is not None:
        words.append(f"{friedman_words(study.comparison)}.")
    if run.stopped:
        words.append(f"The study ended early: {run.stopped}.")
    return [Paragraph(text) for text in words]


def _one_configuration(group: Group) -> str:
    cell, results = group.cells[0], group.results
    variant, dataset = cell.variant, load(cell.variant.data)
    data = divided(cell, dataset)
    text = (
        f"{variant.method} was trained on {dataset.name} ({dataset.title}): "
        f"{data.offsets[-1]:,} rows held by {data.clients:,} clients, divided by "
        f"{variant.setting}. "
    )
    score = results[0].score
    if score is not None and results[0].metrics:
        value = mean_and_spread([r.metrics.get(score) for r in results])
        rows = dataset.X_test.shape[0]
        text += (
            f"On the {rows:,} test rows no client has it reached {metric_label(score)} {value}. "
        )
    if any(r.clients for r in results):
        worst = mean_and_spread([min(r.clients.values(), default=None) for r in results])
        text += f"On its own test rows the worst client saw {metric_label(score or '')} {worst}. "
    exchanged = _mean(results, "bytes_up") + _mean(results, "bytes_down")
    return f"{text}Training exchanged {size(exchanged / data.clients)} with each client."


def _many_configurations(study: StudyResults) -> str:
    declared = study.run.study
    methods = {group.method for group in study.groups}
    data = dict.fromkeys(group.data for group in study.groups)
    folds = f" and {declared.folds} folds" if declared.folds else ""
    return (
        f"{_count(methods, 'method')} on {_count(study.divisions, 'division')} of "
        f"{', '.join(data)}, {_count(declared.seeds, 'seed')}{folds}:"
    )


def _leader(metric: str, division: Division, groups: Sequence[Group]) -> str:
    """Who is best in a division, and how the best of each scheme compare."""
    leader = best(metric, groups)
    if leader is None:
        return ""
    value = mean_and_spread(leader.values(metric))
    text = (
        f"On {division[0]} divided by {division[1]}, {leader.name} is best with "
        f"{metric_label(metric)} {value}, of {whose_rows(leader.results, metric)}."
    )
    leaders = {s: best(metric, [g for g in groups if g.scheme == s]) for s in SCHEMES}
    federated = leaders.pop("federated")
    others = {scheme: group for scheme, group in leaders.items() if group is not None}
    if federated is None or not others:
        return text
    gaps = [_gap(metric, federated, group) for group in others.values()]
    text = f"{text} The best federated method is {' and '.join(gaps)}."
    return f"{text} {_at_clients(federated, others['alone'])}" if "alone" in others else text


def _gap(metric: str, federated: Group, other: Group) -> str:
    gap = federated.mean(metric) - other.mean(metric)
    text = f"{abs(gap):.3f} {'better' if sign(metric) * gap > 0 else 'worse'} than {other.scheme}"
    if other.scheme == "alone" and any(r.metrics for r in other.results):
        text += " (the mean of the clients' own models, on the same rows, which are not theirs)"
    return text


def _at_clients(federated: Group, alone: Group) -> str:
    """What clients gain on their own rows, which the rows of others do not show."""
    together, own = client_means(federated.results), client_means(alone.results)
    gains = [together[client] - own[client] for client in own if client in together]
    if not gains:
        return "What clients gain on their own rows is not known: client_test sets some aside."
    label = metric_label(alone.results[0].score or "")
    better, worse = sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)
    return (
        f"By {label} on its own test rows the federated model is better than the one trained "
        f"alone at {better} of {len(gains)} clients and worse at {worse}."
    )


def _count(things: Any, word: str) -> str:
    return f"{len(things)} {word}{'' if len(things) == 1 else 's'}"


# --- tables ---


Column = Callable[[Sequence[Result]], str]


def results(study: StudyResults) -> Blocks:
    """Mean ± standard deviation of every configuration; the best of a division is marked.

    Where there is one configuration only, its seeds and folds have lines of their own.
    """
    columns = result_columns(study)
    worse = study.comparison.worse if study.comparison is not None else set()
    blocks: Blocks = []
    for division, groups in study.divisions.items():
        rows = []
        for group in groups:
            cells = [column(group.results) for column in columns.values()]
            if group.name in worse:
                cells[0] += " †"
            for i, metric in enumerate(study.metrics):
                if len(groups) > 1 and best(metric, groups) is group:
                    cells[i] = Marked(cells[i])
            rows.append([group.name, *cells])
            if len(study.groups) == 1 and len(group.cells) > 1:
                rows += [
                    [cell.title, *(column([result]) for column in columns.values())]
                    for cell, result in zip(group.cells, group.results, strict=True)
                ]
        if len(study.divisions) > 1:
            blocks.append(Heading(", ".join(division)))
        blocks.append(Table(rows, ["", *columns]))
    every = [result for group in study.groups for result in group.results]
    note = "Mean ± standard deviation over seeds and folds; the best of each division is marked."
    if whose := whose_rows(every, study.metric):
        note += f" {capital(metric_label(study.metric))} is of {whose}."
    if study.comparison is not None:
        note += " † differs from the best method (Wilcoxon–Holm, α = 0.05)."
    if any(result.common is not None for result in every):
        note += (
            " Where every client has its own model, test rows are judged by the mean over these, "
            "and clients' rows each by its own."
        )
    if len(study.run.study.schemes) > 1:
        note += (
            " Alone is the mean over the clients' own models on the same rows, which are not "
            "theirs, and of clients' rows each on its own; centralised sends the rows themselves."
        )
    return [*blocks, Paragraph(note)]


def result_columns(study: StudyResults) -> dict[str, Column]:
    """What tables say about some results: scores, what training exchanged, and what it took."""
    first, label = study.metric, metric_label(study.metric)
    every = [result for group in study.groups for result in group.results]
    scores: dict[str, Callable[[Result], float | None]] = {
        metric_label(metric): partial(value_of, metric=metric) for metric in study.metrics
    }
    if any(r.validation and r.metrics for r in every):
        scores[f"{label}, validation"] = lambda r: r.validation.get(first)
    if any(r.client_metrics for r in every):
        scores[f"{label}, clients' rows"] = lambda r: r.client_metrics.get(first)
    score = next((r.score for r in every if r.clients), None)
    if score is not None:
        name = metric_label(score)
        if score != first:
            scores[f"{name}, clients' rows"] = lambda r: r.client_metrics.get(score)
        scores[f"{name}, worst client"] = lambda r: min(r.clients.values(), default=None)
    columns: dict[str, Column] = {
        **{name: _mean_of(score) for name, score in scores.items()},
        **_common_column(every, score),
        "cells": lambda results: str(len(results)),
        "rounds": lambda results: f"{_mean(results, 'rounds'):g}",
        "to clients": lambda results: size(_mean(results, "bytes_down")),
        "from clients": lambda results: size(_mean(results, "bytes_up")),
        "seconds": lambda results: f"{_mean(results, 'seconds'):.2f}",
    }
    if any(r.energy is not None for r in every):
        columns["Wh"] = lambda results: _energy(results, "wh")
        columns["kg CO₂e"] = lambda results: _energy(results, "co2e")
    return columns


def _common_column(every: Sequence[Result], metric: str | None) -> dict[str, Column]:
    """What clients' test rows say of the common model, where clients have their own."""

    def shown(results: Sequence[Result]) -> str:
        known = [result.common for result in results if result.common is not None]
        if known and not any(known):
            return "no common head"
        return mean_and_spread([common.get(metric or "") for common in known])

    has_own = metric is not None and any(result.common is not None for result in every)
    return {f"{metric_label(metric or '')}, common model": shown} if has_own else {}


def _mean_of(score: Callable[[Result], float | None]) -> Column:
    return lambda results: mean_and_spread([score(result) for result in results])


def _mean(results: Sequence[Any], field: str) -> float:
    return float(np.mean([getattr(result, field) for result in results]))


def _energy(results: Sequence[Result], field: str) -> str:
    uses = [result.energy for result in results if result.energy is not None]
    return f"{_mean(uses, field):.3g}" if uses else "–"


def significance(study: StudyResults) -> Blocks:
    """Whether chance explains the differences."""
    if study.comparison is None:
        return []
    return comparison_blocks(study.comparison, all_pairs=False)


# --- pictures ---


def learning_curves(study: StudyResults) -> Blocks:
    """The loss of every round, one picture for each division."""
    blocks: Blocks = []
    for division, groups in study.shown_divisions:
        name = figures.logged_name([r for g in groups for r in g.results])
        series = {g.name: g.results for g in groups if figures.logged_name(g.results) == name}
        if name is None or not series:
            continue
        shown = dict(list(series.items())[: figures.MOST_SERIES])
        caption = (
            f"{capital(metric_label(name))} of every round on {', '.join(division)}: mean over "
            "the seeds; bands reach from the lowest to the highest."
        )
        if len(series) > len(shown):
            caption += f" The first {len(shown)} of {len(series)} methods."
        blocks.append(figures.drawn(figures.curves(shown, name), caption))
    return blocks


def curves(study: StudyResults) -> Blocks:
    """ROC, precision–recall and calibration, one picture for each division."""
    blocks: Blocks = []
    for division, groups in study.shown_divisions:
        series: dict[str, list[Curves]] = {}
        for group in groups:
            found = [r.curves for r in group.results if r.curves is not None]
            found = found or [c for r in group.results for c in r.client_curves]
            if found and len(series) < figures.MOST_SERIES:
                series[group.name] = found
        if not series:
            continue
        leader = best(study.metric, [g for g in groups if g.name in series and g.scheme != "alone"])
        clients = [] if leader is None else leader.results[0].client_curves
        judged = [f for g in groups for r in g.results for f in r.metrics.values()]
        positive = next((f" of class {f.positive}" for f in judged if f.positive), "")
        caption = (
            f"ROC, precision–recall and calibration{positive} on {', '.join(division)}: means over "
            "the seeds."
        )
        if len(clients) > 1 and leader is not None:
            caption += (
                f" Thin lines are clients on their own test rows with {leader.name}, the band "
                "reaches from the lowest to the highest of them."
            )
        blocks.append(figures.drawn(figures.judged(series, clients), caption))
    return blocks


def confusion(study: StudyResults) -> Blocks:
    """Which classes are taken for which by the best method of each division."""
    blocks: Blocks = []
    for division, groups in study.shown_divisions:
        leader = best(study.metric, [g for g in groups if g.scheme != "alone"])
        matrices = [np.array(r.confusion) for r in leader.results if r.confusion] if leader else []
        if leader is not None and matrices:
            classes = load(leader.cells[0].variant.data).class_names
            caption = (
                f"{leader.name} on {', '.join(division)}: test rows by true and predicted class, "
                "over all seeds."
            )
            picture = figures.confusion(sum(matrices), classes)
            blocks.append(figures.drawn(picture, caption))
    return blocks


# --- what learners have to show ---


def learners(study: StudyResults) -> Blocks:
    """What the best learner of each kind has to show: trees, rules, prototypes."""
    store = CellStore(study.run.folder)
    federated: dict[str, list[Group]] = {}
    for group in study.groups:
        if group.scheme == "federated":
            kind, _ = chain_of(group.cells[0].variant.learner)[-1]
            federated.setdefault(kind, []).append(group)
    blocks: Blocks = []
    for groups in federated.values():
        leader = best(study.metric, groups) or groups[0]
        cell = leader.cells[0]
        for section in of_learner(cell.variant.learner, store.model(cell), leader.name):
            blocks += [Heading(section.title), *section.blocks]
    return blocks


def of_learner(learner: Any, path: Path, title: str = "") -> list[Section]:
    """What a learner, stored at ``path``, has to show: its method ``report_sections``, if any.

    The method returns pairs of a title and a text, a matplotlib figure, or a table as a list of
    dicts with the same keys. Of a pipeline the last step is asked.
    """
    last = getattr(learner, "learners", [learner])[-1]
    if not hasattr(last, "report_sections") or not path.exists():
        return []
    model = load_model(path)
    sections = []
    for name, content in getattr(model, "steps_", [model])[-1].report_sections():
        heading = f"{name}: {title}" if title else name
        sections.append(Section(heading, [_learner_block(content, heading)]))
    return sections


def _learner_block(content: Any, heading: str) -> Block:
    if hasattr(content, "savefig"):
        return figures.drawn(content, heading, shown=False)
    if isinstance(content, list) and content:
        return Table([list(row.values()) for row in content], list(content[0]))
    return Preformatted(str(content))

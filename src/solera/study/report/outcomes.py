"""Sections about what came out: words, tables of scores, curves, confusion, learners."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from solera.core.meter import size
from solera.core.rounds import logged
from solera.data.dataset import Dataset
from solera.evaluation.curves import Curves
from solera.evaluation.metrics import HELD_OUT, metric_label
from solera.learn.base import last_step
from solera.learn.base import load as load_model
from solera.study.formatting import capital, mean_and_spread, number
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
from solera.study.report.groups import (
    Group,
    StudyResults,
    best,
    class_names,
    interval_of,
    is_validated,
    leaders,
    named,
    value_of,
    whose_rows,
)
from solera.study.report.significance import ALPHA, on_rows, over_data_sets
from solera.study.run.cells import CellStore
from solera.study.run.results import Result, different
from solera.study.run.schemes import load

# --- tables ---


Column = Callable[[Sequence[Result]], str]


def results(study: StudyResults) -> Blocks:
    """The mean of every configuration, its spread over seeds and its interval over test rows.

    The best of a division is marked. Where there is one configuration only, its seeds and folds
    have lines of their own. The last line is that of the baseline.
    """
    columns = result_columns(study)
    blocks: Blocks = []
    for division, groups in study.divisions.items():
        rows = []
        pairs = study.pairs.get(division, [])
        first = leaders(study.metric, groups)
        apart = {name for p in pairs if p.p_holm < ALPHA for name in (p.a, p.b)
                 if first and first[0].name in (p.a, p.b)}  # fmt: skip
        for group in groups:
            cells = [column(group.results) for column in columns.values()]
            if group.name in apart and group not in first:
                cells[0] += " †"
            if len(groups) > 1 and group in first:
                cells[0] = Marked(cells[0])
            rows.append([group.name, *cells])
            if len(study.groups) == 1 and len(group.cells) > 1:
                rows += [
                    [cell.title, *(column([result]) for column in columns.values())]
                    for cell, result in zip(group.cells, group.results, strict=True)
                ]
        rows += _baseline(study, groups, list(columns))
        if len(study.divisions) > 1:
            blocks.append(Heading(", ".join(division)))
        blocks.append(Table(rows, ["", *columns]))
    return [*blocks, Paragraph(_note(study))]


def _baseline(
    study: StudyResults, groups: Sequence[Group], columns: Sequence[str]
) -> list[list[str]]:
    """What is reached by answering the most frequent class, or the mean, of training rows."""
    found = [r.baseline for g in groups for r in g.results if r.baseline]
    if not found:
        return []
    cells = {
        metric_label(m): number(fmean(b[m] for b in found if m in b))
        for m in study.metrics
        if any(m in b for b in found)
    }
    target = load(groups[0].cells[0].variant.data).schema.target
    name = {"numbers": "mean of training rows", "labels": "most frequent labels"}.get(
        target, "most frequent class"
    )
    return [[name, *(cells.get(column, "–") for column in columns)]]


def _note(study: StudyResults) -> str:
    """What the numbers of the table are."""
    every = [result for group in study.groups for result in group.results]
    note = (
        "Means over seeds and folds, ± their spread (standard deviation), which says nothing of "
        "other rows: 95 % is the interval over test rows like these."
    )
    if whose := whose_rows(every, study.metric):
        note += f" {capital(metric_label(study.metric))} is of {whose}."
    chosen = "validation rows" if is_validated(study.metric, study.groups) else "the first column"
    note += f" The best of each division by {chosen} is marked."
    if any(study.pairs.values()):
        note += " † differs from it on the test rows (α = 0.05, Holm)."
    positive = {p for g in study.groups if (p := positive_of(g))}
    if positive:
        note += f" The positive class is {', '.join(sorted(positive))}."
    if any(result.common is not None for result in every):
        note += (
            " Where every client has its own model, test rows are judged by the mean over these, "
            "and clients' rows each by its own."
        )
    if len(study.run.study.schemes) > 1:
        note += (
            " Alone is the mean over the clients' own models on the same rows, which are not "
            "theirs, of clients' rows each on its own, and of others' rows each on those of all "
            "others; centralised sends the rows themselves."
        )
    return (
        f"{note} Seconds are those of training + prediction, after a warm-up and without reading."
    )


def positive_of(group: Group) -> str:
    """What the positive one of two classes is called; nothing of other targets."""
    dataset = load(group.cells[0].variant.data)
    return named(dataset.schema, dataset).positive


# --- columns ---


def result_columns(study: StudyResults) -> dict[str, Column]:
    """What tables say about some results: scores, what training exchanged, and what it took."""
    first, label = study.metric, metric_label(study.metric)
    every = [result for group in study.groups for result in group.results]
    columns: dict[str, Column] = {}
    for metric in study.metrics:
        columns[metric_label(metric)] = _shown(partial(value_of, metric=metric), once=True)
        if metric == first:
            columns["95 %"] = partial(_interval, metric=first)
    scores: dict[str, Callable[[Result], float | None]] = {}
    if any(r.validation and (r.metrics or r.client_metrics) for r in every):
        scores[f"{label}, validation"] = lambda r: r.validation.get(first)
    if any(r.client_metrics for r in every):
        scores[f"{label}, clients' rows"] = lambda r: r.client_metrics.get(first)
    score = next((r.score for r in every if r.clients), None)
    if score is not None:
        name = metric_label(score)
        if score != first:
            scores[f"{name}, clients' rows"] = lambda r: r.client_metrics.get(score)
        scores[f"{name}, worst client"] = lambda r: min(r.clients.values(), default=None)
    others = next((m for m in (first, score) if any(m in r.others for r in every)), None)
    if others is not None:
        scores[f"{metric_label(others)}, others' rows"] = lambda r: r.others.get(others)
    columns |= {name: _shown(score) for name, score in scores.items()}
    columns |= {
        **_common_column(every, score),
        "cells": lambda results: str(len(results)),
        "rounds": lambda results: f"{_mean(results, 'rounds'):g}",
        "to clients": lambda results: size(_mean(results, "bytes_down")),
        "from clients": lambda results: size(_mean(results, "bytes_up")),
        "seconds": lambda results: (
            f"{_mean(results, 'seconds'):.2f} + {_mean(results, 'predicting'):.2f}"
        ),
    }
    if any(r.energy is not None for r in every):
        columns["Wh"] = lambda results: _energy(results, "wh")
        columns["kg CO₂e"] = lambda results: _energy(results, "co2e")
    return columns


def _shown(score: Callable[[Result], float | None], *, once: bool = False) -> Column:
    """The mean of a score and its spread; ``once`` of cells that answer the test rows alike."""
    return lambda results: mean_and_spread(
        [score(result) for result in (different(results) if once else results)]
    )


def _interval(results: Sequence[Result], metric: str) -> str:
    found = interval_of(results, metric)
    return "–" if found is None else f"{number(found[0])} … {number(found[1])}"


def _common_column(every: Sequence[Result], metric: str | None) -> dict[str, Column]:
    """What clients' test rows say of the common model, where clients have their own."""

    def shown(results: Sequence[Result]) -> str:
        known = [result.common for result in results if result.common is not None]
        if known and not any(known):
            return "no common head"
        return mean_and_spread([common.get(metric or "") for common in known])

    has_own = metric is not None and any(result.common is not None for result in every)
    return {f"{metric_label(metric or '')}, common model": shown} if has_own else {}


def _mean(results: Sequence[Any], field: str) -> float:
    return float(np.mean([getattr(result, field) for result in results]))


def _energy(results: Sequence[Result], field: str) -> str:
    uses = [result.energy.of_work() for result in results if result.energy is not None]
    return f"{_mean(uses, field):.3g}" if uses else "–"


def significance(study: StudyResults) -> Blocks:
    """Whether chance in the drawing of rows, or of data sets, explains the differences."""
    blocks: Blocks = []
    for division, pairs in study.pairs.items():
        blocks += [Heading(", ".join(division)), *on_rows(pairs)]
    if blocks:
        blocks.append(Paragraph(_TESTS))
    return blocks if study.comparison is None else [*blocks, *over_data_sets(study.comparison)]


_TESTS = (
    "Two methods on the same test rows: McNemar's exact test where each has one answer to a row, "
    "otherwise a paired bootstrap over the rows, of the mean over seeds; p (Holm) is corrected for "
    "all pairs of the table. Where the smallest p that the rows could give is not below 0.05, they "
    "are too few for any difference to be seen."
)


# --- pictures ---


def learning_curves(study: StudyResults) -> Blocks:
    """The training loss of every round, and loss and score of held-out rows, by division."""
    blocks: Blocks = []
    for division, groups in study.shown_divisions:
        every = [r for g in groups for r in g.results]
        known = [name for r in every for entry in r.history for name in logged(entry)]
        held_out = [name for name in dict.fromkeys(known) if name.startswith(HELD_OUT)]
        for name in dict.fromkeys([figures.logged_name(every), *held_out]):
            series = {g.name: g.results for g in groups if _logs(g.results, name)}
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


def _logs(results: Sequence[Result], name: str | None) -> bool:
    return any(name in entry for result in results for entry in result.history)


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
        positive = f" of class {name}" if (name := positive_of(groups[0])) else ""
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
            classes = class_names(load(leader.cells[0].variant.data))
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
        path, dataset = store.model(cell), load(cell.variant.data)
        for section in of_learner(cell.variant.learner, path, leader.name, dataset):
            blocks += [Heading(section.title), *section.blocks]
    return blocks


def of_learner(
    learner: Any, path: Path, title: str = "", dataset: Dataset | None = None
) -> list[Section]:
    """What a learner, stored at ``path``, has to show: its method ``report_sections``, if any.

    Classes go by the names that the data set has for them.

    The method returns pairs of a title and a text, a matplotlib figure, or a table as a list of
    dicts with the same keys. Of a pipeline the last step is asked.
    """
    last = getattr(learner, "learners", [learner])[-1]
    if not hasattr(last, "report_sections") or not path.exists():
        return []
    model = load_model(path)
    sections = []
    last = last_step(model)
    if dataset is not None:
        last.schema_ = named(last.schema_, dataset)
    for name, content in last.report_sections():
        heading = f"{name}: {title}" if title else name
        sections.append(Section(heading, [_learner_block(content, heading)]))
    return sections


def _learner_block(content: Any, heading: str) -> Block:
    if hasattr(content, "savefig"):
        return figures.drawn(content, heading, shown=False)
    if isinstance(content, list) and content:
        return Table([list(row.values()) for row in content], list(content[0]))
    return Preformatted(str(content))

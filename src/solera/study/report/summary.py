"""The section that says in words what was done, what came out, and what went wrong."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from solera.core.meter import size
from solera.evaluation.metrics import metric_label
from solera.study.formatting import mean_and_spread, number
from solera.study.report.blocks import Blocks, Paragraph
from solera.study.report.gains import gains_of, ways_of
from solera.study.report.groups import (
    Division,
    Group,
    StudyResults,
    interval_of,
    is_validated,
    leaders,
    value_of,
    whose_rows,
)
from solera.study.report.significance import ALPHA, friedman_words
from solera.study.run.results import Result, different
from solera.study.run.schemes import divided, load

_NAMED = 3


def summary(study: StudyResults) -> Blocks:
    """What was done and what came out, and what went wrong, in words."""
    run = study.run
    one = len(study.groups) == 1
    done = _one_configuration(study.groups[0]) if one else _many_configurations(study)
    words = [f"{done} {len(run.finished)} of {len(run.cells)} cells are finished."]
    words += _problems(study)
    if not one:
        words += [_leader(study, *item) for item in study.shown_divisions]
    words += _identical(study.groups)
    if study.comparison is not None:
        words.append(f"{friedman_words(study.comparison)}.")
    if run.stopped:
        words.append(f"The study ended early: {run.stopped}.")
    return [Paragraph(text) for text in words]


def _problems(study: StudyResults) -> list[str]:
    """Cells that failed, and trainings that diverged."""
    words = []
    if failed := len(study.run.failures):
        words.append(f"{_count(range(failed), 'cell')} failed, for the reasons below.")
    diverged = {g.name: sum(r.diverged for r in g.results) for g in study.groups}
    named = [f"{name} ({times} of its cells)" for name, times in diverged.items() if times]
    return [*words, f"Training diverged: {_some(named)}."] if named else words


def _identical(groups: Sequence[Group]) -> list[str]:
    """Methods that answer the same whatever the seed, which is no spread of zero."""
    counts = {g.name: (len(g.results), len(different(g.results))) for g in groups}
    named = [f"{name} ({few} of {many})" for name, (many, few) in counts.items() if few < many]
    if not named:
        return []
    return [f"Cells with the same predictions count once; different ones: {_some(named)}."]


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


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
        rows = dataset.X_test.shape[0]
        text += (
            f"On the {rows:,} test rows no client has it reached {metric_label(score)} "
            f"{_height(results, score)}. "
        )
    if any(r.clients for r in results):
        worst = mean_and_spread([min(r.clients.values(), default=None) for r in results])
        text += f"On its own test rows the worst client saw {metric_label(score or '')} {worst}. "
    if score is not None and score in results[0].baseline:
        base = number(results[0].baseline[score])
        text += f"To answer the most frequent class or the mean would give {base}. "
    exchanged = fmean(result.bytes_up + result.bytes_down for result in results)
    return f"{text}Training exchanged {size(exchanged / data.clients)} with each client."


def _height(results: Sequence[Result], metric: str) -> str:
    """The mean of a metric, the spread of seeds, and the interval over test rows."""
    known = different(results)
    text = mean_and_spread([value_of(result, metric) for result in known])
    found = interval_of(results, metric)
    spread = "± spread of seeds; " if len(known) > 1 else ""
    if found is None:
        return f"{text} ({spread.rstrip('; ')})" if spread else text
    return f"{text} ({spread}95 % over such rows: {number(found[0])} to {number(found[1])})"


def _many_configurations(study: StudyResults) -> str:
    declared = study.run.study
    methods = {group.method for group in study.groups}
    data = dict.fromkeys(group.data for group in study.groups)
    folds = f" and {declared.folds} folds" if declared.folds else ""
    return (
        f"{_count(methods, 'method')} on {_count(study.divisions, 'division')} of "
        f"{', '.join(data)}, {_count(declared.seeds, 'seed')}{folds}:"
    )


def _leader(study: StudyResults, division: Division, groups: Sequence[Group]) -> str:
    """Who is best in a division, by what, and from whom it differs."""
    metric, label = study.metric, metric_label(study.metric)
    first = leaders(metric, groups)
    if not first:
        return ""
    leader, names = first[0], ", ".join(group.name for group in first)
    on = f"On {division[0]} divided by {division[1]}, "
    reached = f"{label} {mean_and_spread([value_of(r, metric) for r in different(leader.results)])}"
    about = f"of {whose_rows(leader.results, metric)}"
    if (found := interval_of(leader.results, metric)) is not None:
        about += f" (95 % over such rows: {number(found[0])} to {number(found[1])})"
    if is_validated(metric, groups):
        text = (
            f"{on}validation rows choose {names}, with {label} "
            f"{number(leader.validated(metric))} there; it is best and reached {reached}, {about}."
        )
    else:
        verb = "has" if len(first) == 1 else "have"
        text = (
            f"{on}{names} {verb} the best {reached}, {about}. That chooses nothing: there are no "
            "validation rows (folds = 5)."
        )
    pairs = [p for p in study.pairs.get(division, []) if leader.name in (p.a, p.b)]
    if pairs:
        alike = [p.b if p.a == leader.name else p.a for p in pairs if p.p_holm >= ALPHA]
        text += (
            f" From {_some(alike)} no difference is seen."
            if alike
            else " It differs from all others."
        )
    ways = ways_of(leader, groups)
    if "federated" not in ways or len(ways) < 2:
        return text
    return f"{text} {gains_of(ways, metric).words(ways)}"


def _count(things: Any, word: str) -> str:
    return f"{len(things)} {word}{'' if len(things) == 1 else 's'}"

"""The report of a study: one HTML page, the same as Markdown, and what the comparison says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from solera.study.files.reader import LOWER_IS_BETTER, SCHEMES
from solera.study.formatting import mean_and_spread, number, size, spelled
from solera.study.report import figures as pictures
from solera.study.report import sections
from solera.study.report.documents import write_markdown
from solera.study.report.groups import Group, best, better, blocks, groups, metrics_of
from solera.study.report.html import Marked, Section, figure_svg, inline, page, paragraph, table
from solera.study.run.folder import write_text
from solera.study.run.runner import StudyRun
from solera.study.run.schemes import Training, divided
from solera.study.run.workers import load

MOST_PLACES = 6
MOST_PAIRED = 4
"""Of more methods, only pairs with the best are shown; all are tested."""
ALPHA = 0.05


def write_reports(run: StudyRun, extra: Sequence[Section] = ()) -> None:
    """``report.html`` and ``report.md``, with ready-made sections after the results."""
    html = study_page(run, extra)
    write_text(run.folder / "report.html", html)
    write_markdown(html, run.folder / "report.md")


def study_page(run: StudyRun, extra: Sequence[Section] = ()) -> str:
    """The page about a study."""
    found = groups(run)
    metrics = metrics_of(run)
    test = significance(found, metrics[0])
    series = {f"{g.name} on {g.data}, {g.partition}": g.results for g in found}
    if len({g.place for g in found}) == 1:
        series = {g.name: g.results for g in found}
    environment = json.loads((run.folder / "environment.json").read_text(encoding="utf-8"))
    content = [
        Section("Summary", summary(run, found, metrics[0], test)),
        Section("Results", result_table(found, metrics, test)),
        *test.sections,
        *extra,
        *learning_curves(found),
        *partitions(found),
        *sections.selection(series),
        *fairness(series),
        *confusions(found, metrics[0]),
        *learners(run, found, metrics[0]),
        traffic(series),
        *sections.energy(series),
        *troubles(run),
        Section("Study file", f"<pre>{escape(run.study.text)}</pre>"),
        sections.environment(environment),
    ]
    return page(run.study.name, content)


# --- words and tables ---


class Significance:
    """What the statistical tests say; ``worse`` holds methods that differ from the best."""

    def __init__(self) -> None:
        self.worse: set[str] = set()
        self.words = ""
        self.sections: list[Section] = []


def significance(found: Sequence[Group], metric: str) -> Significance:
    """Friedman, Nemenyi and Wilcoxon–Holm over data sets, partitions, seeds and folds."""
    result = Significance()
    names, scores = blocks(found, metric)
    if find_spec("solera.study.statistics") is None or len(names) < 2 or len(scores) < 3:
        return result
    statistics: Any = import_module("solera.study.statistics")
    values = -scores if metric in LOWER_IS_BETTER else scores
    test = statistics.friedman(values)
    cd = statistics.nemenyi(test.ranks, len(values), ALPHA)
    leader = names[int(np.argmin(test.ranks))]
    rows = []
    for a, b, p, p_holm, effect in statistics.wilcoxon_holm(values):
        first, second = names[int(a)], names[int(b)]
        if leader in (first, second) or len(names) <= MOST_PAIRED:
            rows.append([f"{first} – {second}", f"{p:.3g}", f"{p_holm:.3g}", number(effect)])
        if p_holm < ALPHA and leader in (first, second):
            result.worse.add(second if leader == first else first)
    verdict = "differ" if test.p < ALPHA else "do not differ significantly"
    result.words = (
        f"Over {len(values)} blocks (data, partition, seed, fold) the methods {verdict} "
        f"(Friedman χ² = {test.statistic:.3g}, p = {test.p:.3g})."
    )
    caption = f"Mean ranks (1 is best); a gap of {cd:.2f} is significant (Nemenyi, α = {ALPHA})."
    ranks = [[name, f"{rank:.2f}"] for name, rank in zip(names, test.ranks, strict=True)]
    picture = ""
    if find_spec("solera.study.report.critical_difference") is not None:
        plots: Any = import_module("solera.study.report.critical_difference")
        picture = inline(plots.critical_difference(names, test.ranks, cd))
    body = paragraph(result.words) + picture + paragraph(caption)
    body += table(sorted(ranks, key=lambda row: float(row[1])), ["method", "mean rank"])
    body += table(rows, ["Wilcoxon", "p", "p (Holm)", "effect"])
    result.sections = [Section("Significance", body)]
    return result


def summary(run: StudyRun, found: Sequence[Group], metric: str, test: Significance) -> str:
    """What was done and what came out, in words."""
    done, total = len(run.finished), len(run.cells)
    methods = list(dict.fromkeys(g.method for g in found))
    places = list(dict.fromkeys(g.place for g in found))
    text = (
        f"{len(methods)} {_plural('method', methods)} on {len(places)} "
        f"{_plural('division', places)} of {', '.join(dict.fromkeys(g.data for g in found))}, "
        f"{len(run.study.seeds)} {_plural('seed', run.study.seeds)}"
        + (f" and {run.study.folds} folds" if run.study.folds else "")
        + f": {done} of {total} cells are finished. "
    )
    words = [paragraph(text)]
    for place in places[:MOST_PLACES]:
        here = [g for g in found if g.place == place]
        leader = best(metric, here)
        if leader is not None:
            value = mean_and_spread(leader.values(metric))
            words.append(
                paragraph(
                    f"On {place[0]} divided by {place[1]}, {leader.name} is best with "
                    f"{spelled(metric)} {value}. {_schemes(here, metric)}"
                )
            )
    words.append(paragraph(test.words))
    if run.stopped:
        words.append(paragraph(f"The study ended early: {run.stopped}."))
    return "".join(words)


def _schemes(here: Sequence[Group], metric: str) -> str:
    """How the best of each scheme compare."""
    leaders = {s: best(metric, [g for g in here if g.scheme == s]) for s in SCHEMES}
    known = {s: g.mean(metric) for s, g in leaders.items() if g is not None}
    if len(known) < 2 or "federated" not in known:
        return ""
    parts = [
        f"{abs(known['federated'] - value):.3f} "
        f"{'better' if better(metric, known['federated'], value) else 'worse'} than {scheme}"
        for scheme, value in known.items()
        if scheme != "federated"
    ]
    return f"The best federated method is {' and '.join(parts)}."


def result_table(found: Sequence[Group], metrics: Sequence[str], test: Significance) -> str:
    """Mean ± standard deviation of every configuration; the best of a division is marked."""
    folds = any(r.validation and r.metrics for g in found for r in g.results)
    own = any(r.client_metrics for g in found for r in g.results)
    extra = [f"{spelled(metrics[0])}, validation"] * folds
    extra += [f"{spelled(metrics[0])}, clients' rows"] * own
    body = ""
    for place in dict.fromkeys(g.place for g in found):
        here = [g for g in found if g.place == place]
        leaders = {metric: best(metric, here) for metric in metrics}
        rows = []
        for group in here:
            cells: list[Any] = []
            for metric in metrics:
                text = mean_and_spread(group.values(metric))
                if metric == metrics[0] and group.name in test.worse:
                    text += " †"
                lead = leaders[metric] is group and len(here) > 1
                cells.append(Marked(text) if lead else text)
            if folds:
                values = [r.validation.get(metrics[0]) for r in group.results]
                cells.append(mean_and_spread(values))
            if own:
                values = [r.client_metrics.get(metrics[0]) for r in group.results]
                cells.append(mean_and_spread(values))
            seconds = float(np.mean([r.seconds for r in group.results]))
            rows.append([group.name, *cells, len(group.results), f"{seconds:.2f}"])
        heading = f"{place[0]}, {place[1]}"
        header = ["method", *map(spelled, metrics), *extra, "cells", "seconds"]
        body += f"<h3>{escape(heading)}</h3>" + table(rows, header)
    note = "Mean ± standard deviation over seeds and folds; the best of each division is bold. "
    note += "† differs from the best method (Wilcoxon–Holm, α = 0.05)." if test.sections else ""
    return body + paragraph(note.strip())


def learning_curves(found: Sequence[Group]) -> list[Section]:
    """The loss of every round, one picture for each division."""
    body = ""
    for place in list(dict.fromkeys(g.place for g in found))[:MOST_PLACES]:
        here = [g for g in found if g.place == place]
        name = pictures.logged_name([r for g in here for r in g.results])
        series = {g.name: g.results for g in here if pictures.logged_name(g.results) == name}
        if name is None or not series:
            continue
        shown = dict(list(series.items())[: pictures.MOST_SERIES])
        caption = (
            f"{spelled(name).capitalize()} of every round on {place[0]}, {place[1]}: mean over the "
            "seeds; bands reach from the lowest to the highest."
        )
        if len(series) > len(shown):
            caption += f" The first {len(shown)} of {len(series)} methods."
        body += figure_svg(pictures.curves(shown, name), caption) + paragraph(caption)
    return [Section("Learning curves", body)] if body else []


def partitions(found: Sequence[Group]) -> list[Section]:
    """Who holds how many rows of which class, one picture for each division."""
    body = ""
    for place in list(dict.fromkeys(g.place for g in found))[:MOST_PLACES]:
        training = next(g for g in found if g.place == place).cells[0].training
        dataset = load(training.spec.data)
        data = divided(Training(training.spec, training.seed), dataset)
        names = {"class_names": dataset.class_names} if dataset.class_names else {}
        caption = f"Rows per client on {place[0]}, {place[1]}, with seed {training.seed}."
        body += figure_svg(data.plot(**names), caption) + paragraph(caption)
    return [Section("Partitions", body)]


def fairness(series: pictures.Series) -> list[Section]:
    """How differently clients fare with the same model."""
    scores = {
        name: [score for r in results for score in r.clients.values()]
        for name, results in series.items()
    }
    scores = {name: values for name, values in scores.items() if values}
    if not scores:
        return []
    metric = spelled(next(r.score for results in series.values() for r in results if r.score))
    rows = []
    for name, values in scores.items():
        quantiles = np.quantile(values, [0, 0.1, 0.5, 1])
        spread = float(np.std(values))
        rows.append(
            [
                name,
                *(f"{q:.3f}" for q in quantiles),
                f"{spread:.3f}",
                f"{sections.jain(values):.3f}",
            ]
        )
    caption = f"{metric.capitalize()} of every client on its own test rows, over all seeds."
    shown = dict(list(scores.items())[:24])
    header = ["", "worst", "tenth", "median", "best", "spread", "Jain's index"]
    body = figure_svg(pictures.spreads(shown, metric), caption) + paragraph(caption)
    return [Section("Fairness", body + table(rows, header))]


def confusions(found: Sequence[Group], metric: str) -> list[Section]:
    """The confusion matrix of the best method of each division."""
    content = []
    for place in list(dict.fromkeys(g.place for g in found))[:MOST_PLACES]:
        leader = best(metric, [g for g in found if g.place == place and g.scheme != "alone"])
        if leader is not None:
            classes = load(leader.cells[0].training.spec.data).class_names
            label = f"{leader.name} on {place[0]}, {place[1]}"
            content += sections.confusion({label: leader.results}, classes)
    return [Section("Confusion", "".join(section.body for section in content))] if content else []


def learners(run: StudyRun, found: Sequence[Group], metric: str) -> list[Section]:
    """What the best learner of each kind has to show: trees, rules, prototypes."""
    content: list[Section] = []
    for kind in dict.fromkeys(type(g.cells[0].training.spec.learner) for g in found):
        mine = [
            g
            for g in found
            if type(g.cells[0].training.spec.learner) is kind and g.scheme == "federated"
        ]
        leader = best(metric, mine)
        if leader is not None:
            cell = leader.cells[0]
            path = run.folder / "models" / f"{cell.key}.sol"
            content += sections.of_learner(cell.training.spec.learner, path, leader.name)
    return content


def traffic(series: pictures.Series) -> Section:
    """Bytes of one training."""
    rows = []
    for name, results in series.items():
        down, up = (
            float(np.mean([getattr(r, key) for r in results])) for key in ("bytes_down", "bytes_up")
        )
        rounds = float(np.mean([r.rounds for r in results]))
        rows.append([name, f"{rounds:g}", size(down), size(up)])
    note = "Sizes of the encoded payloads of one training, mean over seeds and folds."
    body = table(rows, ["", "rounds", "to clients", "from clients"]) + paragraph(note)
    return Section("Traffic", body)


def troubles(run: StudyRun) -> list[Section]:
    """Cells that failed, and what was warned of."""
    failed = {cell.key: cell for cell in run.cells}
    rows = [[str(failed[key]), error] for key, error in run.failures.items() if key in failed]
    content = []
    if rows:
        content.append(Section("Cells that failed", table(rows, ["cell", "error"])))
    if run.warnings:
        lines = [[f"{times} cells", text] for text, times in run.warnings.items()]
        content.append(Section("Warnings", table(lines)))
    return content


def _plural(word: str, things: Sequence[Any]) -> str:
    return word if len(things) == 1 else f"{word}s"

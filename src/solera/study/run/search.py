"""Which cells a study runs, and in which order: grid, random search, successive halving.

A search is a generator: it yields batches of cells and is sent their results. It draws no random
number that does not follow from the study's file, so starting it again asks for the same cells.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence

import numpy as np

from solera.core import rng
from solera.study.files.grid import Point, with_resource
from solera.study.files.reader import LOWER_IS_BETTER, Study
from solera.study.run.cells import Cell, cells_of
from solera.study.run.results import Result, score_name

Results = Mapping[str, Result]
Search = Generator[list[Cell], Results, None]


def search(study: Study) -> Search:
    """The search that a study declares."""
    points = _points(study)
    if study.search.kind == "halving":
        yield from _halving(study, points)
    else:
        yield [cell for point in points for cell in cells_of(study, point)]


def _points(study: Study) -> list[Point]:
    """All points, or as many different ones as are to be drawn."""
    draws = study.search.draws
    ranges = any(variant.ranges for variant in study.variants)
    if draws is None or study.search.kind == "grid":
        return study.points()
    draw = rng.generator(study.search.seed, "study.search")
    if not ranges:
        points = study.points()
        chosen = draw.permutation(len(points))[:draws]
        return [points[i] for i in sorted(chosen.tolist())]
    found: dict[str, Point] = {}
    for _ in range(100 * draws):
        variant = study.variants[int(draw.integers(len(study.variants)))]
        point = variant.draw(draw)
        found.setdefault(cells_of(study, point)[0].key, point)
        if len(found) == draws:
            break
    return list(found.values())


def rungs(study: Study, points: Sequence[Point]) -> list[int]:
    """How much of the resource each round of halving gives: least, × factor, … up to most."""
    search = study.search
    most = search.most or (
        len(study.seeds) if search.resource == "seeds" else _resource(points[0], search.resource)
    )
    amounts = [min(search.least, most)]
    while amounts[-1] < most:
        amounts.append(min(amounts[-1] * search.factor, most))
    return amounts


def _halving(study: Study, points: list[Point]) -> Search:
    resource, factor = study.search.resource, study.search.factor
    for amount in rungs(study, points):
        if resource == "seeds":
            tried = points
            cells = [cells_of(study, point, study.seeds[:amount]) for point in tried]
        else:
            tried = [with_resource(point, resource, amount) for point in points]
            cells = [cells_of(study, point) for point in tried]
        results = yield [cell for each in cells for cell in each]
        scores = [validation_score(study, each, results) for each in cells]
        best = sorted(range(len(points)), key=lambda i: -scores[i])
        kept = best[: max(1, math.ceil(len(points) / factor))]
        points = [points[i] for i in sorted(kept)]


def validation_score(study: Study, cells: Sequence[Cell], results: Results) -> float:
    """The mean over seeds and folds of the metric that decides; the higher the better."""
    values = []
    for cell in cells:
        result = results.get(cell.key)
        if cell.training.scheme != "federated" or result is None:
            continue
        metric = study.metrics[0] if study.metrics else score_name(result.validation)
        value = result.validation.get(metric or "", math.nan)
        values.append(-value if metric in LOWER_IS_BETTER else value)
    mean = float(np.mean(values)) if values else -math.inf
    return mean if math.isfinite(mean) else -math.inf


def _resource(point: Point, name: str) -> int:
    holder = point.spec.learner
    for key in name.split("."):
        holder = holder[int(key)] if key.isdigit() else getattr(holder, key)  # type: ignore[index]
    assert isinstance(holder, int)
    return holder

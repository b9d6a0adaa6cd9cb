"""Which cells a study runs, and in which order: grid, random search, successive halving.

A search is a generator: it yields batches of cells and is sent their results. It draws no random
number that does not follow from the study's file, so starting it again asks for the same cells.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence

import numpy as np

from solera.core import rng
from solera.evaluation.metrics import headline_metric, sign
from solera.study.files.grid import resource_of, with_resource
from solera.study.files.reader import Study
from solera.study.files.tables import Variant
from solera.study.run.cells import Cell, cells_of
from solera.study.run.results import Result

Results = Mapping[str, Result]
Search = Generator[list[Cell], Results, None]


def search(study: Study) -> Search:
    """The search that a study declares."""
    variants = _variants(study)
    if study.search.kind == "halving":
        yield from _halving(study, variants)
    else:
        yield [cell for variant in variants for cell in cells_of(study, variant)]


def _variants(study: Study) -> list[Variant]:
    """All variants, or as many different ones as are to be drawn."""
    draws = study.search.draws
    if draws is None or study.search.kind == "grid":
        return study.variants()
    draw = rng.generator(study.search.seed, "study.search")
    if not any(grid.ranges for grid in study.grids):
        variants = study.variants()
        chosen = draw.permutation(len(variants))[:draws]
        return [variants[i] for i in sorted(chosen.tolist())]
    drawn: dict[str, Variant] = {}
    for _ in range(100 * draws):
        grid = study.grids[int(draw.integers(len(study.grids)))]
        variant = grid.draw(draw)
        drawn.setdefault(variant.key, variant)
        if len(drawn) == draws:
            break
    return list(drawn.values())


def rungs(study: Study, variants: Sequence[Variant]) -> list[int]:
    """How much of the resource each round of halving gives: least, × factor, … up to most."""
    search = study.search
    if search.most is not None:
        most = search.most
    elif search.resource == "seeds":
        most = len(study.seeds)
    else:
        most = resource_of(variants[0].learner, search.resource)
    amounts = [min(search.least, most)]
    while amounts[-1] < most:
        amounts.append(min(amounts[-1] * search.factor, most))
    return amounts


def _halving(study: Study, variants: list[Variant]) -> Search:
    resource, factor = study.search.resource, study.search.factor
    for amount in rungs(study, variants):
        if resource == "seeds":
            cells = [cells_of(study, variant, study.seeds[:amount]) for variant in variants]
        else:
            tried = [with_resource(variant, resource, amount) for variant in variants]
            cells = [cells_of(study, variant) for variant in tried]
        results = yield [cell for each in cells for cell in each]
        scores = [validation_score(study, each, results) for each in cells]
        best = sorted(range(len(variants)), key=lambda i: -scores[i])
        kept = best[: max(1, math.ceil(len(variants) / factor))]
        variants = [variants[i] for i in sorted(kept)]


def validation_score(study: Study, cells: Sequence[Cell], results: Results) -> float:
    """The mean over seeds and folds of the metric that decides; the higher the better."""
    values = []
    for cell in cells:
        result = results.get(cell.key)
        if cell.scheme != "federated" or result is None:
            continue
        metric = study.metrics[0] if study.metrics else headline_metric(result.validation)
        values.append(sign(metric or "") * result.validation.get(metric or "", math.nan))
    mean = float(np.mean(values)) if values else -math.inf
    return mean if math.isfinite(mean) else -math.inf

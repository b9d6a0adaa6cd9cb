"""Grid search over the parameters of a selector."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from solera.core.errors import UsageError
from solera.core.federation import Federation
from solera.core.rounds import Callback
from solera.evaluation.metrics import Mode, sign
from solera.select.metrics import area_under


def grid_search(
    learner: Any,
    federation: Callable[[int], Federation],
    grid: Mapping[str, Sequence[Any]],
    *,
    seeds: Sequence[int] = (0,),
    metric: str = "loss",
    mode: Mode | None = None,
    over: str = "round",
    callbacks: Callable[[], Sequence[Callback]] = tuple,
) -> list[dict[str, Any]]:
    """Every combination of the selector's parameters, the best first.

    The best has the smallest mean area under the curve of ``metric``, or the largest where the
    table of metrics, or ``mode`` "max", says that it should rise.

    Parameters
    ----------
    learner: whose ``select`` is varied; it is cloned for every run.
    federation: a function from a seed to a federation.
    grid: values for every parameter, for example ``{"alpha2": [0.01, 0.1]}``.
    callbacks: a function that makes the callbacks of a run, for example to evaluate it.
    """
    if learner.get_params(deep=False).get("select") is None:
        raise UsageError("grid_search: the learner has no selector", hint="give it select=…")
    if not grid or not all(len(values) for values in grid.values()) or not len(seeds):
        raise UsageError("grid_search: give at least one value for each parameter, and a seed")
    direction = sign(metric, mode, f'grid_search(…, metric={metric!r}, mode="min")')
    found = []
    for values in product(*grid.values()):
        params = dict(zip(grid, values, strict=True))
        areas = []
        for seed in seeds:
            run = learner.clone()
            run.select.set_params(**params)
            with federation(seed) as fed:
                run.fit(fed, callbacks=callbacks())
            areas.append(area_under(run.history_, metric, over=over))
        found.append({**params, "area": float(np.mean(areas)), "spread": float(np.std(areas))})
    return sorted(found, key=lambda entry: -direction * entry["area"])

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
from solera.learn.evaluation import Evaluate
from solera.select.metrics import HELD_OUT_LOSS, area_under


def grid_search(
    learner: Any,
    federation: Callable[[int], Federation],
    grid: Mapping[str, Sequence[Any]],
    *,
    seeds: Sequence[int] = (0,),
    metric: str = HELD_OUT_LOSS,
    mode: Mode | None = None,
    over: str = "round",
    callbacks: Callable[[], Sequence[Callback]] = tuple,
) -> list[dict[str, Any]]:
    """Every combination of the selector's parameters, the best first.

    The best has the smallest mean area under the curve of ``metric``, or the largest where the
    table of metrics, or ``mode`` "max", says that it should rise. By default it is the loss of the
    global model on the validation rows of all clients of a simulation, which nobody trains on.

    Parameters
    ----------
    learner: whose ``select`` is varied; it is cloned for every run.
    federation: a function from a seed to a federation.
    grid: values for every parameter, for example ``{"alpha2": [0.01, 0.1]}``.
    callbacks: a function that makes the callbacks of a run. Where they log the loss of held-out
        rows, it is of theirs.
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
                watching = callbacks()
                given = any(isinstance(c, Evaluate) and c.X is not None for c in watching)
                more = [_held_out(fed)] if metric == HELD_OUT_LOSS and not given else []
                run.fit(fed, callbacks=[*watching, *more])
            areas.append(area_under(run.history_, metric, over=over))
        found.append({**params, "area": float(np.mean(areas)), "spread": float(np.std(areas))})
    return sorted(found, key=lambda entry: -direction * entry["area"])


def _held_out(federation: Federation) -> Evaluate:
    """Judges each round by the validation rows of simulated clients."""
    data = getattr(federation, "data", None)
    if data is None or not data.sizes("validation").any():
        raise UsageError(
            "grid_search: there are no validation rows to tune by",
            hint="so.simulate(…, validation=0.2), or metric= and callbacks= that log it",
        )
    rows = data.segments(np.arange(data.clients), "validation").joined()
    return Evaluate(rows.X, rows.y)

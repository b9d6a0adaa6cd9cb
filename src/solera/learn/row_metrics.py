"""Metrics of one's own: functions of a row's target and prediction, installed at the owners.

A function is installed as the task ``metric.<name>`` of a package that owners install, so that it
can be allowed or refused by its name. Its mean is what leaves, as any other sum over rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from solera.core.clients import Client, FloatArray
from solera.core.errors import DataError
from solera.core.task import Task, find_task, task
from solera.learn.client_models import own_model
from solera.learn.totals import Totals
from solera.trust.constructors import count_by, sum_by

PREFIX = "metric."

RowMetric = Callable[[Any, Any], Any]
"""(y, predicted) → a number for every row."""


def row_metric(name: str) -> Callable[[RowMetric], RowMetric]:
    """Install a function of targets and predictions, which gives a number for every row.

    >>> @row_metric("cost")
    ... def cost(y, predicted):
    ...     return 5.0 * (y > predicted) + (y < predicted)

    ``evaluate(federation, metrics=["cost"])`` then gives its mean over all rows, and over those of
    each client.
    """

    def install(function: RowMetric) -> RowMetric:
        def one(client: Client, ask: Any) -> dict[str, Any]:
            part = ask["part"]
            values = _values(name, function, client, ask)
            return {"rows": count_by(None, part=part), "total": sum_by(None, values, part=part)}

        one.__module__, one.__qualname__ = function.__module__, function.__qualname__
        one.__doc__ = function.__doc__
        task(PREFIX + name)(one)
        return function

    return install


def _values(name: str, function: RowMetric, client: Client, ask: Any) -> FloatArray:
    """What the function gives every row; predictions are those of the model, in class names."""
    rows = client.data.part(ask["part"])
    if not len(rows):
        return np.empty(0)
    if rows.y is None:
        raise DataError("rows without a target cannot be evaluated")
    predicted = own_model(client, ask["model"]).predict(rows.X)
    values = np.asarray(function(rows.y, predicted), dtype=float)
    if values.shape != (len(rows),):
        raise DataError(f"metric {name!r} gave {values.shape} numbers for {len(rows):,} rows")
    return values


class MeanTotals(Totals):
    """Sums and rows of all clients."""

    def settle(self, counts: dict[str, Any]) -> dict[str, Any]:
        rows = np.asarray(counts["rows"])
        return {"total": counts["total"], "rows": rows, "clients": 1 * (rows > 0)}


def find_metric(name: str) -> Task:
    """The task of a metric of one's own."""
    return find_task(PREFIX + name)

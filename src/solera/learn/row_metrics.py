"""Metrics of one's own: functions of a row's target and prediction, installed at the owners.

A function is installed as the task ``metric.<name>`` of a package that owners install, so that it
can be allowed or refused by its name. Its mean is what leaves, as any other sum over rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import numpy as np

from solera.core.clients import Client, FloatArray, Part
from solera.core.component import Component, component_name
from solera.core.disclosure.evidence import Sums, everyone
from solera.core.errors import DataError
from solera.core.plan import Plan, planned
from solera.core.release import Cells
from solera.core.task import Task, find_task, task
from solera.learn.base import Predictor
from solera.learn.client_models import own_model
from solera.learn.scores import ScoreTotals
from solera.trust.declared import Fitted

PREFIX = "metric."

RowMetric = Callable[[Any, Any], Any]
"""(y, predicted) → a number for every row."""


class MetricAsk(TypedDict):
    """What a metric takes: a fitted model, and the part of the rows."""

    model: Annotated[dict[str, Any], Fitted(Predictor)]
    part: Part


def row_metric(name: str) -> Callable[[RowMetric], RowMetric]:
    """Install a function of targets and predictions, which gives a number for every row.

    >>> @row_metric("cost")
    ... def cost(y, predicted):
    ...     return 5.0 * (y > predicted) + (y < predicted)

    ``evaluate(federation, metrics=["cost"])`` then gives its mean over all rows, and over those of
    each client. Behind a gate the sum leaves where it rests on enough rows.
    """

    def install(function: RowMetric) -> RowMetric:
        def behind(client: Client, ask: Any, reply: Any) -> dict[str, Sums]:
            values, part = _values(name, function, client, ask), ask["part"]
            total = Sums(values[:, None], part=part, what=PREFIX + name, beyond=True)
            return {"total": total, "rows": everyone(len(values), part=part)}

        def one(client: Client, ask: Any) -> dict[str, Any]:
            values = _values(name, function, client, ask)
            return {"rows": len(values), "total": float(values.sum())}

        one.__module__, one.__qualname__ = function.__module__, function.__qualname__
        one.__doc__ = function.__doc__
        release = [Cells("total", "rows", behind=behind, neutral=lambda ask, reply: {"rows": 0})]
        task(PREFIX + name, ask=MetricAsk, release=release)(one)
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


class Totals(ScoreTotals):
    """Sums and rows of all clients but those whose sum could not leave: they tell of no rows."""

    def settle(self, counts: dict[str, Any]) -> dict[str, Any]:
        rows = np.asarray(counts["rows"])
        total = np.where(rows > 0, counts["total"], 0.0)
        return {"total": total, "rows": rows, "clients": 1 * (rows > 0)}


def find_metric(name: str) -> Task:
    """The task of a metric of one's own."""
    return find_task(PREFIX + name)


def metric_asks(model: Component, part: str, name: str) -> Plan:
    """What a metric of one's own is asked by."""
    asked = {"model": {"made": {"$component": component_name(type(model))}}, "part": part}
    return (planned(find_metric(name), 1, asked, open=["model"]),)

"""Numbers that a loop gives besides its model: weighted sums by name, which add up over clients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from solera.core.aggregation import Aggregation
from solera.core.clients import FloatArray
from solera.core.errors import DataError, PayloadError, UsageError
from solera.core.replies import Reply
from solera.learn.averaging.update_mean import UpdateMean

EXAMPLES = "examples"
"""The metric that is no metric, but how many rows a client counts for."""
Totals = dict[str, FloatArray]
"""For every metric the sum of weight × value, and of the weights."""


class LoopMean(UpdateMean):
    """The weighted mean of updates, and metrics beside it, each by weights of its own."""

    def lift(self, reply: Reply) -> Any:
        payload = reply.payload
        metrics = payload.get("metrics", {}) if isinstance(payload, Mapping) else {}
        rest = {name: value for name, value in payload.items() if name != "metrics"}
        partial = super().lift(Reply(reply.client, rest))
        return {**partial, "metrics": {n: _checked(n, pair) for n, pair in metrics.items()}}

    def combine(self, a: Any, b: Any) -> Any:
        rest = [{n: v for n, v in part.items() if n != "metrics"} for part in (a, b)]
        return {**super().combine(*rest), "metrics": added(a["metrics"], b["metrics"])}

    def finish(self, partial: Any) -> Any:
        return {**super().finish(partial), "metrics": partial["metrics"]}

    def alone(self, reply: Reply) -> tuple[float, dict[str, Any]]:
        rest = {name: value for name, value in reply.payload.items() if name != "metrics"}
        weight, values = super().alone(Reply(reply.client, rest))
        means = means_of(reply.payload.get("metrics", {}))
        return weight, {**values, **{f"metrics.{name}": mean for name, mean in means.items()}}


class MetricTotals(Aggregation):
    """Totals of metrics by name, and of rows."""

    additive = True

    def lift(self, reply: Reply) -> Any:
        metrics = reply.payload.get("metrics", {})
        totals = {name: _checked(name, pair) for name, pair in metrics.items()}
        return {"rows": float(reply.payload["rows"]), "metrics": totals}

    def combine(self, a: Any, b: Any) -> Any:
        return {"rows": a["rows"] + b["rows"], "metrics": added(a["metrics"], b["metrics"])}


def added(a: Totals, b: Totals) -> Totals:
    """Totals of both, of names that either has."""
    nothing = np.zeros(2)
    return {name: a.get(name, nothing) + b.get(name, nothing) for name in sorted({*a, *b})}


def means_of(totals: Mapping[str, Any]) -> dict[str, float]:
    """The mean of every metric that something counted for."""
    return {name: float(s / w) for name, (s, w) in totals.items() if w > 0}


def totals_of(metrics: Any, examples: float, where: str) -> Totals:
    """Numbers, or pairs of a number and its weight, as totals; those that are not finite add 0."""
    if metrics is None:
        return {}
    if not isinstance(metrics, Mapping):
        raise UsageError(
            f"{where} returned {type(metrics).__name__}: None is meant, or a table of metrics",
            hint='return {"loss": loss}, or {"accuracy": (correct / n, n)}',
        )
    totals = {}
    for name, value in metrics.items():
        if name == EXAMPLES:
            continue
        pair = value if isinstance(value, tuple | list) else (value, examples)
        number, weight = (_number(name, part, where) for part in pair)
        counts = math.isfinite(number) and math.isfinite(weight) and weight > 0
        totals[str(name)] = np.array([number * weight, weight] if counts else [0.0, 0.0])
    return totals


def examples_of(metrics: Any, rows: int, where: str) -> float:
    """How many rows a client counts for: those it says, or those it has."""
    said = metrics.get(EXAMPLES) if isinstance(metrics, Mapping) else None
    if said is None:
        return rows
    number = _number(EXAMPLES, said, where)
    if not (math.isfinite(number) and number >= 0):
        raise DataError(f"{where} returned {EXAMPLES}={number}: a number of rows is needed")
    return number


def declared(totals: Totals, names: Sequence[str] | None, secure: bool, where: str) -> Totals:
    """The totals under the names that were declared, every one of them."""
    if names is None and not (secure and totals):
        return totals
    unknown = sorted(totals.keys() - set(names or ()))
    if unknown:
        why = "a secure sum needs their names before" if names is None else f"not {list(names)}"
        listed = sorted({*totals, *(names or ())})
        raise UsageError(
            f"{where} returned the metrics {unknown}: {why}", hint=f"metrics={listed!r}"
        )
    return {name: totals.get(name, np.zeros(2)) for name in names or ()}


def _number(name: Any, value: Any, where: str) -> float:
    value = value.detach() if hasattr(value, "detach") else value
    try:
        return float(value)
    except (TypeError, ValueError):
        raise UsageError(
            f"{where} returned {name}={value!r}: a number is needed, or a number and its weight"
        ) from None


def _checked(name: str, pair: Any) -> FloatArray:
    total: FloatArray = np.asarray(pair, dtype=np.float64)
    if total.shape != (2,) or total[1] < 0:
        raise PayloadError(f"the metric {name!r} is no sum and weight")
    return total

"""Counts of a closed job by the atoms of columns, and the intervals in which quantiles lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from solera.core.aggregation import Sum
from solera.core.clients import Client, FloatArray
from solera.core.component import build_fitted
from solera.core.federation import Federation
from solera.core.schema import Schema
from solera.core.task import task
from solera.learn.preprocess.atom_bins import told_groups
from solera.learn.rows import dense
from solera.trust.constructors import sum_by


def prepared_edges(federation: Federation, schema: Schema) -> list[FloatArray | None]:
    """The edges of every column's atoms, where the steps before put them; None where unknown.

    ``schema`` is that of the prepared rows. Nobody has agreed on edges of the marks of a category.
    """
    agreed = federation.engine.schema
    edges: dict[str, FloatArray] = {}
    features = agreed.features if agreed is not None and federation.atoms is not None else ()
    steps = [build_fitted(step.description) for step in federation._prepare]
    for j, feature in enumerate(features):
        if feature.kind == "categorical":
            continue
        edges[feature.name] = inner = federation.atoms.edges(feature.name)
        if not len(inner):
            continue
        X, described = np.zeros((len(inner), len(features))), agreed
        assert described is not None
        X[:, j] = inner
        for step in steps:
            X, described = step.transform_rows(X, described), step.transform_schema(described)
        names = [one.name for one in described.features]
        if feature.name in names:
            edges[feature.name] = dense(X)[:, names.index(feature.name)]
    return [edges.get(feature.name) for feature in schema.features]


@dataclass(frozen=True)
class ColumnCounts:
    """The rows of a column, between ``edges`` of atoms or by the ``names`` of its categories.

    Between edges they are exact; a few that miss a value may be in the last cell. ``rows`` is None
    where persons are too few to count, and ``noised`` rows are within 3, nearly always.
    """

    edges: Any = ()
    names: Sequence[str] = ()
    rows: Any = None
    noised: bool = False

    def between(self, level: float) -> tuple[float, float]:
        """Between which values the quantile lies, the ⌈q n⌉-th smallest; infinite at the ends."""
        if self.rows is None or not len(self.rows):
            return -np.inf, np.inf
        rank = max(np.ceil(level * self.rows.sum()), 1)
        cell = int(np.searchsorted(self.rows.cumsum(), rank))
        ends = np.concatenate([[-np.inf], self.edges, [np.inf]])
        return float(ends[cell]), float(ends[cell + 1])


def counts_by_atom(federation: Federation, schema: Schema) -> list[ColumnCounts]:
    """The rows of every column between its atoms, of which neighbours of few persons are merged."""
    edges = [np.empty(0) if one is None else one for one in prepared_edges(federation, schema)]
    before = [np.nextafter(one, -np.inf) for one in edges]
    return [
        ColumnCounts(np.nextafter(inner, np.inf) + 0.0, (), rows)
        for inner, rows in told_groups(federation, schema, before)
    ]


def means_between(federation: Federation, ends: Sequence[tuple[float, float]]) -> FloatArray:
    """The mean of each column's values between two ends; NaN where nothing is told."""
    low, high = np.array(ends).T
    total = federation.ask(sums_between, {"low": low, "high": high}).fold(Sum())
    return np.where(total["rows"] > 0, total["sums"] / np.maximum(total["rows"], 1), np.nan)


@task("preprocess.between")
def sums_between(client: Client, ask: Any) -> dict[str, Any]:
    """Number and sum of each column's values between two ends."""
    X = dense(client.data.X)
    inside = np.isfinite(X) & np.greater_equal(X, ask["low"]) & np.less(X, ask["high"])
    return {"rows": sum_by(None, inside, where=inside), "sums": sum_by(None, X, where=inside)}

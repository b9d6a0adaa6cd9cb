"""``so.describe`` in a closed job: rows, gaps, mean and deviation of every column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from solera.core.aggregation import Sum
from solera.core.clients import Client, FloatArray
from solera.core.federation import Federation
from solera.core.html import html_table
from solera.core.schema import Schema
from solera.core.task import task
from solera.learn.closed import check_jobs, count_all_persons
from solera.learn.preprocess.moments import pooled_moments
from solera.learn.rows import dense
from solera.trust.constructors import count_by, sum_by


@task("describe.gaps")
def count_gaps(client: Client, ask: Any) -> dict[str, Any]:
    """Rows, and those that miss a value, by column."""
    missing = ~np.isfinite(dense(client.data.X))
    return {"rows": count_by(None), "gaps": sum_by(None, missing, where=missing)}


@dataclass(frozen=True)
class ColumnSummary:
    """What a closed job tells of columns, over the training rows of all owners.

    ``gaps`` are how many values miss, None where they are none or too few to be told. Columns of
    categories have no ``mean`` and no ``deviation`` (NaN).
    """

    schema: Schema
    rows: int
    gaps: tuple[int | None, ...]
    mean: FloatArray
    deviation: FloatArray

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain data."""
        columns = [
            {"name": name, "gaps": gaps, "mean": mean, "deviation": deviation}
            for name, gaps, mean, deviation in self._lines()
        ]
        return {"part": "train", "rows": self.rows, "columns": columns}

    def __str__(self) -> str:
        lines = [f"{self.rows:,} rows"]
        for name, gaps, mean, deviation in self._lines():
            numbers = "" if mean is None else f", mean {mean:.6g}, deviation {deviation:.6g}"
            missing = "no or few gaps" if gaps is None else f"{gaps:,} gaps"
            lines.append(f"{name}: {missing}{numbers}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        table = [["" if cell is None else cell for cell in line] for line in self._lines()]
        return html_table(table, ["column", "gaps", "mean", "deviation"], f"{self.rows:,} rows")

    def _lines(self) -> list[tuple[str, int | None, float | None, float | None]]:
        known = np.isfinite(self.mean)
        return [
            (
                feature.name,
                self.gaps[j],
                float(self.mean[j]) if known[j] else None,
                float(self.deviation[j]) if known[j] else None,
            )
            for j, feature in enumerate(self.schema.features)
        ]


def describe_closed(federation: Federation) -> ColumnSummary:
    """Three sums: how many rows and gaps there are, means, and squares about them."""
    check_jobs(federation, "statistics")
    schema = federation.schema
    assert schema is not None  # the dictionary's
    count_all_persons(federation)
    replies = federation.ask(count_gaps)
    total = replies.fold(Sum())
    untold = np.asarray(replies.absent.get("gaps", np.zeros(schema.width))) > 0
    moments = pooled_moments(federation)
    coded = np.array([feature.is_coded for feature in schema.features]) | (moments["rows"] == 0)
    return ColumnSummary(
        schema,
        int(total["rows"]),
        tuple(None if few else int(gaps) for few, gaps in zip(untold, total["gaps"], strict=True)),
        np.where(coded, np.nan, moments["mean"]),
        np.where(coded, np.nan, np.sqrt(moments["variance"])),
    )

"""``so.describe`` in a closed job: rows, gaps and moments of columns, and counts by atom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from solera.core.aggregation import Sum
from solera.core.clients import Client, FloatArray
from solera.core.federation import Federation
from solera.core.html import html_table
from solera.core.schema import Schema
from solera.core.task import task
from solera.learn.closed import check_jobs, count_all_persons
from solera.learn.preprocess.atom_bins import category_atoms, gaps_of
from solera.learn.preprocess.atom_counts import ColumnCounts, counts_by_atom
from solera.learn.preprocess.columns import count_categories
from solera.learn.preprocess.moments import pooled_moments
from solera.learn.rows import dense
from solera.trust.constructors import count_by, sum_by


@task("describe.gaps")
def count_gaps(client: Client, ask: Any) -> dict[str, Any]:
    """Rows, and those that miss a value, by column."""
    missing = ~np.isfinite(dense(client.data.X))
    return {"rows": count_by(None), "gaps": sum_by(None, missing, where=missing)}


LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class ColumnSummary:
    """What a closed job tells of columns, over the training rows of all owners.

    ``gaps`` are how many values miss, None where they are none or too few to be told. Columns of
    categories have no ``mean`` and no ``deviation`` (NaN). ``counts`` are rows between edges of
    atoms, exact, or by category. Quantiles are known as the edges between which they lie.
    """

    schema: Schema
    rows: int
    gaps: tuple[int | None, ...]
    mean: FloatArray
    deviation: FloatArray
    counts: tuple[ColumnCounts, ...] = ()

    def to_payload(self) -> dict[str, Any]:
        fields = {name: value for name, value in vars(self).items() if name != "schema"}
        return {**fields, "gaps": list(self.gaps), "counts": [vars(one) for one in self.counts]}

    @classmethod
    def from_payload(cls, schema: Schema, fields: Any) -> Self:
        """What :meth:`to_payload` gave of columns of this schema."""
        counts = tuple(ColumnCounts(**one) for one in fields["counts"])
        return cls(schema, **{**fields, "gaps": tuple(fields["gaps"]), "counts": counts})

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain data; an end of an interval that is infinite is None."""
        columns = []
        for j, (name, gaps, mean, deviation, _) in enumerate(self._lines()):
            column: dict[str, Any] = {
                "name": name,
                "gaps": gaps,
                "mean": mean,
                "deviation": deviation,
            }
            counts = self.counts[j]
            rows = None if counts.rows is None else counts.rows.tolist()
            if counts.names:
                noise = float(counts.noised)
                column["categories"] = {"names": [*counts.names], "rows": rows, "noise": noise}
            else:
                ends = {f"{q:g}": counts.between(q) for q in LEVELS}
                column["quantiles"] = {
                    level: [end if np.isfinite(end) else None for end in between]
                    for level, between in ends.items()
                }
                column["histogram"] = {"edges": counts.edges.tolist(), "rows": rows}
            columns.append(column)
        return {"part": "train", "rows": self.rows, "columns": columns}

    def __str__(self) -> str:
        lines = [f"{self.rows:,} rows"]
        for name, gaps, mean, deviation, values in self._lines():
            numbers = "" if mean is None else f", mean {mean:.6g}, deviation {deviation:.6g}"
            missing = "no or few gaps" if gaps is None else f"{gaps:,} gaps"
            lines.append(f"{name}: {missing}{numbers}; {values}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        table = [["" if cell is None else cell for cell in line] for line in self._lines()]
        header = ["column", "gaps", "mean", "deviation", "quantiles, or rows"]
        return html_table(table, header, f"{self.rows:,} rows")

    def _lines(self) -> list[tuple[str, int | None, float | None, float | None, str]]:
        known = np.isfinite(self.mean)
        return [
            (
                feature.name,
                self.gaps[j],
                float(self.mean[j]) if known[j] else None,
                float(self.deviation[j]) if known[j] else None,
                self._values(j),
            )
            for j, feature in enumerate(self.schema.features)
        ]

    def _values(self, column: int) -> str:
        counts = self.counts[column]
        if counts.rows is None or not (counts.names or len(counts.edges)):
            return "too few persons to count"
        if counts.names:
            about, within = ("about ", " (each ± 3)") if counts.noised else ("", "")
            rows = np.maximum(np.rint(counts.rows), 0).astype(np.int64).tolist()
            pairs = zip(counts.names, rows, strict=True)
            return ", ".join(f"{name} {about}{number:,}" for name, number in pairs) + within
        text = self.schema.features[column].text
        quantiles = []
        for level in LEVELS:
            low, high = counts.between(level)
            between = f"between {text(low)} and {text(high)}" if low > -np.inf else ""
            between = between if high < np.inf else f"at least {text(low)}"
            quantiles.append(f"{level:.0%} {between or f'below {text(high)}'}")
        return ", ".join(quantiles).replace("50%", "median")


def describe_closed(federation: Federation) -> ColumnSummary:
    """How many rows and gaps there are, means, squares about them, and counts by atom."""
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
        _counted(federation, schema),
    )


def _counted(federation: Federation, schema: Schema) -> tuple[ColumnCounts, ...]:
    """The rows of every column by its atoms."""
    counts = counts_by_atom(federation, schema)
    if not any(feature.is_coded for feature in schema.features):
        return tuple(counts)
    none = np.empty(0, dtype=np.int64)
    atoms = [category_atoms(federation, f) if f.is_coded else none for f in schema.features]
    gaps = gaps_of(federation, schema).tolist()
    sizes = [int(groups.max(initial=-1)) + 1 for groups in atoms]
    replies = federation.ask(count_categories, {"sizes": sizes, "gaps": gaps, "atoms": atoms})
    for column, rows in replies.fold(Sum()).items():
        j = int(column)
        categories = np.array(schema.features[j].categories)
        names = [" or ".join(categories[atoms[j] == atom]) for atom in range(sizes[j])]
        names += ["missing"] * gaps[j]
        told = None if column in replies.absent else rows
        counts[j] = ColumnCounts(names=names, rows=told, noised=column in replies.noised)
    return tuple(counts)

"""The table of a fitted model: estimates, standard errors, p-values and intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from solera.core.clients import FloatArray
from solera.core.html import html_table


@dataclass(frozen=True)
class Summary:
    """Wald inference: an estimate over its standard error is normal, or t with ``df``.

    ``facts`` are what is said above the table. ``ratios`` adds exp(estimate), such as odds, rate or
    hazard ratios, and exp of its interval, under this name.
    """

    title: str
    terms: Sequence[str]
    estimate: FloatArray
    standard_error: FloatArray
    df: float | None = None
    level: float = 0.95
    facts: Sequence[tuple[str, Any]] = ()
    ratios: str | None = None

    @property
    def statistic(self) -> FloatArray:
        """The estimates over their standard errors."""
        return np.asarray(self.estimate / self.standard_error)

    @property
    def p_value(self) -> FloatArray:
        """Two-sided, of no effect."""
        return np.asarray(2 * self._law.sf(np.abs(self.statistic)))

    @property
    def interval(self) -> FloatArray:
        """Lower and upper end of the confidence interval of every estimate, terms × 2."""
        reach = self._law.isf((1 - self.level) / 2) * self.standard_error
        return np.column_stack([self.estimate - reach, self.estimate + reach])

    @property
    def _law(self) -> Any:
        from scipy import stats

        return stats.norm() if self.df is None else stats.t(self.df)

    def to_pandas(self) -> Any:
        """The table as a frame, one line per term."""
        import pandas as pd

        return pd.DataFrame(self._columns(), index=list(self.terms))

    def _columns(self) -> dict[str, FloatArray]:
        low, high = self.interval.T
        ends = f"lower {self.level:.0%}", f"upper {self.level:.0%}"
        columns = {
            "estimate": self.estimate,
            "standard error": self.standard_error,
            "z" if self.df is None else "t": self.statistic,
            "p-value": self.p_value,
            ends[0]: low,
            ends[1]: high,
        }
        if self.ratios is not None:
            columns[self.ratios] = np.exp(self.estimate)
            columns[f"{self.ratios}, {ends[0]}"] = np.exp(low)
            columns[f"{self.ratios}, {ends[1]}"] = np.exp(high)
        return columns

    def _lines(self) -> list[list[str]]:
        columns = self._columns()
        texts = [
            [_p_value(v) if name == "p-value" else f"{v:.4f}" for v in values.tolist()]
            for name, values in columns.items()
        ]
        return [[term, *cells] for term, *cells in zip(self.terms, *texts, strict=True)]

    def __str__(self) -> str:
        lines = [["", *self._columns()], *self._lines()]
        first, *widths = (max(map(len, cells)) for cells in zip(*lines, strict=True))
        table = []
        for name, *cells in lines:
            right = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
            table.append("  ".join([name.ljust(first), *right]))
        facts = [f"{name + ':':<16}{_fact(value)}" for name, value in self.facts]
        return "\n".join([self.title, *facts, "", *table])

    def _repr_html_(self) -> str:
        facts = html_table([(name, _fact(value)) for name, value in self.facts], title=self.title)
        return facts + html_table(self._lines(), header=["", *self._columns()])


def _p_value(p: float) -> str:
    return "<0.0001" if p < 1e-4 else f"{p:.4f}"


def _fact(value: Any) -> str:
    return f"{value:,.4f}" if isinstance(value, float) else f"{value:,}"

"""Kaplan–Meier curves and the log-rank test, from counts at agreed times.

The target is two columns of numbers: the time until which a row was observed, and 1 where the event
happened then or 0 where it was censored. A time counts as the next one of an agreed grid, so that
clients send how many events and how many ends of observation there were up to each of these times.
With d events at tⱼ and n rows at risk (Kaplan & Meier 1958; Greenwood 1926; Mantel 1966)

    S(t) = Π_{tⱼ ≤ t} (1 − dⱼ/nⱼ),      Var log S(t) = Σ_{tⱼ ≤ t} dⱼ / (nⱼ (nⱼ − dⱼ))

which is the curve of all rows in one place with times rounded up to the grid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from solera.core.aggregation import Sum
from solera.core.clients import BoolArray, Client, FloatArray
from solera.core.errors import DataError, UsageError
from solera.core.federation import Federation
from solera.core.html import html_table
from solera.core.pictures import new_figure
from solera.core.schema import Schema
from solera.core.task import task
from solera.data.agreement import agree
from solera.data.frames import check_columns
from solera.learn.rows import dense
from solera.trust.cells import intervals
from solera.trust.constructors import count_by

_MOST_TIMES = 1000
_HEADER = ("group", "training rows", "events", "median")

# --- the client's side ---


def times_and_events(y: Any) -> tuple[FloatArray, BoolArray]:
    """The two columns of a survival target, checked."""
    y = np.asarray(y, dtype=np.float64)
    if y.ndim != 2 or y.shape[1] != 2:
        raise DataError("a survival target has two columns of numbers: time and event")
    time, event = y.T
    if not (np.isfinite(time) & (time >= 0) & ((event == 0) | (event == 1))).all():
        raise DataError("a time is negative or missing, or an event is neither 0 nor 1")
    return time, event == 1


@task("survival.counts", version=2)
def _counts(client: Client, ask: Any) -> dict[str, Any]:
    """How many rows ended after each time up to the next, censored or by an event, by group."""
    rows, schema = client.data.part("train"), client.data.schema
    time, event = times_and_events(rows.y)
    group = np.zeros(len(time), dtype=np.int64)
    if ask["by"] is not None:
        names = [feature.name for feature in schema.features]
        check_columns([ask["by"]], names)
        code = dense(rows.X)[:, names.index(ask["by"])]
        group = np.where(code < ask["groups"], code, -1).astype(np.int64)
    ends = intervals(time, np.nextafter(ask["grid"], np.inf))  # a time is in the one it closes
    cells = (ask["groups"], 2, len(ask["grid"]) + 1)
    return {"counts": count_by((group, event.astype(np.int64), ends), cells)}


# --- the coordinator's side ---


@dataclass(frozen=True)
class Curve:
    """One group: events and rows at risk at each time of the grid, and the share without event."""

    name: str
    times: FloatArray
    events: FloatArray
    at_risk: FloatArray
    level: float = 0.95

    @property
    def survival(self) -> FloatArray:
        """S at each time."""
        share = np.divide(self.events, self.at_risk, out=np.zeros(len(self.times)),
                          where=self.at_risk > 0)  # fmt: skip
        return np.asarray(np.cumprod(1 - share))

    @property
    def standard_error(self) -> FloatArray:
        """Greenwood's, of S."""
        return self.survival * np.sqrt(self._variance())

    def _variance(self) -> FloatArray:
        """Of log S; 0 before the first event, NaN where S is 0."""
        n, d = self.at_risk, self.events
        with np.errstate(divide="ignore", invalid="ignore"):
            terms = np.where(d > 0, d / (n * (n - d)), 0.0)
        total = np.cumsum(terms)
        return np.where(np.isfinite(total), total, np.nan)

    @property
    def interval(self) -> FloatArray:
        """Confidence interval of S, times × 2, symmetric in log(−log S)."""
        from scipy.stats import norm

        S = self.survival
        with np.errstate(divide="ignore", invalid="ignore"):
            reach = norm.isf((1 - self.level) / 2) * np.sqrt(self._variance()) / np.log(S)
            ends = np.column_stack([S ** np.exp(-reach), S ** np.exp(reach)])
        return np.where((S == 1)[:, None], 1.0, ends)

    @property
    def median(self) -> float:
        """The first time of the grid at which at most half are without event; else infinite."""
        below = np.flatnonzero(self.survival <= 0.5)
        return float(self.times[below[0]]) if len(below) else np.inf


@dataclass(frozen=True)
class SurvivalCurves:
    """A curve for each group, and the log-rank test of no difference between them."""

    curves: Sequence[Curve]

    def log_rank(self) -> tuple[float, int, float]:
        """χ², its degrees of freedom, and the p-value."""
        from scipy.stats import chi2

        used = [curve for curve in self.curves if curve.at_risk[0] > 0]
        if len(used) < 2:
            raise UsageError("a log-rank test compares two groups or more", hint="give by=")
        d = np.array([curve.events for curve in used])
        n = np.array([curve.at_risk for curve in used])
        D, N = d.sum(axis=0), n.sum(axis=0)
        some = N > 1
        d, n, D, N = d[:, some], n[:, some], D[some], N[some]
        difference = (d - n * D / N).sum(axis=1)
        spread = D * (N - D) / (N - 1)
        share = n / N
        covariance = np.diag((share * spread).sum(axis=1)) - (share * spread) @ share.T
        rest = slice(0, len(used) - 1)  # the differences add up to 0
        statistic = difference[rest] @ np.linalg.solve(covariance[rest, rest], difference[rest])
        df = len(used) - 1
        return float(statistic), df, float(chi2.sf(statistic, df))

    def _lines(self) -> list[tuple[str, str, str, str]]:
        return [
            (c.name, f"{c.at_risk[0]:,.0f}", f"{c.events.sum():,.0f}", f"{c.median:g}")
            for c in self.curves
        ]

    def __str__(self) -> str:
        lines = [_HEADER, *self._lines()]
        widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
        text = ["  ".join(c.rjust(w) for c, w in zip(line, widths, strict=True)) for line in lines]
        if len(self.curves) > 1:
            statistic, df, p = self.log_rank()
            text.append(f"log-rank test: χ² = {statistic:.3f} with {df} df, p = {p:.4g}")
        return "\n".join(text)

    def _repr_html_(self) -> str:
        return html_table(self._lines(), _HEADER, "Kaplan–Meier")

    def plot(self) -> Any:
        """A matplotlib figure of the curves with their confidence bands."""
        figure = new_figure(figsize=(6, 4))
        ax = figure.add_subplot()
        for curve in self.curves:
            times = np.concatenate([[0.0], curve.times])
            (line,) = ax.step(times, np.append(1.0, curve.survival), where="post", label=curve.name)
            band = np.concatenate([np.ones((1, 2)), curve.interval])
            ax.fill_between(times, *band.T, step="post", alpha=0.2, color=line.get_color())
        rows = sum(curve.at_risk[0] for curve in self.curves)
        title = f"{rows:,.0f} training rows"
        ax.set(xlabel="time", ylabel="share without event", ylim=(0, 1.02), title=title)
        ax.legend()
        return figure


def kaplan_meier(
    federation: Federation, grid: ArrayLike, *, by: str | None = None, level: float = 0.95
) -> SurvivalCurves:
    """Kaplan–Meier curves of all training rows, one for each category of the column ``by``.

    Rows that clients set aside to validate or to test are left out.

    ``grid`` are the times, in order, at which clients count; one after another counts as the next,
    times after the last as censored there. ``level`` is that of the confidence bands.
    """
    times = np.asarray(grid, dtype=np.float64)
    if times.ndim != 1 or not 1 <= len(times) <= _MOST_TIMES or (np.diff(times) <= 0).any():
        raise UsageError(f"grid: 1 to {_MOST_TIMES} rising times are needed")
    schema = agree(federation, allow_missing=True)
    check_survival(schema)
    names = _groups(schema, by)
    payload = {"grid": times, "by": by, "groups": len(names)}
    replies = federation.ask(_counts, payload, quorum=len(federation))
    table = np.asarray(replies.fold(Sum())["counts"], dtype=float)
    _check_whole(replies.absent, names, times)
    return SurvivalCurves([_curve(n, times, c, level) for n, c in zip(names, table, strict=True)])


def check_survival(schema: Schema) -> None:
    """Raise :class:`DataError` for a target that is not times and events."""
    if (schema.target, schema.outputs) != ("numbers", 2):
        there = f"are {schema.outputs} {schema.target}" if schema.outputs else "is none"
        raise DataError(
            f"survival needs a target of two columns of numbers, here {there}",
            hint="so.simulate(X, y), y = np.column_stack([time, event]), the event as 0.0 or 1.0",
        )


def _groups(schema: Schema, by: str | None) -> list[str]:
    if by is None:
        return ["all"]
    features = {feature.name: feature for feature in schema.features}
    check_columns([by], [*features])
    if not features[by].categories:
        raise UsageError(f"by={by!r} is not a column of categories")
    return list(features[by].categories)


def _check_whole(gaps: Mapping[str, Any], names: Sequence[str], times: FloatArray) -> None:
    """Raise :class:`DataError` where counts are withheld: the curve of the others is another."""
    missing = np.argwhere(gaps.get("counts", 0))
    if len(missing):
        group, event, interval = missing[0].tolist()
        what = "events" if event else "censored rows"
        where = f"up to {times[interval]:g}" if interval < len(times) else f"after {times[-1]:g}"
        raise DataError(
            f"{len(missing):,} of {len(names) * 2 * (len(times) + 1):,} counts are withheld by "
            f"clients where fewer persons than their min_count are behind them: the first are "
            f"{what} of {names[group]!r} {where}",
            hint="a grid of fewer times, or no by=",
        )


def _curve(name: str, times: FloatArray, counts: FloatArray, level: float) -> Curve:
    """Rows by event and interval in which they ended as events, and rows at risk."""
    ended = counts.sum(axis=0)
    at_risk = np.cumsum(ended[::-1])[::-1]
    return Curve(name, times, counts[1, :-1], at_risk[:-1], level)

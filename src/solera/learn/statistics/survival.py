"""Kaplan–Meier curves and the log-rank test, from counts at agreed times.

The target is two columns of numbers: the time until which a row was observed, and 1 where the event
happened then or 0 where it was censored. A time counts as the next one of an agreed grid, so that
clients send how many events and how many ends of observation there were up to each of these times.
With d events at tⱼ and n rows at risk (Kaplan & Meier 1958; Greenwood 1926; Mantel 1966)

    S(t) = Π_{tⱼ ≤ t} (1 − dⱼ/nⱼ),      Var log S(t) = Σ_{tⱼ ≤ t} dⱼ / (nⱼ (nⱼ − dⱼ))

which is the curve of all rows in one place with times rounded up to the grid. In a closed job the
grid is of the epoch (:mod:`.survival_grid`), and within its wider intervals rows leave as they do
by atom: of c that are censored in one of them half count as at risk (the actuarial method).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from solera.core.aggregation import Sum
from solera.core.clients import FloatArray
from solera.core.component import Component
from solera.core.constraints import Fraction
from solera.core.errors import DataError, UsageError
from solera.core.federation import Federation
from solera.core.html import html_table
from solera.core.pictures import new_figure
from solera.core.schema import Schema
from solera.data.agreement import agree
from solera.data.frames import check_columns
from solera.learn.closed import as_job, check_jobs, count_all_persons, elsewhere, is_closed
from solera.learn.statistics.survival_grid import LEAST, SurvivalGrid, count_ended, find_grid
from solera.trust.board.engine import NotClosed

_MOST_TIMES = 1000
_HEADER = ("group", "training rows", "events", "median")
_LEVEL = 0.95
_WIDTH = 80
_GRID = (
    f"grid: times of the epoch, {LEAST} events or more before each; rows at risk, and the log-rank "
    "test, are estimated between them"
)

# --- the coordinator's side ---


@dataclass(frozen=True)
class Curve:
    """One group: events and rows at risk at each time of the grid, and the share without event.

    ``rows``: of the group, where not all of them are at risk at the first time.
    """

    name: str
    times: FloatArray
    events: FloatArray
    at_risk: FloatArray
    level: float = _LEVEL
    rows: int | None = None

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
    """A curve for each group, and the log-rank test of no difference between them.

    ``notes`` say what the grid is, and of which rows nothing is told. ``by_time``: events and rows
    at risk by group at the same times, groups × 2 × times, where those of the curves differ.
    """

    curves: Sequence[Curve]
    notes: Sequence[str] = ()
    by_time: FloatArray | None = None

    @classmethod
    def of(cls, tables: Mapping[str, Any]) -> Self:
        """The curves of what :func:`dataclasses.asdict` made of them."""
        return cls(**{**tables, "curves": [Curve(**curve) for curve in tables["curves"]]})

    def log_rank(self) -> tuple[float, int, float]:
        """χ², its degrees of freedom, and the p-value."""
        from scipy.stats import chi2

        used = self._compared()
        if len(used) < 2:
            raise UsageError("a log-rank test compares two groups or more", hint="give by=")
        d, n = used[:, 0], used[:, 1]
        D, N = d.sum(axis=0), n.sum(axis=0)
        some = N >= 2
        d, n, D, N = d[:, some], n[:, some], D[some], N[some]
        difference = (d - n * D / N).sum(axis=1)
        spread = D * (N - D) / (N - 1)
        share = n / N
        covariance = np.diag((share * spread).sum(axis=1)) - (share * spread) @ share.T
        rest = slice(0, len(used) - 1)  # the differences add up to 0
        statistic = difference[rest] @ np.linalg.solve(covariance[rest, rest], difference[rest])
        df = len(used) - 1
        return float(statistic), df, float(chi2.sf(statistic, df))

    def _compared(self) -> FloatArray:
        """Events and rows at risk of the groups that have any, at the same times."""
        tables = self.by_time
        if tables is None:
            tables = np.array([(curve.events, curve.at_risk) for curve in self.curves])
        return np.asarray(tables[tables[:, 1, 0] > 0])

    def _lines(self) -> list[tuple[str, str, str, str]]:
        return [
            (c.name, f"{_rows(c):,.0f}", f"{c.events.sum():,.0f}", f"{c.median:g}")
            for c in self.curves
        ]

    def __str__(self) -> str:
        lines = [_HEADER, *self._lines()]
        widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
        text = ["  ".join(c.rjust(w) for c, w in zip(line, widths, strict=True)) for line in lines]
        if len(self._compared()) > 1:
            statistic, df, p = self.log_rank()
            text.append(f"log-rank test: χ² = {statistic:.3f} with {df} df, p = {p:.4g}")
        return "\n".join([*text, *self.notes])

    def _repr_html_(self) -> str:
        return html_table(self._lines(), _HEADER, "; ".join(["Kaplan–Meier", *self.notes]))

    def plot(self) -> Any:
        """A matplotlib figure of the curves with their confidence bands."""
        figure = new_figure(figsize=(6, 4))
        ax = figure.add_subplot()
        for curve in self.curves:
            times = np.concatenate([[0.0], curve.times])
            (line,) = ax.step(times, np.append(1.0, curve.survival), where="post", label=curve.name)
            band = np.concatenate([np.ones((1, 2)), curve.interval])
            ax.fill_between(times, *band.T, step="post", alpha=0.2, color=line.get_color())
        rows = sum(map(_rows, self.curves))
        title = f"{rows:,.0f} training rows"
        figure.supxlabel("\n".join(fill(note, _WIDTH) for note in self.notes), fontsize="small")
        ax.set(xlabel="time", ylabel="share without event", ylim=(0, 1.02), title=title)
        ax.legend()
        return figure


def kaplan_meier(
    federation: Federation,
    grid: ArrayLike | None = None,
    *,
    by: str | None = None,
    level: float = _LEVEL,
) -> SurvivalCurves:
    """Kaplan–Meier curves of all training rows, one for each category of the column ``by``.

    Rows that clients set aside to validate or to test are left out.

    ``grid`` are the times, in order, at which clients count; one after another counts as the next,
    times after the last as censored there. A closed job has the times of its epoch, and no
    ``grid``. ``level`` is that of the confidence bands.
    """
    job = KaplanMeier(by, level)
    federation = as_job(job, federation)
    if is_closed(federation):
        if grid is not None:
            raise NotClosed("kaplan_meier(grid=…): times are those of the epoch; leave grid= out")
        owners = elsewhere(federation)
        return job.look(federation) if owners is None else SurvivalCurves.of(owners.statistics(job))
    times = np.asarray(() if grid is None else grid, dtype=np.float64)
    if times.ndim != 1 or not 1 <= len(times) <= _MOST_TIMES or (np.diff(times) <= 0).any():
        raise UsageError(f"grid: 1 to {_MOST_TIMES} rising times are needed")
    schema = agree(federation, allow_missing=True)
    check_survival(schema)
    names = _groups(schema, by)
    form = len(names), 2, len(times) + 1
    cells = np.full((form[0] + 1, *form[1:]), -1)  # the last group has no category
    cells[:-1] = np.arange(np.prod(form)).reshape(form)
    edges = np.nextafter(times, np.inf)  # a time is in the interval that it closes
    ask = {"by": by, "groups": np.arange(form[0] + 1), "edges": edges, "cells": cells}
    counts = federation.ask(count_ended, ask, quorum=len(federation)).fold(Sum())["counts"]
    table = np.asarray(counts, dtype=float).reshape(form)
    curves = [_curve(name, times, c, level) for name, c in zip(names, table, strict=True)]
    return SurvivalCurves(curves, [f"grid: {len(times)} times, {times[0]:g} to {times[-1]:g}"])


class KaplanMeier(Component):
    """How :func:`kaplan_meier` asks in a closed job."""

    def __init__(self, by: str | None = None, level: Fraction = _LEVEL) -> None:
        self.by = by
        self.level = level

    def look(self, federation: Federation) -> SurvivalCurves:
        """The curves of all owners' rows, on the epoch's times."""
        check_jobs(federation, "statistics")
        schema = federation.schema
        assert schema is not None  # the dictionary's
        check_survival(schema)
        names, groups = _groups(schema, self.by), None
        if self.by is not None:
            if self.by in federation.gaps:
                raise DataError(f"by={self.by!r} may be missing", hint="a column without gaps")
            atoms = federation.atoms.groups(self.by)
            names = [" or ".join(np.array(names)[atoms == k]) for k in range(atoms.max() + 1)]
            groups = np.append(atoms, 0)
        count_all_persons(federation)
        grid = find_grid(federation, schema.target_names[0], self.by, groups)
        censored, events = grid.by_atom[:, 0], grid.by_atom[:, 1]
        at_risk = np.cumsum((censored + events)[:, ::-1], axis=1)[:, ::-1] - censored / 2
        curves, notes = [], [_GRID]
        for group, name in enumerate(names):
            curves.append(_closed_curve(grid, group, name, events, at_risk, self.level))
            times = ", ".join(f"{time:g}" for time in grid.times(group))
            notes.append(f"{name}: {times or 'too few events'}")
            if grid.thin[group] and times:
                notes.append(f"{name}: about {LEAST} censored rows or fewer, counted with noise")
        tested = [len(curve.times) > 0 for curve in curves]
        return SurvivalCurves(curves, notes, np.stack([events, at_risk], axis=1)[tested])


def _closed_curve(
    grid: SurvivalGrid,
    group: int,
    name: str,
    events: FloatArray,
    at_risk: FloatArray,
    level: float,
) -> Curve:
    """A group's curve: S falls in every atom, and is told where intervals end."""
    at_risk = at_risk[group]
    fall = np.divide(events[group], at_risk, out=np.zeros_like(at_risk), where=at_risk > 0)
    cells, first = np.unique(grid.cells[group, 1], return_index=True)
    share = 1 - np.multiply.reduceat(1 - fall, first)[:-1]
    ended = grid.counts[cells[:-1]].astype(float)
    rows = int(grid.counts[np.unique(grid.cells[group])].sum())
    return Curve(name, grid.times(group), ended, ended / share, level, rows)


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


def _curve(name: str, times: FloatArray, counts: FloatArray, level: float) -> Curve:
    """Rows by event and interval in which they ended as events, and rows at risk."""
    ended = counts.sum(axis=0)
    at_risk = np.cumsum(ended[::-1])[::-1]
    return Curve(name, times, counts[1, :-1], at_risk[:-1], level)


def _rows(curve: Curve) -> float:
    return float(curve.at_risk[0]) if curve.rows is None else curve.rows

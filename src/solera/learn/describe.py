"""Look before training: what the rows of a federation are like, without seeing one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from solera.core.aggregation import Sum
from solera.core.clients import FloatArray, IntArray
from solera.core.component import Component
from solera.core.constraints import Count
from solera.core.errors import UsageError
from solera.core.federation import Federation
from solera.core.html import html_table
from solera.core.pictures import new_figure
from solera.core.schema import Schema
from solera.data.agreement import SchemaAgreement
from solera.data.agreement import describe as describe_columns
from solera.evaluation.counts import LOST, ratio
from solera.learn.closed import as_job, elsewhere, is_closed
from solera.learn.closed_description import ColumnSummary, describe_closed
from solera.learn.description import (
    MISSING,
    VALUES,
    count_cells,
    sum_products,
    with_labels,
)
from solera.learn.preprocess.quantiles import ROUNDS as _USUAL
from solera.learn.preprocess.quantiles import quantiles
from solera.learn.totals import Gather
from solera.privacy.dp.mechanism import DP
from solera.privacy.dp.sums import Noise, check_level, epsilon_so_far
from solera.trust.board.engine import NotClosed
from solera.trust.members import symmetric

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
_MOST_SHOWN = 12


@dataclass(frozen=True)
class Description:
    """What :func:`describe` found.

    Parameters
    ----------
    schema: the columns, with the categories and classes that may be named; every label is one more
        column of its name, absent or present, and misses where it is unknown.
    names: what the clients are called.
    rows: that every client trains on; those it sets aside are in none of these numbers.
    missing: clients × columns, how many values miss.
    quantiles: columns × 5, at 5, 25, 50, 75 and 95 %; NaN for categories.
    edges, histogram: of columns of numbers, columns × edges, and clients × columns × the rows
        up to the first edge, up to the second, …, beyond the last.
    categories: for every column clients × categories, how many rows have each.
    classes: clients × classes.
    correlations: of the columns of numbers, NaN for one that does not vary; None with noise, or
        where every row misses some. ``correlated`` is over how many rows.
    epsilon: what all of it together has spent, where it was noised; see ``dp`` of :func:`describe`.
    """

    schema: Schema
    names: tuple[str, ...]
    rows: IntArray
    missing: IntArray
    quantiles: FloatArray
    edges: FloatArray
    histogram: IntArray
    categories: tuple[IntArray, ...]
    classes: IntArray
    correlations: FloatArray | None
    correlated: int = 0
    epsilon: float | None = None

    @property
    def numbers(self) -> list[int]:
        """Which columns are numbers or dates."""
        return [j for j, f in enumerate(self.schema.features) if f.kind != "categorical"]

    def drift(self) -> FloatArray:
        """How far every client's distribution of a column is from that of all: clients × columns.

        The largest difference of the shares of values below an edge (Kolmogorov–Smirnov), or half
        the sum of the differences of the shares of categories (total variation): 0 for the
        same, 1 for nothing in common.
        """
        drifts = np.zeros((len(self.rows), len(self.schema.features)))
        for j, feature in enumerate(self.schema.features):
            if feature.kind == "categorical":
                drifts[:, j] = _variation(self.categories[j])
                continue
            below = np.cumsum(self.histogram[:, j], axis=1)
            shares = ratio(below, below[:, -1:] + 0 * below)
            total = below.sum(axis=0)
            of_all = ratio(total, np.full_like(total, total[-1]))
            apart = np.abs(shares - of_all).max(axis=1)
            drifts[:, j] = np.where(below[:, -1] > 0, apart, 0.0)
        return drifts

    def class_drift(self) -> FloatArray:
        """The total variation of every client's classes from those of all."""
        return _variation(self.classes)

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain data."""
        pairs = self.correlations
        correlations = None
        if pairs is not None:
            correlations = [[None if np.isnan(r) else r for r in row] for row in pairs.tolist()]
        features = []
        for j, feature in enumerate(self.schema.features):
            told: dict[str, Any] = {"name": feature.name, "kind": feature.kind}
            told["missing"] = int(self.missing[:, j].sum())
            told["drift"] = self.drift()[:, j].tolist()
            if feature.kind == "categorical":
                total = self.categories[j].sum(axis=0).tolist()
                told["categories"] = dict(zip(feature.categories, total, strict=True))
            else:
                levels = [f"{q:g}" for q in LEVELS]
                told["quantiles"] = dict(zip(levels, self.quantiles[j].tolist(), strict=True))
            features.append(told)
        classes = [str(c) for c in self.schema.classes.tolist()]
        by_client = [dict(zip(classes, line, strict=True)) for line in self.classes.tolist()]
        return {
            "part": "train",
            "clients": [
                {"name": name, "rows": rows, "classes": held}
                for name, rows, held in zip(self.names, self.rows.tolist(), by_client, strict=True)
            ],
            "columns": features,
            "correlations": correlations,
        }

    def lines(self) -> list[list[str]]:
        """A line for every column: name, kind, missing, what its values are, and drift."""
        drift = self.drift()
        lines = []
        for j, feature in enumerate(self.schema.features):
            if feature.kind == "categorical":
                total = self.categories[j].sum(axis=0)
                order = np.argsort(-total, kind="stable")[:_MOST_SHOWN]
                said = [f"{feature.categories[i]}: {total[i]:,}" for i in order if total[i]]
                values = ", ".join(said)
            else:
                values = " · ".join(f"{q:.4g}" for q in self.quantiles[j])
            share = self.missing[:, j].sum() / max(1, self.rows.sum())
            ends = [f"{share:.1%}", values, f"{drift[:, j].max(initial=0):.2f}"]
            lines.append([feature.name, feature.kind, *ends])
        return lines

    def head(self) -> list[str]:
        """Clients, rows and classes in a line each."""
        head = [f"{len(self.rows):,} clients, {self.rows.sum():,} training rows"]
        if self.classes.size:
            total = self.classes.sum(axis=0).tolist()
            pairs = zip(self.schema.classes.tolist(), total, strict=True)
            head.append("classes  " + ", ".join(f"{c}: {n:,}" for c, n in pairs))
            head.append(f"drift of classes  at most {self.class_drift().max(initial=0):.2f}")
        return head

    def __str__(self) -> str:
        return "\n".join([*self.head(), *("  ".join(line) for line in self.lines())])

    def _repr_html_(self) -> str:
        header = ["column", "kind", "missing", "5 · 25 · 50 · 75 · 95 %, or categories", "drift"]
        return html_table(self.lines(), header, self.head()[0])

    def plot(self) -> Any:
        """One picture: rows and classes of clients, columns, correlations, and drift."""
        shown = list(range(len(self.schema.features)))[:_MOST_SHOWN]
        columns = 4
        lines = 1 + -(-len(shown) // columns)
        figure = new_figure(figsize=(14, 3.2 * lines))
        axes = figure.subplots(lines, columns, squeeze=False)
        names = [feature.name for feature in self.schema.features]
        self._plot_clients(axes[0, 0])
        _heat(axes[0, 1], ratio(self.missing, self.rows[:, None] + 0 * self.missing), "missing")
        _heat(axes[0, 2], self.drift(), "drift from all clients")
        if self.correlations is None:
            axes[0, 3].set_axis_off()
        else:
            own = [names[j] for j in self.numbers]
            image = axes[0, 3].imshow(self.correlations, vmin=-1, vmax=1, cmap="RdBu_r")
            axes[0, 3].set_yticks(range(len(own)), own, fontsize=7)
            axes[0, 3].set_title("correlations")
            figure.colorbar(image, ax=axes[0, 3])
        for ax in axes[1:].ravel():
            ax.set_axis_off()
        for ax, j in zip(axes[1:].ravel(), shown, strict=False):
            ax.set_axis_on()
            ax.set_title(names[j], fontsize=9)
            self._plot_column(ax, j)
        return figure

    def _plot_clients(self, ax: Any) -> None:
        start = np.zeros(len(self.rows))
        for c, rows in zip(self.schema.classes.tolist(), self.classes.T, strict=False):
            ax.barh(np.arange(len(rows)), rows, left=start, label=str(c))
            start = start + rows
        ax.barh(np.arange(len(start)), np.maximum(self.rows - start, 0), left=start, color="0.8")
        ax.set(title="training rows of clients", xlabel="rows", ylabel="client")
        if self.classes.size and self.classes.shape[1] <= 10:
            ax.legend(fontsize=7)

    def _plot_column(self, ax: Any, j: int) -> None:
        feature = self.schema.features[j]
        if feature.kind == "categorical":
            total = self.categories[j].sum(axis=0)
            order = [i for i in np.argsort(-total, kind="stable")[:_MOST_SHOWN] if total[i]]
            ax.barh([feature.categories[i] for i in order], total[order])
            ax.tick_params(labelsize=7)
            return
        edges = self.edges[j]
        inside = self.histogram[:, j, 1:-1]
        total = inside.sum(axis=0)
        ax.stairs(total, edges, fill=True, alpha=0.5)
        for of_client in inside:
            scale = ratio(total.sum(), of_client.sum())
            ax.stairs(of_client * scale, edges, color="0.4", lw=0.4)


_ROUNDS = 3
"""How often a quantile is narrowed where every ask costs privacy."""


class Describe(Component):
    """How :func:`describe` asks: ``bins`` of every histogram, and noise."""

    accounts_: dict[str, Any]

    def __init__(self, bins: Count = 20, dp: DP | None = None) -> None:
        self.bins = bins
        self.dp = dp

    def look(self, federation: Federation) -> Description:
        """Ask the clients."""
        rounds = _USUAL if self.dp is None else _ROUNDS
        noise = each = None
        if self.dp is not None:
            check_level(self, self.dp)
            noise = Noise(self, self.dp, len(federation)).opened(rounds + 2)
            each = noise.each()
        with federation.announced(self):
            schema = federation.ask(describe_columns).fold(SchemaAgreement())["schema"]
            width = len(schema.features)
            values = quantiles(federation.noised(noise), LEVELS, width, rounds=rounds)
            edges = _edges(values, self.bins)
            schema = with_labels(schema)
            ask = {"columns": _asked_columns(schema, edges), "classes": schema.classes}
            replies = federation.noised(each).ask(count_cells, ask)
            ids, counts = replies.fold(Gather())
            correlations, correlated = None, 0
            if noise is None:
                correlations, correlated = _correlations(federation, values)
        tables = [counts["columns"][str(j)] for j in range(len(schema.features))]
        categorical = [feature.kind == "categorical" for feature in schema.features]
        values[categorical[:width]] = np.nan
        return Description(
            schema=schema,
            names=tuple(federation.names_of(ids)),
            rows=counts["rows"],
            missing=np.stack([table[:, MISSING] for table in tables], axis=1),
            quantiles=values,
            edges=edges,
            histogram=_histograms(tables, categorical, self.bins + 2),
            categories=tuple(
                table[:, VALUES + 1 :] if coded else table[:, :0]
                for table, coded in zip(tables, categorical, strict=True)
            ),
            classes=counts["classes"],
            correlations=correlations,
            correlated=correlated,
            epsilon=None if noise is None else epsilon_so_far(self.accounts_),
        )


def _asked_columns(schema: Schema, edges: FloatArray) -> list[dict[str, Any]]:
    """By what the values of every column, and every label, are counted."""
    return [
        {"categories": list(feature.categories), "edges": np.empty(0)}
        if feature.kind == "categorical"
        else {"categories": [], "edges": edges[j]}
        for j, feature in enumerate(schema.features)
    ]


def _histograms(tables: Sequence[IntArray], categorical: Sequence[bool], cells: int) -> IntArray:
    """The rows of every client in each interval of the columns of numbers; 0 of categories."""
    histograms = [
        np.zeros((len(table), cells), dtype=np.int64) if coded else table[:, VALUES:]
        for table, coded in zip(tables, categorical, strict=True)
    ]
    return np.stack(histograms, axis=1)


def describe(
    federation: Federation, *, bins: int = 20, dp: DP | None = None
) -> Description | ColumnSummary:
    """What the rows of all clients are like, and how clients differ, from counts and sums alone.

    These are the rows that clients train on: those set aside to validate or to test are not looked
    at before a model is judged.

    Rows, missing values, quantiles, histograms, categories, classes, labels, correlations and
    drift. The smallest and the largest value are not asked for. With ``dp``
    (``so.DP(level="record", …)``) all counts are noised at the clients and there are no
    correlations; names of columns, categories and classes are told as without. Under the policy
    ``"sums"`` it is a closed job, whose :class:`ColumnSummary
    <solera.learn.closed_description.ColumnSummary>` holds rows, gaps, mean and deviation by column,
    between which values quantiles lie, and counts by category and interval of atoms.
    """
    if not isinstance(federation, Federation):
        raise UsageError(
            f"so.describe asks the clients of a federation, not {type(federation).__name__}",
            hint="rows of one's own: so.describe(so.simulate(X, y, clients=1))",
        )
    federation = as_job(Describe(bins, dp), federation)
    if is_closed(federation):
        if dp is not None:
            raise NotClosed(
                "describe(dp=…) tells counts of single clients, which are no sum",
                hint="so.describe(federation), a closed job; or the policy 'trusted'",
            )
        owners = elsewhere(federation)
        return describe_closed(federation) if owners is None else owners.describe()
    return Describe(bins, dp).look(federation)


def _edges(found: FloatArray, bins: int) -> FloatArray:
    """Equal bins from a little below the 5 % to a little above the 95 % quantile."""
    low, high = np.nan_to_num(found[:, 0]), np.nan_to_num(found[:, -1])
    margin = np.where(high > low, 0.05 * (high - low), 0.5)
    low, high = low - margin, high + margin
    return np.asarray(np.linspace(low, high, bins + 1, axis=1))


def _variation(counts: IntArray) -> FloatArray:
    own = ratio(counts, counts.sum(axis=1, keepdims=True) + 0 * counts)
    total = counts.sum(axis=0)
    apart = np.abs(own - ratio(total, np.full_like(total, total.sum()))).sum(axis=1) / 2
    return np.asarray(np.where(counts.sum(axis=1) > 0, apart, 0.0))


def _correlations(federation: Federation, values: FloatArray) -> tuple[FloatArray | None, int]:
    """Of the columns of numbers, and over how many rows; None where all rows miss some.

    Products are of values about the median, in units of the spread: their means lose no digits.
    """
    spread = np.nan_to_num(values[:, -1] - values[:, 0])
    centre = np.nan_to_num(values[:, len(LEVELS) // 2])
    ask = {"centre": centre, "scale": np.where(spread > 0, spread, 1.0)}
    products = symmetric(federation.ask(sum_products, ask).fold(Sum())["products"])
    rows = products[0, 0]
    if not rows:
        return None, 0
    mean, squares = products[0] / rows, products / rows
    C = (squares - np.outer(mean, mean))[1:, 1:]
    varies = C.diagonal() > LOST * squares.diagonal()[1:]
    scale = np.where(varies, np.sqrt(np.maximum(C.diagonal(), 0.0)), np.nan)
    return np.asarray(np.clip(C / np.outer(scale, scale), -1, 1)), int(rows)


def _heat(ax: Any, values: FloatArray, title: str) -> None:
    image = ax.imshow(values, aspect="auto", cmap="cividis", vmin=0, vmax=max(values.max(), 1e-9))
    ax.set(title=title, xlabel="column", ylabel="client")
    ax.figure.colorbar(image, ax=ax)

"""What a partition looks like: sizes, label entropy, distance from IID; in words and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from html import escape
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solera.core.clients import IntArray
from solera.core.errors import DataError
from solera.core.pictures import new_figure
from solera.core.rng import generator
from solera.core.schema import class_codes
from solera.data.label_statistics import LabelStatistics


@dataclass(frozen=True, slots=True)
class Summary:
    """Numbers that describe a partition. What depends on labels is None where there are none.

    ``rows`` counts a row once for every client that holds it. ``entropy`` is the mean over the
    clients, in bits, of the entropy of their labels; ``max_entropy`` is that of equally frequent
    labels. The distance of a client from IID is the total variation ½ Σ_c |p_k(c) − p(c)| between
    its label distribution and that of all clients together: 0 for the same mix, near 1 for nothing
    in common. ``distance`` is the mean weighted by rows, ``max_distance`` the largest. With unknown
    ``labels`` there is no mix of a client, hence no entropy and no distance.
    """

    clients: int
    rows: int
    left_over: int
    empty: int
    smallest: int
    median: float
    mean: float
    largest: int
    class_rows: dict[str, int] | None = None
    entropy: float | None = None
    max_entropy: float | None = None
    distance: float | None = None
    max_distance: float | None = None
    labels: LabelStatistics | None = None

    def to_dict(self) -> dict[str, Any]:
        """The numbers as plain data."""
        return asdict(self)

    def _lines(self) -> list[tuple[str, str]]:
        lines = [
            ("clients", f"{self.clients:,}" + (f" ({self.empty:,} empty)" if self.empty else "")),
            ("rows", f"{self.rows:,} ({self.left_over:,} left over)"),
            (
                "rows per client",
                f"{self.smallest:,} min, {self.median:,.6g} median, "
                f"{self.mean:,.1f} mean, {self.largest:,} max",
            ),
        ]
        if self.labels is not None:
            lines += self.labels.lines()
        elif self.class_rows is not None:
            shown = [f"{name}: {rows:,}" for name, rows in list(self.class_rows.items())[:10]]
            more = len(self.class_rows) - len(shown)
            text = ", ".join(shown) + (f" and {more} more" if more else "")
            lines.append(("rows per class", text))
        if self.entropy is not None:
            lines += [
                ("label entropy", f"{self.entropy:.2f} of {self.max_entropy:.2f} bits"),
                ("distance from IID", f"{self.distance:.3f} mean, {self.max_distance:.3f} max"),
            ]
        return lines

    def __str__(self) -> str:
        return "\n".join(f"{name + ':':<19}{text}" for name, text in self._lines())

    def _repr_html_(self) -> str:
        cells = (f"<tr><th>{name}</th><td>{escape(text)}</td></tr>" for name, text in self._lines())
        return f"<table>{''.join(cells)}</table>"


def summarise(
    sizes: ArrayLike,
    counts: ArrayLike | None = None,
    left_over: int = 0,
    class_names: Sequence[Any] | None = None,
    labels: LabelStatistics | None = None,
) -> Summary:
    """Describe clients by their numbers of rows and, clients × classes, of rows of every class.

    Where some ``labels`` are unknown, clients are not compared by their mixes.
    """
    sizes = np.asarray(sizes)
    if not len(sizes):
        raise DataError("there are no clients to summarise")
    summary = Summary(
        clients=len(sizes),
        rows=int(sizes.sum()),
        left_over=int(left_over),
        empty=int(np.count_nonzero(sizes == 0)),
        smallest=int(sizes.min()),
        median=float(np.median(sizes)),
        mean=float(sizes.mean()),
        largest=int(sizes.max()),
    )
    if counts is None:
        return summary
    table = _table(counts, len(sizes))
    names = _names(class_names, table.shape[1])
    if labels is not None and {*labels.known.values()} != {summary.rows}:
        return replace(summary, labels=labels)
    entropy, distance = _entropy_and_distance(table)
    return replace(
        summary,
        labels=labels,
        class_rows=dict(zip(names, table.sum(axis=0).tolist(), strict=True)),
        entropy=_mean(entropy),
        max_entropy=float(np.log2(max(table.shape[1], 1))),
        distance=_mean(distance, sizes[table.sum(axis=1) > 0]),
        max_distance=float(distance.max(initial=0.0)),
    )


def class_counts(
    y: Any, index: IntArray, offsets: IntArray, *, classes: ArrayLike | None = None
) -> IntArray:
    """How many rows of each class each client holds, as a matrix clients × classes.

    Client k holds the rows ``index[offsets[k] : offsets[k + 1]]`` of y. ``classes`` are the sorted
    labels, all those in y by default. For a matrix of 0/1 labels every column is a class.
    """
    y = np.asarray(y)
    clients = len(offsets) - 1
    owners = np.repeat(np.arange(clients), np.diff(offsets))
    if y.ndim == 2:
        held, codes = (y[index] > 0).nonzero()
        owners, width = owners[held], y.shape[1]
    else:
        if y.dtype.kind in "fc":
            raise DataError(f"y holds numbers ({y.dtype}), not classes, so there is none to count")
        known = np.unique(y) if classes is None else np.asarray(classes)
        codes, width = class_codes(y[index], known), len(known)
    return np.bincount(owners * width + codes, minlength=clients * width).reshape(clients, width)


def plot_counts(
    sizes: ArrayLike,
    counts: ArrayLike | None,
    *,
    known: ArrayLike | None = None,
    ax: Any = None,
    class_names: Sequence[Any] | None = None,
    client_names: Sequence[str] = (),
    max_clients: int = 60,
) -> Any:
    """A matplotlib figure: the clients × classes heat map with sizes, or sizes alone.

    Labels that a client does not know, with 0 rows in which they are ``known``, are left empty.
    Of more than ``max_clients`` clients an evenly spaced sample is shown; the title says so.
    """
    sizes = np.asarray(sizes)
    shown = _sample(len(sizes), max_clients)
    if ax is None:
        figure = new_figure(figsize=(7, 2 + 0.16 * max(len(shown), 8)))
        ax = figure.add_subplot()
    title = f"{len(sizes):,} clients"
    if len(shown) < len(sizes):
        title = f"{len(shown):,} of {title}, evenly spaced"
    ax.set_title(title)
    ax.set_ylabel("client")
    if counts is None:
        _bars(ax, sizes[shown], shown, client_names)
        ax.invert_yaxis()
        return ax.figure

    table = _table(counts, len(sizes))
    names = _names(class_names, table.shape[1])
    axis = "class"
    if known is not None:
        axis = "label, empty where unknown"
        table = np.ma.masked_where(_table(known, len(sizes)) == 0, table)
    image = ax.imshow(table[shown], aspect="auto", cmap="cividis", interpolation="nearest", vmin=0)
    ax.set_xlabel(axis)
    ticks = _ticks(len(names))
    ax.set_xticks(ticks, [names[i] for i in ticks], rotation=45 if max(map(len, names)) > 3 else 0)
    side = ax.inset_axes((1.03, 0, 0.25, 1), sharey=ax)
    _bars(side, sizes[shown], shown, client_names)
    side.tick_params(labelleft=False)
    ax.figure.colorbar(
        image, ax=ax, label="rows of the class" if known is None else "rows with the label"
    )
    return ax.figure


def _bars(ax: Any, sizes: NDArray[Any], clients: IntArray, names: Sequence[str]) -> None:
    ax.barh(np.arange(len(sizes)), sizes, height=0.8, color="0.45")
    ticks = _ticks(len(clients))
    shown = clients[ticks]
    ax.set_yticks(ticks, [names[client] for client in shown] if names else shown)
    ax.set_xlabel("rows")


def _ticks(total: int) -> IntArray:
    return np.arange(0, total, -(-total // 20))


def _sample(total: int, most: int) -> IntArray:
    """At most ``most`` evenly spaced numbers below ``total``, from a seeded random start."""
    if total <= most:
        return np.arange(total)
    start = generator(0, "plot").random()
    return ((np.arange(most) + start) * (total / most)).astype(np.int64)


def _table(counts: ArrayLike, clients: int) -> IntArray:
    table = np.asarray(counts)
    if table.ndim != 2 or len(table) != clients:
        raise DataError(f"counts have shape {table.shape}, not a row for each of {clients} clients")
    return table


def _names(class_names: Sequence[Any] | None, classes: int) -> list[str]:
    names = [str(name) for name in (range(classes) if class_names is None else class_names)]
    if len(names) != classes:
        raise DataError(f"{len(names)} class names for {classes} classes")
    return names


def _entropy_and_distance(table: IntArray) -> tuple[NDArray[Any], NDArray[Any]]:
    """Label entropy and total variation from all rows, for every client that has labels."""
    totals = table.sum(axis=1, keepdims=True)
    held = table[totals[:, 0] > 0] / totals[totals > 0][:, None]
    overall = table.sum(axis=0) / max(int(table.sum()), 1)
    entropy = -(held * np.log2(held, out=np.zeros_like(held), where=held > 0)).sum(axis=1)
    return entropy, np.abs(held - overall).sum(axis=1) / 2


def _mean(values: NDArray[Any], weights: NDArray[Any] | None = None) -> float:
    return float(np.average(values, weights=weights)) if len(values) else 0.0

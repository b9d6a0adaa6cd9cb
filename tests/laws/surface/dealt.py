"""Rows of every kind, dealt to four clients by the harness, which remembers who got which."""

from __future__ import annotations

from functools import cache, cached_property
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse

import solera as so
from surface.oracle import NAMES

TARGETS = ("two", "three", "numbers", "labels", "unknown", "none")
"""``unknown`` are labels of which some are: of single rows, and one of all rows of a client."""
KINDS = (
    "float64", "float32", "int", "sparse", "constant", "one class", "one row", "text", "frame",
    "prepared",
)  # fmt: skip
"""``frame`` has text, dates, categories and gaps, ``text`` no gaps; ``prepared`` is the frame for
the pipeline that refusals of it name."""
WIDTH, PREPARED_WIDTH = 5, 8
PARTS = ("train", "validation", "test")
OUTPUTS = {"two": 2, "three": 3, "labels": 3, "unknown": 3, "survival": 2}
LABELS = ["old", "poor", "ill"]
COLUMNS = {
    "two": ["outcome"], "three": ["outcome"], "numbers": ["cost"], "labels": LABELS,
    "unknown": LABELS, "survival": ["days", "event"], "counts": ["visits"], "none": [],
}  # fmt: skip
SEED = 3


def take(X: Any, rows: Any) -> Any:
    """Some rows of an array, a matrix or a frame."""
    return X.iloc[rows] if hasattr(X, "iloc") else X[rows]


class Dealt:
    """Raw rows, their target and their owners; ``y`` is an array always."""

    def __init__(self, X: Any, y: Any, owners: Any, target: str, kind: str) -> None:
        self.X, self.y, self.owners = X, y, owners
        self.target, self.kind = target, kind
        self._federations: dict[Any, Any] = {}

    @property
    def width(self) -> int:
        return PREPARED_WIDTH if self.kind == "prepared" else WIDTH

    @property
    def outputs(self) -> int:
        return OUTPUTS.get(self.target, 1)

    @property
    def has_labels(self) -> bool:
        return self.target in ("labels", "unknown")

    @property
    def is_frame(self) -> bool:
        return hasattr(self.X, "iloc")

    def with_rows(self, X: Any) -> Dealt:
        """The same rows written otherwise, with the same owners."""
        return Dealt(X, self.y, self.owners, self.target, self.kind)

    def table(self, rows: Any = slice(None)) -> Any:
        """A frame with its target among its columns."""
        table = take(self.X, rows).copy()
        if self.y is not None:
            columns = np.atleast_2d(self.y.T)
            for name, column in zip(COLUMNS[self.target], columns, strict=True):
                table[name] = column[rows]
            if self.target == "unknown":
                table[LABELS] = table[LABELS].where(table[LABELS] >= 0)
        return table

    def federation(self, engine: str = "local", rows: Any = None, **options: Any) -> Any:
        """Clients with these rows, or some of them, which are not split then."""
        if rows is None:
            options = {"validation": 0.25, "test": 0.25, **options}
            rows = np.arange(len(self.owners))
        owners = self.owners[rows]
        held = [np.flatnonzero(owners == client) for client in np.unique(owners)]
        options = {"partition": so.partitions.Explicit(held), "seed": SEED, **options}
        if engine != "local":
            options |= {"engine": engine, "workers": 1}
        if self.is_frame:
            names = COLUMNS[self.target]
            target = names[0] if len(names) == 1 else names or None
            if "schema" not in options:
                options["target"] = target
            return so.simulate(self.table(rows), **options)
        y = None if self.y is None else self.y[rows]
        return so.simulate(take(self.X, rows), y, **options)

    def shared(self, **options: Any) -> Any:
        """The federation of all rows, the same one for all who only ask it."""
        key = repr(sorted(options.items()))
        if key not in self._federations:
            self._federations[key] = self.federation(**options)
        return self._federations[key]

    @cached_property
    def parts(self) -> dict[str, list[Any]]:
        """The numbers of every client's rows of each part, found again by what is in them."""
        data = self.shared().data
        place = {key: row for row, key in enumerate(self._keys(self.X))}
        found: dict[str, list[Any]] = {}
        for part in PARTS:
            held = [data.segments(np.array([k]), part).joined().X for k in range(data.clients)]
            found[part] = [np.array([place[key] for key in self._keys(X)], int) for X in held]
        dealt = np.sort(np.concatenate([rows for part in PARTS for rows in found[part]]))
        assert np.array_equal(dealt, np.arange(len(self.owners))), "a row was lost or given twice"
        for part in PARTS:
            assert all((self.owners[r] == k).all() for k, r in enumerate(found[part]))
        return found

    def rows(self, part: str) -> Any:
        """The numbers of all rows of a part, client after client."""
        return np.concatenate(self.parts[part])

    def _keys(self, X: Any) -> list[bytes]:
        """What tells rows from each other: the weight in a frame, all columns elsewhere."""
        if hasattr(X, "iloc"):
            X = X[["weight"]].to_numpy()
        elif self.is_frame:
            X = X[:, [list(self.X.columns).index("weight")]]
        X = X.toarray() if hasattr(X, "toarray") else np.asarray(X)
        return [row.tobytes() for row in np.asarray(X, dtype=np.float64)]


@cache
def deal(target: str, kind: str) -> Dealt:
    """Rows of a kind with a target."""
    draw = np.random.default_rng(5)
    sizes = [40, 32, 24, 1 if kind == "one row" else 16]
    owners = np.repeat(np.arange(4), sizes)
    rows = len(owners)
    X = draw.normal(size=(rows, WIDTH))
    if kind == "int":
        X = np.unique(draw.integers(0, 5, size=(3 * rows, WIDTH)), axis=0)
        X = X[draw.permutation(len(X))[:rows]]
    elif kind == "constant":
        X[:, 2] = 7.0
    elif kind == "sparse":
        X[:, 1:] *= draw.random((rows, WIDTH - 1)) < 0.5
    y = _target(target, np.asarray(X, dtype=float), draw)
    if kind == "one class" and y is not None and target != "survival":
        y[owners == 0] = y[0]
    if target == "unknown":
        y[draw.random(y.shape) < 0.1] = -1
        y[owners == 1, 0] = -1
    if kind == "float32":
        X = X.astype(np.float32)
    table: Any = X
    if kind == "sparse":
        table = sparse.csr_matrix(X)
    elif kind in ("text", "frame", "prepared"):
        table = _frame(X, draw, gaps=kind != "text")
    return Dealt(table, y, owners, target, kind)


def _target(target: str, X: Any, draw: Any) -> Any:
    score = (X - X.mean(axis=0)) / np.where(X.std(axis=0) > 0, X.std(axis=0), 1)
    score = score @ draw.normal(size=(WIDTH, 3)) + draw.normal(size=(len(X), 3))
    if target == "two":
        return np.array(NAMES["two"])[(score[:, 0] > 0.4).astype(int)]
    if target == "three":
        return np.array(NAMES["three"])[score.argmax(axis=1)]
    if target == "numbers":
        return score[:, 0] / 2 + 1
    if target == "counts":
        return draw.poisson(np.exp(score[:, 0] / 3)).astype(float)
    if target in ("labels", "unknown"):
        return (score > 0.2).astype(np.int64)
    if target == "survival":
        days = draw.exponential(np.exp(score[:, 0] / 3))
        return np.column_stack([days, draw.integers(0, 2, len(X)).astype(float)])
    return None


def _frame(X: Any, draw: Any, *, gaps: bool) -> Any:
    """A date as text, two columns of numbers, one with gaps, text, and a category with gaps."""
    rows = len(X)
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta((60 * X[:, 2]).round(), unit="D")
    age = np.round(50 + 12 * X[:, 0])
    wards = pd.cut(X[:, 4], [-9, -0.5, 0.5, 9], labels=["east", "north", "west"]).astype(object)
    if gaps:
        age[draw.random(rows) < 0.1] = np.nan
        wards[draw.random(rows) < 0.08] = None
    return pd.DataFrame(
        {
            "age": age,
            "weight": 70 + 9 * X[:, 1],
            "visit": days.strftime("%Y-%m-%d"),
            "sex": np.where(X[:, 3] > 0, "f", "m"),
            "ward": pd.Categorical(wards, categories=["east", "north", "west"]),
        }
    )

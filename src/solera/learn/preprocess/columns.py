"""Transformers of columns: scale, fill missing values, encode categories, cut into bins."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta

from solera.core.aggregation import Sum
from solera.core.clients import Client, FloatArray, IntArray
from solera.core.errors import DataError
from solera.core.federation import Federation
from solera.core.schema import Feature, Kind, Schema
from solera.core.task import task
from solera.learn.base import Transformer
from solera.learn.closed import is_closed
from solera.learn.conditions import Condition, edge_text
from solera.learn.preprocess.atom_bins import atom_bins, category_atoms
from solera.learn.preprocess.atom_counts import counts_by_atom, means_between
from solera.learn.preprocess.moments import (
    pooled_means,
    pooled_moments,
    refuse_untold,
)
from solera.learn.preprocess.quantiles import (
    NOISED_ASKS,
    noised_quantiles,
    quantiles,
)
from solera.privacy.dp.mechanism import DP
from solera.trust.constructors import count_by

Bins = Annotated[int, Meta(ge=2, le=65536)]


class FedScaler(Transformer):
    """Columns with mean 0 and variance 1 over all clients; categorical columns stay as they are.

    z = (x − μ) / σ with μ and σ² from folded moments; a constant column is only centred. Missing
    values stay missing. Sparse rows are scaled but not centred.
    """

    mean_: FloatArray
    scale_: FloatArray

    def train(self, federation: Federation) -> None:
        moments = pooled_moments(federation, self.schema_)
        numeric = np.array([not f.is_coded for f in self.schema_.features])
        spread = np.sqrt(moments["variance"])
        tiny = spread <= 1e-12 * np.maximum(np.abs(moments["mean"]), 1)
        self.mean_ = np.where(numeric, moments["mean"], 0.0)
        self.scale_ = np.where(numeric & ~tiny, spread, 1.0)

    def transform(self, X: Any) -> Any:
        X = self.check_rows(X)
        if hasattr(X, "tocsr"):
            return X.tocsr().multiply(1 / self.scale_).tocsr()
        kind = X.dtype if X.dtype.kind == "f" else np.float64
        flat = X.reshape(len(X), -1)
        scaled = (flat - self.mean_.astype(kind)) / self.scale_.astype(kind)
        return scaled.reshape(X.shape)

    def condition_before(self, condition: Condition) -> Condition:
        j = condition.column
        scaled = np.array([condition.lower, condition.upper])
        low, high = (scaled * self.scale_[j] + self.mean_[j]).tolist()
        return Condition.on(self.schema_.features[j], j, low, high, condition.missing)


class FedImputer(Transformer):
    """Fill missing values: numeric columns with their mean or median, others with the commonest.

    A column in which no client has a value is filled with 0. In a closed job the mean of the values
    between two edges of atoms, in which the median lies, stands for it; where counts of categories
    carry noise, a warning says so.
    """

    allows_sparse = False
    fills_missing = True
    fill_: FloatArray

    def __init__(self, strategy: Literal["mean", "median"] = "mean") -> None:
        self.strategy = strategy

    def train(self, federation: Federation) -> None:
        sizes = [len(feature.categories) for feature in self.schema_.features]
        if self.strategy == "mean":
            fill = pooled_means(federation, self.schema_)
        elif is_closed(federation):
            middle = [one.between(0.5) for one in counts_by_atom(federation, self.schema_)]
            fill = means_between(federation, middle)
        else:
            fill = quantiles(federation, 0.5, self.schema_.width)[:, 0]
        if any(sizes):
            fill = np.where(np.array(sizes) > 0, self._commonest(federation, sizes), fill)
        self.fill_ = np.nan_to_num(fill)

    def _commonest(self, federation: Federation, sizes: list[int]) -> FloatArray:
        """The code of the category that most rows have, of every column that has categories."""
        ask: dict[str, Any] = {"sizes": sizes}
        if is_closed(federation):
            ask["gaps"] = [feature.name in federation.gaps for feature in self.schema_.features]
        replies = federation.ask(count_categories, ask)
        commonest = np.zeros(len(sizes))
        untold = np.zeros(len(sizes), dtype=bool)
        for column, rows in replies.fold(Sum()).items():
            j = int(column)
            commonest[j] = np.argmax(rows[: sizes[j]])
            untold[j] = column in replies.absent
        refuse_untold(self.schema_, untold, coded=True)
        if replies.noised:
            names = [self.schema_.features[int(column)].name for column in sorted(replies.noised)]
            which = ", ".join(names)
            self.remark(f"the commonest category of {which} is of counts with noise (± 3)")
        return commonest

    def transform(self, X: Any) -> Any:
        X = self.check_rows(X)
        if X.dtype.kind != "f":
            return X
        return np.where(np.isfinite(X), X, self.fill_.astype(X.dtype).reshape(X.shape[1:]))

    def condition_before(self, condition: Condition) -> Condition:
        return replace(condition, missing=condition.holds(self.fill_[condition.column]))


@task("preprocess.count_categories", many=True, version=2)
def count_categories(client: Client, ask: Any) -> dict[str, Any]:
    """Rows of each category of each categorical column, by the number of the column.

    With ``gaps``, rows that miss one are in a cell of their own; ``atoms`` take the place of
    categories.
    """
    counts = {}
    for j, size in enumerate(ask["sizes"]):
        if size:
            column, gap = client.data.X[:, j], "gaps" in ask and ask["gaps"][j]
            known = np.isfinite(column)
            codes = np.where(known, column, 0).astype(np.int64)
            cells = ask["atoms"][j][codes] if "atoms" in ask else codes
            counts[str(j)] = count_by(np.where(known, cells, size if gap else -1), size + gap)
    return counts


def _dense_rows(step: Transformer, X: Any) -> Any:
    X = step.check_rows(X)
    if X.ndim > 2:
        raise DataError(
            f"{type(step).__name__} needs columns, X has {X.ndim} dimensions",
            hint="X.reshape(len(X), -1) makes a row of every element",
        )
    return X


class FedEncoder(Transformer):
    """Categorical columns as one 0/1 column per category, or as codes all clients agree on.

    Categories are the union over all clients. A missing or an unknown category is all zeros or, of
    "ordinal", NaN. "dummy" leaves out the first category, which the others are compared with:
    beside the intercept of a statistical model it would tell nothing. "ordinal" codes are numbers
    to whoever comes next, for categories whose order counts and for trees.

    In a closed job the sum of a 0/1 column is an exact count: categories that are one atom of the
    epoch, because few persons have them, have one column together, named "ward=a or b".
    """

    allows_sparse = False
    atoms_: list[IntArray] | None = None
    """The atom of every category of each column, where a closed job was fitted."""

    def __init__(self, kind: Literal["onehot", "dummy", "ordinal"] = "onehot") -> None:
        self.kind = kind

    def marked(self, j: int) -> list[IntArray] | None:
        """The codes of every column made of column j; None for one that stays."""
        feature = self.schema_.features[j]
        if feature.kind != "categorical" or self.kind == "ordinal":
            return None
        atoms = np.arange(len(feature.categories)) if self.atoms_ is None else self.atoms_[j]
        codes = [np.flatnonzero(atoms == atom) for atom in range(atoms.max(initial=-1) + 1)]
        return codes[int(self.kind == "dummy") :]

    def train(self, federation: Federation) -> None:
        """The categories are in the schema."""
        if is_closed(federation) and self.kind != "ordinal":
            self.atoms_ = [
                category_atoms(federation, feature) if feature.is_coded else np.empty(0, np.int64)
                for feature in self.schema_.features
            ]

    def transform(self, X: Any) -> Any:
        self.check_fitted()
        return self.transform_rows(X, self.schema_)

    def transform_rows(self, X: Any, schema: Schema) -> Any:
        X = _dense_rows(self, X)
        columns = []
        for j, (own, agreed) in enumerate(zip(schema.features, self.schema_.features, strict=True)):
            column = X[:, j]
            if agreed.kind == "categorical":
                column = _recode(column, own.categories, agreed.categories)
            codes = self.marked(j)
            if codes is None:
                columns.append(column)
            else:
                columns += [np.isin(column, some) for some in codes]
        kind = X.dtype if X.dtype.kind == "f" else float
        return np.stack(columns, axis=1).astype(kind) if columns else np.empty((len(X), 0), kind)

    def condition_before(self, condition: Condition) -> Condition:
        """A mark of a category is that category, or any other or none."""
        marks: list[tuple[int, IntArray | None]] = []
        for j in range(self.schema_.width):
            codes = self.marked(j)
            marks += [(j, None)] if codes is None else [(j, some) for some in codes]
        j, some = marks[condition.column]
        feature = self.schema_.features[j]
        if some is None:
            return Condition.on(feature, j, condition.lower, condition.upper, condition.missing)
        code = int(some[0])
        if len(some) > 1:
            code, feature = 0, replace(feature, categories=(_joined(feature, some),))
        marked = Condition.on(feature, j, code - 1, code, missing=False)
        return replace(marked, negated=not condition.holds(1.0))

    def transform_schema(self, schema: Schema) -> Schema:
        features: list[Feature] = []
        for j, feature in enumerate(self.schema_.features):
            codes = self.marked(j)
            if codes is not None:
                features += [Feature(f"{feature.name}={_joined(feature, some)}") for some in codes]
            else:
                kind: Kind = "date" if feature.kind == "date" else "numeric"
                features.append(replace(feature, kind=kind))
        return replace(schema, features=tuple(features))


def _joined(feature: Feature, codes: IntArray) -> str:
    return " or ".join(feature.categories[code] for code in codes)


def _recode(column: FloatArray, own: tuple[str, ...], agreed: tuple[str, ...]) -> FloatArray:
    """Codes into the agreed list of categories; NaN where there is none."""
    place = {name: i for i, name in enumerate(agreed)}
    table = np.array([place.get(name, np.nan) for name in own] + [np.nan])
    known = np.isfinite(column) & (column >= 0) & (column < len(own))
    return table[np.where(known, column, len(own)).astype(np.int64)]


class FedBins(Transformer):
    """Numeric columns cut at their quantiles over all clients into categorical ones.

    ``bins`` intervals of about the same number of rows each; fewer where values repeat. A value x
    falls into interval i when edge_{i−1} < x ≤ edge_i. Missing values stay missing. In a closed job
    intervals are unions of the epoch's atoms.

    ``dp``: None, or :class:`so.DP <solera.privacy.dp.mechanism.DP>` with ``level="record"``: counts
    of values are noised, and edges lie near the quantiles.
    """

    allows_sparse = False
    keeps_atoms = True
    edges_: list[FloatArray]

    def __init__(self, bins: Bins = 32, *, dp: DP | None = None) -> None:
        self.bins = bins
        self.dp = dp

    def noised_asks(self) -> int:
        return NOISED_ASKS

    @property
    def cuts_at_atoms(self) -> bool:
        return self.dp is None

    def train(self, federation: Federation) -> None:
        levels, width = np.arange(1, self.bins) / self.bins, self.schema_.width
        if is_closed(federation) and self.dp is None:
            edges: Any = atom_bins(federation, self.schema_, self.bins)
        elif self.dp is None:
            edges = quantiles(federation, levels, width)
        else:
            edges = noised_quantiles(federation, levels, width)
        self.edges_ = [
            np.empty(0) if feature.is_coded else np.unique(of_column[np.isfinite(of_column)])
            for feature, of_column in zip(self.schema_.features, edges, strict=True)
        ]

    def transform(self, X: Any) -> Any:
        X = _dense_rows(self, X)
        binned = np.array(X, dtype=X.dtype if X.dtype.kind == "f" else np.float64)
        for j, (feature, edges) in enumerate(zip(self.schema_.features, self.edges_, strict=True)):
            if not feature.is_coded:
                known = np.isfinite(binned[:, j])
                binned[known, j] = np.searchsorted(edges, binned[known, j], side="left")
        return binned

    def condition_before(self, condition: Condition) -> Condition:
        j = condition.column
        feature, edges = self.schema_.features[j], self.edges_[j]
        if feature.is_coded:
            return condition
        bounds = np.concatenate([[-np.inf], edges, [np.inf]])
        ends = np.floor([condition.lower, condition.upper]).clip(-1, len(edges)).astype(int) + 1
        low, high = bounds[ends].tolist()
        return Condition.on(feature, j, low, high, condition.missing)

    def planned_schema(self, schema: Schema) -> Schema:
        """As many bins of every column as there may be."""
        planned = self.clone()
        planned.schema_ = schema
        planned.edges_ = [np.arange(1.0, self.bins)] * schema.width
        return planned.transform_schema(schema)

    def transform_schema(self, schema: Schema) -> Schema:
        features = [
            f if f.is_coded else Feature(f.name, "categorical", _intervals(f, edges))
            for f, edges in zip(self.schema_.features, self.edges_, strict=True)
        ]
        return replace(schema, features=tuple(features))


def _intervals(feature: Feature, edges: FloatArray) -> tuple[str, ...]:
    texts = [edge_text(feature, edge) for edge in edges.tolist()]
    if len({text for text, _ in texts}) < len(texts):  # some are too near each other
        texts = [(repr(edge), False) for edge in edges.tolist()]
    ends = [("-∞", False), *texts, ("∞", False)]
    return tuple(
        f"{'[' if from_low else '('}{low}, {high}{')' if below_high else ']'}"
        for (low, from_low), (high, below_high) in pairwise(ends)
    )

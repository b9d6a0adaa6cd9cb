"""One data set in memory: rows to train on, rows to test on, and what they mean."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solera.core import rng
from solera.core.clients import BoolArray
from solera.core.constraints import ProperFraction, check_values
from solera.core.errors import UsageError
from solera.core.schema import Feature, Schema, Target, class_codes, class_values, infer_target
from solera.data.files import DatasetInfo
from solera.data.label_statistics import label_statistics

_SHOWN = 6


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Dataset:
    """Real rows with their schema; unpacks as ``X, y, X_test, y_test = dataset``.

    ``X`` is a NumPy array, or a SciPy CSR matrix where the source is sparse. Categorical columns
    hold codes 0, 1, … into the categories of the schema, NaN is missing. ``y`` holds class codes
    (``class_names`` says what they stand for), a 0/1 matrix with one column per label (−1 where it
    is not known), numbers, or is None where there is no target. ``source`` says where the rows were
    read from. ``groups`` names what every training row belongs to, for example
    ``groups["course"]``, and ``groups_test`` the same for the test rows; :class:`ByGroup` makes
    clients of them.
    ``target_names`` are the columns of a frame that y was read from. Of an ``ordered`` data set
    the classes stay in the order of ``class_names``; of others they are sorted.
    """

    X: Any
    y: Any
    X_test: Any
    y_test: Any
    schema: Schema
    name: str
    title: str
    source: str
    class_names: tuple[str, ...] = ()
    groups: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    groups_test: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    target_names: tuple[str, ...] = ()
    ordered: bool = False

    def __iter__(self) -> Iterator[Any]:
        return iter((self.X, self.y, self.X_test, self.y_test))

    @property
    def all(self) -> tuple[Any, Any]:
        """``(X, y)`` of the training rows followed by the test rows."""
        y = None if self.y is None else np.concatenate([self.y, self.y_test])
        if isinstance(self.X, np.ndarray):
            return np.concatenate([self.X, self.X_test]), y
        from scipy import sparse

        return sparse.vstack([self.X, self.X_test], format="csr"), y

    def with_class_names(self) -> Dataset:
        """The same rows, with the classes' own values in y instead of codes.

        Names that are all whole numbers, or all truth values, become such.
        """
        classes = self.schema.classes
        coded = np.array_equal(classes, range(len(self.class_names))) and classes.dtype != bool
        if self.schema.target != "classes" or not self.class_names or not coded:
            return self
        values = class_values(self.class_names)
        classes = values if self.ordered else np.unique(values)
        return replace(
            self,
            y=values[self.y],
            y_test=values[self.y_test],
            schema=replace(self.schema, classes=classes),
            class_names=tuple(str(value) for value in classes.tolist()),
        )

    def summary(self) -> str:
        """What the data set is, in a few lines."""
        train, test = self.X.shape[0], self.X_test.shape[0]
        lines = [
            f"{self.name}: {self.title}",
            f"  rows      {train:,} to train, {test:,} to test",
            f"  features  {self._features()}",
            f"  target    {self._target()}",
            f"  source    {self.source}",
        ]
        if self.schema.target == "labels":
            about = label_statistics(self.y, self.schema.label_names).lines()
            lines += [f"  {name}: {text}" for name, text in about]
        return "\n".join(lines)

    def __repr__(self) -> str:
        train, test = self.X.shape[0], self.X_test.shape[0]
        return (
            f"<Dataset {self.name}: {train:,} + {test:,} rows, {self.schema.width:,} features, "
            f"{_outputs(self.schema)}>"
        )

    def _features(self) -> str:
        categorical = sum(f.kind == "categorical" for f in self.schema.features)
        parts = [f"{self.schema.width:,}"]
        if categorical:
            share = "all" if categorical == self.schema.width else f"{categorical:,} of them"
            parts.append(f"{share} categorical")
        if isinstance(self.X, np.ndarray):
            missing = sum(int(np.isnan(part).sum()) for part in (self.X, self.X_test))
            parts += [f"{missing:,} cells missing"] if missing else []
        else:
            cells = max(1, self.X.shape[0] * self.X.shape[1])
            parts.append(f"sparse, {self.X.nnz / cells:.1%} filled")
        return ", ".join(parts)

    def _target(self) -> str:
        text = _outputs(self.schema)
        if not self.class_names or self.schema.target == "labels":
            return text
        codes = class_codes(self.y, self.schema.classes)
        counts = np.bincount(codes, minlength=len(self.class_names))
        shares = counts / max(1, len(self.y))
        shown = [f"{n} {s:.1%}" for n, s in zip(self.class_names[:_SHOWN], shares, strict=False)]
        more = ["…"] if len(self.class_names) > _SHOWN else []
        return f"{text}: {', '.join(shown + more)}"


def _outputs(schema: Schema) -> str:
    if schema.target == "none":
        return "no target"
    one, many = {"classes": ("class", "classes"), "labels": ("label", "labels")}.get(
        schema.target, ("number", "numbers")
    )
    return f"{schema.outputs:,} {one if schema.outputs == 1 else many}"


def divided(
    info: DatasetInfo,
    X: Any,
    y: NDArray[Any],
    marked: BoolArray,
    features: Iterable[Feature],
    *,
    source: str,
    class_names: tuple[str, ...] = (),
    groups: Mapping[str, NDArray[Any]] | None = None,
) -> Dataset:
    """The data set whose test rows are the marked ones."""
    groups = groups or {}
    return Dataset(
        X=X[~marked],
        y=y[~marked],
        X_test=X[marked],
        y_test=y[marked],
        schema=replace(
            make_schema(tuple(features), info.target, info.outputs),
            target_names=class_names if info.target == "labels" else (),
        ),
        name=info.name,
        title=info.title,
        source=source,
        class_names=class_names,
        groups={name: values[~marked] for name, values in groups.items()},
        groups_test={name: values[marked] for name, values in groups.items()},
    )


def make_schema(features: tuple[Feature, ...], target: Target, outputs: int) -> Schema:
    """The schema of data whose classes or labels are coded 0, 1, … outputs − 1."""
    coded = outputs if target in ("classes", "labels") else 0
    return Schema(features, target, np.arange(coded, dtype=np.int64), outputs)


def held_out(owner: str, y: NDArray[Any], target: Target, test: float, seed: int) -> BoolArray:
    """Marks the share ``test`` of the rows, drawn at random within each class or label set.

    Rows are shuffled, grouped by stratum, and every 1/test-th row is taken along that line: the
    total is exact to one row, and so is every stratum.
    """
    check_values(owner, {"test": ProperFraction}, {"test": test})
    order = rng.generator(seed, "datasets.held_out").permutation(len(y))
    if target == "labels":
        y = np.unique(np.packbits(y > 0, axis=1), axis=0, return_inverse=True)[1].reshape(-1)
    if target in ("classes", "labels"):
        order = order[np.argsort(y[order], kind="stable")]
    taken = np.diff(np.floor(np.arange(len(y) + 1) * test + 0.5)) > 0
    marked = np.zeros(len(y), dtype=np.bool_)
    marked[order[taken]] = True
    return marked


def holdout(
    X: Any, y: Any = None, *, validation: float = 0.0, test: float = 0.25, seed: int = 0
) -> tuple[Any, ...]:
    """Set rows aside before they are dealt to clients: ``X, y, X_test, y_test``.

    With ``validation`` > 0: ``X, y, X_validation, y_validation, X_test, y_test``. Rows are drawn at
    random within each class or label set; numbers and rows without a target plainly at random.
    """
    if not 0 <= validation < 1 - test:
        raise UsageError.of("holdout", "validation", validation, f"must be in [0, {1 - test:g})")
    target, _, _ = infer_target(y)
    strata = np.zeros(X.shape[0], dtype=np.int64) if y is None else np.asarray(y)
    in_test = held_out("holdout", strata, target, test, seed)
    rest = np.flatnonzero(~in_test)
    in_validation = held_out("holdout", strata[rest], target, validation / (1 - test), seed)
    parts = [rest[~in_validation], np.flatnonzero(in_test)]
    if validation:
        parts.insert(1, rest[in_validation])
    return tuple(p for rows in parts for p in (X[rows], None if y is None else strata[rows]))

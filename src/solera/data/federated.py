"""Data of many clients in one contiguous data set: no object per client, whatever their number."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from solera.core import rng
from solera.core.clients import Array, BoolArray, IntArray, Part, Segments, take_rows
from solera.core.constraints import ProperFraction, check_arguments
from solera.core.errors import DataError, UsageError
from solera.core.payload import is_finite
from solera.core.schema import Feature, Schema, infer
from solera.data.arrays import check_rows, prepared_rows

if TYPE_CHECKING:
    from solera.data.summary import Summary


@dataclass(frozen=True, slots=True)
class Assignment:
    """Which rows go to which client: client k gets ``index[offsets[k] : offsets[k + 1]]``."""

    index: IntArray
    offsets: IntArray
    left_over: int = 0
    names: tuple[str, ...] = ()
    """What the clients are called, where the rule knows."""
    unlabelled: tuple[int, ...] = ()
    """The clients that hold no labels."""

    @property
    def clients(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> IntArray:
        return np.diff(self.offsets)

    def rows_of(self, client: int) -> IntArray:
        """Row numbers of one client."""
        return self.index[self.offsets[client] : self.offsets[client + 1]]


HeldOut = tuple[IntArray, IntArray]
"""For every client, how many rows it keeps to validate and to test with."""


class FederatedData:
    """The rows of K clients, each client's next to each other in one array.

    ``offsets`` has K + 1 entries; client k owns rows ``offsets[k]`` to ``offsets[k + 1]``, first
    those to train on, then its validation and its test rows.
    """

    def __init__(
        self,
        X: Any,
        y: Any,
        offsets: IntArray,
        *,
        schema: Schema | None = None,
        held_out: HeldOut | None = None,
        left_over: int = 0,
        names: tuple[str, ...] = (),
    ) -> None:
        self.X = X
        self.y = y
        self.offsets = offsets
        steps = np.diff(offsets)
        if not len(steps) or offsets[0] != 0 or offsets[-1] != X.shape[0] or (steps < 0).any():
            raise DataError(
                f"offsets must rise from 0 to the {X.shape[0]:,} rows, one more than clients"
            )
        self.schema = infer(X, y) if schema is None else schema
        self.left_over = left_over
        self.names = names
        self.resources: Any = None
        self.persons: IntArray | None = None
        """Whose row each row is, as codes 0, 1, …; None where every row is somebody else's."""
        self.keys: IntArray | None = None
        """In an epoch: a number of every row, the same for all rows of a person."""
        self.identifiers: Array | None = None
        """By what other clients that hold columns of the same people know each row, as text."""
        self.samples: Any = None
        """The rows as samples of data sets, where they come from some."""
        self.labelled: BoolArray | None = None
        """Which rows have a target; None where all have. The others hold any one in its place."""
        self._held_out = held_out

    @classmethod
    def of(
        cls,
        X: Any,
        y: Any,
        assignment: Assignment,
        *,
        features: Sequence[Feature | str] | None = None,
        schema: Schema | None = None,
    ) -> FederatedData:
        """Give every client the rows an assignment names. Copies the data once."""
        X, y = check_rows(X, y)
        if schema is None:
            schema = infer(X, y, features=features)
        width = int(np.prod(X.shape[1:]))
        if schema.width != width:
            raise DataError(f"{schema.width} features are named, the data has {width} columns")
        index = assignment.index
        if not (len(index) == X.shape[0] and np.array_equal(index, np.arange(len(index)))):
            X, y = X[index], None if y is None else y[index]
        data = cls(
            X,
            y,
            assignment.offsets,
            schema=schema,
            left_over=assignment.left_over,
            names=assignment.names,
        )
        if assignment.unlabelled and y is not None:
            holds = ~np.isin(np.arange(data.clients), assignment.unlabelled)
            data.labelled = np.repeat(holds, assignment.sizes)
        return data

    @property
    def clients(self) -> int:
        return len(self.offsets) - 1

    def sizes(self, part: Part = "train") -> IntArray:
        """Rows per client of that part."""
        return self._bounds(slice(None), part)[1]

    def is_complete(self) -> bool:
        """Whether every client has rows to train on, and no value of any row is missing."""
        values = self.X.data if hasattr(self.X, "indptr") else self.X
        return bool(self.sizes().all()) and (self.samples is not None or is_finite(values))

    @cached_property
    def unlabelled(self) -> IntArray:
        """The clients none of whose rows has a target, though others' have."""
        if self.labelled is None:
            return np.empty(0, dtype=np.int64)
        known = np.concatenate([[0], np.cumsum(self.labelled)])[self.offsets]
        return np.flatnonzero((np.diff(known) == 0) & (np.diff(self.offsets) > 0))

    def segments(self, clients: IntArray, part: Part = "train") -> Segments:
        """The rows of these clients, without a target where one of them has none."""
        starts, sizes = self._bounds(clients, part)
        unknown = len(self.unlabelled) and np.isin(clients, self.unlabelled).any()
        return Segments(self.X, None if unknown else self.y, starts, sizes)

    def units(self, client: int, part: Part) -> IntArray | None:
        """Whose rows those of a client are, where that is known."""
        return self._known_of(self.persons, client, part)

    def keys_of(self, client: int, part: Part) -> IntArray | None:
        """The keys of a client's rows, where they are in an epoch."""
        return self._known_of(self.keys, client, part)

    def labelled_of(self, client: int, part: Part) -> BoolArray | None:
        """Which of a client's rows have a target, where not all have."""
        return self._known_of(self.labelled, client, part)

    def samples_of(self, client: int, part: Part) -> Any:
        """The samples of a client's rows, where they come from data sets."""
        start, size = self._bounds(client, part)
        return None if self.samples is None else self.samples[start : start + size]

    def identifiers_of(self, client: int, part: Part) -> Array | None:
        """The identifiers of a client's rows, where they have any."""
        return self._known_of(self.identifiers, client, part)

    def _known_of(self, column: Array | None, client: int, part: Part) -> Array | None:
        start, size = self._bounds(client, part)
        return None if column is None else column[start : start + size]

    def _bounds(self, clients: Any, part: Part) -> tuple[IntArray, IntArray]:
        starts, ends = self.offsets[:-1][clients], self.offsets[1:][clients]
        if self._held_out is None:
            return (starts, ends - starts) if part == "train" else (ends, np.zeros_like(ends))
        validation, test = (held[clients] for held in self._held_out)
        if part == "train":
            return starts, ends - starts - validation - test
        return (
            (ends - test - validation, validation) if part == "validation" else (ends - test, test)
        )

    def split(
        self, *, validation: ProperFraction = 0.0, test: ProperFraction = 0.0, seed: int = 0
    ) -> FederatedData:
        """Set aside a fraction of every client's rows, drawn at random.

        Fractions are rounded down, so a client with few rows keeps them to train on.
        """
        check_arguments(FederatedData.split, validation=validation, test=test)
        if validation + test >= 1:
            raise UsageError(f"split(validation={validation}, test={test}) leaves nothing to train")
        if self._held_out is not None:
            raise UsageError("the data is split already")
        sizes = np.diff(self.offsets)
        owner, _, draw = self._draws(seed, "split")
        held_out = (
            np.floor(sizes * validation).astype(np.int64),
            np.floor(sizes * test).astype(np.int64),
        )
        return self._taken(np.lexsort((draw, owner)), self.offsets, held_out)

    def fold(self, index: int, folds: int, *, seed: int = 0) -> FederatedData:
        """One fold of a k-fold cross-validation inside every client.

        The rows a client trains on are dealt at random into ``folds`` parts that differ by at most
        one row; part ``index`` becomes its validation rows. Test rows stay what they are. Over all
        folds every row is validated on exactly once.
        """
        if folds < 2 or not 0 <= index < folds:
            raise UsageError(f"fold({index}, {folds}): give at least 2 folds and one of them")
        if self._held_out is not None and self._held_out[0].any():
            raise UsageError("the data has validation rows already")
        owner, within, draw = self._draws(seed, "fold")
        train = self.sizes("train")
        is_test = within >= train[owner]
        rank = np.empty_like(within)
        order = np.lexsort((draw, is_test, owner))
        rank[order] = within  # positions are counted anew in the drawn order
        validated = ~is_test & (rank % folds == index)
        counts = np.bincount(owner[validated], minlength=self.clients).astype(np.int64)
        test = np.diff(self.offsets) - train
        order = np.lexsort((rank, validated, is_test, owner))
        return self._taken(order, self.offsets, (counts, test))

    def _draws(self, seed: int, purpose: str) -> tuple[IntArray, IntArray, Any]:
        """For every row its owner, its place among the owner's rows, and a random number."""
        sizes = np.diff(self.offsets)
        keys = rng.stream_keys(seed, purpose, 0, np.arange(self.clients))
        owner = np.repeat(np.arange(self.clients), sizes)
        within = np.arange(len(owner)) - np.repeat(self.offsets[:-1], sizes)
        return owner, within, rng.random_bits(keys[owner], within)

    def prepared(self, steps: Sequence[Any]) -> FederatedData:
        X, schema = prepared_rows(self.X, self.schema, steps)
        view = self.with_rows(X, self.y)
        view.schema, view.samples = schema, None
        return view

    def with_rows(self, X: Any, y: Any) -> FederatedData:
        """The same clients with other rows, as many of each, in their order."""
        view = copy(self)
        view.X, view.y = X, y
        return view

    def some_rows(self, rows: IntArray, clients: IntArray) -> FederatedData:
        """Some training rows of these clients, by their numbers client after client.

        Rows stay with their clients, in the order of the clients, and beside them those that are
        set aside; clients that lose all their training rows lose these as well.
        """
        if not len(rows):
            raise DataError("no row is chosen")
        starts, sizes = self._bounds(slice(None), "train")
        owners = np.repeat(np.arange(self.clients), np.diff(self.offsets))
        trains = np.arange(len(owners)) < (starts + sizes)[owners]
        chosen = np.flatnonzero(trains & np.isin(owners, clients))[np.sort(rows)]
        stays = (np.bincount(owners[chosen], minlength=self.clients) > 0) | (sizes == 0)
        aside = np.flatnonzero(~trains & stays[owners])
        order = np.concatenate([chosen, aside])
        order = order[np.argsort(owners[order], kind="stable")]
        counts = np.bincount(owners[order], minlength=self.clients)
        held_out = self._held_out
        if held_out is not None:
            held_out = (held_out[0] * stays, held_out[1] * stays)
        return self._taken(order, np.concatenate([[0], np.cumsum(counts)]), held_out)

    def only(self, client: int) -> FederatedData:
        """One client on its own, with the rows it has set aside."""
        start, end = self.offsets[client : client + 2].tolist()
        held_out = self._held_out
        if held_out is not None:
            held_out = (held_out[0][client : client + 1], held_out[1][client : client + 1])
        view = self._taken(slice(start, end), np.array([0, end - start]), held_out)
        view.names = self.names[client : client + 1]
        return view

    def _taken(self, rows: Any, offsets: IntArray, held_out: HeldOut | None) -> FederatedData:
        """These rows, and what is known of them; ``offsets`` say whose they are now."""
        taken = take_rows(self.X, self.y, rows)
        view = self.with_rows(taken.X, taken.y)
        vars(view).pop("unlabelled", None)
        view.offsets, view._held_out = offsets, held_out
        for name in ("persons", "keys", "identifiers", "labelled", "samples"):
            column = getattr(self, name)
            setattr(view, name, None if column is None else column[rows])
        return view

    def class_counts(self) -> IntArray | None:
        """Rows of each class (or with each label) per client, or None without classes."""
        if self.schema.target not in ("classes", "labels"):
            return None
        from solera.data.summary import class_counts

        everything = np.arange(self.offsets[-1])
        counts = class_counts(self.y, everything, self.offsets, classes=self.schema.classes)
        counts[self.unlabelled] = 0
        return counts

    def summary(self) -> Summary:
        """Sizes, label entropy and distance from IID."""
        from solera.data.label_statistics import label_statistics
        from solera.data.summary import summarise

        several = self.schema.target == "labels"
        return summarise(
            np.diff(self.offsets),
            self.class_counts(),
            self.left_over,
            self._class_names(),
            label_statistics(self._labels(), self.schema.label_names) if several else None,
        )

    def plot(self, **options: Any) -> Any:
        """The client × class heat map, as a matplotlib figure."""
        from solera.data.summary import class_counts, plot_counts

        known = None
        if self.schema.target == "labels":
            known = class_counts(self._labels() >= 0, np.arange(self.offsets[-1]), self.offsets)
        names = {"class_names": self._class_names(), "client_names": self.names}
        counts = self.class_counts()
        return plot_counts(np.diff(self.offsets), counts, known=known, **{**names, **options})

    def _labels(self) -> Any:
        """The labels of all rows, unknown where a row has no target."""
        return self.y if self.labelled is None else np.where(self.labelled[:, None], self.y, -1)

    def _class_names(self) -> Sequence[Any] | None:
        if self.schema.target == "labels":
            return self.schema.label_names
        return self.schema.classes.tolist() if self.schema.target == "classes" else None

    def __repr__(self) -> str:
        return f"FederatedData({self.clients:,} clients, {self.offsets[-1]:,} rows)"

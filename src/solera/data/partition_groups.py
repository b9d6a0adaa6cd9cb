"""Horizontal partitions of rows that belong together: by a column, by cluster, by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray

from solera.core.clients import IntArray
from solera.core.constraints import Count
from solera.core.errors import DataError, UsageError
from solera.data.dealing import at_least, divide, group, missing_from, offsets_of
from solera.data.federated import Assignment
from solera.data.partition import Partition, encode


class ByGroup(Partition):
    """One client per distinct value, in sorted order: the hospital, the writer, the device.

    Clients are called by their value.

    ``groups`` holds a value for every row, or names a column of X by number or, for a data frame,
    by name.
    """

    def __init__(self, groups: ArrayLike | int | str) -> None:
        self.groups = groups

    def _split(self, rows: int, y: Any, X: Any, clients: int | None, rng: Generator) -> Assignment:
        values = self._column(X) if isinstance(self.groups, str | Integral) else self.groups
        codes, found = encode(self, "groups", values, rows)
        count = self._count(clients, len(found), "groups")
        order = rng.permutation(rows)
        names = tuple(str(value) for value in found.tolist())
        return Assignment(*group(order, codes[order], count), names=names)

    def _column(self, X: Any) -> Any:
        name: Any = self.groups
        if X is None:
            raise UsageError.of(self, "groups", name, "names a column of X, but there is no X")
        if isinstance(name, str):
            if name not in getattr(X, "columns", ()):
                raise UsageError.of(
                    self,
                    "groups",
                    name,
                    "is not a column of X",
                    hint="pass a data frame with that column, a column number or the values",
                )
            return X[name]
        if not 0 <= name < X.shape[1]:
            raise UsageError.of(
                self, "groups", name, f"must be below the {X.shape[1]} columns of X"
            )
        if hasattr(X, "toarray"):
            return X[:, [name]].toarray().ravel()
        return X.iloc[:, name] if hasattr(X, "iloc") else X[:, name]


class ByCluster(Partition):
    """Clients whose rows lie together: one client per cluster, or several if ``clients`` is larger.

    ``cluster`` is a number of clusters for k-means on X, or a function ``(X, y, rng)`` that returns
    a group per row. More clients than clusters are spread in proportion to the clusters' rows, at
    least one each, and share their cluster evenly.
    """

    def __init__(self, cluster: Count | Callable[[Any, Any, Generator], ArrayLike]) -> None:
        self.cluster = cluster

    def _split(self, rows: int, y: Any, X: Any, clients: int | None, rng: Generator) -> Assignment:
        values = self.cluster(X, y, rng) if callable(self.cluster) else self._kmeans(rows, X, rng)
        codes, found = encode(self, "clusters", values, rows)
        clusters = len(found)
        count = self._count(clusters if clients is None else clients)
        self._check_enough(rows, count)
        if count < clusters:
            raise self._refused(
                f"{count} clients cannot hold {clusters} clusters apart",
                f"use at least {clusters} clients or fewer clusters",
            )
        order = rng.permutation(rows)
        order, starts = group(order, codes[order], clusters)
        sizes = np.diff(starts)
        teams = at_least(divide(count, sizes / rows, rng), 1, rng)
        cluster = np.repeat(np.arange(clusters), sizes)
        turn = (np.arange(rows) - starts[cluster]) % teams[cluster]
        return Assignment(*group(order, offsets_of(teams)[cluster] + turn, count))

    def _kmeans(self, rows: int, X: Any, rng: Generator) -> Any:
        clusters: Any = self.cluster
        if X is None:
            raise UsageError.of(self, "cluster", clusters, "needs X to cluster its rows")
        if clusters > rows:
            raise UsageError.of(self, "cluster", clusters, f"must be at most the {rows} rows")
        values = X.data if hasattr(X, "toarray") else np.asarray(X)
        if values.dtype.kind not in "biuf" or not np.isfinite(values).all():
            raise DataError(
                "ByCluster: X has missing, infinite or non-numeric values",
                hint="fill or encode them first, or pass a function as cluster",
            )
        from sklearn.cluster import KMeans

        start = int(rng.integers(2**31))
        return KMeans(clusters, n_init=4, random_state=start).fit_predict(X)


class Explicit(Partition):
    """Exactly these rows, in this order: a list of row numbers per client, or {client: rows}.

    A row listed for several clients is an error unless ``allow_overlap``.
    """

    def __init__(
        self,
        indices: Sequence[ArrayLike] | Mapping[int, ArrayLike],
        *,
        allow_overlap: bool = False,
    ) -> None:
        self.indices = indices
        self.allow_overlap = allow_overlap

    def _split(self, rows: int, y: Any, X: Any, clients: int | None, rng: Generator) -> Assignment:
        lists = self._lists()
        count = self._count(clients, len(lists), "lists of rows")
        sizes = np.fromiter(map(len, lists), dtype=np.int64, count=count)
        index = np.concatenate([part for part in lists if len(part)] or [np.empty(0, np.int64)])
        if index.dtype.kind not in "iu":
            raise self._refused(
                "row numbers are not whole", "turn a mask into numbers: np.flatnonzero"
            )
        index = index.astype(np.int64)
        self._check(index, np.repeat(np.arange(count), sizes), rows)
        return Assignment(index, offsets_of(sizes), missing_from(index, rows))

    def _lists(self) -> list[NDArray[Any]]:
        given = self.indices
        if isinstance(given, Mapping):
            if set(given) != set(range(len(given))):
                raise self._refused(
                    f"clients {list(given)[:10]} are not 0 … {len(given) - 1}",
                    "number the clients from 0, leaving none out",
                )
            given = [given[client] for client in range(len(given))]
        if not len(given):
            raise self._refused("no client is given", "pass a list of row numbers per client")
        return [np.atleast_1d(np.asarray(part)) for part in given]

    def _check(self, index: IntArray, owners: IntArray, rows: int) -> None:
        outside = np.flatnonzero((index < 0) | (index >= rows))
        if len(outside):
            raise self._refused(
                f"client {owners[outside[0]]} lists row {index[outside[0]]} of {rows} rows",
                f"use row numbers 0 … {rows - 1}",
            )
        keys = np.sort(index if not self.allow_overlap else owners * rows + index)
        repeated = keys[1:][keys[1:] == keys[:-1]]
        if len(repeated):
            row = int(repeated[0] % rows)
            who = owners[index == row].tolist()
            if len(set(who)) < len(who):
                raise self._refused(f"row {row} is listed twice for one client", "list it once")
            raise self._refused(
                f"row {row} is listed for clients {who[0]} and {who[1]}",
                "set allow_overlap=True if they share it",
            )

"""Folds of a simulated federation for scikit-learn: rows stay with their clients.

cross_val_score(learner, federation, cv=so.simulation.FoldsInClients(5))
GridSearchCV(learner, {"lam": [0.1, 1.0]}, cv=so.simulation.FoldsOverClients(4)).fit(federation)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from solera.core import rng
from solera.core.clients import IntArray
from solera.core.component import Component
from solera.core.errors import UsageError

Folds = Annotated[int, Meta(ge=2)]


class _Splitter(Component, abstract=True):
    """A splitter in the manner of scikit-learn over the training rows of a federation."""

    def __init__(self, folds: Folds = 5, *, seed: int = 0) -> None:
        self.folds = folds
        self.seed = seed

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:
        """How many folds there are."""
        return self.folds

    def split(
        self, X: Any, y: Any = None, groups: Any = None
    ) -> Iterator[tuple[IntArray, IntArray]]:
        """Numbers of the rows to train on and of those to judge by, for every fold."""
        owner = getattr(X, "row_owners", None)
        if owner is None:
            raise UsageError(
                f"{type(self).__name__} divides the rows of a simulated federation, "
                f"not {type(X).__name__}"
            )
        fold = self._fold_of_rows(owner)
        for i in range(self.folds):
            yield np.flatnonzero(fold != i), np.flatnonzero(fold == i)

    def _fold_of_rows(self, owner: IntArray) -> IntArray:
        raise NotImplementedError


class FoldsInClients(_Splitter):
    """Every client's rows are dealt at random into folds that differ by at most one row.

    All clients take part in training every time; a client with fewer rows than folds is judged by
    in some folds only.
    """

    def _fold_of_rows(self, owner: IntArray) -> IntArray:
        within = np.arange(len(owner)) - np.searchsorted(owner, owner)
        keys = rng.stream_keys(self.seed, "folds", 0, owner)
        order = np.lexsort((rng.random_bits(keys, within), owner))
        fold = np.empty(len(owner), dtype=np.int64)
        fold[order] = within % self.folds
        return fold


class FoldsOverClients(_Splitter):
    """Clients are dealt at random into folds: how the model fares at clients it never met."""

    def _fold_of_rows(self, owner: IntArray) -> IntArray:
        clients, client = np.unique(owner, return_inverse=True)
        if len(clients) < self.folds:
            raise UsageError(
                f"{self!r} needs at least as many clients, there are {len(clients)}",
                hint="use fewer folds, or FoldsInClients",
            )
        order = rng.generator(self.seed, "folds").permutation(len(clients))
        fold = np.empty(len(clients), dtype=np.int64)
        fold[order] = np.arange(len(clients)) % self.folds
        return fold[client]

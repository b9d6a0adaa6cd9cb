"""Horizontal partitions by label: clients that differ in what they have seen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray

from solera.core.clients import FloatArray, IntArray
from solera.core.constraints import Count, NonNegativeInt
from solera.core.errors import DataError, UsageError
from solera.data.dealing import at_least, draw, even, group, hand_out
from solera.data.federated import Assignment
from solera.data.partition import Concentration, Partition, collect, encode, is_whole


class LabelPartition(Partition, abstract=True):
    """A partition that needs one label per row."""

    def _labels(self, y: Any, rows: int) -> tuple[IntArray, NDArray[Any]]:
        """The labels as codes into the sorted classes."""
        kind = type(self).__name__
        if y is None:
            raise DataError(
                f"{kind} divides rows by label, but there is no y",
                hint="pass y, or use IID or QuantitySkew",
            )
        if not hasattr(y, "ndim"):
            y = np.asarray(y)
        if y.ndim == 2:
            raise DataError(
                f"{kind}: y has shape {y.shape}, but one label per row is needed",
                hint="for several labels per row use IID, QuantitySkew or ByGroup",
            )
        return encode(self, "y", y, rows)

    def _classes(self, y: Any, rows: int) -> tuple[IntArray, NDArray[Any]]:
        """As :meth:`_labels`, refusing numbers, which are no classes."""
        codes, classes = self._labels(y, rows)
        if classes.dtype.kind in "fc":
            raise DataError(
                f"{type(self).__name__}: y holds numbers ({classes.dtype}), not classes",
                hint="use y.astype(int) if they are classes, else Shards, IID or QuantitySkew",
            )
        return codes, classes


class LabelWeights(LabelPartition):
    """Client k gets the fraction ``weights[k][c]`` of the rows of class c (classes sorted).

    Columns that sum to less than 1 leave rows over. Where one sums to more, that is an error, or
    all are divided by their sums with ``normalise``. ``floor`` and ``replacement`` are as in
    :class:`ClientWeights <solera.data.partition.ClientWeights>`.
    """

    def __init__(
        self,
        weights: ArrayLike,
        *,
        replacement: bool = False,
        normalise: bool = False,
        floor: bool = False,
    ) -> None:
        self.weights = weights
        self.replacement = replacement
        self.normalise = normalise
        self.floor = floor

    def _split(self, rows: int, y: Any, X: Any, clients: int | None, rng: Generator) -> Assignment:
        codes, classes = self._classes(y, rows)
        fractions = self._fractions(self.weights, 2, self.replacement, self.normalise)
        count = self._count(clients, len(fractions), "rows of weights")
        if fractions.shape[1] != len(classes):
            raise self._refused(
                f"weights have {fractions.shape[1]} columns but y has {len(classes)} classes",
                "give a column for every class, in sorted order",
            )
        everyone = np.arange(count)
        shares = ((everyone, column) for column in fractions.T)
        return _deal(codes, len(classes), shares, count, self.replacement, rng, floor=self.floor)


class LabelsPerClient(LabelPartition):
    """Every client sees only some classes, whose rows are divided evenly among their owners.

    ``labels`` is a number of classes per client, a range ``(low, high)`` from which each client's
    number is drawn, or the list of labels of every client. Drawn labels are dealt so that every
    class has an owner if clients × low allows, and at random beyond that. Rows of a class without
    owner are left over. With ``replacement`` the numbers of rows stay the same but clients draw
    independently: a row may go to several of them, never twice to one.

    With ``weights``, one per client, client k gets the fraction weights[k] / (number of its labels)
    of each of its classes instead of an even share. Classes whose fractions sum to more than 1
    are an error, or with ``normalise`` all classes are divided among their owners in those
    proportions. ``floor`` rounds numbers of rows down. These are FLEX's rules.
    """

    def __init__(
        self,
        labels: int | tuple[int, int] | Sequence[Sequence[Any]],
        *,
        weights: ArrayLike | None = None,
        replacement: bool = False,
        normalise: bool = False,
        floor: bool = False,
    ) -> None:
        self.labels = labels
        self.weights = weights
        self.replacement = replacement
        self.normalise = normalise
        self.floor = floor

    def _split(self, rows: int, y: Any, X: Any, clients: int | None, rng: Generator) -> Assignment:
        codes, classes = self._classes(y, rows)
        labels: Any = (self.labels, self.labels) if is_whole(self.labels) else self.labels
        if len(labels) == 2 and all(map(is_whole, labels)):
            count = self._count(clients)
            owned, sizes = self._drawn(labels, len(classes), count, rng)
        else:
            owned, sizes = self._listed(labels, classes)
            count = self._count(clients, len(sizes), "lists of labels")
        owners, starts = group(np.repeat(np.arange(count), sizes), owned, len(classes))
        teams = np.split(owners, starts[1:-1])
        dealt = _deal(
            codes,
            len(classes),
            zip(teams, self._shares(teams, sizes), strict=True),
            count,
            self.replacement,
            rng,
            floor=self.floor,
        )
        empty = np.flatnonzero(dealt.sizes == 0)
        if len(empty):
            raise self._refused(
                f"{len(empty)} clients, the first is {empty[0]}, get no row of their labels",
                "use fewer clients or more labels per client",
            )
        return dealt

    def _shares(self, teams: list[IntArray], sizes: IntArray) -> list[FloatArray]:
        """The fraction of a class that each of its owners gets, for every class."""
        if self.weights is None:
            return [np.full(len(team), 1 / max(len(team), 1)) for team in teams]
        weights = np.asarray(self.weights, dtype=np.float64)
        if weights.shape != sizes.shape:
            raise self._refused(
                f"weights have shape {weights.shape}, there are {len(sizes)} clients",
                "give one weight per client",
            )
        table = np.zeros((len(sizes), len(teams)))
        for label, team in enumerate(teams):
            table[team, label] = weights[team] / sizes[team]
        fractions = self._fractions(table, 2, self.replacement, self.normalise)
        return [fractions[team, label] for label, team in enumerate(teams)]

    def _drawn(
        self, labels: Any, classes: int, clients: int, rng: Generator
    ) -> tuple[IntArray, IntArray]:
        low, high = (int(bound) for bound in labels)
        if not 1 <= low <= high <= classes:
            raise UsageError.of(
                self, "labels", self.labels, f"must be between 1 and the {classes} classes of y"
            )
        sizes = rng.integers(low, high, size=clients, endpoint=True)
        fixed = min(low, -(-classes // clients))
        starts = fixed * np.arange(clients)
        others = draw(sizes - fixed, classes - fixed, rng)
        places = np.concatenate(
            [
                (starts[:, None] + np.arange(fixed)).ravel(),
                np.repeat(starts, sizes - fixed) + fixed + others,
            ]
        )
        owners = np.concatenate(
            [np.repeat(np.arange(clients), fixed), np.repeat(np.arange(clients), sizes - fixed)]
        )
        owned, _ = group(rng.permutation(classes)[places % classes], owners, clients)
        return owned, sizes

    def _listed(self, labels: Any, classes: NDArray[Any]) -> tuple[IntArray, IntArray]:
        code = {label: i for i, label in enumerate(classes.tolist())}
        unknown = [label for own in labels for label in own if label not in code]
        if unknown:
            raise UsageError.of(
                self, "labels", unknown[0], f"is not in y, whose labels are {list(code)[:10]}"
            )
        for client, own in enumerate(labels):
            if not 0 < len(own) == len(set(own)):
                raise self._refused(
                    f"client {client} has the labels {list(own)}", "list every label of it once"
                )
        sizes = np.array([len(own) for own in labels], dtype=np.int64)
        return np.array([code[label] for own in labels for label in own], dtype=np.int64), sizes


class Dirichlet(LabelPartition):
    """Each class is divided among the clients in proportions drawn from Dirichlet(alpha, …, alpha).

    Small alpha: each class sits with few clients; large alpha: nearly IID. Dirichlet-distributed
    labels are due to Hsu, Qi & Brown (2019), "Measuring the effects of non-identical data
    distribution for federated visual classification", who draw the classes of every client.
    Drawing the clients of every class, as Yurochkin et al. (2019), "Bayesian nonparametric
    federated learning of neural networks", uses every row and makes sizes unequal as well.

    Clients below ``min_rows`` are filled up afterwards with random rows of the others, which give
    in proportion to what they have above it: once, so that it always ends.
    """

    def __init__(self, alpha: Concentration, *, min_rows: NonNegativeInt = 1) -> None:
        self.alpha = alpha
        self.min_rows = min_rows

    def _split(self, rows: int, y: Any, X: Any, clients: int | None, rng: Generator) -> Assignment:
        count = self._count(clients)
        codes, classes = self._classes(y, rows)
        self._check_enough(rows, count, self.min_rows)
        everyone = np.arange(count)
        shares = ((everyone, rng.dirichlet(np.full(count, self.alpha))) for _ in classes)
        dealt = _deal(codes, len(classes), shares, count, False, rng)
        return _fill_up(dealt, self.min_rows, rng)


class Shards(LabelPartition):
    """Rows sorted by label, cut into equal shards, ``per_client`` random shards for every client.

    The "pathological" partition of McMahan et al. (2017), "Communication-efficient learning of deep
    networks from decentralized data", section 3: with two shards most clients see two labels only.
    Sorting works for numbers too, so that y may be a regression target.
    """

    def __init__(self, per_client: Count = 2) -> None:
        self.per_client = per_client

    def _split(self, rows: int, y: Any, X: Any, clients: int | None, rng: Generator) -> Assignment:
        per_client, count = self.per_client, self._count(clients)
        codes, classes = self._labels(y, rows)
        shards = count * per_client
        if shards > rows:
            raise self._refused(
                f"{rows} rows are too few for {shards} shards",
                f"use at most {rows // per_client} clients or fewer shards per client",
            )
        order = rng.permutation(rows)
        by_label, _ = group(order, codes[order], len(classes))
        owners = np.repeat(rng.permutation(shards) // per_client, even(rows, shards))
        return collect(by_label, owners, count, rows, rng)


def _deal(
    codes: IntArray,
    classes: int,
    shares: Iterable[tuple[IntArray, FloatArray]],
    clients: int,
    replacement: bool,
    rng: Generator,
    *,
    floor: bool = False,
) -> Assignment:
    """Divide class after class: ``shares`` says for each who gets which fraction of its rows."""
    by_class, starts = group(np.arange(len(codes)), codes, classes)
    index, owners = [], []
    for pool, (who, fractions) in zip(np.split(by_class, starts[1:-1]), shares, strict=True):
        dealt, counts = hand_out(rng.permutation(pool), fractions, replacement, rng, floor=floor)
        index.append(dealt)
        owners.append(np.repeat(who, counts))
    return collect(np.concatenate(index), np.concatenate(owners), clients, len(codes), rng)


def _fill_up(dealt: Assignment, min_rows: int, rng: Generator) -> Assignment:
    """Move the last rows of some clients to those who have fewer than ``min_rows``."""
    sizes, wanted = dealt.sizes, at_least(dealt.sizes, min_rows, rng)
    owners = np.repeat(np.arange(dealt.clients), sizes)
    moved = np.arange(len(owners)) - dealt.offsets[owners] >= wanted[owners]
    if not moved.any():
        return dealt
    short = np.repeat(np.arange(dealt.clients), np.maximum(wanted - sizes, 0))
    owners[moved] = rng.permutation(short)
    return Assignment(*group(dealt.index, owners, dealt.clients), dealt.left_over)

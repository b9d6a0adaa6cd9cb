"""Aggregation is a monoid: ``lift`` a reply, ``merge`` two partials, ``finish``.

``merge`` is associative and commutative (up to the rounding of float additions), and None, the
partial of no reply at all, is its identity. From this one law come streaming folds in constant
memory, late arrivals, hierarchies of aggregators, folds inside worker processes and secure sums.

Partials are payloads, so that they can travel and be stored like everything else.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solera.core.clients import FloatArray
from solera.core.component import Component
from solera.core.constraints import Positive
from solera.core.errors import NotEnoughReplies, PayloadError, SoleraError
from solera.core.payload import is_finite
from solera.core.replies import Batch, Reply, Stacked, map_leaves

MAX_BLOCK = 64
_SPREAD = 8


def block_size(asked: int) -> int:
    """Clients per block of the canonical fold tree of an ask to this many clients.

    Replies are folded block by block in client order, then the blocks in order; a block is also the
    unit of work handed to a worker. The size depends on the number of clients asked and on nothing
    else, so neither the number of workers nor the order of arrival can change a bit of the result.
    """
    return max(1, min(MAX_BLOCK, -(-asked // _SPREAD)))


def blocks(asked: int) -> Iterator[slice]:
    """The positions of each block, in order."""
    size = block_size(asked)
    for start in range(0, asked, size):
        yield slice(start, min(start + size, asked))


class Aggregation(Component, abstract=True):
    """How replies become one result."""

    @abstractmethod
    def lift(self, reply: Reply) -> Any:
        """The partial of this reply alone."""

    @abstractmethod
    def combine(self, a: Any, b: Any) -> Any:
        """The partial of the replies of both; neither is None, neither may be changed."""

    def finish(self, partial: Any) -> Any:
        """The result of a partial that is not None."""
        return partial

    @property
    def additive(self) -> bool:
        """Whether the :meth:`terms` of partials add up, so that a secure sum can fold them."""
        return False

    def terms(self, partial: Any) -> Any:
        """Of an additive aggregation: the partial as numbers that add up over replies."""
        return partial

    def from_terms(self, total: Any) -> Any:
        """The partial whose terms these are."""
        return total

    @property
    def protocol(self) -> Any:
        """The :class:`~solera.core.cover.SecureFold` by which it folds, or None."""
        return None

    def merge(self, a: Any, b: Any) -> Any:
        """:meth:`combine`, with None as its identity."""
        if a is None:
            return b
        return a if b is None else self.combine(a, b)

    def fold(self, batch: Batch) -> Any:
        """The partial of a batch of replies. Subclasses may do it in one array operation."""
        return self.fold_one_by_one(batch)

    def fold_blocks(self, batch: Batch, bounds: Sequence[int]) -> list[Any]:
        """:meth:`fold` of every block of a batch, to the bit.

        Block i has the replies at positions ``bounds[i]`` to ``bounds[i + 1]``. Subclasses may fold
        all blocks in a few array operations.
        """
        return [self.fold(batch.between(a, b)) for a, b in pairwise(bounds)]

    def fold_together(self, batch: Batch, bounds: Sequence[int]) -> Any:
        """:meth:`merge_all` of :meth:`fold_blocks`, to the bit."""
        return self.merge_all(self.fold_blocks(batch, bounds))

    def merge_all(self, partials: Iterable[Any]) -> Any:
        """:meth:`merge` of one partial after the other."""
        total = None
        for partial in partials:
            total = self.merge(total, partial)
        return total

    def adds(self, entry: str) -> bool:
        """Whether all that counts of this entry of the replies is its sum."""
        return False

    def without(self, entries: Collection[str]) -> Aggregation:
        """The aggregation of replies from which entries that it :meth:`adds` are left out."""
        return self

    def fold_one_by_one(self, replies: Iterable[Reply]) -> Any:
        """The slow, obvious fold that every faster one is tested against."""
        partial = None
        for reply in replies:
            try:
                partial = self.merge(partial, self.lift(reply))
            except PayloadError as error:
                raise PayloadError(
                    f"reply of client {reply.client}: {error.message}", hint=error.hint
                ) from error
        return partial

    def sound(self, partial: Any) -> bool:
        """Whether no reply of this partial holds numbers that must not be aggregated."""
        return is_finite(partial)

    def sound_reply(self, reply: Reply) -> bool:
        """:meth:`sound` of one reply."""
        return self.sound(self.lift(reply))

    def result(self, partial: Any) -> Any:
        """:meth:`finish`, or an error when there was nothing to fold."""
        if partial is None:
            raise NotEnoughReplies("no replies to aggregate")
        return self.finish(partial)


class Sum(Aggregation):
    """Σ of every number in the replies, leaf by leaf."""

    additive = True

    def lift(self, reply: Reply) -> Any:
        return map_leaves(_wide, reply.payload)

    def combine(self, a: Any, b: Any) -> Any:
        return map_leaves(_add, a, b)

    def fold(self, batch: Batch) -> Any:
        if isinstance(batch.payloads, Stacked) and len(batch):
            return map_leaves(lambda leaf: _wide(leaf).sum(axis=0), batch.payloads.fields)
        return self.fold_one_by_one(batch)

    def fold_blocks(self, batch: Batch, bounds: Sequence[int]) -> list[Any]:
        size = bounds[1] - bounds[0] if len(bounds) > 1 else 0
        even = size > 0 and all(b - a == size for a, b in pairwise(bounds[:-1]))
        if not (isinstance(batch.payloads, Stacked) and even and len(bounds) > 2):
            return super().fold_blocks(batch, bounds)
        whole, last = len(bounds) - 2, batch.between(bounds[-2], bounds[-1])
        fields = batch.payloads.between(bounds[0], bounds[-2]).fields

        def block_sums(leaf: NDArray[Any]) -> Any:
            return _wide(leaf).reshape(whole, size, *leaf.shape[1:]).sum(axis=1)

        sums = map_leaves(block_sums, fields)
        return [
            *(map_leaves(lambda leaf, i=i: leaf[i], sums) for i in range(whole)),
            self.fold(last),
        ]

    def adds(self, entry: str) -> bool:
        return type(self) is Sum


class Mean(Aggregation):
    """Σ w·x / Σ w over the replies; w is the reply's entry named ``weight``, or 1.

    x is all of a reply but its weight, or the entry named ``of``. A reply whose arrays, taken
    together, are longer than ``largest`` does not count.
    """

    additive = True

    def __init__(
        self,
        weight: str | None = None,
        *,
        of: str | None = None,
        largest: Positive | None = None,
    ) -> None:
        self.weight = weight
        self.of = of
        self.largest = largest

    def lift(self, reply: Reply) -> Any:
        weight, values = self.alone(reply)
        with np.errstate(over="ignore"):
            weighted = map_leaves(lambda leaf: _wide(leaf) * weight, values)
        return {"weight": weight, "sum": weighted}

    def combine(self, a: Any, b: Any) -> Any:
        return map_leaves(_add, a, b)

    def fold(self, batch: Batch) -> Any:
        if not (isinstance(batch.payloads, Stacked) and len(batch)):
            return self.fold_one_by_one(batch)
        weights, values = self._split(batch.payloads.fields, np.ones(len(batch)))
        return {
            "weight": float(weights.sum()),
            "sum": map_leaves(lambda leaf: _weighted_sum(weights, leaf), values),
        }

    def finish(self, partial: Any) -> Any:
        total = partial["weight"]
        if not total > 0:
            raise SoleraError(
                f"the weights {self.weight!r} of all replies add up to {total}",
                hint="at least one client must have a positive weight",
            )
        return map_leaves(lambda leaf: leaf / total, partial["sum"])

    def sound(self, partial: Any) -> bool:
        if partial is None or self.largest is None:
            return is_finite(partial)
        return is_finite(partial) and length(partial["sum"]) <= self.largest * partial["weight"]

    def alone(self, reply: Reply) -> tuple[float, Any]:
        """The weight of a reply and the values that it weighs."""
        weight, values = self._split(reply.payload, np.float64(1))
        return float(weight), values

    def _split(self, values: Any, ones: Any) -> tuple[Any, Any]:
        """The weights and the values they weigh."""
        for entry in filter(None, (self.weight, self.of)):
            if not isinstance(values, Mapping) or entry not in values:
                what = "to weigh it by" if entry == self.weight else "to average"
                raise PayloadError(f"the reply has no entry {entry!r} {what}")
        weights = ones
        if self.weight is not None:
            weights = np.asarray(values[self.weight], dtype=np.float64)
            if not (np.isfinite(weights).all() and (weights >= 0).all()):
                raise PayloadError(f"weights must be finite and not negative, not {weights}")
            values = {key: v for key, v in values.items() if key != self.weight}
        return weights, values if self.of is None else values[self.of]


class Collect(Aggregation):
    """Every reply, by client id, for rules that need all at once; memory grows with them."""

    def lift(self, reply: Reply) -> Any:
        return [[reply.client, reply.payload]]

    def combine(self, a: Any, b: Any) -> Any:
        return sorted([*a, *b], key=lambda pair: pair[0])

    def fold_together(self, batch: Batch, bounds: Sequence[int]) -> Any:
        """:meth:`merge_all` of :meth:`fold_blocks`, to the bit."""
        return self.merge_all(self.fold_blocks(batch, bounds))

    def merge_all(self, partials: Iterable[Any]) -> Any:
        pairs = [pair for partial in partials if partial is not None for pair in partial]
        return sorted(pairs, key=lambda pair: pair[0]) or None

    def fold(self, batch: Batch) -> Any:
        return [[reply.client, reply.payload] for reply in batch] or None

    def finish(self, partial: Any) -> dict[int, Any]:
        return dict(partial)


class Extremes(Aggregation):
    """The smallest and the largest value of every leaf: ``{"min": …, "max": …}``."""

    def lift(self, reply: Reply) -> Any:
        values = map_leaves(np.asarray, reply.payload)
        return {"min": values, "max": values}

    def combine(self, a: Any, b: Any) -> Any:
        return {
            "min": map_leaves(np.minimum, a["min"], b["min"]),
            "max": map_leaves(np.maximum, a["max"], b["max"]),
        }


class Union(Aggregation):
    """Every distinct value that occurs in the replies' lists, sorted."""

    def lift(self, reply: Reply) -> Any:
        return sorted(set(np.asarray(reply.payload).tolist()))

    def combine(self, a: Any, b: Any) -> Any:
        return sorted({*a, *b})


class Fields(Aggregation):
    """A different aggregation for each entry of the replies; other entries are ignored."""

    def __init__(self, fields: Mapping[str, Aggregation]) -> None:
        self.fields = fields

    def lift(self, reply: Reply) -> Any:
        return {key: agg.lift(Reply(reply.client, self._entry(reply.payload, key)))
                for key, agg in self.fields.items()}  # fmt: skip

    def combine(self, a: Any, b: Any) -> Any:
        return {key: agg.merge(a[key], b[key]) for key, agg in self.fields.items()}

    def finish(self, partial: Any) -> dict[str, Any]:
        return {key: agg.finish(partial[key]) for key, agg in self.fields.items()}

    def adds(self, entry: str) -> bool:
        return entry in self.fields and type(self.fields[entry]) is Sum

    def without(self, entries: Collection[str]) -> Aggregation:
        return Fields({key: agg for key, agg in self.fields.items() if key not in entries})

    @property
    def additive(self) -> bool:
        return all(agg.additive for agg in self.fields.values())

    def terms(self, partial: Any) -> Any:
        return {key: agg.terms(partial[key]) for key, agg in self.fields.items()}

    def from_terms(self, total: Any) -> Any:
        return {key: agg.from_terms(total[key]) for key, agg in self.fields.items()}

    def _entry(self, payload: Any, key: str) -> Any:
        if not isinstance(payload, Mapping) or key not in payload:
            raise PayloadError(f"the reply has no entry {key!r}")
        return payload[key]


class ByFold(Aggregation):
    """The same aggregation for each of several groups of clients, dealt out in turn.

    For leaving clients out without asking twice; the result is a dict from fold to result. The
    k-th of ``clients``, a sorted list, belongs to fold k mod ``folds``; without a list, client k.
    """

    def __init__(
        self, aggregation: Aggregation, folds: int, clients: Sequence[int] | None = None
    ) -> None:
        self.aggregation = aggregation
        self.folds = folds
        self.clients = clients

    def lift(self, reply: Reply) -> Any:
        known = self.clients
        place = reply.client if known is None else bisect_left(known, reply.client)
        return {str(place % self.folds): self.aggregation.lift(reply)}

    def combine(self, a: Any, b: Any) -> Any:
        return {
            fold: self.aggregation.merge(a.get(fold), b.get(fold))
            for fold in sorted({*a, *b}, key=int)
        }

    def finish(self, partial: Any) -> dict[str, Any]:
        return {fold: self.aggregation.finish(part) for fold, part in partial.items()}


def length(values: Any) -> float:
    """The Euclidean norm of all arrays in these values; single numbers do not count."""
    if isinstance(values, Mapping):
        return math.hypot(*map(length, values.values()))
    if np.ndim(values) == 0:
        return 0.0
    with np.errstate(over="ignore"):
        return float(np.linalg.norm(np.ravel(values)))


def _wide(leaf: Any) -> Any:
    """Small integers as int64, so that sums do not wrap around; everything else as it is."""
    if isinstance(leaf, (np.ndarray, np.generic)):
        if leaf.dtype.kind not in "biufc":
            raise TypeError(f"cannot add values of type {leaf.dtype}")
        return leaf.astype(np.int64) if leaf.dtype.kind in "bi" else leaf
    if isinstance(leaf, (int, float)):
        return int(leaf) if isinstance(leaf, bool) else leaf
    raise TypeError(f"cannot add values of type {type(leaf).__name__}")


def _add(a: Any, b: Any) -> Any:
    if getattr(a, "shape", ()) != getattr(b, "shape", ()):
        raise ValueError(f"shapes {np.shape(a)} and {np.shape(b)}")
    return a + b


def _weighted_sum(weights: FloatArray, leaf: NDArray[Any]) -> Any:
    flat = _wide(leaf).reshape(len(leaf), -1)
    w = weights.astype(flat.dtype) if flat.dtype.kind in "fc" else weights
    return (w @ flat).reshape(leaf.shape[1:])[()]

"""The weighted mean of updates, which the coordinator unpacks and adds up as they come."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from itertools import pairwise
from operator import add
from typing import Any

import numpy as np

from solera.core.aggregation import Aggregation, length
from solera.core.clients import Array, FloatArray
from solera.core.constraints import Positive
from solera.core.errors import PayloadError, SoleraError
from solera.core.payload import is_finite
from solera.core.replies import Batch, Reply, Stacked, map_leaves
from solera.learn.averaging.training.lazy_updates import LazyUpdates, StackedUpdates
from solera.learn.averaging.training.tile_threads import in_threads, one_thread
from solera.learn.averaging.updates import Parts, UpdateStep, unpack_update

_MANY = 1 << 22
"""Numbers of updates that threads fold sooner than one alone: some milliseconds of it."""


class UpdateMean(Aggregation):
    """The weighted mean of updates, unpacked; the numbers ``entries`` but ``rows`` beside it.

    ``weight`` names the entry to weigh by, or is None, or a function from a reply (a dict) to its
    weight. ``beside`` are vectors, and their lengths, that are weighed as the update is but are no
    part of it; ``plain`` such that are averaged with equal weights. ``count`` is how many there
    were. A reply with other entries is none, and an update longer than ``largest`` does not count.
    """

    additive = True

    def __init__(
        self,
        size: int = 1,
        *,
        steps: Sequence[UpdateStep] = (),
        weight: Any = "rows",
        entries: Sequence[str] = ("rows", "loss"),
        plain: Mapping[str, int] | None = None,
        beside: Mapping[str, int] | None = None,
        largest: Positive | None = None,
    ) -> None:
        self.size = size
        self.steps = steps
        self.weight = weight
        self.entries = entries
        self.plain = plain
        self.beside = beside
        self.largest = largest

    def lift(self, reply: Reply) -> Any:
        return self._sum_stacked(_stack_of_one(reply.payload))

    def combine(self, a: Any, b: Any) -> Any:
        return map_leaves(add, a, b)

    def fold(self, batch: Batch) -> Any:
        replies = batch.payloads
        if isinstance(replies, LazyUpdates) and len(batch):
            self._check(replies.rest)
            return self._sum(replies.rest, len(batch), replies.weighted_sum)
        if isinstance(replies, Stacked) and len(batch):
            return self._sum_stacked(replies.fields)
        return self.fold_one_by_one(batch)

    def fold_blocks(self, batch: Batch, bounds: Sequence[int]) -> list[Any]:
        replies = batch.payloads
        if isinstance(replies, LazyUpdates) and replies.on_gpu:
            # Each sum that leaves the GPU costs more than all additions there.
            return [self.fold(batch), *[None] * (len(bounds) - 2)]
        if isinstance(replies, LazyUpdates):
            return self._fold_lazy_blocks(replies, bounds)
        return super().fold_blocks(batch, bounds)

    def fold_together(self, batch: Batch, bounds: Sequence[int]) -> Any:
        replies = batch.payloads
        if not isinstance(replies, StackedUpdates) or replies.on_gpu or self.plain:
            return super().fold_together(batch, bounds)
        if not _is_small(replies):  # threads fold its blocks
            return super().fold_together(batch, bounds)
        self._check(replies.rest)
        weights = self._weights(replies.rest, len(replies))
        ends = list(pairwise(bounds))
        with one_thread():
            sums: Parts = {"update": replies.summed_blocks(weights, bounds)}
        for name, value in replies.rest.items():
            if name != "rows":
                sums[name] = reduce(add, (weights[a:b] @ value[a:b] for a, b in ends))
        weight = reduce(add, (float(weights[a:b].sum()) for a, b in ends))
        return {"weight": weight, "count": len(replies), "sums": sums, "plain": {}}

    def _fold_lazy_blocks(self, replies: LazyUpdates, bounds: Sequence[int]) -> list[Any]:
        """What is the same for all blocks is checked and computed once."""
        rest = replies.rest
        self._check(rest)
        weights = self._weights(rest, len(replies))
        entries = {n: v for n, v in rest.items() if n in self.entries and n != "rows"}

        def fold(block: tuple[int, int]) -> Any:
            chosen = slice(*block)
            own = weights[chosen]
            sums: Parts = {"update": replies.weighted_sum(own, chosen)}
            sums.update({name: own @ value[chosen] for name, value in entries.items()})
            return self._partial(own, sums, {n: rest[n][chosen] for n in self.plain or ()})

        return in_threads(fold, pairwise(bounds), small=_is_small(replies))

    def finish(self, partial: Any) -> Any:
        total = partial["weight"]
        if not total > 0:
            raise SoleraError(
                f"the weights of all replies add up to {total}",
                hint="at least one client must have a positive weight",
            )
        count = partial["count"]
        means = {name: value / total for name, value in partial["sums"].items()}
        means.update({name: value / count for name, value in partial["plain"].items()})
        return {**means, "count": count}

    def sound(self, partial: Any) -> bool:
        if partial is None or self.largest is None:
            return is_finite(partial)
        apart = {"loss", *(self.beside or ())}
        sums = {n: np.atleast_1d(v) for n, v in partial["sums"].items() if n not in apart}
        return (
            is_finite(partial)
            and length(sums) <= self.largest * partial["weight"]
            and length(partial["plain"]) <= self.largest * partial["count"]
        )

    def alone(self, reply: Reply) -> tuple[float, Parts]:
        """The weight of a reply and the values that it weighs, its update unpacked."""
        fields = _stack_of_one(reply.payload)
        values, rest = self._unpack(fields)
        parts = {name: value[0] for name, value in rest.items() if name != "rows"}
        return float(self._weights(rest, 1)[0]), {"update": values[0], **parts}

    def _unpack(self, fields: Mapping[str, Any]) -> tuple[Array, Parts]:
        if "update" not in fields:
            raise PayloadError("the reply has no entry 'update'")
        rest = {n: v for n, v in fields.items() if n != "update"}
        self._check(rest)
        return unpack_update(fields["update"], self.steps, self.size), rest

    def _check(self, fields: Mapping[str, Any]) -> None:
        """Raise an error for entries beside the update that are not those of every reply."""
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(self.entries, ())
        vectors = {**(self.plain or {}), **(self.beside or {})}
        shapes |= {name: (size,) for name, size in vectors.items()}
        for name in shapes.keys() | fields.keys():
            if name not in fields or name not in shapes:
                which = "has no" if name in shapes else "has an unknown"
                raise PayloadError(f"the reply {which} entry {name!r}")
            found = np.shape(fields[name])[1:]
            if found != shapes[name] or np.asarray(fields[name]).dtype.kind not in "iuf":
                raise PayloadError(f"the entry {name!r} has shape {found}, not {shapes[name]}")

    def _sum_stacked(self, fields: Mapping[str, Any]) -> Any:
        values, rest = self._unpack(fields)
        return self._sum(rest, len(values), lambda weights: weights.astype(values.dtype) @ values)

    def _sum(
        self,
        fields: Mapping[str, Any],
        count: int,
        weighted_sum: Callable[[FloatArray], Array],
    ) -> Any:
        weights = self._weights(fields, count)
        weighed = {*self.entries, *(self.beside or ())} - {"rows"}
        rest = {n: v for n, v in fields.items() if n in weighed}
        weighted = {"update": weighted_sum(weights)}
        weighted.update({name: weights @ value for name, value in rest.items()})
        return self._partial(weights, weighted, {n: fields[n] for n in self.plain or ()})

    def _partial(self, weights: FloatArray, weighted: Parts, plain: Parts) -> Any:
        return {
            "weight": float(weights.sum()),
            "count": len(weights),
            "sums": weighted,
            "plain": {name: value.sum(axis=0) for name, value in plain.items()},
        }

    def _weights(self, fields: Mapping[str, Any], count: int) -> FloatArray:
        if self.weight is None:
            return np.ones(count)
        if callable(self.weight):
            each = [self.weight({n: v[i] for n, v in fields.items()}) for i in range(count)]
            weights = np.asarray(each, dtype=np.float64)
        else:
            weights = np.asarray(fields[self.weight], dtype=np.float64)
        if not (np.isfinite(weights).all() and (weights >= 0).all()):
            raise PayloadError(f"weights must be finite and not negative, not {weights}")
        return weights


def _is_small(replies: LazyUpdates) -> bool:
    return len(replies) * replies.kind[0] < _MANY


def _stack_of_one(payload: Any) -> Any:
    if not isinstance(payload, Mapping):
        raise PayloadError("the reply is no update")
    return {
        name: _stack_of_one(value) if isinstance(value, Mapping) else np.asarray(value)[None]
        for name, value in payload.items()
    }

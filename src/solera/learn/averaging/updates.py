"""What happens to an update on its way: clipping, noise, masks, compression.

The steps form one onion. A client applies them in order to its update, the coordinator undoes them
in reverse order before it averages. An update is a dict of tensors whose first axis is the client;
its entry ``values`` is what steps work on. Steps that lose something come last; what they lost is
kept by the client and added to its next update (error feedback, Seide et al. 2014).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solera.core.aggregation import Aggregation
from solera.core.errors import PayloadError, SoleraError, UsageError
from solera.core.replies import Batch, Reply, Stacked
from solera.core.rng import Bits
from solera.learn.averaging.training.layers import torch
from solera.learn.averaging.training.lazy_updates import Held
from solera.learn.averaging.update_steps import Parts, Quantise, TopK, UpdateStep

_RESIDUAL = "update_residual"


@dataclass(frozen=True)
class Senders:
    """The clients whose updates are on their way: their keys, and what each keeps."""

    keys: Bits
    states: Sequence[MutableMapping[str, Any]]


def check_steps(owner: object, steps: Sequence[Any]) -> None:
    """Lossy steps come last: noise added after compression would not be what was promised."""
    shown = f"update_steps={list(steps)!r}"
    for step in steps:
        if not isinstance(step, UpdateStep):
            hint = "for example [so.Clip(1.0), so.TopK(0.01)]"
            raise UsageError.of(owner, "update_steps", step, "must be update steps", hint=hint)
        step.check()
    order = [step.lossy for step in steps]
    if order != sorted(order):
        raise UsageError(f"{shown}: compression comes after clipping and noise")
    lossy = [type(step) for step in steps if step.lossy]
    if len(set(lossy)) < len(lossy):
        raise UsageError(f"{shown}: each kind of compression can be used once")
    if Quantise in lossy[:-1]:
        raise UsageError(f"{shown}: Quantise comes last")
    if TopK in lossy and not all(step.feeds_back for step in steps):
        raise UsageError(
            f"{shown}: TopK needs error feedback", hint="use RandomMask with unbiased=False"
        )


def pack_update(values: Any, steps: Sequence[UpdateStep], senders: Senders) -> Parts:
    """The client's side of the onion; states remember what compression lost."""
    for step in steps:
        step.check()
    lossy = [step for step in steps if step.lossy]
    fed_back = lossy if all(step.feeds_back for step in lossy) else []
    parts: Parts = {"values": values}
    for step in steps[: len(steps) - len(fed_back)]:
        parts = step.send(parts, senders.keys)
    if not fed_back:
        return parts
    held = [state.get(_RESIDUAL) for state in senders.states]
    if any(residual is not None for residual in held):
        nothing = np.zeros(values.shape[1], np.dtype(str(values.dtype).removeprefix("torch.")))
        rows = [nothing if residual is None else residual for residual in held]
        parts["values"] = parts["values"] + torch().from_numpy(np.stack(rows)).to(values)
    wanted = _numpy(parts["values"])
    for step in fed_back:
        parts = step.send(parts, senders.keys)
    arrived = unpack_update({n: _numpy(v) for n, v in parts.items()}, fed_back, wanted.shape[1])
    for state, residual in zip(senders.states, wanted - arrived, strict=True):
        state[_RESIDUAL] = residual
    return parts


def unpack_update(
    parts: Mapping[str, NDArray[Any]], steps: Sequence[UpdateStep], size: int
) -> NDArray[Any]:
    """The coordinator's side: dense updates, (clients, size)."""
    sizes = [size]
    for step in steps:
        sizes.append(step.sent_size(sizes[-1]))
    try:
        for step, before in zip(reversed(steps), reversed(sizes[:-1]), strict=True):
            parts = step.receive(parts, before)
        values = parts["values"]
    except KeyError as missing:
        raise PayloadError(f"an update has no entry {missing}") from None
    if values.shape[1:] != (size,):
        raise PayloadError(f"an update has shape {values.shape[1:]}, not ({size},)")
    return values


def _numpy(value: Any) -> NDArray[Any]:
    return value if isinstance(value, np.ndarray) else value.cpu().numpy()


class UpdateMean(Aggregation):
    """The weighted mean of updates, unpacked; other entries are averaged beside it.

    ``weight`` names the entry to weigh by, or is None, or a function from a reply (a dict) to its
    weight. ``plain`` entries are averaged with equal weights.
    """

    def __init__(
        self,
        size: int = 1,
        *,
        steps: Sequence[UpdateStep] = (),
        weight: Any = "rows",
        plain: Sequence[str] = (),
    ) -> None:
        self.size = size
        self.steps = steps
        self.weight = weight
        self.plain = plain

    def lift(self, reply: Reply) -> Any:
        return self._sum_stacked(_stack_of_one(reply.payload))

    def combine(self, a: Any, b: Any) -> Any:
        return {
            "weight": a["weight"] + b["weight"],
            "count": a["count"] + b["count"],
            "sums": {name: a["sums"][name] + b["sums"][name] for name in a["sums"]},
            "plain": {name: a["plain"][name] + b["plain"][name] for name in a["plain"]},
        }

    def fold(self, batch: Batch) -> Any:
        replies = batch.payloads
        if isinstance(replies, Held) and len(batch):
            return self._sum(replies.rest, len(batch), replies.weighted_sum)
        if isinstance(replies, Stacked) and len(batch):
            return self._sum_stacked(replies.fields)
        return self.fold_one_by_one(batch)

    def finish(self, partial: Any) -> Any:
        total = partial["weight"]
        if not total > 0:
            raise SoleraError(
                f"the weights of all replies add up to {total}",
                hint="at least one client must have a positive weight",
            )
        means = {name: value / total for name, value in partial["sums"].items()}
        return {**means, **{n: v / partial["count"] for n, v in partial["plain"].items()}}

    def _sum_stacked(self, fields: Mapping[str, Any]) -> Any:
        if "update" not in fields:
            raise PayloadError("the reply has no entry 'update'")
        values = unpack_update(fields["update"], self.steps, self.size)
        rest = {n: v for n, v in fields.items() if n != "update"}
        return self._sum(rest, len(values), lambda weights: weights.astype(values.dtype) @ values)

    def _sum(
        self,
        fields: Mapping[str, Any],
        count: int,
        weighted_sum: Callable[[NDArray[np.float64]], NDArray[Any]],
    ) -> Any:
        weights = self._weights(fields, count)
        rest = {n: v for n, v in fields.items() if n not in ("rows", *self.plain)}
        weighted = {"update": weighted_sum(weights)}
        weighted.update({name: weights @ value for name, value in rest.items()})
        return {
            "weight": float(weights.sum()),
            "count": count,
            "sums": weighted,
            "plain": {name: fields[name].sum(axis=0) for name in self.plain},
        }

    def _weights(self, fields: Mapping[str, Any], count: int) -> NDArray[np.float64]:
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


def _stack_of_one(payload: Any) -> Any:
    if not isinstance(payload, Mapping):
        raise PayloadError("the reply is no update")
    return {
        name: _stack_of_one(value) if isinstance(value, Mapping) else np.asarray(value)[None]
        for name, value in payload.items()
    }

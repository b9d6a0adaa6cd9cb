"""What happens to an update on its way: clipping, noise, masks, compression.

The steps form one onion. A client applies them in order to its update, the coordinator undoes them
in reverse order before it averages. An update is a dict of tensors whose first axis is the client;
its entry ``values`` is what steps work on. Steps that lose something come last; what they lost is
kept by the client and added to its next update (error feedback, Seide et al. 2014).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, MutableMapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from solera.core.clients import Array, Client, FloatArray, IntArray
from solera.core.component import Component
from solera.core.constraints import NonNegative, Positive, PositiveFraction
from solera.core.errors import PayloadError, UsageError
from solera.core.rng import Bits, random_bits, uniform
from solera.learn.averaging.training.devices import torch
from solera.trust.randomness import Randomness, protecting

Parts = dict[str, Any]
"""The entries of an update: tensors at a client, arrays at the coordinator."""
_RESIDUAL = "update_residual"


class UpdateStep(Component, abstract=True):
    """One layer of the onion."""

    lossy: ClassVar[bool] = False
    """Whether the coordinator gets back less than was put in."""
    protects: ClassVar[bool] = False
    """Whether it draws what protects a client: from :class:`Randomness`, not from keys."""

    @property
    def feeds_back(self) -> bool:
        """Whether what this step loses may be added to the next update."""
        return True

    @abstractmethod
    def send(self, parts: Parts, draws: Any) -> Parts:
        """The client's side; ``draws`` are the clients' stream keys, or what protects them."""

    def receive(self, parts: Parts, size: int) -> Parts:
        """The coordinator's side; ``size`` is the length of the values before :meth:`send`."""
        return parts

    def sent_size(self, size: int) -> int:
        """The length of the values after :meth:`send`."""
        return size


class Clip(UpdateStep):
    """Scale an update down to the Euclidean norm ``norm`` if it is longer."""

    def __init__(self, norm: Positive) -> None:
        self.norm = norm

    def send(self, parts: Parts, draws: Bits) -> Parts:
        lengths = torch().linalg.vector_norm(parts["values"], dim=1, keepdim=True)
        scale = (self.norm / lengths.clamp(min=1e-30)).clamp(max=1)
        return {**parts, "values": parts["values"] * scale}


class Noise(UpdateStep):
    """Add Gaussian noise N(0, deviation²) to every number; each client draws its own secretly.

    What it is worth nobody counts here: ``dp=so.DP(…)`` clips, adds noise and says which ε it is.
    """

    protects = True

    def __init__(self, deviation: NonNegative) -> None:
        self.deviation = deviation

    def send(self, parts: Parts, draws: Sequence[Randomness]) -> Parts:
        values = parts["values"]
        noised = [
            draw.add_normal(update.cpu().numpy(), self.deviation)
            for draw, update in zip(draws, values, strict=True)
        ]
        return {**parts, "values": torch().from_numpy(np.stack(noised)).to(values)}


class Sparse(UpdateStep, abstract=True):
    """Only a ``fraction`` of the numbers is sent."""

    lossy: ClassVar[bool] = True
    fraction: float

    def sent_size(self, size: int) -> int:
        return max(1, math.ceil(self.fraction * size))


class TopK(Sparse):
    """Send only the ``fraction`` of the numbers that are largest in size, and where they are."""

    def __init__(self, fraction: PositiveFraction = 0.01) -> None:
        self.fraction = fraction

    def send(self, parts: Parts, draws: Bits) -> Parts:
        values = parts["values"]
        places = values.abs().topk(self.sent_size(values.shape[1]), dim=1).indices
        places = places.sort(dim=1).values
        kind = torch().int32
        return {**parts, "values": values.gather(1, places), "places": places.to(kind)}

    def receive(self, parts: Parts, size: int) -> Parts:
        places, sent = parts.pop("places"), parts["values"]
        if places.shape != sent.shape or places.min() < 0 or places.max() >= size:
            raise PayloadError(f"places of a compressed update must lie in 0 … {size - 1}")
        return {**parts, "values": _scattered(sent, places.astype(np.int64), size)}


class RandomMask(Sparse):
    """Send only a random ``fraction`` of the numbers, and the seed that says which.

    Every client draws a new mask in every round, so that each number is sent by some clients and
    by each client some time (Konečný et al. 2016, random masks and subsampling). Of d numbers m are
    sent; the others are fed back. With ``unbiased`` those that are sent are multiplied by d/m and
    nothing is fed back: E[M(x)] = x, which suits clients that take part only once.

    The mask is compression and hides nothing: the coordinator reads every number that is sent.
    Masks that hide single updates and cancel in their sum (Bonawitz et al. 2017) need secrets
    between clients, which the coordinator's seeds are not; they belong to secure aggregation.
    """

    def __init__(self, fraction: PositiveFraction = 0.1, *, unbiased: bool = False) -> None:
        self.fraction = fraction
        self.unbiased = unbiased

    @property
    def feeds_back(self) -> bool:
        return not self.unbiased  # both would make the residual grow without bounds

    def send(self, parts: Parts, draws: Bits) -> Parts:
        values = parts["values"]
        size = values.shape[1]
        seeds = (random_bits(draws, 4 << 56) >> np.uint64(1)).astype(np.int64)
        places = torch().from_numpy(_drawn_places(seeds, size, self.sent_size(size)))
        sent = values.gather(1, places.to(values.device))
        if self.unbiased:
            sent = sent * (size / sent.shape[1])
        return {**parts, "values": sent, "mask": seeds}

    def receive(self, parts: Parts, size: int) -> Parts:
        seeds, sent = parts.pop("mask"), parts["values"]
        count = self.sent_size(size)
        if sent.shape != (len(seeds), count) or seeds.dtype.kind != "i" or seeds.ndim != 1:
            raise PayloadError(f"a masked update must have {count} numbers and one seed")
        places = _drawn_places(seeds, size, count)
        return {**parts, "values": _scattered(sent, places, size)}


def _scattered(sent: Array, places: IntArray, size: int) -> Array:
    """Vectors of this size with the numbers that were sent in their places, and 0 elsewhere."""
    values = np.zeros((len(sent), size), sent.dtype)
    np.put_along_axis(values, places, sent, axis=1)
    return values


def _drawn_places(seeds: IntArray, size: int, count: int) -> IntArray:
    """``count`` of ``size`` places for every seed, in order; bits of one seed are never equal."""
    places = np.empty((len(seeds), count), np.int64)
    for row, seed in zip(places, seeds.astype(np.uint64), strict=True):
        row[:] = np.argpartition(random_bits(seed, np.arange(size)), count - 1)[:count]
    places.sort(axis=1)
    return places


class Quantise(UpdateStep):
    """Send every number as one of 2^bits levels between the smallest and the largest.

    Rounding is random and unbiased (Alistarh et al. 2017): E[Q(x)] = x.
    """

    lossy: ClassVar[bool] = True

    def __init__(self, bits: Literal[4, 8, 16] = 8) -> None:
        self.bits = bits

    def send(self, parts: Parts, draws: Bits) -> Parts:
        values = parts["values"]
        low = values.min(dim=1, keepdim=True).values
        step = (values.max(dim=1, keepdim=True).values - low) / (2**self.bits - 1)
        drawn = torch().from_numpy(_uniform(draws, values.shape[1], purpose=1)).to(values)
        scaled = (values - low) / step.clamp(min=1e-30)
        codes = (scaled + drawn).floor().clamp(0, 2**self.bits - 1)
        packed = _pack(codes.to("cpu", torch().int32).numpy(), self.bits)
        return {**parts, "values": packed, "low": low[:, 0], "step": step[:, 0]}

    def receive(self, parts: Parts, size: int) -> Parts:
        low, step = parts.pop("low"), parts.pop("step")
        codes = _unpack(parts["values"], self.bits, size)
        values = (codes * step[:, None] + low[:, None]).astype(low.dtype)
        return {**parts, "values": values}


def _pack(codes: NDArray[np.int32], bits: int) -> Array:
    if bits != 4:
        return codes.astype(np.uint8 if bits == 8 else np.uint16)
    even = np.pad(codes, ((0, 0), (0, codes.shape[1] % 2))).astype(np.uint8)
    return even[:, ::2] << 4 | even[:, 1::2]


def _unpack(packed: Array, bits: int, size: int) -> Array:
    if bits == 4:
        packed = np.stack([packed >> 4, packed & 15], axis=2).reshape(len(packed), -1)[:, :size]
    if packed.shape[1] != size or packed.dtype.kind != "u":
        raise PayloadError(f"a quantised update has {packed.shape[1]} numbers, not {size}")
    return packed


def _uniform(keys: Bits, count: int, purpose: int) -> FloatArray:
    """Numbers in [0, 1), one row per client, the same whoever else is in the group."""
    return uniform(keys[:, None], (purpose << 56) + np.arange(count))


def check_steps(steps: Sequence[UpdateStep]) -> None:
    """Lossy steps come last: noise added after compression would not be what was promised."""
    for step in steps:
        step.check_params()
    shown = f"update_steps={list(steps)!r}"
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


def pack_update(
    values: Any,
    steps: Sequence[UpdateStep],
    keys: Bits,
    states: Sequence[MutableMapping[str, Any]],
    clients: Iterable[Client] = (),
) -> Parts:
    """The client's side of the onion; each client's state remembers what compression lost."""
    lossy = [step for step in steps if step.lossy]
    fed_back = lossy if all(step.feeds_back for step in lossy) else []
    parts: Parts = {"values": values}
    for place, step in enumerate(steps[: len(steps) - len(fed_back)]):
        draws: Any = keys
        if step.protects:
            draws = [protecting(client, f"update step {place}") for client in clients]
        parts = step.send(parts, draws)
    if not fed_back:
        return _numpy(parts)
    residuals = [state.get(_RESIDUAL) for state in states]
    if any(residual is not None for residual in residuals):
        nothing = np.zeros(values.shape[1], np.dtype(str(values.dtype).removeprefix("torch.")))
        rows = [nothing if residual is None else residual for residual in residuals]
        parts["values"] = parts["values"] + torch().from_numpy(np.stack(rows)).to(values)
    wanted = parts["values"].cpu().numpy()
    for step in fed_back:
        parts = step.send(parts, keys)
    sent = _numpy(parts)
    arrived = unpack_update(sent, fed_back, wanted.shape[1])
    for state, residual in zip(states, wanted - arrived, strict=True):
        state[_RESIDUAL] = residual
    return sent


def unpack_update(parts: Parts, steps: Sequence[UpdateStep], size: int) -> Array:
    """The coordinator's side: dense updates, (clients, size)."""
    sizes = [size]
    for step in steps:
        sizes.append(step.sent_size(sizes[-1]))
    try:
        for step, before in zip(reversed(steps), reversed(sizes[:-1]), strict=True):
            parts = step.receive(dict(parts), before)
        values: Array = parts["values"]
    except KeyError as missing:
        raise PayloadError(f"an update has no entry {missing}") from None
    if values.shape[1:] != (size,) or values.dtype.kind != "f":
        raise PayloadError(
            f"an update is {values.dtype} of shape {values.shape[1:]}, not numbers of ({size},)"
        )
    return values


def _numpy(parts: Parts) -> Parts:
    return {n: v if isinstance(v, np.ndarray) else v.cpu().numpy() for n, v in parts.items()}

"""Randomness that protects: noise, and which rows are drawn, that nobody else can compute again.

Draws of ``client.rng`` follow from the run's seed, which the driver knows: noise from there can be
subtracted, and a sample from there is no secret. Whatever protects is drawn here instead. At an
agent it comes from the system's randomness (``client.secret``: on disk before the task runs, the
same when the ask is tried again, so that no average over several draws takes noise away) through
AES-256 in counter mode. The rows are part of the key: the same ask on other rows has other noise,
or two replies would differ by exactly what the new rows have changed. In a simulation it is seeded,
as everything there, and protects nobody: learners say so.
"""

from __future__ import annotations

import math
from functools import cache
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.random import Philox
from numpy.typing import NDArray

from solera.core.clients import Array, BoolArray, Client, FloatArray, IntArray

Words = NDArray[np.uint64]

_LAYERS = 256
_TAIL = 3.6541528853610088
_AREA = 0.00492867323399141
"""Where the lowest layer of 256 ends, and the area of each (Doornik 2005)."""
_AT_ONCE = 1 << 14
"""Numbers that are drawn at once: as many as the processor's cache holds."""
_GRID = 2.0**-20
"""Noised numbers are multiples of this share of the noise; see :meth:`Randomness.add_normal`."""
_MULTIPLIER = 0x9E3779B97F4A7C15


def protecting(client: Client, purpose: str) -> Randomness:
    """What a client draws all that protects it from; another ``purpose`` has other draws."""
    draws = client.draws
    told = blake2b(purpose.encode(), digest_size=32)
    if draws.secret is None:
        where = f"/{draws.seed}/{draws.purpose}/{draws.round}/{client.id}"
        told.update(where.encode())
        return _Simulated(told.digest())
    told.update(draws.secret)
    rows = client.data.part("train")
    told.update(row_digests(rows.X, rows.y).tobytes())
    return _Secret(told.digest())


class Randomness:
    """A stream of random words and what is drawn from them."""

    simulated: bool

    def words(self, count: int) -> Words:
        """The next 64 random bits, so many times."""
        raise NotImplementedError

    def uniform(self, count: int) -> FloatArray:
        """Numbers in (0, 1), 53 bits each."""
        return np.asarray(((self.words(count) >> np.uint64(11)) + 0.5) * 2.0**-53)

    def chosen(self, count: int, rate: float) -> BoolArray:
        """Marks, each true with this probability and for itself: Poisson sampling."""
        return np.asarray(self.uniform(count) < rate)

    def normal(self, count: int, *, single: bool = False) -> Array:
        """Standard normal numbers, by the ziggurat of Marsaglia & Tsang (2000).

        Of a word 8 bits choose a layer and the others a place in it, which is nearly always under
        the curve for good; those that are not, one in eighty, are decided one by one. ``single``:
        numbers of 32 bits from words of 32.
        """
        edges, inner = _ziggurat(single)
        drawn = np.empty(count, edges.dtype)
        signed, scale = (np.int32, 2.0**-23) if single else (np.int64, 2.0**-55)
        unsure, layers = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for first in range(0, count, _AT_ONCE):
            part = drawn[first : first + _AT_ONCE]
            words: Any = self.words(-(-len(part) // 2) if single else len(part)).view(signed)
            words = words[: len(part)]
            layer = (words & (_LAYERS - 1)).astype(np.int64)
            np.multiply(words >> 8, drawn.dtype.type(scale), out=part)
            outside = np.flatnonzero(np.abs(part) >= inner.take(layer))
            np.multiply(part, edges.take(layer), out=part)
            unsure.append(first + outside)
            layers.append(layer.take(outside))
        where = np.concatenate(unsure)
        if len(where):
            drawn[where] = self._decided(np.concatenate(layers), drawn[where].astype(np.float64))
        return drawn

    def _decided(self, layer: IntArray, x: FloatArray) -> FloatArray:
        """What becomes of numbers beyond the part of their layer that is under the curve."""
        edges, _ = _ziggurat(False)
        tail = layer == 0
        if tail.any():
            x[tail] = np.copysign(self._beyond(int(tail.sum())), x[tail])
        others = np.flatnonzero(~tail)
        upper, lower = edges[layer[others]], edges[layer[others] + 1]
        high = np.exp(-0.5 * (upper**2 - x[others] ** 2))
        low = np.exp(-0.5 * (lower**2 - x[others] ** 2))
        rejected = others[high + self.uniform(len(others)) * (low - high) >= 1.0]
        if len(rejected):
            x[rejected] = self.normal(len(rejected))
        return x

    def _beyond(self, count: int) -> FloatArray:
        """Normal numbers above the lowest layer, by the inverse of the distribution."""
        from scipy.special import ndtr, ndtri

        return -np.asarray(ndtri(self.uniform(count) * ndtr(-_TAIL)))

    def laplace(self, count: int) -> FloatArray:
        """Laplace noise of scale 1: the difference of two exponentials."""
        return np.asarray(np.log(self.uniform(count)) - np.log(self.uniform(count)))

    def add_normal(self, values: FloatArray, deviation: float) -> FloatArray:
        """values + N(0, deviation²), on a grid.

        The last bits of a sum of floating-point numbers tell which sums are possible (Mironov
        2012); rounding to multiples of 2⁻²⁰ of the deviation leaves none of them.
        """
        noised = np.asarray(values, dtype=np.float64)
        noised = noised + deviation * self.normal(noised.size).reshape(noised.shape)
        return _on_grid(noised, deviation)

    def add_laplace(self, values: FloatArray, scale: float) -> FloatArray:
        """values + Laplace noise of that scale, on a grid as well."""
        noised = np.asarray(values, dtype=np.float64)
        noised = noised + scale * self.laplace(noised.size).reshape(noised.shape)
        return _on_grid(noised, scale)


class _Secret(Randomness):
    """AES-256 in counter mode; who does not hold the key cannot tell it from chance."""

    simulated = False

    def __init__(self, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        self._stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()

    def words(self, count: int) -> Words:
        drawn: Words = np.frombuffer(self._stream.update(bytes(8 * count)), dtype=np.uint64)
        return drawn


class _Simulated(Randomness):
    """A generator that follows from the seed of a simulation."""

    simulated = True

    def __init__(self, key: bytes) -> None:
        self._stream = Philox(key=np.frombuffer(key[:16], dtype=np.uint64))

    def words(self, count: int) -> Words:
        return np.asarray(self._stream.random_raw(count))


def _on_grid(values: FloatArray, noise: float) -> FloatArray:
    if noise <= 0:
        return values
    step = 2.0 ** np.floor(np.log2(noise)) * _GRID
    return np.asarray(np.rint(values / step) * step)


@cache
def _ziggurat(single: bool) -> tuple[Array, Array]:
    """Right edges of all layers, and the share of each that is under the curve for sure."""
    edges = np.zeros(_LAYERS + 1)
    height = np.exp(-0.5 * _TAIL**2)
    edges[0], edges[1] = _AREA / height, _TAIL
    for i in range(2, _LAYERS):
        edges[i] = np.sqrt(-2 * np.log(_AREA / edges[i - 1] + height))
        height = np.exp(-0.5 * edges[i] ** 2)
    kind = np.float32 if single else np.float64
    return edges.astype(kind), (edges[1:] / edges[:-1]).astype(kind)


def row_digests(*columns: Any) -> IntArray:
    """A number for every row that is the same for equal rows, in order."""
    return np.sort(numbered_rows(*columns))


def numbered_rows(*columns: Any) -> IntArray:
    """A number for every row that is the same for equal rows."""
    total: Any = None
    for array in columns:
        if array is None:
            continue
        dense = array.toarray() if hasattr(array, "toarray") else np.asarray(array)
        dense = dense.reshape(len(dense), math.prod(dense.shape[1:]))
        if dense.dtype.kind not in "biuf":
            dense = np.unique(dense, return_inverse=True)[1].reshape(dense.shape)
        bits = np.ascontiguousarray(dense, dtype=np.float64).view(np.uint64)
        total = _digest(bits, total)
    return np.asarray(total).view(np.int64)


def _digest(bits: Any, total: Any) -> Any:
    with np.errstate(over="ignore"):
        total = np.full(len(bits), 17, dtype=np.uint64) if total is None else total
        for column in bits.T:
            total = (total ^ column) * np.uint64(_MULTIPLIER)
            total ^= total >> np.uint64(29)
    return total

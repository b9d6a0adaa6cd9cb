"""Where the numbers of an array sit inside CKKS plaintexts. NumPy only, nothing secret.

A CKKS plaintext is a real polynomial of N coefficients. The canonical embedding takes it to N/2
complex *slots*, its values at the roots ζ^(3^j), ζ = exp(iπ/N) (Cheon, Kim, Kim, Song 2017; the
generator 3 is SEAL's). Products act slot by slot, or as the negacyclic convolution of the
coefficients. Both views hold N real numbers, and each layout takes the one that suits its product:

``flat``
    any shape, C order, N numbers a block, as coefficients. Sums need nothing else.
``systems``
    T × C × d vectors that meet one matrix per T. Two outputs that share a matrix become one complex
    vector, and slot i·S + s holds coordinate i of the s-th of the block's S vectors: a rotation by
    k·S moves every vector by k coordinates at once.
``rows``
    C × d results of the coefficient product: the rows of a block, C·d coefficients apart, each
    output d apart. All other coefficients are of no meaning.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Layout: TypeAlias = Literal["flat", "systems", "rows"]
LAYOUTS: tuple[Layout, ...] = ("flat", "systems", "rows")
Reals: TypeAlias = NDArray[np.float64]
Slots: TypeAlias = NDArray[np.complex128]


@lru_cache(maxsize=8)
def _roots(degree: int) -> tuple[NDArray[np.int64], Slots]:
    """The place of each slot's root among the odd powers of ζ, and ζ⁰ … ζᴺ⁻¹."""
    powers = np.empty(degree // 2, np.int64)
    power = 1
    for slot in range(degree // 2):
        powers[slot] = power
        power = power * 3 % (2 * degree)
    return powers // 2, np.exp(1j * np.pi * np.arange(degree) / degree)


def embed(coefficients: Reals) -> Slots:
    """The slots of real polynomials (last axis: coefficients)."""
    places, twist = _roots(coefficients.shape[-1])
    return np.asarray(np.fft.ifft(coefficients * twist, norm="forward")[..., places])


def extract(slots: Slots) -> Reals:
    """The coefficients of the real polynomials with these slots."""
    degree = 2 * slots.shape[-1]
    places, twist = _roots(degree)
    values = np.zeros((*slots.shape[:-1], degree), np.complex128)
    values[..., places] = slots
    return np.asarray(2 / degree * (np.fft.fft(values) * twist.conj()).real)


def stride(shape: tuple[int, ...], degree: int) -> int:
    """S of the layout ``systems``: vectors in a block, and slots between two coordinates."""
    members, outputs, size = shape
    return min(degree // 2 // size, members * _pairs(outputs))


def rows_per_block(shape: tuple[int, ...], degree: int) -> int:
    """Matrix rows whose products with all outputs fit into the coefficients of one block."""
    return degree // math.prod(shape)


def fits(layout: Layout, shape: tuple[int, ...], degree: int) -> bool:
    """Whether arrays of this shape have a place in the layout."""
    if not shape or min(shape) < 1:
        return False
    if layout == "flat":
        return True
    if layout == "systems":
        return len(shape) == 3 and shape[-1] <= degree // 2
    return len(shape) == 2 and math.prod(shape) <= degree


def block_count(layout: Layout, shape: tuple[int, ...], degree: int) -> int:
    """Plaintexts that arrays of this shape take."""
    if layout == "flat":
        return -(-math.prod(shape) // degree)
    if layout == "systems":
        return -(-shape[0] * _pairs(shape[1]) // stride(shape, degree))
    return -(-shape[-1] // rows_per_block(shape, degree))


def pack(values: Reals, layout: Layout, degree: int) -> Slots:
    """Blocks × slots holding ``values``; products make ``rows``, nobody packs them."""
    blocks = block_count(layout, values.shape, degree)
    if layout == "flat":
        return embed(_padded(values.reshape(-1), blocks * degree).reshape(blocks, degree))
    outputs, size = values.shape[1:]
    paired = _padded(values, 2 * _pairs(outputs), axis=1)
    vectors = (paired[:, ::2] + 1j * paired[:, 1::2]).reshape(-1, size)
    systems = stride(values.shape, degree)
    placed = _padded(vectors, blocks * systems, axis=0).reshape(blocks, systems, size)
    return _padded(placed.swapaxes(1, 2).reshape(blocks, -1), degree // 2)


def unpack(slots: Slots, layout: Layout, shape: tuple[int, ...]) -> Reals:
    """The array of this shape held by blocks × slots."""
    blocks, degree = slots.shape[0], 2 * slots.shape[1]
    if layout == "flat":
        return extract(slots).reshape(-1)[: math.prod(shape)].reshape(shape)
    if layout == "rows":
        rows = rows_per_block(shape, degree)
        results = extract(slots)[:, useful(shape, degree)].reshape(blocks * rows, shape[0])
        return np.ascontiguousarray(results[: shape[1]].T)
    members, outputs, size = shape
    systems = stride(shape, degree)
    placed = slots[:, : systems * size].reshape(blocks, size, systems).swapaxes(1, 2)
    vectors = placed.reshape(-1, size)[: members * _pairs(outputs)].reshape(members, -1, size)
    paired = np.stack((vectors.real, vectors.imag), axis=2).reshape(members, -1, size)
    return np.ascontiguousarray(paired[:, :outputs])


def useful(shape: tuple[int, ...], degree: int) -> NDArray[np.int64]:
    """Coefficients of a ``rows`` block that hold results: d−1, 2d−1, … for every row and output."""
    outputs, size = shape
    return size - 1 + size * np.arange(rows_per_block(shape, degree) * outputs)


def _pairs(outputs: int) -> int:
    return -(-outputs // 2)


def _padded(array: NDArray[Any], length: int, axis: int = -1) -> NDArray[Any]:
    """``array`` with zeros up to ``length`` along an axis."""
    widths = [(0, 0)] * array.ndim
    widths[axis] = (0, length - array.shape[axis])
    return np.pad(array, widths)

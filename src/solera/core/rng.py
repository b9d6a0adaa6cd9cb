"""Same seed, same bits: every random draw is a function of (seed, purpose, round, client).

Two ways to draw. :func:`generator` gives an ordinary NumPy generator. :func:`stream_keys` gives one
64-bit key per client for whole arrays of clients at once, and :func:`random_bits` turns keys and
counters into bits, so a ``many=`` task can draw for a thousand clients without a thousand
generators and still draw for each exactly what it would draw alone.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from numpy.typing import ArrayLike, NDArray

Bits = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _base(seed: int, purpose: str, round: int) -> int:
    text = f"{int(seed)}/{purpose}/{int(round)}".encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little")


def _mix(z: Bits) -> Bits:
    """The finaliser of SplitMix64 (Steele, Lea & Flood 2014): a bijection that scatters bits."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def generator(
    seed: int, purpose: str, round: int = 0, client: int | None = None
) -> np.random.Generator:
    """A generator of its own for every (seed, purpose, round, client)."""
    who = 0 if client is None else int(client) + 1
    key = np.array([_base(seed, purpose, round), who], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


def generator_uniforms(
    seed: int, purpose: str, round: int, clients: ArrayLike, sizes: ArrayLike
) -> NDArray[np.float64]:
    """What ``generator(seed, purpose, round, client).random(size)`` draws, of all clients at once.

    The generator's bits are those of Philox4x64-10 (Salmon, Moraes, Dror & Shaw 2011): four words
    of every block are a function of the key and the number of the block, which begins with 1.
    """
    sizes = np.asarray(sizes, dtype=np.int64)
    blocks = -(-sizes // 4)
    who = np.repeat(np.asarray(clients, dtype=np.uint64) + np.uint64(1), blocks)
    ends = np.cumsum(blocks)
    number = np.arange(1, int(blocks.sum()) + 1) - np.repeat(ends - blocks, blocks)
    zero = np.zeros(len(who), dtype=np.uint64)
    words = [number.astype(np.uint64), zero, zero, zero]
    keys = [np.full(len(who), _base(seed, purpose, round), dtype=np.uint64), who]
    with np.errstate(over="ignore"):
        for _ in range(10):
            high0, low0 = _multiplied(np.uint64(0xD2E7470EE14C6C93), words[0])
            high1, low1 = _multiplied(np.uint64(0xCA5A826395121157), words[2])
            words = [high1 ^ words[1] ^ keys[0], low1, high0 ^ words[3] ^ keys[1], low0]
            keys = [keys[0] + _GOLDEN, keys[1] + np.uint64(0xBB67AE8584CAA73B)]
    drawn = np.stack(words, axis=1).reshape(-1)
    own = np.repeat(4 * (ends - blocks) - np.cumsum(sizes) + sizes, sizes)
    bits = drawn[own + np.arange(int(sizes.sum()))]
    return np.asarray((bits >> np.uint64(11)) * 2.0**-53)


def _multiplied(a: np.uint64, b: Bits) -> tuple[Bits, Bits]:
    """The upper and the lower 64 bits of a product, by halves of 32."""
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    a0, a1, b0, b1 = a & low, a >> half, b & low, b >> half
    middle = a1 * b0 + (a0 * b0 >> half)
    cross = a0 * b1 + (middle & low)
    return a1 * b1 + (middle >> half) + (cross >> half), a * b


def stream_keys(seed: int, purpose: str, round: int, clients: ArrayLike) -> Bits:
    """One 64-bit key per client, the same whichever other clients are in the array."""
    base = np.uint64(_base(seed, purpose, round))
    who = np.asarray(clients, dtype=np.uint64) + np.uint64(1)
    with np.errstate(over="ignore"):
        return _mix(_mix(who * _GOLDEN) ^ base)


def uniform(keys: Bits, counters: ArrayLike) -> NDArray[np.float64]:
    """A number in [0, 1) for each (key, counter): 53 of its random bits."""
    return np.asarray((random_bits(keys, counters) >> np.uint64(11)) * 2.0**-53)


def random_bits(keys: Bits, counters: ArrayLike) -> Bits:
    """64 random bits for each (key, counter), broadcast against each other."""
    with np.errstate(over="ignore"):
        return _mix(keys + (np.asarray(counters, dtype=np.uint64) + np.uint64(1)) * _GOLDEN)

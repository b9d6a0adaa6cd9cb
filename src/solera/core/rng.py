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

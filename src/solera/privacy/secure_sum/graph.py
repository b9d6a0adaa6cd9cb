"""Who shares masks with whom: all with all up to 100 clients, a random regular graph beyond.

In the graph every client has k = O(log n) neighbours (Bell et al. 2020), so that its work does not
grow with the federation. It follows from the keys that clients have drawn, which all of them see:
the coordinator does not choose whose neighbours collude with it. Clients stand in a random order on
a circle, with neighbours at k/2 random distances on both sides: a random Cayley graph, in
which any two large parts have many edges in common (Alon & Roichman 1994).
"""

from __future__ import annotations

from functools import cache, lru_cache

import numpy as np

from solera.core.clients import IntArray
from solera.core.errors import UsageError
from solera.trust.masks import KEY, keystream

ALL = 100
"""Up to this many clients everyone is everyone's neighbour."""
LEAST = 2
DROPPED = 0.1
"""The share of clients that may drop out of a large sum, anyhow distributed."""
COLLUDING = 0.2
"""The share of clients that may collude with the coordinator of a large sum."""
_FAILS = 2.0**-20
_BREAKS = 2.0**-40


def threshold(holders: int, share: float) -> int:
    """Shares that give a secret: more than this share of its holders.

    More than half, so that no two sets of holders that were told different things each have enough;
    at two thirds this holds with nearly a third of them colluding.
    """
    return min(holders, int(share * holders + 1e-9) + 1)


@cache
def degree(clients: int, share: float) -> int:
    """Neighbours of every client in a sum of so many.

    Beyond 100 clients the least even number for which, of all clients, none is likely to have too
    few neighbours left to give its secrets (2⁻²⁰) or enough colluding ones to give them away
    (2⁻⁴⁰), for the shares ``DROPPED`` and ``COLLUDING``.
    """
    if clients < LEAST:
        raise UsageError(
            f"a secure sum of {clients} client tells that client's numbers",
            hint=f"ask at least {LEAST} clients",
        )
    if clients <= ALL:
        return clients - 1
    from scipy.stats import hypergeom

    dropped, colluding = int(DROPPED * clients), int(COLLUDING * clients)
    for k in range(10, clients - 1, 2):
        t = threshold(k + 1, share)
        too_few = hypergeom.sf(k + 1 - t, clients - 1, dropped, k)
        too_many = hypergeom.sf(t - 2, clients - 1, colluding, k)
        if clients * too_few <= _FAILS and clients * too_many <= _BREAKS:
            return k
    return clients - 1


def neighbours(place: int, clients: int, share: float, seed: bytes) -> IntArray:
    """The neighbours of the client at that place of the list, as places in order."""
    k = degree(clients, share)
    if k == clients - 1:
        return np.delete(np.arange(clients), place)
    on_circle, distances = _circle(clients, k, seed)
    around = np.concatenate([distances, -distances])
    standing = int(np.flatnonzero(on_circle == place)[0])
    return np.sort(on_circle[(standing + around) % clients])


@lru_cache(maxsize=4)
def _circle(clients: int, k: int, seed: bytes) -> tuple[IntArray, IntArray]:
    """Clients in their order on the circle, and the distances of neighbours."""
    half = (clients - 1) // 2
    words = keystream(seed[:KEY], clients + half)
    on_circle = np.argsort(words[:clients], kind="stable")
    distances = np.argsort(words[clients:], kind="stable")[: k // 2] + 1
    return on_circle, distances

"""Quantiles of columns from counts alone.

Clients count how many values lie between given edges; the counts are summed, the edges around each
quantile are drawn closer, and after a few rounds its place is known to a millionth of its size. The
sums can be masked or noised like any others. Behind a gate values count in intervals of at least
``min_count`` rows (:mod:`solera.core.disclosure.cumulative`), so that no value leaves a client,
not even a smallest or largest one, whatever edges are asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NotRequired, TypedDict

import numpy as np
from numpy.typing import ArrayLike

from solera.core.aggregation import Sum
from solera.core.clients import BoolArray, Client, ClientGroup, FloatArray, IntArray
from solera.core.disclosure.cumulative import Cumulative
from solera.core.disclosure.evidence import Sums
from solera.core.disclosure.noised import Noised
from solera.core.errors import DataError, Refusal, UsageError
from solera.core.federation import Federation
from solera.core.plan import Plan, in_turn, planned
from solera.core.release import Cells
from solera.core.replies import Stacked
from solera.core.task import group_task
from solera.learn.rows import dense
from solera.privacy.dp.mechanism import DP
from solera.privacy.dp.sums import (
    NoisedSums,
    SumNoise,
    add_noise,
    norm,
    planned_noise,
    spent_by_sums,
)
from solera.trust.declared import Shape

_POWERS = 2.0 ** np.arange(-40, 64)
_FIRST = np.concatenate([[-np.inf], -_POWERS[::-1], [0.0], _POWERS, [np.inf]])
_CUTS = 16
ROUNDS = 5


class Count(TypedDict):
    """What ``preprocess.count`` takes: edges of every column, in any number."""

    edges: (
        Annotated[FloatArray, Shape("columns", "edges")]
        | Annotated[FloatArray, Shape("columns", "levels", "cuts")]
    )
    privacy: NotRequired[SumNoise]


def _values(client: Client, ask: Any) -> tuple[FloatArray, FloatArray]:
    return dense(client.data.X), ask["edges"]


def _known(client: Client, ask: Any, reply: Any) -> dict[str, Sums]:
    return {"rows": Sums(np.isfinite(dense(client.data.X)))}


@group_task(
    "preprocess.count",
    ask=Count,
    release=[
        Noised(Cumulative("below", values=_values), spends=spent_by_sums),
        Noised(Cells("rows", behind=_known), spends=lambda client, ask: ()),
    ],
)
def count(group: ClientGroup, ask: Any) -> Stacked:
    """How many known values of each column are at most each of its edges."""
    data, edges = group.data, np.asarray(ask["edges"])
    X = dense(data.joined().X)
    if edges.shape[0] != X.shape[1]:
        raise DataError(
            f"client {group.ids[0]} has {X.shape[1]} columns, {edges.shape[0]} are asked"
        )
    known = np.isfinite(X)
    complete = bool(known.all())
    if complete:
        rows = np.repeat(data.sizes[:, None], X.shape[1], axis=1)
    else:
        rows = np.stack([_by_owner(own, data.owners, len(group)) for own in known.T], axis=1)
    noised = "privacy" in ask  # every client adds its own noise
    added = not noised and group.adds("below")
    sizes = np.array([len(X)]) if added else data.sizes
    owners = np.repeat(np.arange(len(sizes)), sizes)
    below = np.empty((len(sizes), *edges.shape), dtype=np.int64)
    for j in range(X.shape[1]):
        flat = edges[j].ravel()
        values = X[:, j].copy() if complete else X[known[:, j], j]
        if len(sizes) == 1 and (flat == flat[:1]).all():
            below[0, j] = np.count_nonzero(values <= flat[:1])
            continue
        if len(sizes) == 1:
            values.sort()
            below[0, j] = values.searchsorted(flat, side="right").reshape(edges.shape[1:])
            continue
        order = np.argsort(flat, kind="stable")
        first = np.searchsorted(flat[order], values, side="left")
        cells = owners[known[:, j]] * (len(flat) + 1) + first
        counts = np.bincount(cells, minlength=len(sizes) * (len(flat) + 1))
        summed = counts.reshape(len(sizes), -1)[:, :-1].cumsum(axis=1)
        by_edge = np.empty_like(summed)
        by_edge[:, order] = summed
        below[:, j] = by_edge.reshape(len(sizes), *edges.shape[1:])
    if noised:
        replies = zip(group, below, rows, strict=True)
        return Stacked.of([_noised_counts(*reply, ask["privacy"]) for reply in replies])
    if added:
        return Stacked({"rows": rows}, sums={"below": below[0]})
    return Stacked({"below": below, "rows": rows})


def _by_owner(marks: BoolArray, owners: IntArray, clients: int) -> IntArray:
    return np.bincount(owners[marks], minlength=clients)


def _noised_counts(
    client: Client, below: IntArray, rows: IntArray, privacy: SumNoise
) -> dict[str, Any]:
    """The same from noised counts between edges: a row changes one in each list of edges.

    The rows of a column are the sum of those between its (first) edges.
    """
    lists = below.reshape(-1, below.shape[-1])
    if (np.diff(lists, axis=1) < 0).any():
        raise Refusal("edges must be in order where counts are noised")
    whole = np.repeat(rows, len(lists) // len(rows))[:, None]
    between = np.diff(np.concatenate([lists, whole], axis=1), axis=1, prepend=0)
    noised = add_noise(client, {"n": between}, {"n": norm(privacy, len(lists))}, privacy)["n"]
    sums = np.rint(np.cumsum(noised, axis=1)).astype(np.int64)
    first = sums[:: len(lists) // len(rows)]
    return {"below": sums[:, :-1].reshape(below.shape), "rows": first[:, -1]}


def first_counts(federation: Federation, columns: int, noise: NoisedSums | None = None) -> Any:
    """How many values of every column are at most each power of two, of either sign."""
    edges = np.broadcast_to(_FIRST[1:-1], (columns, len(_FIRST) - 2))
    found = _counted(federation, edges, 0, noise)
    if noise is None:
        return found
    return _without_mere_noise(found, noise.privacy, len(federation))


def _counted(
    federation: Federation, edges: FloatArray, round: int, noise: NoisedSums | None
) -> Any:
    ask = {"edges": edges}
    if noise is None:
        return federation.ask(count, ask, round=round).fold(Sum())
    return noise.sum(federation, count, ask, round=round)


def _without_mere_noise(found: Any, privacy: SumNoise, clients: int) -> Any:
    """Counts between edges that may be noise alone, below three deviations, as 0.

    Most powers of two have no value between them, and their noise would add up.
    """
    between = np.diff(found["below"], axis=1, prepend=0)
    columns = len(between)
    spread = privacy["noise"] * norm(privacy, columns) * np.sqrt(clients / privacy["share"])
    below = np.cumsum(np.where(between > 3 * spread, between, 0), axis=1)
    return {"below": below, "rows": np.maximum(below[:, -1], 0)}


FIRST_COUNTS: Plan = (planned(count, 1),)
"""What :func:`first_counts` asks."""


def quantile_asks(rounds: int = ROUNDS, *, first: bool = True) -> Plan:
    """What :func:`quantiles` asks; ``first`` says whether the first counts are yet to be asked."""
    narrowing = (planned(count, rounds),)
    return in_turn(FIRST_COUNTS, narrowing) if first else narrowing


def quantiles(
    federation: Federation,
    q: ArrayLike,
    columns: int,
    *,
    rounds: int = ROUNDS,
    first: Any = None,
    noise: NoisedSums | None = None,
    only: BoolArray | None = None,
) -> FloatArray:
    """The quantiles ``q`` of every column over all clients: columns × len(q).

    ``q`` may have a row of its own for each column. Each of the ``rounds`` narrows the place of a
    quantile to a sixteenth. ``first`` are the :func:`first_counts`, where they were asked already.
    ``noise``: None, or what counts are noised with. ``only``: the columns that are asked for; of
    the others nothing more is learned, and what stands for their quantiles means nothing.

    The quantile q of n values is the ⌈q n⌉-th smallest, as in NumPy's ``inverted_cdf``. Columns
    without a known value give NaN.
    """
    levels = np.atleast_1d(np.asarray(q, dtype=float))
    if not ((levels >= 0) & (levels <= 1)).all():
        raise UsageError(f"quantiles must be between 0 and 1, not {levels.tolist()}")
    first = first_counts(federation, columns, noise) if first is None else first
    rank = np.maximum(np.ceil(levels * first["rows"][:, None]), 1)
    cell = (first["below"][:, None, :] < rank[:, :, None]).sum(axis=2)
    low, high = _FIRST[cell], _FIRST[cell + 1]
    low, high = np.where(np.isinf(low), 2 * high, low), np.where(np.isinf(high), 2 * low, high)
    if only is not None:
        low[~only] = high[~only] = 0.0
    for round in range(1, rounds + 1):
        steps = np.arange(1, _CUTS) / _CUTS
        cuts = low[:, :, None] + (high - low)[:, :, None] * steps
        some, which = _distinct(low, high)
        edges = np.take_along_axis(cuts, some[:, :, None], axis=1)
        below = _counted(federation, edges, round, noise)["below"]
        below = np.take_along_axis(below, which[:, :, None], axis=1)
        cell = (below < rank[:, :, None]).sum(axis=2)
        grid = np.concatenate([low[:, :, None], cuts, high[:, :, None]], axis=2)
        low = np.take_along_axis(grid, cell[:, :, None], axis=2)[:, :, 0]
        high = np.take_along_axis(grid, cell[:, :, None] + 1, axis=2)[:, :, 0]
    return np.where(first["rows"][:, None] > 0, high, np.nan)


# --- many quantiles with noise ---

NOISED_ASKS = 2
"""Asks of :func:`noised_quantiles`."""
_FINER = 4
"""Counts between edges that are asked for each quantile."""


def noised_quantiles(
    federation: Federation, levels: FloatArray, columns: int, noise: NoisedSums
) -> FloatArray:
    """About the quantiles of every column, from two asks with noise: columns × levels.

    To narrow every quantile by itself would let a row change as many counts as there are quantiles,
    and noise grows with these. Here a row changes one count of a column: values between powers of
    two are counted, then those between finer edges that divide these counts evenly, and quantiles
    are read off in between. Columns whose values cannot be told from noise give NaN.
    """
    first = first_counts(federation, columns, noise)
    powers = np.broadcast_to(_FIRST[1:-1], first["below"].shape)
    finer = _FINER * (len(levels) + 1)
    edges = _read_off(powers, first, np.arange(1, finer) / finer)
    found = _counted(federation, np.where(np.isfinite(edges), edges, 0.0), 1, noise)
    return _read_off(edges, found, levels)


def _read_off(edges: FloatArray, counts: Mapping[str, IntArray], levels: FloatArray) -> FloatArray:
    """Where these shares of the values of every column lie below, evenly between two edges."""
    below = np.maximum.accumulate(np.maximum(counts["below"], 0), axis=1)
    rank = levels * counts["rows"][:, None]
    found = [np.searchsorted(*column) for column in zip(below, rank, strict=True)]
    cell = np.stack(found).clip(1, below.shape[1] - 1)
    low, high = (np.take_along_axis(below, place, axis=1) for place in (cell - 1, cell))
    start, end = (np.take_along_axis(edges, place, axis=1) for place in (cell - 1, cell))
    share = np.clip((rank - low) / np.maximum(high - low, 1), 0.0, 1.0)
    return np.where(counts["rows"][:, None] > 0, start + share * (end - start), np.nan)


def noised_quantile_asks(dp: DP) -> Plan:
    """What :func:`noised_quantiles` asks."""
    table, open_ = planned_noise(dp)
    return (planned(count, NOISED_ASKS, {"privacy": table}, open=open_),)


def _distinct(low: FloatArray, high: FloatArray) -> tuple[IntArray, IntArray]:
    """Of the intervals of every column, where each first occurs, and which of these each is."""
    pairs = np.stack([low, high], axis=2)
    found = [np.unique(p, axis=0, return_index=True, return_inverse=True)[1:] for p in pairs]
    most = max(len(some) for some, _ in found)
    return (
        np.stack([np.pad(some, (0, most - len(some)), mode="edge") for some, _ in found]),
        np.stack([which.reshape(-1) for _, which in found]),
    )

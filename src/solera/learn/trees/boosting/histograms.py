"""The client's side of FedHistGBDT: bins, gradients, and their histograms in whole numbers.

Gradients and hessians are rounded to fixed-point numbers before they are added. Sums of whole
numbers do not depend on the order of adding, so any division of the rows over clients gives the
same histograms to the last bit, and they can be masked or noised like any counts.

A client keeps between asks what it could compute again from the model: the scores of its rows, the
rounded gradients of the current round, and the node of the growing tree where each row is.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
from msgspec import Meta
from numpy.typing import ArrayLike, NDArray

from solera.core.clients import Array, Client, ClientGroup, FloatArray, IntArray, Rows
from solera.core.errors import DataError, Refusal
from solera.core.federation import Federation
from solera.core.replies import Stacked
from solera.core.schema import Schema
from solera.core.task import task
from solera.learn.base import Transformer
from solera.learn.closed import is_closed
from solera.learn.preprocess.atom_bins import atom_bins, cells_between, starts_between
from solera.learn.preprocess.quantiles import (
    first_counts,
    noised_quantiles,
    quantiles,
)
from solera.learn.rows import check_shape
from solera.learn.trees.binned_rows import AtNodes, Cells, move
from solera.learn.trees.boosting.base import boosting_target, gradients
from solera.learn.trees.boosting.private_histograms import most_of_a_row
from solera.learn.trees.client_trees import with_missing
from solera.learn.trees.tree import starts_of
from solera.trust import cells as trusted
from solera.trust.cells import Behind
from solera.trust.constructors import sum_by
from solera.trust.merging import Neighbours

Bins = Annotated[int, Meta(ge=2, le=255)]
"""Most bins of a column."""
STATE = "trees.boosting"
LARGEST_CLASSES = 1000
"""The most classes that trees are boosted for."""
_PRECISION = 3
"""Edges are found to one part in 16³ of a power of two."""


class HistBins(Transformer):
    """Every value as the number of its cell: the bins of all columns in a row, and missing values.

    Numeric columns are cut at quantiles over all clients, found from counts
    (:mod:`solera.learn.preprocess.quantiles`), in a closed job between atoms of the epoch
    (:mod:`solera.learn.preprocess.atom_bins`); a value x is in bin i when edge_{i−1} < x ≤ edge_i.
    Categories are bins in the order of their codes. Column j owns the cells ``starts_[j]`` to
    ``starts_[j + 1] − 1``, the last one for missing values.
    """

    edges_: list[FloatArray]
    starts_: IntArray

    def __init__(self, bins: Bins = 255) -> None:
        self.bins = bins

    def train(self, federation: Federation) -> None:
        if is_closed(federation):
            self.edges_ = atom_bins(federation, self.schema_, self.bins)
            self.starts_ = starts_between(self.edges_)
            return
        levels = np.arange(1, self.bins) / self.bins
        width = self.schema_.width
        numeric = np.array([feature.kind != "categorical" for feature in self.schema_.features])
        first = first_counts(federation, width)
        known: dict[str, Any] = {"rounds": _PRECISION, "first": first, "only": numeric}
        cuts = quantiles(federation, levels, width, **known)
        repeats = np.array([len(np.unique(edges)) < len(edges) for edges in cuts])
        if (numeric & repeats).any():  # common values took several quantiles: use those elsewhere
            spare = np.stack([_between(edges, levels) for edges in cuts])
            more = quantiles(federation, spare, width, **known)
            cuts = np.concatenate([cuts, more], axis=1)
        self._cut(cuts)

    def train_with_noise(self, federation: Federation, schema: Schema) -> Self:
        """Cut columns of these rows near their quantiles, from counts with noise."""
        self.schema_ = schema
        levels = np.arange(1, self.bins) / self.bins
        self._cut(noised_quantiles(federation, levels, schema.width))
        return self

    def _cut(self, cuts: FloatArray) -> None:
        self.edges_ = [
            _first_distinct(edges, self.bins - 1)
            if feature.kind != "categorical"
            else np.arange(len(feature.categories) - 1, dtype=np.float64)
            for feature, edges in zip(self.schema_.features, cuts, strict=True)
        ]
        self.starts_ = starts_between(self.edges_)

    def transform(self, X: Any) -> NDArray[np.int32]:
        return cells_between(with_missing(self.check_rows(X)), self.edges_, self.starts_)


def _between(edges: FloatArray, levels: FloatArray) -> FloatArray:
    """As many levels again, spread evenly over those at which the quantile changes."""
    known = np.concatenate([[-np.inf], np.where(np.isfinite(edges), edges, 0.0), [np.inf]])
    at = np.concatenate([[0.0], levels, [1.0]])
    passed = np.concatenate([[0.0], np.cumsum(np.where(np.diff(known) > 0, np.diff(at), 0.0))])
    return np.asarray(np.interp(levels * passed[-1], passed, at))


def _first_distinct(edges: FloatArray, most: int) -> FloatArray:
    """Sorted distinct edges; of too many, evenly spaced ones."""
    distinct = np.unique(edges[np.isfinite(edges)])
    if len(distinct) <= most:
        return distinct
    return distinct[np.linspace(0, len(distinct) - 1, most).round().astype(np.int64)]


# --- gradients in whole numbers ---


class Units(NamedTuple):
    """In which units gradients and hessians are counted: 2^−gradient and 2^−hessian.

    ``packed``: the hessian and a one for the row share a number of 53 bits, ``rows`` of them the
    row's, so that one pass counts both. ``counted``: every hessian is 1, the row itself.
    """

    gradient: int
    hessian: int
    rows: int
    packed: bool
    counted: bool

    @classmethod
    def of(cls, rows: int, gradient_bound: float, *, counted: bool) -> Units:
        """Units in which the sums over all rows stay below 2^53, where float64 counts exactly.

        ``counted``: every hessian is 1.
        """
        bits = int(rows).bit_length()
        largest = int(np.frexp(gradient_bound)[1])
        packed = 2 * bits <= 53 - 16
        hessian = min(30, 53 - 2 * bits if packed else 52 - bits)
        packed = packed and not counted
        return cls(52 - bits - largest, 0 if counted else hessian, bits, packed, counted)

    def unpacked(self, sums: Array) -> tuple[Array, Array, Array]:
        """Σg, Σh and rows of the 2 or 3 sums that clients send, whole numbers of either type."""
        if not self.packed:
            return sums[0], sums[1], sums[-1]
        if sums.dtype.kind == "i":
            return sums[0], sums[1] >> self.rows, sums[1] & ((1 << self.rows) - 1)
        unit = 2.0**self.rows
        hessian = sums[1] * (1 / unit)
        np.floor(hessian, out=hessian)
        rows = hessian * -unit
        rows += sums[1]
        return sums[0], hessian, rows


def rounded(g: FloatArray, h: FloatArray, units: Units) -> FloatArray:
    """What rows carry, in whole numbers: gradient, hessian, and one where rows are not in these."""
    carried = np.ones((*g.shape, 2 if units.packed or units.counted else 3))
    np.rint(g * 2.0**units.gradient, out=carried[..., 0])
    np.rint(h * 2.0**units.hessian, out=carried[..., 1])
    if units.packed:
        carried[..., 1] *= 2.0**units.rows
        carried[..., 1] += 1
    return carried


# --- one level of one round ---


Splits = IntArray


def _histograms_of_many(group: ClientGroup, ask: Any) -> Stacked:
    """The same for many clients: where their sums are all that counts, only these are made."""
    sizes = group.data.sizes
    level = _follow(group.data.joined(), group.ids, sizes, group.states, ask)
    bounds = starts_of(sizes)
    reply: dict[str, Any] = {}
    if level.losses is not None:
        reply["loss"] = np.add.reduceat(level.losses, bounds[:-1])
    if level.lengths is not None:
        reply["exponent"] = np.frexp(np.maximum.reduceat(level.lengths, bounds[:-1]))[1]
    if group.adds("trees"):
        everyone = Behind(int(sizes.sum()))
        sums = {"trees": [one.sum(values, everyone) for one, values in level.trees(ask)]}
        return Stacked(reply, sums=sums, replies=len(group))
    together = Behind(int(sizes.sum()), group.data.owners, len(group))
    reply["trees"] = [one.sum(values, together) for one, values in level.trees(ask)]
    return Stacked(reply)


@task("trees.histograms", version=2, many=_histograms_of_many)
def histograms(client: Client, ask: Any) -> dict[str, Any]:
    """Follow the splits of the last level, then add up gradients by node and cell.

    A sum of gradients follows from scores that the asker chooses, so that no number of rows behind
    it bounds what it tells: an open ask without noise is answered under the policy ``trusted``
    only. With noise the values of a row are bounded (:mod:`.private_histograms`), and nothing else
    is told. In a closed job (``lines``) cells are told in groups of neighbours, and no gradient's
    length.
    """
    rows = client.data.part("train")
    level = _follow(rows, [client.id], np.array([len(rows)]), [client.state], ask)
    trees = level.trees(ask)
    if not trees:
        raise Refusal("no histogram is asked for")
    cells, values = map(list, zip(*trees, strict=True))
    if "privacy" in ask:
        units = most_of_a_row(ask)
        return {"trees": sum_by(cells, [v / units for v in values], bound=(1.0, 1.0))}
    reply: dict[str, Any] = {"trees": sum_by(cells, values)}
    if level.losses is not None:
        reply["loss"] = sum_by(None, level.losses)
    if level.lengths is not None:
        reply["exponent"] = int(np.frexp(level.lengths.max())[1])
    return reply


class Level(NamedTuple):
    """Where rows are in every tree of a round, and what they carry: trees × rows × …

    ``losses``, and ``lengths`` of gradients of numbers, belong to the first level.
    """

    cells: Cells
    at: IntArray
    carried: FloatArray
    losses: FloatArray | None = None
    lengths: FloatArray | None = None

    def trees(self, ask: Mapping[str, Any]) -> list[tuple[trusted.Cells, FloatArray]]:
        """Of every tree that is asked for: the cells of the rows, and their values."""
        return [
            (self._cells(k, ask), self.carried[k])
            for k, wanted in enumerate(ask["wanted"])
            if len(wanted)
        ]

    def _cells(self, k: int, ask: Mapping[str, Any]) -> trusted.Cells:
        """The cells of a tree; in a closed job as neighbours, which are told in groups."""
        cells = AtNodes(self.cells, self.at[k], ask["wanted"][k], (int(ask["starts"][-1]),))
        if "lines" not in ask:
            return cells
        if "groups" not in ask:
            return Neighbours(cells, ask["lines"])
        return Neighbours(cells, ask["lines"], siblings=2, groups=ask["groups"][k])


def _follow(
    rows: Rows,
    clients: ArrayLike,
    sizes: IntArray,
    states: Sequence[MutableMapping[str, Any]],
    ask: Mapping[str, Any],
) -> Level:
    """The rows of clients of these sizes, one level further; what they keep for the next one."""
    cells: Cells = rows.X
    check_shape(clients, sizes, cells, len(ask["starts"]) - 1)
    if cells.dtype != np.int32:
        raise DataError("the rows of this ask are not prepared by HistBins")
    number, level, *numbers = ask["step"].tolist()
    scores, at, carried = _kept(states, sizes, number, ask)
    if ask["splits"]:
        before, at = at, np.empty_like(at)
        for nodes, splits, reached in zip(before, ask["splits"], at, strict=True):
            move(cells, nodes, splits, ask["starts"], out=reached)
    losses = lengths = None
    if level == 0:
        if ask["values"]:
            ends = zip(ask["values"], at, strict=True)
            scores = scores + np.stack([values.take(nodes) for values, nodes in ends])
        at = np.zeros_like(at)
        g, h, losses = gradients(scores, boosting_target(rows.y, ask), ask["loss"])
        noised = "privacy" in ask
        carried = np.stack([g, h], axis=-1) if noised else rounded(g, h, Units(*numbers))
        measured = ask["loss"] == "squared" and "lines" not in ask
        lengths = np.abs(g[0]) if measured else None
    for kept in (scores, at, carried):
        kept.flags.writeable = False  # and so are its parts
    name = _state_of(ask)
    for state, (a, b) in zip(states, pairwise(starts_of(sizes).tolist()), strict=True):
        parts = {"scores": scores[:, a:b], "at": at[:, a:b], "summed": carried[:, a:b]}
        state[name] = {"ask": number, **parts}
    return Level(cells, at, carried, losses, lengths)


def _state_of(ask: Mapping[str, Any]) -> str:
    """Where a client keeps its rows: with noise gradients are kept as they are, else rounded."""
    return f"{STATE}.noised" if "privacy" in ask else STATE


def _kept(
    states: Sequence[MutableMapping[str, Any]], sizes: IntArray, number: int, ask: Mapping[str, Any]
) -> tuple[FloatArray, IntArray, FloatArray]:
    """Scores, nodes and rounded gradients after the ask before this one: trees × rows × …"""
    if number == 0:
        return *_at_root(ask["initial"], int(sizes.sum())), np.empty((0, 0, 0))
    name = _state_of(ask)
    for state in states:
        if name not in state or state[name]["ask"] != number - 1:
            raise Refusal("this client missed an earlier ask and waits for the next round")
    kept = [state[name] for state in states]
    scores, at, summed = (_joined([k[name] for k in kept]) for name in ("scores", "at", "summed"))
    return scores, at, summed


def _at_root(initial: FloatArray, rows: int) -> tuple[FloatArray, IntArray]:
    """The first scores and nodes: trees × rows."""
    scores = np.repeat(initial[:, None], rows, axis=1)
    return scores, np.zeros(scores.shape, dtype=np.int64)


def _joined(parts: Sequence[Array]) -> Array:
    """The parts of all clients, side by side.

    Where the last ask went to the same clients they are all there is of one array.
    """
    whole = parts[0].base
    if whole is not None and all(part.base is whole for part in parts):
        rows = sum(part.shape[1] for part in parts)
        if whole.shape == (len(parts[0]), rows, *parts[0].shape[2:]):
            return whole
    return np.concatenate(parts, axis=1)


@task("trees.catch_up")
def catch_up(client: Client, ask: Any) -> dict[str, Any]:
    """Where a client that missed an ask would be: scores without the last tree, its leaves."""
    rows = client.data.part("train")
    scores, at = _at_root(ask["initial"], len(rows))
    for splits, values in zip(ask["splits"], [None, *ask["values"]], strict=True):
        for k in range(len(scores)):
            if values is not None:
                scores[k] += values[k].take(at[k])
            move(rows.X, np.zeros_like(at[k]), splits[k], ask["starts"], out=at[k])
    parts = {"scores": scores, "at": at, "summed": np.zeros((*scores.shape, 2))}
    client.state[_state_of(ask)] = {"ask": ask["after"], **parts}
    return {}

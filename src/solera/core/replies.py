"""Replies of a block of clients, one by one or stacked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from solera.core.clients import BoolArray, IntArray
from solera.core.errors import PayloadError
from solera.core.payload import encoded_size, is_finite

FailureKind = Literal["refused", "failed", "dropped", "crashed", "late", "corrupt", "invalid"]


@dataclass(frozen=True, slots=True)
class Reply:
    """What one client answered."""

    client: int
    payload: Any

    def __getitem__(self, key: str) -> Any:
        return self.payload[key]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why one client did not answer."""

    client: int
    kind: FailureKind
    reason: str
    error: BaseException | None = field(default=None, compare=False, repr=False)
    """The exception itself, where the task ran in this process."""

    def __str__(self) -> str:
        return f"client {self.client} {self.kind}: {self.reason}"


class Stacked:
    """Replies of n clients as one tree of arrays whose first axis is the client.

    ``Stacked({"sums": S, "rows": n})`` with ``S`` of shape (clients, k, d) stands for ``clients``
    replies ``{"sums": S[i], "rows": n[i]}``.

    ``sums`` are entries of which only the sum over all these clients is there, where that is all
    that counts (:meth:`solera.core.clients.ClientGroup.adds`); ``replies`` is the number of clients
    where there are no other entries.
    """

    __slots__ = ("_len", "_sums", "fields")

    def __init__(
        self,
        fields: Mapping[str, Any],
        *,
        sums: Mapping[str, Any] | None = None,
        replies: int = 0,
    ) -> None:
        self.fields = fields
        self._sums = sums
        if sums and not fields:
            self._len = replies
            return
        lengths = set(map(len, _leaves(fields)))
        if len(lengths) != 1:
            raise PayloadError(f"stacked replies have first axes of different lengths: {lengths}")
        (self._len,) = lengths

    @property
    def sums(self) -> Mapping[str, Any]:
        """The entries of which there are sums only."""
        return getattr(self, "_sums", None) or {}

    def __len__(self) -> int:
        return self._len

    def __getitem__(self, i: int) -> dict[str, Any]:
        row: dict[str, Any] = map_leaves(lambda leaf: leaf[i], self.fields)
        return row

    def outline(self) -> dict[str, Any]:
        """A reply with the entries that all of them have; its numbers may mean nothing."""
        return self[0]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[i] for i in range(self._len))

    def take(self, chosen: IntArray) -> Stacked:
        """The replies at these positions."""
        return Stacked(map_leaves(lambda leaf: leaf[chosen], self.fields))

    def between(self, first: int, last: int) -> Stacked:
        """The replies at positions first … last − 1, as views."""
        return Stacked(map_leaves(lambda leaf: leaf[first:last], self.fields))

    def sizes(self) -> IntArray:
        """Encoded size of every reply."""
        if not self._len:
            return np.empty(0, dtype=np.int64)
        left_out = self.sums
        varying = [
            leaf for leaf in _leaves(self.fields) if leaf.ndim == 1 and leaf.dtype.kind != "f"
        ]
        first, which = _alike_in_digits(varying, self._len)
        sizes = [encoded_size({**self[i], **left_out}) for i in first.tolist()]
        return np.array(sizes, dtype=np.int64)[which]

    def finite(self) -> BoolArray:
        """For every reply, whether all its numbers are finite."""
        good = np.ones(self._len, dtype=bool)
        for leaf in _leaves(self.fields):
            if leaf.dtype.kind in "fc" and not is_finite(leaf):
                good &= np.isfinite(leaf).reshape(self._len, -1).all(axis=1)
        return good

    @staticmethod
    def of(replies: Sequence[Mapping[str, Any]]) -> Stacked:
        """Replies of the same shape, stacked."""
        return Stacked(map_leaves(lambda *leaves: np.stack(leaves), *replies))

    @staticmethod
    def joined(parts: Sequence[Stacked]) -> Stacked:
        """Several stacks of the same shape as one."""
        if len(parts) == 1:
            return parts[0]
        return Stacked(
            map_leaves(lambda *leaves: np.concatenate(leaves), *(part.fields for part in parts))
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """Replies of some clients in client order."""

    clients: IntArray
    payloads: Stacked | Sequence[Any]
    known_sizes: IntArray | None = None

    def __len__(self) -> int:
        return len(self.clients)

    def __iter__(self) -> Iterator[Reply]:
        for client, payload in zip(self.clients.tolist(), self.payloads, strict=True):
            yield Reply(client, payload)

    def sizes(self) -> IntArray:
        """Encoded size of every reply."""
        if self.known_sizes is not None:
            return self.known_sizes
        if isinstance(self.payloads, Stacked):
            return self.payloads.sizes()
        known: dict[int, int] = {}  # many clients may give one and the same reply
        for payload in self.payloads:
            if id(payload) not in known:
                known[id(payload)] = encoded_size(payload)
        return np.array([known[id(payload)] for payload in self.payloads], dtype=np.int64)

    def only_finite(self, sound: Callable[[Reply], bool] | None = None) -> Checked:
        """The replies free of NaN and infinities, and a failure for each of the others.

        With ``sound``, it must be true of a reply as well.
        """
        if isinstance(self.payloads, Stacked):
            good = self.payloads.finite()
        else:
            good = np.fromiter((is_finite(p) for p in self.payloads), dtype=bool, count=len(self))
        if sound is not None:
            seen = (sound(reply) for reply in self)
            good &= np.fromiter(seen, dtype=bool, count=len(self))
        reason = "the reply holds NaN, infinite or too large numbers"
        wrong = self.clients[~good].tolist()
        return self.without([Failure(client, "invalid", reason) for client in wrong])

    def between(self, first: int, last: int) -> Batch:
        """The replies at positions first … last − 1."""
        if isinstance(self.payloads, Stacked):
            payloads: Any = self.payloads.between(first, last)
        else:
            payloads = self.payloads[first:last]
        sizes = None if self.known_sizes is None else self.known_sizes[first:last]
        return Batch(self.clients[first:last], payloads, sizes)

    def without(self, failures: list[Failure]) -> Checked:
        """The replies of the other clients, and the failures."""
        if not failures:
            return self, failures
        bad = [failure.client for failure in failures]
        kept = np.flatnonzero(~np.isin(self.clients, bad))
        if isinstance(self.payloads, Stacked):
            payloads: Any = self.payloads.take(kept)
        else:
            payloads = [self.payloads[i] for i in kept.tolist()]
        return Batch(self.clients[kept], payloads, self.sizes()[kept]), failures

    def liftable(self, lift: Callable[[Reply], Any]) -> Checked:
        """The replies that an aggregation can take in, and a failure for each of the others."""
        failures = []
        for reply in self:
            try:
                lift(reply)
            except Exception as error:
                failures.append(Failure(reply.client, "invalid", _why(error), error))
        return self.without(failures)

    def combinable(self, lift: Callable[[Reply], Any], merge: Callable[[Any, Any], Any]) -> Checked:
        """The most replies that an aggregation can merge with one another, and a failure for each
        of the others, whose client has answered something else than the rest.

        Each reply is tried as the one that the others must fit; of groups of the same size the one
        around the first client counts. Quadratic in the replies, for when something is wrong.
        """
        lifted = [lift(reply) for reply in self]
        best: dict[int, Exception] = {}
        for anchor in range(len(lifted)):
            partial, misfits = lifted[anchor], {}
            for other in range(len(lifted)):
                try:
                    partial = partial if other == anchor else merge(partial, lifted[other])
                except Exception as error:
                    misfits[other] = error
            if anchor == 0 or len(misfits) < len(best):
                best = misfits
            if 2 * len(best) < len(lifted):
                break
        clients = self.clients.tolist()
        reason = "the reply does not fit those of the others: "
        return self.without(
            [Failure(clients[i], "invalid", reason + _why(e), e) for i, e in best.items()]
        )

    def alike(self, example_for: Callable[[int], Any]) -> Checked:
        """The replies that look like the client's example, and a failure for each other one."""
        failures = [
            Failure(reply.client, "invalid", reason)
            for reply in self
            if (reason := unlike(reply.payload, example_for(reply.client)))
        ]
        return self.without(failures)


def _why(error: Exception) -> str:
    text = error.message if isinstance(error, PayloadError) else f"{type(error).__name__}: {error}"
    return text[:1000]


_DIGITS = np.array([1 << 7, 1 << 8, 1 << 16, 1 << 32])
"""From these on a whole number takes more bytes."""


def _alike_in_digits(counts: Sequence[NDArray[Any]], replies: int) -> tuple[IntArray, IntArray]:
    """Replies of which all sizes are, and which of them each is like.

    They differ by ``counts`` alone, one number of every reply; other values are all different.
    """
    everyone = np.arange(replies)
    if not counts:
        return everyone[:1], np.zeros(replies, dtype=np.int64)
    if any(values.dtype.kind not in "iu" or values.min() < 0 for values in counts):
        return everyone, everyone
    digits = np.zeros(replies, dtype=np.int64)
    for values in counts:
        digits = digits * (len(_DIGITS) + 1) + np.searchsorted(_DIGITS, values, side="right")
    _, first, which = np.unique(digits, return_index=True, return_inverse=True)
    return first, which


Checked = tuple[Batch, list[Failure]]
"""Replies that will do, and a failure for each client that gave none."""


def unlike(reply: Any, example: Any) -> str | None:
    """What is wrong with a reply that should look like the example, or None."""
    try:
        map_leaves(_check_alike, example, reply)
    except PayloadError as error:
        return error.message
    return None


def _check_alike(example: Any, value: Any) -> None:
    wanted, given = np.asarray(example), np.asarray(value)
    if given.shape != wanted.shape or given.dtype.kind != wanted.dtype.kind:
        raise ValueError(
            f"{given.dtype} of shape {given.shape} instead of {wanted.dtype} of {wanted.shape}"
        )


def map_leaves(function: Callable[..., Any], *trees: Any) -> Any:
    """Apply ``function`` to the corresponding leaves of trees of dicts and lists.

    Trees of different shapes are an error that says where they differ.
    """
    return _map(function, trees, ())


def _map(function: Callable[..., Any], trees: Sequence[Any], path: tuple[Any, ...]) -> Any:
    first = trees[0]
    if isinstance(first, (dict, list, tuple)):
        for tree in trees[1:]:
            if not _same_shape(first, tree):
                raise PayloadError(f"replies disagree{_at(path)}: {_shape(first)}, {_shape(tree)}")
        keys = first if isinstance(first, dict) else range(len(first))
        mapped = {key: _map(function, [t[key] for t in trees], (*path, key)) for key in keys}
        return mapped if isinstance(first, dict) else list(mapped.values())
    try:
        return function(*trees)
    except (TypeError, ValueError) as error:
        raise PayloadError(f"replies cannot be combined{_at(path)}: {error}") from error


def _same_shape(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys()
    return isinstance(b, list | tuple) and len(a) == len(b)


def _at(path: tuple[Any, ...]) -> str:
    return f" at {'.'.join(map(str, path))!r}" if path else ""


def _shape(tree: Any) -> str:
    if isinstance(tree, dict):
        return f"keys {sorted(tree)}"
    return f"a list of {len(tree)}" if isinstance(tree, list | tuple) else type(tree).__name__


def _leaves(tree: Any) -> Iterator[NDArray[Any]]:
    if isinstance(tree, np.ndarray):
        yield tree
    elif isinstance(tree, (dict, Mapping)):
        for value in tree.values():
            yield from _leaves(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _leaves(value)
    else:
        raise PayloadError(f"stacked replies hold arrays, not {type(tree).__name__}")

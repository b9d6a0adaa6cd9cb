"""Clients whose rows stay in files or behind a loader, and are read when a task needs them.

All rows have numbers: piece after piece, as they are stored. A client owns some of these numbers,
so a client may be a file, a folder of files or the rows of one value of a column. Whoever runs a
task reads the pieces that its clients need, in its own process, and keeps the last ones it read.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from copy import copy
from threading import Lock
from typing import Any, Protocol

import numpy as np

from solera.core import rng
from solera.core.clients import IntArray, Part, Rows, Segments
from solera.core.constraints import ProperFraction, check_arguments
from solera.core.errors import UsageError
from solera.core.schema import Schema
from solera.data.arrays import prepared_rows

CACHE = 32 << 20
"""Bytes of rows that a process keeps, unless told otherwise."""


class Reader(Protocol):
    """Reads pieces of rows; it can be pickled."""

    def read(self, piece: int) -> Rows:
        """The rows of a piece, the same every time."""


class StoredData:
    """Clients of rows that stay where they are stored.

    ``pieces[p]`` is the number of the first row of piece p, and one entry more ends the last;
    client k owns the rows ``offsets[k]`` to ``offsets[k + 1]`` of ``index``, or, where ``index`` is
    None, those numbers themselves. ``memory`` bounds the bytes of rows that a process keeps, and
    those that a task for many clients has before it at once. ``complete`` says that no value is
    missing.
    """

    def __init__(
        self,
        reader: Reader,
        pieces: IntArray,
        offsets: IntArray,
        *,
        schema: Schema,
        index: IntArray | None = None,
        names: tuple[str, ...] = (),
        memory: int = CACHE,
        complete: bool = False,
    ) -> None:
        self.schema = schema
        self.names = names
        self.memory = memory
        self.resources: Any = None
        self._reader = reader
        self._pieces = pieces
        self._offsets = offsets
        self._index = index
        self._complete = complete
        self._cache = RowCache(memory)
        self._steps: tuple[Any, ...] = ()
        self._raw = schema
        self._fractions = (0.0, 0.0)
        self._split_seed: int | None = None

    @property
    def clients(self) -> int:
        return len(self._offsets) - 1

    def sizes(self, part: Part = "train") -> IntArray:
        """Rows per client of that part."""
        return self._bounds(np.diff(self._offsets), part)[1]

    def is_complete(self) -> bool:
        """Whether every client has rows to train on and no value of any row is missing."""
        return self._complete and bool(self.sizes().all())

    def segments(self, clients: IntArray, part: Part = "train") -> Segments:
        numbers = [self._numbers(client, part) for client in clients.tolist()]
        sizes = np.array([len(own) for own in numbers], dtype=np.int64)
        rows = self._gather(np.concatenate(numbers))
        X, _ = prepared_rows(rows.X, self._raw, self._steps)
        return Segments(X, rows.y, np.cumsum(sizes) - sizes, sizes)

    def split(
        self, *, validation: ProperFraction = 0.0, test: ProperFraction = 0.0, seed: int = 0
    ) -> StoredData:
        """Set aside a fraction of every client's rows: those that rows in memory would set aside.

        See :meth:`solera.data.FederatedData.split`.
        """
        check_arguments(StoredData.split, validation=validation, test=test)
        if validation + test >= 1:
            raise UsageError(f"split(validation={validation}, test={test}) leaves nothing to train")
        if self._split_seed is not None:
            raise UsageError("the data is split already")
        view = copy(self)
        view._fractions, view._split_seed = (validation, test), seed
        return view

    def prepared(self, steps: Sequence[Any]) -> StoredData:
        view = copy(self)
        view._steps = (*self._steps, *steps)
        for step in steps:
            view.schema = step.transform_schema(view.schema)
        return view

    def __repr__(self) -> str:
        return f"StoredData({self.clients:,} clients, {self._offsets[-1]:,} rows)"

    def _numbers(self, client: int, part: Part) -> IntArray:
        """The numbers of a client's rows of that part."""
        start, end = self._offsets[client : client + 2].tolist()
        own = np.arange(start, end) if self._index is None else self._index[start:end]
        if self._split_seed is not None:
            keys = rng.stream_keys(self._split_seed, "split", 0, [client])
            draw = rng.random_bits(np.repeat(keys, end - start), np.arange(end - start))
            own = own[np.argsort(draw, kind="stable")]
        first, size = self._bounds(np.array([end - start]), part)
        return own[int(first[0]) : int(first[0] + size[0])]

    def _bounds(self, sizes: IntArray, part: Part) -> tuple[IntArray, IntArray]:
        """Where the rows of a part begin among a client's own, and how many there are."""
        validation, test = (np.floor(sizes * share).astype(np.int64) for share in self._fractions)
        train = sizes - validation - test
        if part == "train":
            return np.zeros_like(sizes), train
        return (train, validation) if part == "validation" else (train + validation, test)

    def _gather(self, numbers: IntArray) -> Rows:
        """The rows of these numbers, in this order; every piece is read once."""
        owner = np.searchsorted(self._pieces, numbers, side="right") - 1
        needed = np.unique(owner) if len(owner) else np.zeros(1, dtype=np.int64)
        if len(needed) == 1:
            piece = int(needed[0])
            rows, place = self._read(piece), numbers - self._pieces[piece]
            whole = len(place) == len(rows) and np.array_equal(place, np.arange(len(place)))
            return rows if whole else Rows(rows.X[place], None if rows.y is None else rows.y[place])
        X: Any = None
        y: Any = None
        order = np.argsort(owner, kind="stable")
        starts = np.searchsorted(owner[order], [*needed.tolist(), needed[-1] + 1])
        for k, piece in enumerate(needed.tolist()):
            rows, where = self._read(piece), order[starts[k] : starts[k + 1]]
            place = numbers[where] - self._pieces[piece]
            if X is None:
                X = np.empty((len(numbers), *rows.X.shape[1:]), dtype=rows.X.dtype)
                y = (
                    None
                    if rows.y is None
                    else np.empty((len(numbers), *rows.y.shape[1:]), dtype=rows.y.dtype)
                )
            X[where] = rows.X[place]
            if y is not None:
                y[where] = rows.y[place]
        return Rows(X, y)

    def _read(self, piece: int) -> Rows:
        rows = self._cache.get(piece)
        if rows is None:
            rows = self._reader.read(piece)
            self._cache.keep(piece, rows)
        return rows


class RowCache:
    """The pieces read last, of so many bytes at most; a copy in another process begins empty."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.bytes = 0
        self._rows: OrderedDict[int, Rows] = OrderedDict()
        self._lock = Lock()

    def get(self, piece: int) -> Rows | None:
        with self._lock:
            rows = self._rows.get(piece)
            if rows is not None:
                self._rows.move_to_end(piece)
            return rows

    def keep(self, piece: int, rows: Rows) -> None:
        with self._lock:
            if piece in self._rows or _bytes(rows) > self.most:
                return
            self._rows[piece] = rows
            self.bytes += _bytes(rows)
            while self.bytes > self.most:
                _, oldest = self._rows.popitem(last=False)
                self.bytes -= _bytes(oldest)

    def __reduce__(self) -> tuple[Any, ...]:
        return RowCache, (self.most,)


def _bytes(rows: Rows) -> int:
    return int(rows.X.nbytes) + (0 if rows.y is None else int(rows.y.nbytes))

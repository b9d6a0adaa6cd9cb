"""Clients in files: one file or folder each, or the rows of one value of a column.

    so.from_files("clients/*.parquet", target="outcome")       a file is a client
    so.from_files("hospitals/*", target="outcome")             so is a folder of files
    so.from_files("all.parquet", target="outcome", group="hospital")

Every piece (a file; with a group a row group of Parquet or some lines of CSV) is looked at once, in
a stream, to find out what the columns are and whether values are missing.
"""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from solera.core.clients import IntArray, Rows
from solera.core.constraints import Count, check_arguments, check_values, names_checked
from solera.core.errors import DataError, SoleraError, UsageError
from solera.core.payload import is_finite
from solera.core.schema import Kind, Schema, Unknown, class_values, infer
from solera.data.adapters import listed, tracked
from solera.data.arrays import check_rows
from solera.data.column_types import Answer, Column
from solera.data.dataset import make_schema
from solera.data.frames import category_texts, check_columns, encode_frame, is_frame, to_pandas
from solera.data.stored import CACHE, StoredData
from solera.data.table_files import TableFile, table_files


@names_checked
def from_files(
    files: str | Path | Sequence[str | Path],
    *,
    target: str | Sequence[str] | None = None,
    group: str | None = None,
    columns: Sequence[str] | None = None,
    kinds: Mapping[str, Kind] | None = None,
    unknown: Unknown = "error",
    memory: Count = CACHE,
) -> StoredData:
    """Clients whose rows stay in CSV and Parquet files until a task needs them.

    The worker that runs the task reads them. Columns mean what they mean to
    :func:`solera.from_pandas`, over the rows of all files together.

    Parameters
    ----------
    files: a pattern such as ``"clients/*.parquet"`` or a list of paths, sorted by name. Every file,
        and every folder of files, is a client of that name.
    target, columns, kinds, unknown: see :func:`solera.from_pandas`.
    group: the column that says whose row it is. Every value is then a client, in sorted order,
        wherever its rows are. Files that are sorted by it are read fastest.
    memory: bytes of rows that a process keeps of what it read last; 32 MiB by default.
    """
    check_arguments(from_files, unknown=unknown, memory=memory)
    check_values("from_files", dict.fromkeys(kinds or {}, Kind), kinds or {})
    owners = _paths(files)
    tables = [[TableFile(path) for path in table_files(owner)] for owner in owners]
    pieces = [file for table in tables for file in table]
    if group is not None:
        pieces = [piece for file in pieces for piece in file.pieces()]
    layout = _Layout(_Files(pieces), target, group, columns, kinds or {}, unknown)
    if group is not None:
        return layout.grouped(memory)
    names = tuple(owner.name.partition(".")[0] for owner in owners)
    return layout.listed([len(table) for table in tables], names, memory)


@names_checked
def from_loader(
    loader: Any,
    *,
    target: str | Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    kinds: Mapping[str, Kind] | None = None,
    unknown: Unknown = "error",
    memory: Count = CACHE,
) -> StoredData:
    """Clients of a map-style loader: ``len(loader)`` of them, ``loader[k]`` are the rows of k.

    An item is a data frame, read as by :func:`from_files`, or a pair (X, y) of arrays; it must be
    the same every time. Each is looked at once here, and later where a task needs it. To be used in
    other processes than forked ones, the loader must be one that can be pickled.
    """
    if not (hasattr(loader, "__len__") and hasattr(loader, "__getitem__")):
        raise UsageError(
            f"from_loader needs a map-style loader, not {type(loader).__name__}",
            hint="it must have a length and give the rows of a client by its number",
        )
    check_arguments(from_loader, unknown=unknown, memory=memory)
    check_values("from_loader", dict.fromkeys(kinds or {}, Kind), kinds or {})
    if not len(loader):
        raise DataError("the loader has no clients")
    if is_frame(loader[0]):
        layout = _Layout(_Items(loader), target, None, columns, kinds or {}, unknown)
        return layout.listed([1] * len(loader), (), memory)
    if target is not None or columns is not None or kinds:
        raise UsageError("from_loader: target, columns and kinds say how to read frames")
    return _of_pairs(loader, memory)


def _paths(files: str | Path | Sequence[str | Path]) -> list[Path]:
    if isinstance(files, str | Path):
        found = sorted(glob.glob(str(files)))
        if not found:
            raise DataError(f"no file matches {files}")
    else:
        found = sorted(str(file) for file in files)
        if not found:
            raise DataError("from_files([]): no file is given")
    return [Path(path) for path in found]


# --- pieces of frames ---


class _Tables(Protocol):
    """Pieces of one large frame."""

    def __len__(self) -> int: ...

    def name(self, piece: int) -> str:
        """What an error calls it."""

    def read(self, piece: int, columns: Sequence[str] | None) -> Any:
        """These columns, or all, as a pandas frame."""


class _Files:
    """Pieces of files."""

    def __init__(self, pieces: Sequence[TableFile]) -> None:
        self._pieces = pieces

    def __len__(self) -> int:
        return len(self._pieces)

    def name(self, piece: int) -> str:
        return str(self._pieces[piece].path)

    def read(self, piece: int, columns: Sequence[str] | None) -> Any:
        return self._pieces[piece].read(columns)


class _Items:
    """What a loader gives, as frames of pandas."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader)

    def name(self, piece: int) -> str:
        return f"client {piece}"

    def read(self, piece: int, columns: Sequence[str] | None) -> Any:
        frame = to_pandas(self._loader[piece])
        return frame if columns is None else frame[[c for c in columns if c in frame]]


class _Layout:
    """What the columns of all pieces are, and how many rows each piece has."""

    def __init__(
        self,
        tables: _Tables,
        target: str | Sequence[str] | None,
        group: str | None,
        columns: Sequence[str] | None,
        kinds: Mapping[str, Kind],
        unknown: Unknown,
    ) -> None:
        self._tables = tables
        self._answers = listed(target)
        self._group = group
        self._owners: list[NDArray[Any]] = []
        known = [str(name) for name in tables.read(0, None).columns]
        several = len(self._answers) > 1
        asked = [] if several else self._answers  # a label may be that of other clients
        check_columns([*asked, *listed(group), *(columns or ()), *kinds], known)
        aside = {*self._answers, *listed(group)}
        self._optional = {*self._answers} if several else set()
        self._seen: set[str] = set()
        self._lacking: list[str] = []
        self._exact = None if columns is not None else {*known, *self._answers}
        chosen = [c for c in (columns or known) if c not in aside]
        if not chosen:
            raise DataError("there is no column to learn from besides the target")
        self._features = [Column(name, kinds.get(name)) for name in chosen]
        self._targets = [Column(name, kinds.get(name), values=True) for name in self._answers]
        self.rows = np.array([self._look(i) for i in tracked(range(len(tables)), "Reading files")])
        if not self.rows.sum():
            raise DataError(f"{tables.name(0)} has no rows")
        check_columns(self._answers, [*self._seen])
        self.answer = Answer.of(self._targets, single=isinstance(target, str))
        if self._lacking and self.answer.kind != "labels":
            raise DataError(self._lacking[0])
        features = tuple(column.feature() for column in self._features)
        coded = make_schema(features, self.answer.kind, self.answer.outputs)
        self.schema = replace(coded, target_names=tuple(self._answers), unknown=unknown)
        if self.answer.kind == "classes":
            values = class_values(self.answer.class_names)
            self.schema = replace(self.schema, classes=np.unique(values))

    def _look(self, piece: int) -> int:
        """Take in what a piece shows; the number of its rows."""
        where = self._tables.name(piece)
        frame = self._tables.read(piece, None)
        self._check_alike(where, {str(name) for name in frame.columns})
        for column in (*self._features, *self._targets):
            if column.name in frame.columns:
                column.add(frame[column.name], where)
        if self._group is not None:
            self._owners.append(self._group_of(frame[self._group], where))
        return len(frame)

    def _check_alike(self, where: str, names: set[str]) -> None:
        first = self._tables.name(0)
        self._seen |= names
        for column in (*self._features, *self._targets):
            if column.name not in names:
                self._lacking.append(f"{where} has no column {column.name!r}, others have")
                if column.name not in self._optional:
                    raise DataError(self._lacking[-1])
        if self._group is not None and self._group not in names:
            raise DataError(f"{where} has no column {self._group!r}, {first} has")
        if self._exact is not None and (more := sorted(names - self._exact)):
            raise DataError(f"{where} has a column {more[0]!r}, {first} has not")

    def _group_of(self, series: Any, where: str) -> NDArray[Any]:
        texts = category_texts(series)
        if any(text is None for text in texts):
            raise DataError(f"{where}: column {self._group!r} is missing in some rows")
        return texts.astype(str)

    def listed(self, pieces_of: Sequence[int], names: tuple[str, ...], memory: int) -> StoredData:
        """Clients of so many pieces each, one after the other."""
        ends = np.cumsum(pieces_of)
        offsets = np.concatenate([[0], np.cumsum(self.rows)[ends - 1]]).astype(np.int64)
        empty = np.flatnonzero(np.diff(offsets) == 0)
        if len(empty):
            where = self._tables.name(int(ends[empty[0]]) - 1)
            raise DataError(f"{where} has no rows", hint="leave a client without rows out")
        return self._stored(offsets, None, names, memory)

    def grouped(self, memory: int) -> StoredData:
        """Clients by the values of the group."""
        values, owner = np.unique(np.concatenate(self._owners), return_inverse=True)
        order = _in_order_of_numbers(values)
        rank = np.empty(len(values), dtype=np.int64)
        rank[order] = np.arange(len(values))
        owner = rank[owner]
        offsets = np.concatenate([[0], np.cumsum(np.bincount(owner))]).astype(np.int64)
        index = np.argsort(owner, kind="stable")
        return self._stored(offsets, index, tuple(values[order].tolist()), memory)

    def _stored(
        self, offsets: IntArray, index: IntArray | None, names: tuple[str, ...], memory: int
    ) -> StoredData:
        pieces = np.concatenate([[0], np.cumsum(self.rows)]).astype(np.int64)
        reader = FrameReader(self._tables, self.schema, self.answer)
        return StoredData(
            reader,
            pieces,
            offsets,
            schema=self.schema,
            index=index,
            names=names,
            memory=memory,
            complete=all(column.complete for column in self._features),
        )


def _in_order_of_numbers(values: NDArray[Any]) -> IntArray:
    """The order of texts that are all numbers as these, of others by the alphabet."""
    try:
        return np.argsort(values.astype(float), kind="stable")
    except ValueError:
        return np.arange(len(values))


class FrameReader:
    """Pieces of frames as rows of an agreed schema."""

    def __init__(self, tables: _Tables, schema: Schema, answer: Answer) -> None:
        self._tables = tables
        self._schema = schema
        self._answer = answer
        classes = answer.kind == "classes"
        self._classes = class_values(answer.class_names) if classes else None
        self._columns = [*(f.name for f in schema.features), *answer.names]

    def read(self, piece: int) -> Rows:
        try:
            frame = self._tables.read(piece, self._columns)
            X, y = encode_frame(frame, self._schema), self._answer.read(frame)
        except SoleraError as error:
            where = self._tables.name(piece)
            if where in error.message:
                raise
            raise DataError(f"{where}: {error.message}", hint=error.hint) from error
        return Rows(X, y if self._classes is None else self._classes[y])


# --- pairs of arrays ---


class PairReader:
    """Pairs (X, y) of a loader."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def read(self, piece: int) -> Rows:
        return Rows(*check_rows(*self._loader[piece]))


def _of_pairs(loader: Any, memory: int) -> StoredData:
    reader = PairReader(loader)
    first = reader.read(0)
    schema = infer(first.X, first.y)
    classes: Any = schema.classes
    sizes = []
    complete = True
    for client in tracked(range(len(loader)), "Reading clients"):
        rows = reader.read(client)
        if rows.X.shape[1:] != first.X.shape[1:]:
            raise DataError(f"client {client} has rows of shape {rows.X.shape[1:]}, others differ")
        if not len(rows):
            raise DataError(f"client {client} has no rows", hint="leave it out")
        if schema.target == "classes":
            classes = np.union1d(classes, rows.y)
        sizes.append(len(rows))
        complete &= is_finite(rows.X)
    if schema.target == "classes":
        schema = replace(schema, classes=classes, outputs=len(classes))
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return StoredData(reader, offsets, offsets, schema=schema, memory=memory, complete=complete)

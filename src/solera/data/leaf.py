"""Sets whose rows come with their owners, as LEAF has them (Caldas et al. 2018).

A set is read from the JSON files that LEAF's scripts write, ``leaf/NAME/train/*.json`` and
``leaf/NAME/test/*.json`` below ``$SOLERA_DATA`` or the cache: ``{"users": […], "num_samples": […],
"user_data": {user: {"x": […], "y": […]}}}``. Without a ``test`` folder the last share of every
user's rows is held out. Where only a table of the same source is at hand, that is read, and the
title says so. ``groups["user"]`` says whose a row is: ``so.simulate(data, group="user")``.
"""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from solera.core.clients import Array, BoolArray
from solera.core.constraints import Count, ProperFraction, check_arguments
from solera.core.errors import DataError
from solera.core.schema import numbered
from solera.data.catalogue import described
from solera.data.dataset import Dataset, divided
from solera.data.files import DatasetInfo, find, folders, reading, unavailable

LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""The characters of Shakespeare that LEAF counts."""
_DIGITS_AND_LETTERS = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
_LENGTH = 80
_TEXT = 4
"""The place of the text in LEAF's lines of Sentiment140."""


@dataclass(frozen=True, kw_only=True)
class Leaf(DatasetInfo):
    """A set of LEAF in a folder; ``table`` is what else there may be of the same source."""

    table: str = field(default="", repr=False)

    @property
    def folder(self) -> Path | None:
        """The first folder of LEAF's files that holds some to train on."""
        found = (folder / "leaf" / self.name for folder in folders())
        return next((path for path in found if any((path / "train").glob("*.json"))), None)

    @property
    def at_hand(self) -> bool:
        return self.folder is not None or bool(self.table and find(self.table))


LEAF = described("leaf", Leaf)


class Samples(msgspec.Struct):
    """The rows of one user, in LEAF's files."""

    x: list[Any]
    y: list[Any]


class Users(msgspec.Struct):
    """One of LEAF's files."""

    user_data: dict[str, Samples]


User = tuple[str, Sequence[Any], Sequence[Any]]
"""A user's name, rows and targets, as they are in the file."""
Encode = Callable[[Sequence[Any], Sequence[Any]], tuple[Array, Array, Any]]
"""(x, y) of a user → rows, class codes, and which of the given rows these are."""


def femnist(*, test: ProperFraction = 0.1) -> Dataset:
    """Handwritten characters by their writers: 805,263 images of 28 x 28, 62 classes, group user.

    Cohen et al. (2017), Caldas et al. (2018); 3,550 writers. Pixels are float32 in [0, 1].
    """
    check_arguments(femnist, test=test)

    def encode(x: Sequence[Any], y: Sequence[Any]) -> tuple[Array, Array, Any]:
        return np.asarray(x, dtype=np.float32), np.asarray(y, dtype=np.int64), slice(None)

    return _load(LEAF["femnist"], encode, test, class_names=_DIGITS_AND_LETTERS)


def shakespeare(*, stride: Count = 10, test: ProperFraction = 0.1) -> Dataset:
    """The next character after 80 of a role's in Shakespeare, 80 classes, group user.

    McMahan et al. (2017), Caldas et al. (2018). Characters are numbered 1 to 80, 0 is any other;
    ``so.nn.lstm(81, 80)`` reads them. Where LEAF's files are not at hand, every ``stride``-th place
    in the text of a role (LEAF takes every one) is read from ``shakespeare_tiny.csv.gz``: 309
    roles of 1.1 million characters, not apart by play.
    """
    check_arguments(shakespeare, stride=stride, test=test)

    def encode(x: Sequence[str], y: Sequence[str]) -> tuple[Array, Array, Any]:
        if {*map(len, x)} != {_LENGTH} or {*map(len, y)} != {1}:
            raise ValueError(f"not {_LENGTH} characters and the one after them")
        rows = _letters("".join(x)).reshape(-1, _LENGTH)
        following = _letters("".join(y)).astype(np.int64)
        known = following > 0
        return rows[known], following[known] - 1, known

    def roles(path: Path) -> Iterator[User]:
        said: dict[str, list[str]] = {}
        for line in _lines(path):
            said.setdefault(line["role"], []).append(line["text"])
        for role, texts in said.items():
            text = re.sub(r"\s+", " ", " ".join(texts))
            places = range(0, len(text) - _LENGTH, stride)
            yield role, [text[i : i + _LENGTH] for i in places], [text[i + _LENGTH] for i in places]

    overlap = -(-_LENGTH // stride)
    return _load(LEAF["shakespeare"], encode, test, roles, tuple(LETTERS), overlap)


def sentiment140(
    *, tokens: Count = 10_000, length: Count = 25, least: Count = 1, test: ProperFraction = 0.1
) -> Dataset:
    """The sentiment of tweets by their authors: words in order, 2 classes, group user.

    Go et al. (2009), Caldas et al. (2018): 1,600,498 tweets of 660,120 users. A row holds the
    numbers of the first ``length`` words, after zeros where there are fewer. A word's number is a
    hash below ``tokens``, which all clients know without agreeing on a vocabulary;
    ``so.nn.lstm(tokens, 2)`` reads them. Users with fewer than ``least`` tweets are left out.
    Where LEAF's files are not at hand, the 20,000 tweets of ``sentiment140_20k.csv.gz`` are read.
    """
    check_arguments(sentiment140, tokens=tokens, length=length, least=least, test=test)

    def encode(x: Sequence[Any], y: Sequence[Any]) -> tuple[Array, Array, Any]:
        rows = np.zeros((len(x), length), dtype=np.int32)
        for row, line in zip(rows, x, strict=True):
            numbers = _words(line if isinstance(line, str) else line[_TEXT], tokens)[:length]
            row[length - len(numbers) :] = numbers
        return rows, np.asarray(y, dtype=np.int64), slice(None)

    def tweets(path: Path) -> Iterator[User]:
        written: dict[str, tuple[list[str], list[int]]] = {}
        for line in _lines(path):
            texts, labels = written.setdefault(line["user_code"], ([], []))
            texts.append(line["text"])
            labels.append(int(line["label"]))
        for user, (texts, labels) in written.items():
            yield user, texts, labels

    names = ("negative", "positive")
    info = replace(LEAF["sentiment140"], features=length)
    return _load(info, encode, test, tweets, names, least=least)


def _load(
    info: Leaf,
    encode: Encode,
    test: float,
    table: Callable[[Path], Iterator[User]] | None = None,
    class_names: tuple[str, ...] = (),
    overlap: int = 0,
    *,
    least: int = 1,
) -> Dataset:
    """All users' rows, from LEAF's files or from the table of the same source.

    Of held-out rows those that ``overlap`` with rows before them, so many, are left out.
    """
    folder, path = info.folder, find(info.table) if info.table else None
    if folder is not None:
        parts = {part: list(_users(folder / part)) for part in ("train", "test")}
        source = str(folder)
    elif path is not None and table is not None:
        with reading(path):
            parts = {"train": list(table(path)), "test": []}
        source, info = str(path), replace(info, title=f"{info.title} (from {path.name})")
    else:
        raise unavailable(info, "there is no download for it")
    written: Counter[str] = Counter()
    for user, _, y in chain.from_iterable(parts.values()):
        written[user] += len(y)
    pieces = []
    for part, users in parts.items():
        for user, x, y in users:
            if written[user] < least or not len(y):
                continue
            marked = np.full(len(y), part == "test")
            kept = np.ones(len(y), dtype=bool)
            if part == "train" and not parts["test"]:
                marked, kept = _last(len(y), test, overlap)
            try:
                X, codes, known = encode(x, y)
            except (IndexError, TypeError, ValueError) as problem:
                raise DataError(
                    f"{info.name}: rows of {user} cannot be read: {problem}",
                    hint="write them anew with LEAF's scripts",
                ) from None
            _check(info, user, X, codes)
            kept = kept[known]
            owner = np.full(len(codes), user, dtype=object)
            pieces.append((X[kept], codes[kept], marked[known][kept], owner[kept]))
    if not pieces:
        raise DataError(f"{source} holds no rows", hint="write it anew with LEAF's scripts")
    rows, labels, held, owners = (np.concatenate(part) for part in zip(*pieces, strict=True))
    return divided(
        info, rows, labels, held, numbered(info.features), source=source,
        class_names=class_names, groups={"user": owners.astype(np.str_)},
    )  # fmt: skip


def _users(folder: Path) -> Iterator[User]:
    for path in sorted(folder.glob("*.json")):
        with reading(path):
            try:
                users = msgspec.json.decode(path.read_bytes(), type=Users).user_data
            except msgspec.DecodeError as error:
                raise DataError(f"no file of LEAF: {error}") from None
            for user, rows in users.items():
                if len(rows.x) != len(rows.y):
                    raise DataError(f"{user} has {len(rows.x)} rows and {len(rows.y)} targets")
                yield user, rows.x, rows.y


def _last(rows: int, share: float, overlap: int) -> tuple[BoolArray, BoolArray]:
    """Marks the last share of the rows, and those that are kept."""
    place, first = np.arange(rows), rows - int(share * rows)
    marked = place >= first
    return marked, ~marked | (place >= first + overlap)


def _check(info: Leaf, user: str, X: Array, y: Array) -> None:
    if X.shape[1:] != (info.features,):
        raise DataError(f"{info.name}: rows of {user} are of {X.shape[1:]}, not {info.features}")
    if len(y) and not 0 <= y.min() <= y.max() < info.outputs:
        raise DataError(f"{info.name}: {user} has a class beyond the {info.outputs}")


_NUMBER_OF = np.zeros(256, dtype=np.uint8)
_NUMBER_OF[np.frombuffer(LETTERS.encode("ascii"), dtype=np.uint8)] = np.arange(1, len(LETTERS) + 1)


def _letters(text: str) -> Array:
    """The number of every character, 0 for those that LEAF does not count."""
    return np.asarray(_NUMBER_OF[np.frombuffer(text.encode("latin-1", "replace"), np.uint8)])


def _words(text: str, tokens: int) -> list[int]:
    words = re.findall(r"[\w']+|[.,!?;]", text.lower())
    return [1 + zlib.crc32(word.encode()) % (tokens - 1) for word in words]


def _lines(path: Path) -> Iterator[dict[str, str]]:
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)

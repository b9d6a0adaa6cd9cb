"""Data sets of PyTorch or Hugging Face as the rows of a federation, read one by one as they are.

A sample may be anything: a picture and a mask, a list of boxes, a text. Who trains on arrays gets
them stacked, where that is possible; :class:`~solera.FedTorch` gets the samples themselves, with
whatever the data set does to them each time they are read.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import numpy as np

from solera.core.clients import Array, IntArray, Part, Rows, Segments
from solera.core.errors import DataError
from solera.core.schema import Schema, infer_target, numbered, shape_of
from solera.data.federated import Assignment, FederatedData

Labels = Callable[[Any], Any] | Sequence[Any] | Array | None


class WholeBatch(Sequence[Any]):
    """Samples of one batch as tensors with an axis of samples; one by one for who iterates."""

    def __init__(self, whole: Sequence[Any]) -> None:
        self.whole = whole

    def __len__(self) -> int:
        return len(self.whole[0])

    def __getitem__(self, row: Any) -> Any:
        return tuple(tensor[row] for tensor in self.whole)


class Samples:
    """Some samples of data sets, one data set after the other, in the order of ``index``."""

    def __init__(self, datasets: Sequence[Any], index: IntArray | None = None) -> None:
        self.datasets = list(datasets)
        self._starts = np.cumsum([0, *map(len, self.datasets)]).tolist()
        self.index = np.arange(self._starts[-1]) if index is None else index

    def __len__(self) -> int:
        return len(self.index)

    @property
    def shape(self) -> tuple[int]:
        return (len(self),)

    def __getitem__(self, rows: Any) -> Any:
        """The sample of a number; several of a slice, marks or numbers, as samples again."""
        if isinstance(rows, slice | np.ndarray | list):
            return Samples(self.datasets, self.index[rows])
        place = int(self.index[rows])
        which = bisect_right(self._starts, place) - 1
        return self.datasets[which][place - self._starts[which]]

    def __getitems__(self, rows: Sequence[int]) -> Any:
        tensors = self._tensors()
        if tensors is None:
            return [self[row] for row in rows]
        places = tensors[0].new_tensor(self.index[np.asarray(rows)], dtype=_int64())
        return WholeBatch([tensor.index_select(0, places.cpu()) for tensor in tensors])

    def _tensors(self) -> Any:
        """The tensors of the only data set, where it is made of some."""
        return getattr(self.datasets[0], "tensors", None) if len(self.datasets) == 1 else None

    def __iter__(self) -> Iterator[Any]:
        return (self[row] for row in range(len(self)))

    def __repr__(self) -> str:
        return f"<{len(self):,} samples of {type(self.datasets[0]).__name__}>"


class FederatedSamples(FederatedData):
    """Samples of K clients, each client's next to each other; arrays are made when asked for."""

    X: Samples

    def __init__(self, X: Samples, y: Any, offsets: IntArray, **options: Any) -> None:
        shape = _shape(X)
        width = max(1, int(np.prod(shape)))
        schema = Schema(numbered(width), *infer_target(y), shape=shape_of(shape))
        super().__init__(X, y, offsets, schema=options.pop("schema", schema), **options)
        self._arrays: list[FederatedData] = []

    @classmethod
    def dealt(cls, X: Samples, y: Any, assignment: Assignment) -> Self:
        """Give every client the samples an assignment names."""
        index = assignment.index
        return cls(
            X[index],
            None if y is None else y[index],
            assignment.offsets,
            left_over=assignment.left_over,
            names=assignment.names,
        )

    def is_complete(self) -> bool:
        """What a sample lacks is for the loop to see that reads it."""
        return bool(self.sizes().all())

    def samples_of(self, client: int, part: Part) -> Samples:
        """The samples of one client."""
        start, size = self._bounds(client, part)
        chosen: Samples = self.X[int(start) : int(start + size)]
        return chosen

    def segments(self, clients: IntArray, part: Part = "train") -> Segments:
        """Rows whose arrays are made when somebody looks at them."""
        starts, sizes = self._bounds(clients, part)
        return SampleSegments(self, starts, sizes)

    def as_arrays(self) -> FederatedData:
        """The same clients with samples stacked: images keep their shape."""
        if not self._arrays:
            arrays = FederatedData(
                _stacked(self.X),
                self.y,
                self.offsets,
                schema=self.schema,
                held_out=self._held_out,
                names=self.names,
            )
            self._arrays.append(arrays)
        return self._arrays[0]

    def prepared(self, steps: Sequence[Any]) -> FederatedData:
        return self.as_arrays().prepared(steps)

    def with_rows(self, X: Any, y: Any) -> FederatedData:
        view = super().with_rows(X, y)
        view._arrays = []  # type: ignore[attr-defined]
        return view


class SampleRows(Rows):
    """Rows of one client, stacked when somebody looks at X."""

    __slots__ = ("_data", "_rows")
    _data: FederatedSamples
    _rows: slice

    def __init__(self, data: FederatedSamples, rows: slice) -> None:
        object.__setattr__(self, "_data", data)
        object.__setattr__(self, "_rows", rows)

    @property
    def X(self) -> Any:
        return self._data.as_arrays().X[self._rows]

    @property
    def y(self) -> Any:
        return None if self._data.y is None else self._data.y[self._rows]

    def __len__(self) -> int:
        return int(self._rows.stop - self._rows.start)


class SampleSegments(Segments):
    """Rows of several clients, stacked when somebody looks at X."""

    __slots__ = ("_data",)
    _data: FederatedSamples

    def __init__(self, data: FederatedSamples, starts: IntArray, sizes: IntArray) -> None:
        object.__setattr__(self, "_data", data)
        object.__setattr__(self, "starts", starts)
        object.__setattr__(self, "sizes", sizes)

    @property
    def X(self) -> Any:
        return self._data.as_arrays().X

    @property
    def y(self) -> Any:
        return self._data.y

    def __getitem__(self, i: int) -> Rows:
        start = int(self.starts[i])
        return SampleRows(self._data, slice(start, start + int(self.sizes[i])))


def is_samples(value: Any) -> bool:
    """Whether it is a data set that gives samples by number, of PyTorch or of Hugging Face."""
    torch = sys.modules.get("torch")
    ours = torch is not None and isinstance(value, torch.utils.data.Dataset)
    theirs = type(value).__module__.partition(".")[0] == "datasets"
    return (ours or theirs) and hasattr(value, "__getitem__") and hasattr(value, "__len__")


def labels_of(datasets: Sequence[Any], labels: Labels) -> Any:
    """The target of all samples by ``labels``, or where data sets say it themselves."""
    if callable(labels):
        return np.array([_plain(labels(sample)) for sample in Samples(datasets)])
    if labels is not None:
        given = np.asarray(_plain(labels))
        if len(given) != (rows := sum(map(len, datasets))):
            raise DataError(f"labels= holds {len(given):,} labels, there are {rows:,} samples")
        return given
    known = [_known_labels(dataset) for dataset in datasets]
    complete = [part for part in known if part is not None]
    return np.concatenate(complete) if len(complete) == len(known) else None


def _known_labels(dataset: Any) -> Array | None:
    inner, chosen = getattr(dataset, "dataset", None), getattr(dataset, "indices", None)
    if inner is not None and chosen is not None:  # a Subset
        known = _known_labels(inner)
        return None if known is None else known[np.asarray(chosen)]
    tensors = getattr(dataset, "tensors", None)
    if tensors is not None:
        return np.asarray(_plain(tensors[1])) if len(tensors) == 2 else None
    targets = getattr(dataset, "targets", None)
    if targets is None:
        return None
    given = np.asarray(_plain(targets))
    return given if given.dtype.kind in "biufU" and len(given) == len(dataset) else None


def _stacked(samples: Samples) -> Any:
    """The first part of every sample as one array."""
    try:
        tensors = samples._tensors()
        if tensors is not None:
            X = np.asarray(_plain(tensors[0]))[samples.index]
        else:
            pairs = [s if isinstance(s, tuple | list) else (s,) for s in samples]
            X = np.stack([np.asarray(_plain(pair[0])) for pair in pairs])
        if X.dtype.kind not in "biuf":
            raise ValueError(f"they hold {X.dtype}")
    except (ValueError, TypeError, IndexError) as error:
        raise DataError(
            f"{samples!r} do not stack into one array: {error}",
            hint="so.FedTorch trains on samples as they are",
        ) from None
    if X.ndim == 1:
        X = X[:, None]
    return X if X.dtype == np.float64 else X.astype(np.float32)


def _shape(X: Samples) -> tuple[int, ...]:
    """The shape of the first part of a sample; that of a number where it is no array."""
    first = X[0] if len(X) else 0
    first = first[0] if isinstance(first, tuple | list) else first
    if isinstance(first, dict | str):
        return ()
    array = np.asarray(_plain(first))
    return array.shape if array.dtype.kind in "biuf" and array.size else ()


def _plain(value: Any) -> Any:
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value


def _int64() -> Any:
    return sys.modules["torch"].int64

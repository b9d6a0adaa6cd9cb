"""Data sets of PyTorch or Hugging Face as the rows of a federation, read one by one as they are.

A sample may be anything: a picture and a mask, a list of boxes, a text. :class:`~solera.FedTorch`
gets the samples themselves, with whatever the data set does to them each time they are read.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from solera.core.clients import Array, IntArray
from solera.core.errors import DataError
from solera.core.schema import Schema, infer_target, numbered, shape_of
from solera.data.federated import FederatedData

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
        tensors = self.tensors
        if tensors is None:
            return [self[row] for row in rows]
        places = tensors[0].new_tensor(self.index[np.asarray(rows)], dtype=_int64())
        return WholeBatch([tensor.index_select(0, places.cpu()) for tensor in tensors])

    @property
    def tensors(self) -> Any:
        """The tensors of the only data set, where it is made of some."""
        return getattr(self.datasets[0], "tensors", None) if len(self.datasets) == 1 else None

    def __iter__(self) -> Iterator[Any]:
        return (self[row] for row in range(len(self)))

    def __repr__(self) -> str:
        return f"<{len(self):,} samples of {type(self.datasets[0]).__name__}>"


def federated_samples(
    samples: Samples, y: Any, offsets: IntArray, names: tuple[str, ...] = ()
) -> FederatedData:
    """Samples of clients next to each other; with arrays beside them, where they are made of some.

    What is not has no columns, and only who reads samples can learn from it.
    """
    tensors = samples.tensors
    X: Any = samples if tensors is None else tensors[0].numpy()[samples.index]
    if tensors is not None and X.ndim == 1:
        X = X[:, None]
    shape = X.shape[1:]
    features = () if tensors is None else numbered(math.prod(shape))
    schema = Schema(features, *infer_target(y), shape=shape_of(shape))
    data = FederatedData(X, y, offsets, schema=schema, names=names)
    data.samples = samples
    return data


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


def _plain(value: Any) -> Any:
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value


def _int64() -> Any:
    return sys.modules["torch"].int64

"""What a loop iterates over: a client's rows as a data set and a loader of PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from solera.core.clients import Client, Part
from solera.core.errors import DataError, UsageError
from solera.core.schema import class_codes
from solera.data.samples import WholeBatch
from solera.learn.averaging.training.devices import as_tensor, torch

Collate = Callable[[Any], Any]


class TensorRows:
    """Rows of tensors side by side, of which a loader takes whole batches at once."""

    def __init__(self, *tensors: Any) -> None:
        self.tensors = tensors

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, row: Any) -> tuple[Any, ...]:
        return tuple(tensor[row] for tensor in self.tensors)

    def __getitems__(self, rows: Sequence[int]) -> WholeBatch:
        places = torch().tensor(rows)
        return WholeBatch([tensor.index_select(0, places) for tensor in self.tensors])


def rows_of(client: Client, part: Part, classes: Any, dtype: Any) -> Any:
    """A client's rows as a data set: its own, or its arrays in the network's type."""
    samples = client.data.samples(part)
    if samples is not None:
        return samples
    rows = client.data.part(part)
    X = rows.X.toarray() if hasattr(rows.X, "tocsr") else rows.X
    return TensorRows(*tensors_of(X, rows.y, client.data.schema.target, classes, dtype))


def tensors_of(X: Any, y: Any, target: str, classes: Any, dtype: Any) -> list[Any]:
    """X and y as tensors: numbers in this type, class indices, all in their own shape."""
    tensors = [_tensor(X, dtype)]
    if y is not None:
        y = np.asarray(y)
        if target == "classes" and y.ndim == 1:
            tensors.append(torch().from_numpy(class_codes(y, classes)))
        else:
            tensors.append(_tensor(y.astype(np.float32) if target == "labels" else y, dtype))
    return tensors


def _tensor(values: Any, dtype: Any) -> Any:
    if hasattr(values, "detach"):
        return values
    tensor = as_tensor(np.asarray(values))
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def loader_of(
    dataset: Any, batch_size: int | None, collate: Collate | None, shuffle: bool, where: str
) -> Any:
    """A loader of a data set; one that is a loader already stays what it is."""
    data = torch().utils.data
    if isinstance(dataset, data.DataLoader):
        _check_workers(dataset, where)
        return dataset
    if isinstance(dataset, data.IterableDataset):
        return data.DataLoader(dataset, batch_size=batch_size, collate_fn=_collate(collate))
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise UsageError(
            f"{where}: data() returned {type(dataset).__name__}, which is no data set",
            hint="a Dataset, an IterableDataset, a DataLoader, or None where there are no rows",
        )
    rows = len(dataset)
    return data.DataLoader(
        dataset,
        batch_size=batch_size or max(1, rows),
        shuffle=shuffle and rows > 0,
        collate_fn=_collate(collate),
    )


def rows_in(loader: Any, otherwise: int) -> int:
    """How many rows a loader goes through; of streams, how many the client has."""
    dataset = getattr(loader, "dataset", None)
    try:
        return len(dataset)  # type: ignore[arg-type]
    except TypeError:
        return otherwise


def _collate(own: Collate | None) -> Collate:
    if own is not None:
        return lambda samples: own(list(samples))
    return _collate_rows


def _collate_rows(samples: Any) -> Any:
    """As PyTorch does by default; rows of unlike shapes need a function of one's own."""
    if isinstance(samples, WholeBatch):
        return list(samples.whole)
    try:
        return torch().utils.data.default_collate(list(samples))
    except (RuntimeError, TypeError) as error:
        raise DataError(
            f"rows of a batch do not stack: {str(error).splitlines()[0]}",
            hint="collate= takes a function from a list of samples to a batch, such as "
            "lambda samples: tuple(zip(*samples))",
        ) from error


def _check_workers(loader: Any, where: str) -> None:
    """Refuse loaders that start processes inside a process that may start none."""
    from multiprocessing import current_process

    if getattr(loader, "num_workers", 0) and current_process().daemon:
        raise UsageError(
            f"{where}: DataLoader(num_workers={loader.num_workers}) cannot start processes in a "
            "worker of engine='processes'",
            hint="num_workers=0, or engine='local' or 'ray'",
        )

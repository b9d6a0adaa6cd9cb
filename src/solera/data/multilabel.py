"""Clients that know different labels: the multi-label partition of MLFedAvg.

A label that a client does not own is unknown to it, which is not the same as absent: in its ``y``
it is −1, and learners and metrics leave it out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solera.core import rng
from solera.core.clients import IntArray
from solera.core.errors import DataError, UsageError
from solera.core.schema import UNKNOWN, Schema, infer
from solera.data.adapters import from_pandas
from solera.data.arrays import check_rows
from solera.data.dataset import Dataset, held_out
from solera.data.dealing import offsets_of
from solera.data.federated import FederatedData
from solera.data.files import require_pandas
from solera.data.frames import is_frame


@dataclass(frozen=True)
class LabelData:
    """The clients' rows, the labels each of them owns, and the rows held out for all."""

    clients: FederatedData
    owned: tuple[IntArray, ...]
    X_test: NDArray[np.float32]
    y_test: NDArray[np.int8]


def deal_labels(
    X: Any,
    y: Any = None,
    labels: Sequence[int] | Sequence[Sequence[int | str]] = (),
    *,
    target: Sequence[str] | None = None,
    test: float = 0.1,
    validation: float = 0.2,
    local_test: float = 0.2,
    noise: float = 0.0,
    absolute: bool = False,
    seed: int = 0,
) -> LabelData:
    """Deal rows and labels as in the experiments of MLFedAvg.

    ``X`` and ``y`` are arrays, or both frames, whose columns name features and labels; or ``X`` is
    a frame with its labels, the columns ``target``, or a :class:`Dataset`, of which the training
    rows are dealt. The share ``test`` is held out for all. The other rows are dealt evenly.
    ``labels`` says how many labels each client gets, drawn at random so that no label has two
    owners, or which ones, by number or name; then they may overlap. Rows without any label of their
    owner are dropped. With ``noise``, as in the thesis 0.5, client k's features get N(0, σ_k²) with
    σ_k drawn from U(0, ``noise``); with ``absolute`` the absolute value of the noise is added, as
    the reference program did. Each client sets rows aside.
    """
    X, y, schema = _matrices(X, y, target)
    draw = rng.generator(seed, "multilabel")
    in_test = held_out("deal_labels", y, "numbers", test, seed)
    X_test, y_test = _dense(X[in_test]), y[in_test].astype(np.int8)
    owned = _owned(labels, schema.label_names, draw)
    rows = draw.permutation(np.flatnonzero(~in_test))
    parts, targets = [], []
    for dealt_rows, own in zip(np.array_split(rows, len(owned)), owned, strict=True):
        kept = dealt_rows[y[dealt_rows][:, own].any(axis=1)]
        deviation = draw.uniform(0, noise)
        added = draw.normal(0, deviation, (len(kept), X.shape[1])) if noise else 0.0
        parts.append((_dense(X[kept]) + (np.abs(added) if absolute else added)).astype(np.float32))
        known = np.full((len(kept), y.shape[1]), UNKNOWN, dtype=np.int8)
        known[:, own] = y[kept][:, own]
        targets.append(known)
    sizes = np.array([len(part) for part in parts])
    if not sizes.all():
        raise DataError(
            f"client {sizes.argmin()} has no row with one of its labels",
            hint="give it more labels, or use another seed",
        )
    offsets = offsets_of(sizes)
    dealt = FederatedData(np.concatenate(parts), np.concatenate(targets), offsets, schema=schema)
    if validation or local_test:
        dealt = dealt.split(validation=validation, test=local_test, seed=seed)
    return LabelData(dealt, owned, X_test, y_test)


def _matrices(X: Any, y: Any, target: Sequence[str] | None) -> tuple[Any, Any, Schema]:
    """Rows, labels, and what they are called."""
    if is_frame(X):
        whole = X if y is None else require_pandas("labels").concat([X, y], axis=1)
        X = from_pandas(whole, target=list(y.columns if target is None else target))
    if isinstance(X, Dataset):
        X, y, schema = X.X, X.y, X.schema
    else:
        names = tuple(map(str, getattr(y, "columns", ())))
        X, y = check_rows(X, y)
        schema = replace(infer(X, y), target_names=names)
    if schema.target != "labels" or (y < 0).any():
        raise DataError("deal_labels needs a matrix of labels 0 and 1")
    return X, y, schema


def _owned(
    labels: Sequence[Any], names: Sequence[str], draw: np.random.Generator
) -> tuple[IntArray, ...]:
    known = len(names)
    if labels and all(isinstance(each, int | np.integer) for each in labels):
        if min(labels) < 1 or sum(labels) > known:
            raise UsageError.of(
                "deal_labels", "labels", list(labels), f"must be counts that sum to ≤ {known}"
            )
        order = draw.permutation(known)
        return tuple(np.sort(part) for part in np.split(order, np.cumsum(labels))[:-1])
    place = {name: number for number, name in enumerate(names)}
    chosen = [[place.get(label, label) for label in each] for each in labels]
    if not chosen or not all(each and {*each} <= {*range(known)} for each in chosen):
        shown = ", ".join(names[:10])
        raise UsageError.of(
            "deal_labels", "labels", labels, f"must be label numbers below {known} or of {shown}"
        )
    return tuple(np.unique(each) for each in chosen)


def _dense(X: Any) -> NDArray[np.float32]:
    return np.asarray(X.toarray() if hasattr(X, "toarray") else X, dtype=np.float32)

"""Clients that know different labels: the multi-label partition of MLFedAvg.

A label that a client does not own is unknown to it, which is not the same as absent: in its ``y``
it is −1, and learners and metrics leave it out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solera.core import rng
from solera.core.clients import IntArray
from solera.core.errors import DataError, UsageError
from solera.core.schema import Schema, numbered
from solera.data.dataset import held_out
from solera.data.federated import FederatedData

UNKNOWN = -1


@dataclass(frozen=True)
class LabelData:
    """The clients' rows, the labels each of them owns, and the rows held out for all."""

    clients: FederatedData
    owned: tuple[IntArray, ...]
    X_test: NDArray[np.float32]
    y_test: NDArray[np.int8]


def deal_labels(
    X: Any,
    y: Any,
    labels: Sequence[int] | Sequence[Sequence[int]],
    *,
    test: float = 0.1,
    validation: float = 0.2,
    local_test: float = 0.2,
    noise: float = 0.5,
    absolute: bool = False,
    seed: int = 0,
) -> LabelData:
    """Deal rows and labels as in the experiments of MLFedAvg.

    The share ``test`` is held out for all. The other rows are dealt evenly. ``labels`` says how
    many labels each client gets, drawn at random so that no label has two owners, or which ones;
    then they may overlap. Rows without any label of their owner are dropped. Client k's features
    get noise N(0, σ_k²) with σ_k drawn from U(0, ``noise``); with ``absolute`` the absolute value
    of the noise is added, as the reference program did. Each client sets rows aside.
    """
    y = np.asarray(y)
    if y.ndim != 2 or not np.isin(y, (0, 1)).all():
        raise DataError("deal_labels needs a matrix of labels 0 and 1")
    draw = rng.generator(seed, "multilabel")
    in_test = held_out("deal_labels", y, "numbers", test, seed)
    X_test, y_test = _dense(X[in_test]), y[in_test].astype(np.int8)
    owned = _owned(labels, y.shape[1], draw)
    rows = draw.permutation(np.flatnonzero(~in_test))
    parts, targets = [], []
    for dealt_rows, own in zip(np.array_split(rows, len(owned)), owned, strict=True):
        kept = dealt_rows[y[dealt_rows][:, own].any(axis=1)]
        deviation = draw.uniform(0, noise)
        added = draw.normal(0, deviation, (len(kept), X.shape[1])) if noise else 0.0
        parts.append((_dense(X[kept]) + (np.abs(added) if absolute else added)).astype(np.float32))
        target = np.full((len(kept), y.shape[1]), UNKNOWN, dtype=np.int8)
        target[:, own] = y[kept][:, own]
        targets.append(target)
    sizes = [len(part) for part in parts]
    if min(sizes) == 0:
        raise DataError(
            f"client {sizes.index(0)} has no row with one of its labels",
            hint="give it more labels, or use another seed",
        )
    schema = Schema(numbered(X.shape[1]), "labels", np.arange(y.shape[1]), y.shape[1])
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    dealt = FederatedData(np.concatenate(parts), np.concatenate(targets), offsets, schema=schema)
    if validation or local_test:
        dealt = dealt.split(validation=validation, test=local_test, seed=seed)
    return LabelData(dealt, owned, X_test, y_test)


def _owned(labels: Sequence[Any], known: int, draw: np.random.Generator) -> tuple[IntArray, ...]:
    if all(isinstance(each, int | np.integer) for each in labels):
        if min(labels) < 1 or sum(labels) > known:
            raise UsageError.of(
                "deal_labels", "labels", list(labels), f"must be counts that sum to ≤ {known}"
            )
        order = draw.permutation(known)
        return tuple(np.sort(part) for part in np.split(order, np.cumsum(labels))[:-1])
    owned = tuple(np.unique(np.asarray(each, dtype=np.int64)) for each in labels)
    if any(not len(own) or own[0] < 0 or own[-1] >= known for own in owned):
        raise UsageError.of("deal_labels", "labels", labels, f"must be label numbers below {known}")
    return owned


def _dense(X: Any) -> NDArray[np.float32]:
    return np.asarray(X.toarray() if hasattr(X, "toarray") else X, dtype=np.float32)

"""What the studies of client selection share: data, partitions, learner, and means over seeds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from solera.core.selection import Selector
from solera.data import datasets
from solera.data.federated import FederatedData
from solera.data.partition import Partition
from solera.data.partition_labels import LabelsPerClient, LabelWeights
from solera.learn.averaging import nn
from solera.learn.averaging.learner import FedAvg
from solera_studies.rows import AS_PUBLISHED, OURS

NEARLY_IID = (
    "The text gives every client two classes. In the thesis's runs every client had all ten, with "
    "weights U(.4, .6): nearly IID. Both partitions are run; the published figures stand beside "
    "the one that was used."
)
UNSHUFFLED = (
    "FLEX rounds the rows of a class down, and the programs' DataLoader never shuffles; rows as "
    "published are dealt and read so, too."
)
SORTED = (
    "FLEX lays a client's rows class after class, so that a batch of 20 holds one class or two. "
    "Rows as published lie so, too."
)
NORMALISED = (
    "All evaluations on CIFAR-10 used the normalisation of MNIST, and only AFL also trained with "
    "it, which likely explains its lead there. Here every method has the set's own."
)


@dataclass(frozen=True)
class Images:
    """Rows to train on, to validate on, and to test on."""

    X: Any
    y: Any
    X_validation: Any
    y_validation: Any
    X_test: Any
    y_test: Any
    model: Any

    def first(self, rows: int) -> Images:
        """The first rows to train on, a tenth as many to validate, as many at most to test."""
        few = rows // 10
        return Images(
            self.X[:rows], self.y[:rows], self.X_validation[:few], self.y_validation[:few],
            self.X_test[:rows], self.y_test[:rows], self.model,
        )  # fmt: skip


def read(name: str, model: Any, validation: float) -> Images:
    """A set normalised by its own mean and deviation; the last of its training rows validate."""
    X, y, X_test, y_test = datasets.load(name)
    mean, spread = X.mean(dtype=np.float64), X.std(dtype=np.float64)
    X, X_test = (((part - mean) / spread).astype(np.float32) for part in (X, X_test))
    return _cut(X, y, X_test, y_test, model, validation)


def as_published(
    name: str, model: Any, *, train_as_mnist: bool = True, validation: float = 0.1
) -> Images:
    """As the thesis's programs scale: pixels to ±1, and CIFAR-10's channels by mean and deviation.

    Every test set is scaled as MNIST, and so are CIFAR-10's training rows where
    ``train_as_mnist``.
    """
    X, y, X_test, y_test = datasets.load(name)
    top = max(float(X.max()), 1.0)
    X, X_test = (np.asarray(part, np.float32) / top for part in (X, X_test))
    half = np.float32(0.5)
    if name == "cifar10" and not train_as_mnist:
        shape = X.shape
        pixels = X.reshape(-1, 3)
        X = ((pixels - _CIFAR_MEAN) / _CIFAR_SPREAD).astype(np.float32).reshape(shape)
    else:
        X = (X - half) / half
    return _cut(X, y, (X_test - half) / half, y_test, model, validation)


_CIFAR_MEAN, _CIFAR_SPREAD = (0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261)


def _cut(X: Any, y: Any, X_test: Any, y_test: Any, model: Any, validation: float) -> Images:
    cut = len(X) - int(validation * len(X))
    return Images(X[:cut], y[:cut], X[cut:], y[cut:], X_test, y_test, model)


def partition(kind: str, protocol: str, clients: int, seed: int) -> Partition:
    """Who gets which rows; as published numbers are rounded down, as FLEX does."""
    if kind == "two classes":  # as the text says
        return LabelsPerClient(2)
    weights = np.random.default_rng(seed).uniform(0.4, 0.6, (clients, 10))
    return LabelWeights(weights / weights.sum(axis=0), floor=protocol == AS_PUBLISHED)


Order = Literal["class after class", "file"]


def dealt(
    images: Images, kind: str, protocol: str, clients: int, seed: int, order: Order
) -> FederatedData:
    """The clients' rows, as published in this order."""
    rule = partition(kind, protocol, clients, seed)
    assignment = rule.assign(len(images.y), images.y, clients=clients, seed=seed)
    if protocol == AS_PUBLISHED:
        index = assignment.index
        owner = np.repeat(np.arange(clients), assignment.sizes)
        key = index if order == "file" else images.y[index]
        assignment = replace(assignment, index=index[np.lexsort((key, owner))])
    return FederatedData.of(images.X, images.y, assignment)


def learner(model: Any, *, protocol: str, rounds: int, per_round: int, select: Selector) -> FedAvg:
    """As in the thesis: Adam, fresh in every round, five epochs of batches of 20, equal weights.

    As published rows are not shuffled.
    """
    return FedAvg(
        model,
        rounds=rounds,
        per_round=per_round,
        select=select,
        lr=1e-3,
        optimiser="adam",
        epochs=5,
        batch_size=20,
        shuffle=protocol == OURS,
        weight=None,
    )


def mean(values: list[Any]) -> float | None:
    """The mean of what is known."""
    known = [float(value) for value in values if value is not None]
    return float(np.mean(known)) if known else None


def spread(values: list[Any]) -> str:
    """How far seeds differ, and how many of them reached the figure."""
    known = [float(value) for value in values if value is not None]
    if len(values) == 1:
        return "one seed" if known else "not reached, one seed"
    if not known:
        return f"reached by none of {len(values)} seeds"
    reached = "" if len(known) == len(values) else f", {len(known)} of {len(values)} seeds"
    return f"± {np.std(known):.3g}{reached}"


MLP = nn.mlp(784, 128, 10)
SIMPLE = nn.simple_cnn()
COMPLEX = nn.complex_cnn()

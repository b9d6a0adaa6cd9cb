"""The client's side of averaging: train from what was sent, answer with what changed.

A protocol is written once, for the rows of a matrix: one client is a matrix of one row that is
trained as in the textbook, a group of simulated clients is trained together. The two give the
same replies.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from typing import Any

import numpy as np

from solera.core.clients import Array, BoolArray, Client, ClientGroup, IntArray
from solera.core.component import build
from solera.core.errors import Refusal
from solera.core.replies import Stacked
from solera.core.rng import Bits
from solera.core.task import Task, task
from solera.learn.averaging.base import diverged
from solera.learn.averaging.private_updates import (
    protect_updates,
    spent_by_reply,
)
from solera.learn.averaging.training.architecture import architecture_of
from solera.learn.averaging.training.batched import LossesAndSteps, train_batched
from solera.learn.averaging.training.batched_models import Correction
from solera.learn.averaging.training.batches import TrainingConfig
from solera.learn.averaging.training.client_rows import ClientRows
from solera.learn.averaging.training.devices import (
    as_tensor,
    borrow,
    check_precision,
    find_device,
    tensor_cores,
    torch,
)
from solera.learn.averaging.training.layout import TrainingLayout
from solera.learn.averaging.training.lazy_updates import StackedUpdates
from solera.learn.averaging.training.losses import LABEL_LOSSES, targets_of
from solera.learn.averaging.training.low_rank import low_rank_pays, train_low_rank
from solera.learn.averaging.training.optimisers import OURS
from solera.learn.averaging.training.private_training import train_private
from solera.learn.averaging.training.reference import train_reference
from solera.learn.averaging.training.tile_threads import own_threads
from solera.learn.averaging.updates import UpdateStep, pack_update
from solera.learn.client_models import LABELS, PRIVATE
from solera.learn.rows import check_shape
from solera.trust.constructors import count_by, fact, update
from solera.trust.contributions import Contribution
from solera.trust.randomness import protecting


class LocalTraining(ABC):
    """Some clients with the model they were sent; :meth:`train` trains rows of weights.

    ``weights`` and all rows are in the order of training, ``private`` marks parameters in
    PyTorch's. Without a ``layout`` the two are the same.
    """

    layout: TrainingLayout | None = None
    targets: Any

    def __init__(
        self,
        ask: Any,
        X: Any,
        ids: IntArray,
        sizes: IntArray,
        keys: Bits,
        states: Sequence[MutableMapping[str, Any]],
        clients: Iterable[Client],
    ) -> None:
        self.ask = ask
        self.clients = clients
        self.ids = ids
        self.sizes = sizes
        self.keys = keys
        self.states = states
        self.architecture = architecture_of(ask["model"])
        self.architecture.check_weights(ask["weights"])
        self.config = TrainingConfig(**ask["training"])
        self.weights: Any = None
        self.private: Any = None
        if ask["private"]:
            self.private = as_tensor(self.architecture.layout.select(ask["private"]))
        check_shape(ids, sizes, X, self.architecture.inputs or math.prod(X.shape[1:]))
        self.privacy: Any = ask.get("privacy")
        if self.privacy is not None and ask["send"] != "difference":
            raise Refusal("noise is added to differences, the ask wants weights")
        if self.by_row and self.private is not None:
            raise Refusal("the gradients of private parameters would be followed without noise")

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def by_row(self) -> bool:
        """Whether the gradient of every row is clipped and noised."""
        return self.privacy is not None and self.privacy["level"] == "record"

    @abstractmethod
    def train(self, weights: Any, config: TrainingConfig, **correction: Any) -> LossesAndSteps:
        """Train each row in place; the mean loss and the number of steps of each.

        ``correction`` are the parts of a :class:`Correction`, in the order of training.
        """

    def changes(self, **correction: Any) -> tuple[Any, Array, IntArray]:
        """Train from the model that was sent: the difference to it, the losses, the steps."""
        rows = self.copies()
        losses, steps = self.train(rows, self.config, **correction)
        self.keep_private(rows)
        return rows.sub_(self.weights), losses, steps

    def update(self) -> Stacked:
        """The reply of plain averaging: train from the model that was sent, send what changed."""
        changes, losses, _ = self.changes(anchor=self.weights)
        return self.reply(changes, losses)

    def known_labels(self) -> BoolArray:
        """Which labels each client knows; −1 stands for those it does not."""
        first = np.cumsum(self.sizes) - self.sizes
        given = torch().as_tensor(self.targets).cpu().numpy() >= 0
        return np.asarray(np.logical_or.reduceat(given, first, axis=0))

    def arrange(self, vectors: Any) -> Any:
        """Vectors in PyTorch's order, as they are sent and kept, in the order of training."""
        return vectors if self.layout is None else self.layout.arrange(vectors)

    def restore(self, vectors: Any) -> Any:
        """Vectors in the order of training in PyTorch's order."""
        return vectors if self.layout is None else self.layout.restore(vectors)

    def received(self, name: str) -> Any:
        """A vector of the ask in the order of training."""
        return self.arrange(as_tensor(self.ask[name]).to(self.weights))

    def copies(self) -> Any:
        """The model that was sent, one row per client, with each one's private part in place."""
        if self.private is None:
            return self.weights.expand(len(self), -1).clone()
        rows = self.restore(self.weights).expand(len(self), -1).clone()
        for row, state in zip(rows, self.states, strict=True):
            if PRIVATE in state:
                row[self.private] = as_tensor(state[PRIVATE]).to(row)
        return self.arrange(rows)

    def keep_private(self, rows: Any) -> None:
        """Remember the private part of every row whose numbers are finite."""
        if self.private is not None:
            self._remember(PRIVATE, self.restore(rows)[:, self.private])
            if self.config.loss in LABEL_LOSSES:
                for state, known in zip(self.states, self.known_labels(), strict=True):
                    if not known.all():
                        state[LABELS] = known

    def recall(self, name: str, default: Any) -> Any:
        """What every client remembers under a name, one row each; ``default`` if it is nothing."""
        rows = default.expand(len(self), -1).clone()
        for row, state in zip(rows, self.states, strict=True):
            if name in state:
                row.copy_(self.arrange(as_tensor(state[name])))
        return rows

    def remember(self, name: str, rows: Any) -> None:
        """Let every client remember its row, unless it holds NaN or infinite numbers."""
        self._remember(name, self.restore(rows))

    def _remember(self, name: str, rows: Any) -> None:
        for state, row in zip(self.states, rows.cpu().numpy(), strict=True):
            if np.isfinite(row).all():
                state[name] = row.copy()

    def reply(self, changes: Any, losses: Array, **more: Any) -> Stacked:
        """The update of every client, packed, with its loss and number of rows."""
        if self.privacy is not None:
            return self._noised(changes, self.privacy)
        values = changes.add_(self.weights) if self.ask["send"] == "weights" else changes
        others = {"loss": losses, "rows": self.sizes, **more}
        steps = build(self.ask["steps"])
        if self.private is None and not steps:
            return StackedUpdates(values, rest=others, layout=self.layout)
        values = self.restore(values)
        if self.private is not None:
            values = values[:, ~self.private]
        if not steps:
            return StackedUpdates(values, rest=others)
        return Stacked({"update": self._packed(values, steps), **others})

    def _noised(self, changes: Any, privacy: Any) -> Stacked:
        """Updates with noise and equal weights; the loss and the rows would be told without."""
        values = self.restore(changes)
        counted = self.architecture.layout.counted
        if self.private is not None:
            values = values[:, ~self.private]
            counted = counted[~self.private.cpu().numpy()]
        others: dict[str, Any] = {"rows": np.ones(len(self))}
        if privacy["level"] == "client":
            noised, below = protect_updates(values.cpu().numpy(), counted, privacy, self.clients)
            values = torch().from_numpy(noised)
            if below is not None:
                others["below"] = below
        else:
            values = values * as_tensor(counted).to(values)
        steps = build(self.ask["steps"])
        return Stacked({"update": self._packed(values, steps), **others})

    def _packed(self, values: Any, steps: Sequence[UpdateStep]) -> Any:
        return pack_update(values, steps, self.keys, self.states, self.clients)


class OneClientTraining(LocalTraining):
    """A client on its own."""

    def __init__(self, client: Client, ask: Any, device: Any = None) -> None:
        """``device`` is where a simulated client is trained; others have a CPU."""
        rows = client.data.part("train")
        ids, sizes = np.array([client.id]), np.array([len(rows)])
        super().__init__(ask, rows.X, ids, sizes, client.key, [client.state], [client])
        self.device = torch().device("cpu") if device is None else device
        check_precision(self.config.precision, self.config.compile, self.device)
        self.X = rows.X
        self.targets = targets_of(rows.y, self.config.loss, ask["classes"], ask["weights"].dtype)
        self.weights = as_tensor(ask["weights"])

    def train(self, weights: Any, config: TrainingConfig, **correction: Any) -> LossesAndSteps:
        with tensor_cores(config.precision):
            row, loss, steps = train_reference(
                self.architecture,
                weights[0].numpy(),
                self.X,
                self.targets,
                self.keys,
                config,
                Correction(**correction).of(0),
                self.device,
            )
        if not (np.isfinite(row).all() and np.isfinite(loss)):
            raise diverged(f"at client {self.ids[0]}", config.lr)
        weights[0] = torch().from_numpy(row)
        return np.array([loss]), np.array([steps])


class GroupTraining(LocalTraining):
    """Simulated clients of one process."""

    def __init__(self, group: ClientGroup, ask: Any) -> None:
        rows = group.data
        super().__init__(ask, rows.X, group.ids, rows.sizes, group.keys, group.states, group)
        device = find_device(ask["device"])
        check_precision(self.config.precision, self.config.compile, device)
        self.layout = self.architecture.training_layout
        self.weights = self.arrange(as_tensor(ask["weights"]).to(device))
        if self.private is not None:
            self.private = self.private.to(device)
        self.rows = ClientRows(rows, self.keys, self.config.loss, ask["classes"], self.weights)
        self.targets = self.rows.targets

    def train(self, weights: Any, config: TrainingConfig, **correction: Any) -> LossesAndSteps:
        terms = Correction(**correction)
        return train_batched(self.architecture, weights, self.rows, config, terms)

    def changes(self, **correction: Any) -> tuple[Any, Array, IntArray]:
        if self.private is not None:
            return super().changes(**correction)
        rows = borrow(len(self), self.architecture.layout.size, self.weights)
        if self.by_row:
            assert self.privacy is not None
            losses, steps = train_private(
                self.architecture,
                rows,
                self.rows,
                self.config,
                Correction(**correction),
                self.privacy,
                [protecting(client, "gradients") for client in self.clients],
                start=self.weights,
            )
            return rows, losses, steps
        losses, steps = train_batched(
            self.architecture,
            rows,
            self.rows,
            self.config,
            Correction(**correction),
            start=self.weights,
        )
        return rows, losses, steps

    def update(self) -> Stacked:
        plain = not self.ask["steps"] and self.ask["send"] == "difference"
        as_is = plain and self.private is None and self.privacy is None
        device = self.weights.device
        if as_is and low_rank_pays(self.architecture, self.config, self.sizes, device):
            return train_low_rank(self.architecture, self.weights, self.rows, self.config)
        return super().update()


Protocol = Callable[[LocalTraining], Stacked]


def training_task(name: str, *, noised: bool = True) -> Callable[[Protocol], Task]:
    """A protocol as a task, for one client and for many at once.

    ``noised`` says whether its update may have noise, as the ask's ``privacy`` wants it.
    """

    def install(protocol: Protocol) -> Task:
        def one(client: Client, ask: Any) -> dict[str, Contribution]:
            local: LocalTraining = OneClientTraining(client, ask)
            if local.by_row:  # there is one way to train so
                local = GroupTraining(client.alone, ask)
            return _contributions(local, protocol(local)[0])

        def fast(client: Client, ask: Any) -> dict[str, Contribution]:
            if not _is_stacked(ask):
                return one(client, ask)
            with own_threads():
                local = GroupTraining(client.alone, ask)
                return _contributions(local, protocol(local)[0])

        def many(group: ClientGroup, ask: Any) -> Stacked | Sequence[Any]:
            if not _is_stacked(ask):
                device = find_device(ask["device"])
                return [protocol(OneClientTraining(client, ask, device))[0] for client in group]
            with own_threads():
                return protocol(GroupTraining(group, ask))

        one.__doc__ = protocol.__doc__
        one.__module__ = many.__module__ = protocol.__module__
        one.__qualname__ = protocol.__qualname__
        spends = spent_by_reply if noised else None
        return task(name, many=many, spends=spends, fast=fast)(one)

    return install


def _is_stacked(ask: Any) -> bool:
    """Whether many clients are trained at once."""
    architecture = architecture_of(ask["model"])
    known = architecture.layers is not None or architecture.stacks
    return known and ask["training"]["optimiser"] in OURS


def _contributions(local: LocalTraining, reply: dict[str, Any]) -> dict[str, Contribution]:
    """What steps over all rows came to, and how many rows there are.

    An update with noise counts as much as any other, so that its weight tells nothing.
    """
    given: dict[str, Contribution] = {name: update(value) for name, value in reply.items()}
    if local.privacy is not None:
        given["rows"] = fact(reply["rows"])
    elif np.asarray(reply["rows"]).dtype.kind == "i":  # and not a weight that follows from them
        given["rows"] = count_by(None)
    return given

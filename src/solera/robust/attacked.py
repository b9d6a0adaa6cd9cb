"""Attacks put into a simulation: into what clients send, and into the rows they have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from solera.core.aggregation import Aggregation
from solera.core.clients import Array
from solera.core.component import Component
from solera.core.engine import Ask, Block
from solera.core.errors import UsageError
from solera.core.replies import Batch, Reply
from solera.core.rng import generator
from solera.core.task import find_task
from solera.data.federated import FederatedData
from solera.engines.folds import validate_and_fold
from solera.robust.attacks import RowAttack, UpdateAttack
from solera.trust.open_asks import with_entry


class AttackedEngine:
    """An engine some of whose clients lie about their updates; other asks go through as they are.

    A task is attacked where clients answer with a model after steps, of a length they are told.
    """

    def __init__(self, engine: Any, attack: UpdateAttack, attackers: Sequence[int]) -> None:
        self._engine = engine
        self._attack = attack
        self._attackers = attackers

    def __reduce__(self) -> Any:
        return AttackedEngine, (self._engine, self._attack, self._attackers)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    @contextmanager
    def announced(self, learner: Component) -> Iterator[None]:
        """Refuse to fit a learner that asks for no update, unless it prepares rows for one."""
        prepares = hasattr(learner, "transform_schema")
        fits = "schema_" not in vars(learner)
        if fits and not prepares and not getattr(learner, "sends_updates", False):
            raise UsageError(
                f"{self._attack!r} changes updates of a model, and "
                f"{type(learner).__name__} asks for none: nothing would be attacked",
                hint="an attack on rows, such as so.robust.LabelFlip(share=0.2)",
            )
        yield

    def run(self, ask: Ask, aggregation: Aggregation | None) -> Iterator[Block]:
        """The blocks of the ask, the replies of attackers replaced."""
        task = find_task(ask.task, ask.version)
        if not _trains(ask) or np.isin(ask.clients, self._attackers).sum() == 0:
            yield from self._engine.run(ask, aggregation)
            return
        blocks: Any = self._engine.run(ask, None)
        seen: list[Array] = []
        wrong = 0
        if self._attack.colludes:
            blocks = list(blocks)
            for reply in (reply for block in blocks for reply in block.batch):
                if reply.client in self._attackers:
                    wrong += 1
                elif _arrays(ask, reply):
                    seen.append(_vector(ask, reply))
        for block in blocks:
            replies = [self._sent(ask, reply, seen, wrong) for reply in block.batch]
            batch = Batch(block.batch.clients, replies)
            failures = list(block.failures)
            yield validate_and_fold(task, ask, batch, failures, block.virtual, aggregation)

    def _sent(self, ask: Ask, reply: Reply, seen: list[Array], wrong: int) -> Any:
        colludes_alone = self._attack.colludes and not seen
        honest = reply.client not in self._attackers
        if honest or colludes_alone or not _arrays(ask, reply):
            return reply.payload
        own = _vector(ask, reply)
        draw = generator(ask.seed, f"robust.lie/{ask.task}", ask.round, reply.client)
        lie = np.asarray(self._attack.lie(own, draw, seen, wrong))
        return _rebuilt(ask, reply, lie.astype(own.dtype))


def _trains(ask: Ask) -> bool:
    """Whether it is for a model after steps, of a length that the ask says."""
    payload = ask.payload
    return isinstance(payload, Mapping) and not {"training", "lr"}.isdisjoint(payload)


def _arrays(ask: Ask, reply: Reply) -> list[tuple[tuple[str, ...], Array, Any]]:
    """Where it is, numbers, and what these are the difference to, of every array of an update."""
    arrays: list[tuple[tuple[str, ...], Array, Any]] = []
    for name, value in reply.payload.get("change", {}).items():
        if np.ndim(value):
            arrays.append((("change", name), np.asarray(value), 0))
    if "update" in reply.payload:
        sent = reply.payload["update"]["values"]
        if sent.dtype.kind != "f":
            raise UsageError("attacks change updates as they are: leave so.updates.Quantise out")
        arrays.append((("update", "values"), sent, _model_sent(ask, sent)))
    if "control" in reply.payload:
        arrays.append((("control",), reply.payload["control"], 0))
    return arrays


def _model_sent(ask: Ask, sent: Array) -> Any:
    if ask.payload["send"] == "difference":
        return 0
    weights = ask.payload["weights"]
    if len(weights) != len(sent):
        raise UsageError("attacks on a part of the model need send='difference'")
    return weights


def _vector(ask: Ask, reply: Reply) -> Array:
    return np.concatenate([np.ravel(value - start) for _, value, start in _arrays(ask, reply)])


def _rebuilt(ask: Ask, reply: Reply, vector: Array) -> Any:
    """The reply with another update in its place."""
    payload = reply.payload
    first = 0
    for place, value, start in _arrays(ask, reply):
        part = vector[first : first + value.size]
        first += value.size
        if part.size == value.size:
            part = part.reshape(value.shape) + start
        payload = with_entry(payload, ".".join(place), part)
    return payload


def poisoned(source: Any, attack: RowAttack, attackers: Sequence[int], seed: int) -> FederatedData:
    """The same rows, except those that attackers train on."""
    if not isinstance(source, FederatedData) or hasattr(source.X, "tocsr"):
        raise UsageError(f"{attack!r} needs dense rows that are not generated lazily")
    if source.schema.target not in ("classes", "labels"):
        raise UsageError(f"{attack!r} changes classes, the target is {source.schema.target}")
    X, y = np.array(source.X), np.array(source.y)
    for client in attackers:
        rows = source.segments(np.array([client]), "train")
        own = slice(int(rows.starts[0]), int(rows.starts[0] + rows.sizes[0]))
        draw = generator(seed, "robust.poison", 0, client)
        attack.poison(X[own], y[own], source.schema.classes, draw)
    return source.with_rows(X, y)

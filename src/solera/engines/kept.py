"""Replies that are kept, to fold them once more without a client.

A learner that is run again over :class:`KeptReplies` gets the stored replies back wherever it asks
the same; the result is that of asking the other clients anew, to the bit, since it is the same
code that folds the same replies along the tree of those who are left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

import numpy as np

from solera.core.aggregation import Aggregation, blocks
from solera.core.clients import IntArray, Part
from solera.core.engine import Ask, Block, PerClient
from solera.core.errors import CannotForget
from solera.core.federation import Federation
from solera.core.payload import encode
from solera.core.replies import Batch, Failure, Stacked, map_leaves
from solera.core.schema import Schema
from solera.core.task import find_task
from solera.engines.folds import validate_and_fold

Kept = dict[str, Any]
"""What was kept of a fit, as a payload: what the engine knew, and every ask with its replies."""


class KeepingEngine:
    """An engine that keeps every reply it brings."""

    def __init__(self, federation: Federation) -> None:
        engine: Any = federation.engine
        self._engine = engine
        schema, sizes = engine.schema, engine.sizes("train")
        complete = getattr(engine, "is_complete", None)
        self.kept: Kept = {
            "seed": federation.seed,
            "names": list(federation.names),
            "clients": engine.clients,
            "schema": None if schema is None else schema.to_payload(),
            "sizes": sizes,
            "complete": complete is not None and bool(complete()),
            "asks": [],
        }

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def run(self, ask: Ask, aggregation: Aggregation | None) -> Iterator[Block]:
        """The blocks of the ask; single replies are kept before they are folded."""
        task = find_task(ask.task, ask.version)
        entry: dict[str, Any] = {"ask": _digest(ask), "replies": [], "failures": []}
        self.kept["asks"].append(entry)
        for block in self._engine.run(ask, None):
            assert block.batch is not None
            entry["stacked"] = isinstance(block.batch.payloads, Stacked)
            entry["replies"] += [[reply.client, reply.payload] for reply in block.batch]
            entry["failures"] += [[f.client, f.kind, f.reason] for f in block.failures]
            failures = list(block.failures)
            yield validate_and_fold(task, ask, block.batch, failures, block.virtual, aggregation)


class KeptReplies:
    """An engine that answers from what was kept; what it cannot, it asks ``live``, if there is one.

    Who asks leaves the forgotten client out (:meth:`solera.Federation.without`).
    """

    def __init__(self, kept: Kept, live: Any = None) -> None:
        self._kept = kept
        self._live = live

    @property
    def clients(self) -> int:
        return int(self._kept["clients"])

    @property
    def schema(self) -> Schema | None:
        schema = self._kept["schema"]
        return None if schema is None else Schema.from_payload(schema)

    def sizes(self, part: Part) -> IntArray | None:
        """Rows per client, as they were."""
        sizes: IntArray | None = self._kept["sizes"] if part == "train" else None
        return sizes

    def is_complete(self) -> bool:
        """Whether it was known that no value is missing."""
        return bool(self._kept["complete"])

    def run(self, ask: Ask, aggregation: Aggregation | None) -> Iterator[Block]:
        """The blocks of the ask, of replies that were kept."""
        entry = self._find(ask)
        if entry is None:
            if self._live is None:
                raise CannotForget(
                    f"without the client {ask.task!r} is asked with other numbers, to which no "
                    "reply was kept",
                    hint="give the federation as well, to ask the others again: "
                    "model.forget(client, federation)",
                )
            yield from self._live.run(ask, aggregation)
            return
        task = find_task(ask.task, ask.version)
        replies, failed = dict(entry["replies"]), {c: f for c, *f in entry["failures"]}
        for positions in blocks(len(ask.clients)):
            asked = ask.clients[positions].tolist()
            clients = np.array([c for c in asked if c in replies], dtype=np.int64)
            payloads: Any = [replies[c] for c in clients.tolist()]
            if entry["stacked"] and payloads:
                payloads = Stacked(map_leaves(lambda *parts: np.stack(parts), *payloads))
            failures = [Failure(c, *failed[c]) for c in asked if c in failed]
            yield validate_and_fold(task, ask, Batch(clients, payloads), failures, 0.0, aggregation)

    def _find(self, ask: Ask) -> Any:
        wanted = _digest(ask)
        for entry in self._kept["asks"]:
            known = {client for client, *_ in [*entry["replies"], *entry["failures"]]}
            if entry["ask"] == wanted and known.issuperset(ask.clients.tolist()):
                return entry
        return None

    def states(self, fit: Any = None) -> dict[int, Any]:
        """What clients keep between tasks is with them."""
        return {} if self._live is None else self._live.states(fit)

    def restore(self, states: Mapping[int, Any], fit: Any = None) -> None:
        """Put it back with them."""
        if self._live is not None:
            self._live.restore(states, fit)

    def checkpoint_store(self) -> None:
        """Nothing is kept of a fold that can be repeated."""

    def close(self) -> None:
        """Nothing to give back."""


def _digest(ask: Ask) -> str:
    """What was asked, whoever was asked."""
    if isinstance(ask.payload, PerClient):
        payload: Any = sorted(ask.payload.payloads.items())
    else:
        payload = ask.payload
    steps = [step.digest for step in ask.prepare]
    asked = [ask.task, ask.version, ask.seed, ask.round, steps, payload]
    return blake2b(encode(asked), digest_size=16).hexdigest()

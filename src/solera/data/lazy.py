"""Clients whose rows are made when they are needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from solera.core import rng
from solera.core.clients import IntArray, Part, Rows, Segments
from solera.core.constraints import Count, check_arguments
from solera.core.schema import Schema, infer
from solera.data.arrays import check_rows, prepared_rows

_LOOKED_AT = 16
Generate = Callable[[int, np.random.Generator], Any]


class LazyData:
    """Clients whose rows are generated when a task needs them, and forgotten afterwards.

    ``generate(client, rng)`` returns ``(X, y)``, the same for the same client every time: ``rng``
    is derived from the seed and the client. The first few clients show what the rows look like,
    unless ``schema`` says so: name it when classes are rare.
    """

    def __init__(
        self, generate: Generate, *, clients: Count, seed: int = 0, schema: Schema | None = None
    ) -> None:
        check_arguments(LazyData.__init__, owner=self, clients=clients)
        self.generate = generate
        self.clients = clients
        self.seed = seed
        self._steps: Sequence[Any] = ()
        self._raw = self._look() if schema is None else schema
        self.schema = self._raw

    def _rows(self, client: int) -> tuple[Any, Any]:
        X, y = check_rows(*self.generate(client, rng.generator(self.seed, "data", 0, client)))
        if self._steps:
            X, _ = prepared_rows(X, self._raw, self._steps)
        return X, y

    def _look(self) -> Schema:
        """The columns of client 0 and the classes of the first clients."""
        first = [self._rows(client) for client in range(min(self.clients, _LOOKED_AT))]
        schema = infer(*first[0])
        if schema.target != "classes":
            return schema
        classes = np.unique(np.concatenate([y for _, y in first]))
        return replace(schema, classes=classes, outputs=len(classes))

    def sizes(self, part: Part = "train") -> IntArray | None:
        return None

    def segments(self, clients: IntArray, part: Part = "train") -> Segments:
        if part != "train":
            X, y = self._rows(int(clients[0]))
            none = np.zeros(len(clients), dtype=np.int64)
            return Segments(X[:0], None if y is None else y[:0], none, none)
        rows = [Rows(*self._rows(client)) for client in clients.tolist()]
        sizes = np.array([len(r) for r in rows], dtype=np.int64)
        X = np.concatenate([r.X for r in rows])
        y = None if rows[0].y is None else np.concatenate([r.y for r in rows])
        return Segments(X, y, np.cumsum(sizes) - sizes, sizes)

    def prepared(self, steps: Sequence[Any]) -> LazyData:
        view = LazyData(self.generate, clients=self.clients, seed=self.seed, schema=self._raw)
        view._steps = (*self._steps, *steps)
        for step in view._steps:
            view.schema = step.transform_schema(view.schema)
        return view

    def __repr__(self) -> str:
        return f"LazyData({self.clients:,} clients)"

"""Updates of a round, side by side: what rules that need all of them fold with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from solera.core.aggregation import Aggregation, Collect, length
from solera.core.clients import Array
from solera.core.payload import is_finite
from solera.core.replies import Batch, Reply
from solera.robust.rules import Rule, Verdict

Entries = Mapping[str, Any]


class CollectUpdates(Collect):
    """Every update, unpacked and checked, as the mean would weigh it alone.

    The result gives for every client its ``weight`` and its ``values``. Memory grows with the
    clients of a round.
    """

    def __init__(self, mean: Aggregation) -> None:
        self.mean = mean

    def lift(self, reply: Reply) -> Any:
        weight, values = self.mean.alone(reply)  # type: ignore[attr-defined]
        return [[reply.client, {"weight": weight, "values": values}]]

    def fold(self, batch: Batch) -> Any:
        return [pair for reply in batch for pair in self.lift(reply)] or None

    def sound(self, partial: Any) -> bool:
        largest = self.mean.largest  # type: ignore[attr-defined]
        bound = np.inf if largest is None else largest
        return all(
            is_finite(update) and length(update["values"]) <= bound for _, update in partial or ()
        )


class Robust(CollectUpdates):
    """A rule in place of a mean.

    The arrays of the replies, as differences to ``origin`` where that is given, are judged
    together; entries that the mean takes ``plain`` or ``beside`` are judged by themselves. Single
    numbers beside them, such as the loss, become their median. ``judged`` lists the suspects:
    client, trust, why.
    """

    def __init__(self, mean: Aggregation, rule: Rule, origin: Entries | None = None) -> None:
        super().__init__(mean)
        self.rule = rule
        self.origin = origin

    def finish(self, partial: Any) -> Any:
        clients = [client for client, _ in partial]
        replies = [update["values"] for _, update in partial]
        alone = [n for apart in ("plain", "beside") for n in getattr(self.mean, apart, None) or ()]
        together = [name for name in _arrays(replies[0]) if name not in alone]
        verdict = self.rule.judge([self._vector(values, together) for values in replies])
        result: dict[str, Any] = dict(self._entries(verdict.value, replies[0], together))
        for name in alone:
            judged = self.rule.judge([np.ravel(values[name]) for values in replies])
            result[name] = judged.value.reshape(np.shape(replies[0][name]))
        for name in sorted({name for values in replies for name in values} - result.keys()):
            result[name] = float(np.median([v[name] for v in replies if name in v]))
        return {**result, "count": len(clients), "judged": _suspects(clients, verdict)}

    def _vector(self, values: Entries, names: Sequence[str]) -> Array:
        moved = [values[name] - self._start(name) for name in names]
        return np.concatenate([np.ravel(array) for array in moved])

    def _entries(
        self, vector: Array, like: Entries, names: Sequence[str]
    ) -> Iterator[tuple[str, Array]]:
        first = 0
        for name in names:
            shape = np.shape(like[name])
            last = first + int(np.prod(shape))
            yield name, vector[first:last].reshape(shape) + self._start(name)
            first = last

    def _start(self, name: str) -> Any:
        return 0 if self.origin is None or name not in self.origin else self.origin[name]


def _arrays(values: Entries) -> dict[str, Array]:
    return {name: value for name, value in values.items() if np.ndim(value)}


def _suspects(clients: Sequence[int], verdict: Verdict) -> list[list[Any]]:
    return [
        [clients[i], float(verdict.trust[i]), verdict.reasons[i]]
        for i in np.flatnonzero(verdict.suspects).tolist()
    ]

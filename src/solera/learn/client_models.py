"""Models of which every client has its own: a part that all share, and a part that each keeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from solera.core.clients import Client, ClientGroup, Segments
from solera.core.component import build_fitted
from solera.core.engine import Fit
from solera.core.errors import TaskError, UsageError
from solera.core.federation import Federation
from solera.core.replies import Stacked, map_leaves
from solera.core.task import Many, find_task
from solera.trust.joined import run_on_joined_rows
from solera.trust.open_asks import numbers_of

PRIVATE, OWN, THRESHOLDS, LABELS = _PARTS = "private_part", "own_model", "thresholds", "labels"
"""What a client keeps of its model, by the names in its state."""


@dataclass(frozen=True)
class ClientParts:
    """What simulated clients keep of a model, by their ids; the model is saved with it."""

    parts: dict[int, dict[str, Any]]
    names: tuple[str, ...]
    configuration: Any = None

    @classmethod
    def of(cls, federation: Federation) -> Self | None:
        """The parts of a fit; None where they stay with their owners."""
        if not getattr(federation.engine, "simulated", False):
            return None
        parts = {client: part_of(state) for client, state in federation.states().items()}
        kept = {client: parts[client] for client in sorted(parts) if parts[client]}
        return cls(kept, federation.names, federation.configuration)

    @classmethod
    def from_payload(cls, payload: Any) -> Self:
        """What :meth:`to_payload` gave."""
        return cls(dict(payload["parts"]), tuple(payload["names"]))

    def to_payload(self) -> dict[str, Any]:
        """As plain data."""
        return {"parts": [list(pair) for pair in self.parts.items()], "names": list(self.names)}

    def name(self, client: int) -> Any:
        """What a client is called: by its name, where it has one."""
        return self.names[client] if self.names else client

    def find(self, client: int | str) -> int:
        """The id of a client that keeps a part."""
        place = self.names.index(client) if client in self.names else client
        if place not in self.parts:
            raise UsageError(
                f"there is no model of {client!r}, who took no part in training",
                hint=f"there are {', '.join(str(self.name(c)) for c in [*self.parts][:20])}",
            )
        return int(place)

    def are_of(self, federation: Federation) -> bool:
        """Whether its clients are those who keep these parts."""
        same = federation.configuration is self.configuration
        return same or (bool(self.names) and federation.names == self.names)

    def give_back(self, federation: Federation, fit: Fit) -> None:
        """Let simulated clients keep their parts for a fit."""
        states = federation.engine.states(fit)
        for client, part in self.parts.items():
            states[client] = {**states.get(client, {}), **part}
        federation.engine.restore(states, fit)


def part_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """What of a client's state belongs to its model."""
    return {name: value for name, value in state.items() if name in _PARTS}


# --- at the client ---


def own_model(client: Client, description: Mapping[str, Any]) -> Any:
    """The model of an ask, or what this client has made of it."""
    model = build_fitted(description)
    return model.with_part(client.state) if model.is_personal else model


def by_own_models(group: ClientGroup, ask: Any, count: Callable[[Any, Segments], Any]) -> Any:
    """What the model of an ask gives all clients' rows, or every client's own model its rows."""
    model, part = build_fitted(ask["model"]), ask.get("part", "train")
    if not model.is_personal:
        return count(model, group.part(part))
    each = [count(model.with_part(client.state), client.alone.part(part)) for client in group]
    return map_leaves(lambda *leaves: np.concatenate(leaves), *each)


def many_models(name: str) -> Many:
    """``many=`` of a task that works row by row, by the model of the ask or each client's own."""

    def many(group: ClientGroup, ask: Any) -> Stacked | Sequence[Any]:
        task = find_task(name)
        try:
            return run_on_joined_rows(task)(group, ask)
        except TaskError:  # the model is personal: own_model asks for what a client keeps of it
            return [numbers_of(task, client, ask, task.one(client, ask)) for client in group]

    return many

"""What simulated clients keep from task to task."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

State = dict[str, Any]
States = MutableMapping[int, State]
"""What clients keep, by their ids."""
_LASTING = "solera."
"""Entries whose names begin so outlast a fit: what left a client, its parts of vertical models."""


class FitStates(MutableMapping[int, State]):
    """What every client keeps for one fit, together with what outlasts it."""

    def __init__(self, fit: dict[int, State], lasting: dict[int, State]) -> None:
        self._parts = fit, lasting

    def __getitem__(self, client: int) -> State:
        fit, lasting = (part.get(client, {}) for part in self._parts)
        if not fit and not lasting:
            raise KeyError(client)
        return {**fit, **lasting}

    def __setitem__(self, client: int, state: State) -> None:
        del self[client]
        for name, value in state.items():
            part = self._parts[name.startswith(_LASTING)]
            part.setdefault(client, {})[name] = value

    def __delitem__(self, client: int) -> None:
        for part in self._parts:
            part.pop(client, None)

    def __iter__(self) -> Iterator[int]:
        yield from set().union(*self._parts)

    def __len__(self) -> int:
        return len(set(self))

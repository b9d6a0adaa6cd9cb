"""What learners, selectors and callbacks know: all attributes whose names end in an underscore.

Whoever follows that rule can be saved, sent and resumed without code of its own. Values are
replaced rather than changed in place, so that a state that was taken stays what it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from solera.core.component import Component, build, build_fitted, describe, describe_fitted
from solera.core.errors import PayloadError
from solera.core.schema import Schema


class Stateful:
    """Something that changes while it runs and can be put back where it was."""

    def get_state(self) -> dict[str, Any]:
        """All that was learned, as a payload."""
        names = sorted(filter(is_state, vars(self)))
        return {name: _pack(getattr(self, name)) for name in names}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`get_state` of an object of the same class returned."""
        self.reset()
        for name, value in state.items():
            if not is_state(name):
                raise PayloadError(f"{name!r} is nothing that {type(self).__name__} learns")
            setattr(self, name, _unpack(value))

    def reset(self) -> None:
        """Go back to the state of a new object."""
        for name in filter(is_state, list(vars(self))):
            delattr(self, name)


def is_state(name: str) -> bool:
    """Whether an attribute of this name is part of the state."""
    return name.endswith("_") and not name.startswith("_")


def _pack(value: Any) -> Any:
    if isinstance(value, Schema):
        return {"$schema": value.to_payload()}
    if isinstance(value, Component):
        if isinstance(value, Stateful):
            return {"$learner": describe_fitted(value)}
        return describe(value)
    if isinstance(value, Mapping):
        packed = [[key, _pack(v)] for key, v in value.items()]
        if all(isinstance(key, str) for key in value):
            return dict(packed)
        return {"$pairs": packed}
    if isinstance(value, list | tuple):
        return [_pack(v) for v in value]
    return value


def _unpack(value: Any) -> Any:
    if isinstance(value, Mapping):
        if "$schema" in value:
            return Schema.from_payload(value["$schema"])
        if "$learner" in value:
            return build_fitted(value["$learner"])
        if "$component" in value:
            return build(value)
        if "$pairs" in value:
            return {key: _unpack(v) for key, v in value["$pairs"]}
        return {key: _unpack(v) for key, v in value.items()}
    if isinstance(value, list):
        return [_unpack(v) for v in value]
    return value

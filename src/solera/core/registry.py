"""What is known in this process by name, so that others can tell when there is more."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from typing import Any

_registries: list[dict[str, Any]] = []


def new_registry() -> dict[str, Any]:
    """A new dictionary of things that asks name: processes started earlier lack later entries."""
    _registries.append({})
    return _registries[-1]


def registered() -> list[dict[str, Any]]:
    """All entries of all registries, as they are now."""
    return [dict(entries) for entries in _registries]


def register(entries: list[dict[str, Any]]) -> None:
    """Add entries, as :func:`registered` gave them in another process."""
    for known, more in zip(_registries, entries, strict=False):
        known.update(more)


@cache
def load_packages(group: str) -> None:
    """Import, once, the packages that add something through an entry point of that group."""
    for entry in entry_points(group=group):
        entry.load()

"""The data sets that ``catalogue.toml`` describes: what is known of them before they are read."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import Any

import msgspec

from solera.data.files import Info


def described(kind: str, cls: type[Info]) -> dict[str, Info]:
    """The data sets of a kind by name, in the order of the file."""
    return {
        name: msgspec.convert({"name": name, **table}, cls)
        for name, table in _tables()[kind].items()
    }


@cache
def _tables() -> dict[str, Any]:
    text = resources.files("solera.data").joinpath("catalogue.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)

"""The version of Solera that runs here."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("solera")
except PackageNotFoundError:  # run from a source tree
    __version__ = "0+source"

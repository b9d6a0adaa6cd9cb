"""The version of Solera that runs here, and of the packages beside it."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def _version(package: str) -> str | None:
    """Looked up once: reading a package's description takes as long as a small fit."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def versions_of(*packages: str) -> dict[str, str]:
    """The versions of those packages that are installed."""
    found = {package: _version(package) for package in packages}
    return {package: number for package, number in found.items() if number is not None}


__version__ = _version("solera") or "0+source"  # run from a source tree

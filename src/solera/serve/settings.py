"""The configuration file of a coordinator and of an agent, ``solera.toml``.

Names are those of the options of ``solera serve`` and ``solera join``. Paths are relative to the
file. A secret is not written here but named: a file that holds it, or a variable of the
environment.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit

from msgspec import Meta

from solera.core.config import Problem, build_table, choose, errors_located, read_text
from solera.core.constraints import Count
from solera.core.errors import UsageError

T = TypeVar("T", "CoordinatorSettings", "AgentSettings")
Port = Annotated[int, Meta(ge=1, le=65535)]
_ELSEWHERE = ("sql:", "python:")
"""Sources of rows that are no files."""


@dataclass(frozen=True)
class CoordinatorSettings:
    """The table ``[coordinator]``; ``database_file`` holds the address of the database."""

    folder: str | None = None
    host: str | None = None
    port: Port | None = None
    database: str | None = None
    database_file: str | None = None
    certificate: str | None = None
    key: str | None = None
    log_format: Literal["text", "json"] | None = None
    uploads: Count | None = None
    workers: Count | None = None
    blobs: str | None = None


@dataclass(frozen=True)
class AgentSettings:
    """The table ``[agent]``; ``token_file`` holds the invitation, needed until it has joined."""

    url: str | None = None
    data: str | None = None
    policy: str | None = None
    token_file: str | None = None
    target: str | list[str] | None = None
    id: str | None = None
    test: Annotated[float, Meta(ge=0, le=0.9)] | None = None
    folder: str | None = None
    ca: str | None = None
    wait: Annotated[float, Meta(ge=0, le=50)] | None = None


_PATHS = ("folder", "database_file", "certificate", "key", "policy", "token_file", "ca", "data")


@dataclass(frozen=True)
class Settings:
    """What a configuration file says; a table that is not there is empty."""

    coordinator: CoordinatorSettings = CoordinatorSettings()
    agent: AgentSettings = AgentSettings()


_TABLES = {"coordinator": CoordinatorSettings, "agent": AgentSettings}


def read_settings(path: Path) -> Settings:
    """The settings in a file; what is wrong in it is named with its line."""
    text = read_text(path, hint="--config names a configuration file")
    with errors_located(text, str(path)):
        read: dict[str, Any] = {}
        for name, table in tomllib.loads(text).items():
            kind = choose(_TABLES, name, "table", (name,))
            if not isinstance(table, dict):
                raise Problem((name,), f"{name} is not a table", hint=f"write [{name}] above it")
            settings = build_table(kind, f"[{name}]", table, (name,))
            _check_secrets(name, settings)
            read[name] = _beside(path.parent, settings)
        return Settings(**read)


def read_secret_file(path: str | Path) -> str:
    """What a file holds that is named instead of a secret."""
    secret = read_text(path).strip()
    if not secret:
        raise UsageError(f"{path} is empty", hint="it should hold the secret, and nothing else")
    return secret


def has_password(url: str) -> bool:
    """Whether an address, also one behind ``sql:``, says a password."""
    try:
        return bool(urlsplit(url.removeprefix("sql:")).password)
    except ValueError:
        return False


def _check_secrets(name: str, settings: CoordinatorSettings | AgentSettings) -> None:
    if not isinstance(settings, CoordinatorSettings) or settings.database is None:
        return
    if settings.database_file is not None:
        raise Problem((name, "database_file"), "[coordinator] names two databases")
    if has_password(settings.database):
        raise Problem(
            (name, "database"),
            "the database's address holds a password",
            hint="write it into a file of its own and name that: database_file = …",
        )


def _beside(folder: Path, settings: T) -> T:
    """Paths are relative to the file that names them."""
    given = {field.name: getattr(settings, field.name) for field in fields(settings)}
    paths = {name: given.get(name) for name in _PATHS}
    moved: dict[str, Any] = {
        name: str(folder.absolute() / path)
        for name, path in paths.items()
        if path is not None and not path.startswith(_ELSEWHERE)
    }
    return replace(settings, **moved)

"""``--config``: options that are not given are read from a file."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from solera.core.errors import UsageError
from solera.serve.settings import has_password, read_secret_file, read_settings


def _defaults_from(table: Literal["coordinator", "agent"]) -> Callable[..., Path | None]:
    """Make what a table of the file says the defaults of a command's options."""

    def read(context: typer.Context, config: Path | None) -> Path | None:
        if config is not None:
            given = asdict(getattr(read_settings(config), table))
            if isinstance(given.get("target"), str):
                given["target"] = [given["target"]]
            context.default_map = {key: value for key, value in given.items() if value is not None}
        return config

    return read


def _config(table: Literal["coordinator", "agent"]) -> Any:
    return typer.Option(
        "--config",
        metavar="FILE",
        is_eager=True,
        callback=_defaults_from(table),
        help=f"Read options that are not given from \\[{table}] of this TOML file.",
    )


def hidden_from_ps(context: typer.Context, parameter: typer.CallbackParam, value: Any) -> Any:
    """An error for a password on the command line, where every user of the machine reads it."""
    source = context.get_parameter_source(parameter.name)
    if source is not None and source.name == "COMMANDLINE" and has_password(str(value)):
        raise UsageError(
            f"--{parameter.name} holds a password, and `ps` shows it to everybody",
            hint=f"write it into {parameter.envvar or 'the file that --config names'}",
        )
    return value


def warn_of_ps(context: typer.Context, name: str, instead: str) -> None:
    """Say it if a secret came from the command line."""
    source = context.get_parameter_source(name)
    if source is not None and source.name == "COMMANDLINE":
        typer.echo(f"warning: `ps` shows --{name} to everybody; {instead}", err=True)


CoordinatorConfig = Annotated[Path | None, _config("coordinator")]
AgentConfig = Annotated[Path | None, _config("agent")]
Database = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        envvar="SOLERA_DATABASE",
        show_envvar=True,
        callback=hidden_from_ps,
        help="An SQLAlchemy URL; SQLite in the folder by default.",
    ),
]
BlobStore = Annotated[
    str | None,
    typer.Option(
        metavar="s3://BUCKET/PREFIX",
        help="Where what asks and replies carry lies; in the folder by default. "
        "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_ENDPOINT_URL are read.",
    ),
]
DatabaseFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="A file that holds the database's URL.")
]
Folder = Annotated[Path, typer.Option(help="The coordinator's folder.")]
FOLDER = Path("coordinator")


def database_url(database: str | None, file: Path | None) -> str | None:
    """The database's address, given or in a file."""
    if database is None and file is not None:
        return read_secret_file(file)
    return database


@dataclass(frozen=True, slots=True)
class Home:
    """Where a coordinator keeps what it keeps."""

    folder: Path
    database: str | None


def _home(
    folder: Folder = FOLDER,
    database: Database = None,
    database_file: DatabaseFile = None,
    config: CoordinatorConfig = None,
) -> Home:
    return Home(folder, database_url(database, database_file))


def with_home(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options that name a coordinator in place of its argument ``home``."""
    options = inspect.signature(_home, eval_str=True).parameters
    every = {**inspect.signature(command, eval_str=True).parameters, **options}
    del every["home"]

    @wraps(command)
    def called(**given: Any) -> None:
        home = _home(**{name: given.pop(name) for name in options})
        command(home=home, **given)

    called.__annotations__ = {name: option.annotation for name, option in every.items()}
    named = [option.replace(kind=option.KEYWORD_ONLY) for option in every.values()]
    vars(called)["__signature__"] = inspect.Signature(named)
    return called

"""``solera flower``: a Flower app around a learner of Solera."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from solera.core.errors import UsageError

app = typer.Typer(no_args_is_help=True, help="Run learners over Flower's SuperLink.")

PROJECT = """\
[project]
name = "{name}"
version = "1.0.0"
description = "A Solera learner over Flower"
license = "Apache-2.0"
dependencies = ["solera[flower]"]

[tool.flwr.app]
publisher = "{publisher}"

[tool.flwr.app.components]
serverapp = "solera_app:server"
clientapp = "solera_app:client"

[tool.flwr.app.config]
federation = "flower"   # owners take part in this one only
clients = 3             # begin once so many SuperNodes have answered
seed = 0
owner = ""              # who asks, for the clients' policies and logs
out = "model.sol"       # where the ServerApp writes the model
"""
MODULE = '''\
"""A Solera learner over Flower. Start it with ``flwr run .``"""

import solera as so
from solera.serve.flower import client_app, server_app


def main(federation, config):
    """Runs at the SuperLink: fit any learner and keep what it has learned."""
    model = so.FedHEONN(lam=0.01).fit(federation)
    model.save(config["out"])


server = server_app(main)
client = client_app()  # rows and policy of each SuperNode are in its --node-config
'''
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


@app.command(epilog="Example: solera flower init heart --publisher cardio")
def init(
    folder: Annotated[Path, typer.Argument(help="A new folder for the app.")],
    publisher: Annotated[str, typer.Option(help="Who publishes the app.")] = "solera",
) -> None:
    """Write a Flower app of two files: pyproject.toml, and solera_app.py with the learner."""
    name = folder.resolve().name.lower()
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot be the name of a Flower app",
            hint="letters, digits and hyphens will do, as in heart-failure",
        )
    files = {
        folder / "pyproject.toml": PROJECT.format(name=name, publisher=publisher),
        folder / "solera_app.py": MODULE,
    }
    for path in files:
        if path.exists():
            raise UsageError(f"{path} is there already", hint="name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
        typer.echo(f"wrote {path}")
    typer.echo(f"choose the learner in {folder / 'solera_app.py'}, then: flwr run {folder}")

"""``solera model``: look at a saved model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Look at saved models and export them.")
Model = Annotated[Path, typer.Argument(help="A model that save wrote.")]


@app.command(epilog="Example: solera model card model.sol --out MODEL_CARD.md")
def card(
    model: Model,
    out: Annotated[Path | None, typer.Option(help="Write it to this file.")] = None,
) -> None:
    """The model card: data, clients, rounds, metrics, privacy, versions and limits."""
    from solera.learn.base import load

    text = load(model).card()
    if out is None:
        typer.echo(text, nl=False)
    else:
        out.write_text(text, encoding="utf-8")


@app.command(epilog="Example: solera model export model.sol model.onnx")
def export(
    model: Model,
    out: Annotated[Path, typer.Argument(help="The .onnx file to write.")],
) -> None:
    """The model as an ONNX file."""
    from solera.learn.base import load

    typer.echo(load(model).export(out))

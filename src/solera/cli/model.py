"""``solera model``: look at a saved model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from solera.cli.output import complain
from solera.cli.serve import extra

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


@app.command(epilog="Example: solera model verify model.sol --key 3f… --log audit.log")
def verify(
    model: Model,
    provenance: Annotated[
        Path | None,
        typer.Option(help="The coordinator's statement; by default it lies beside the model."),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(metavar="HEX", help="The coordinator's public key, from whoever you trust."),
    ] = None,
    log: Annotated[
        Path | None, typer.Option(help="A copy of the coordinator's log, to look the model up in.")
    ] = None,
) -> None:
    """Check where a model of a real federation comes from.

    Without --key anybody could have signed the statement: compare the key that is printed with the
    coordinator's. Exit code 1 says that the model is not the one that the coordinator published.
    """
    with extra("checking a model"):
        from solera.serve.provenance import ENDING, problems, read
    statement = read(model.with_name(model.name + ENDING) if provenance is None else provenance)
    wrong = problems(statement, model.read_bytes(), key, log)
    typer.echo(
        f"{model}: job {statement.job} of {statement.federation}, version {statement.version}"
    )
    for took in statement.clients.values():
        typer.echo(f"  {took.name}: {took.replies:,} signed replies, key {took.key[:16]}…")
    typer.echo(f"  log line {statement.line:,}, {statement.hash}")
    typer.echo(f"  signed with key {statement.key}{'' if key else ', not compared with any'}")
    typer.echo("NOT OK" if wrong else "ok")
    for problem in wrong:
        complain(problem)
    if wrong:
        raise typer.Exit(1)

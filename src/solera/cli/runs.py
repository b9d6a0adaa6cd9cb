"""``solera runs``: the run store."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Literal

import typer

from solera.cli.data import AsJson
from solera.cli.output import complain, print_json, print_table

app = typer.Typer(
    help="Runs and studies that are stored: list, show, compare, export.", no_args_is_help=True
)
Root = Annotated[Path, typer.Option(help="The folder that holds the runs.")]
Name = Annotated[str, typer.Argument(help="A run's name, or its folder.")]
Target = Literal["csv", "json", "parquet", "markdown", "pdf", "mlflow", "tensorboard"]


@app.command("list", epilog="Example: solera runs list --json")
def list_runs(root: Root = Path("runs"), as_json: AsJson = False) -> None:
    """All runs, and what came out."""
    from solera.study import runs

    rows = []
    for run in runs.find(root):
        if isinstance(run, runs.BadRun):
            complain(f"left out: {run.message}", run.hint)
            continue
        rows.append(
            {
                "name": run.name,
                "cells": run.cells,
                "data": ", ".join(run.data),
                "learners": len(run.learners),
                "result": runs.headline(run),
                "state": run.last,
                "began": run.began[:16].replace("T", " "),
            }
        )
    if as_json:
        print_json(rows)
        return
    if not rows:
        typer.echo(f"there are no runs in {root}")
        return
    print_table(
        ["name", ">cells", "data", ">learners", "result", "state", "began"],
        [list(row.values()) for row in rows],
    )


@app.command(epilog="Example: solera runs show demo")
def show(run: Name, root: Root = Path("runs"), as_json: AsJson = False) -> None:
    """One run: what it was, what came out, with what."""
    from solera.study import runs

    stored = runs.load(runs.resolve(run, root))
    if as_json:
        print_json(
            {
                "name": stored.name,
                "folder": str(stored.folder),
                "cells": stored.cells,
                "best": stored.best,
                "metrics": stored.metrics,
                "environment": stored.environment,
                "spec": stored.spec,
            }
        )
        return
    rows = [
        ["folder", str(stored.folder)],
        ["cells", str(stored.cells)],
        ["data", ", ".join(stored.data)],
        ["learners", "\n".join(stored.learners)],
        ["best", stored.best],
        *([name, figure.words] for name, figure in stored.metrics.items()),
        *([name, value] for name, value in stored.environment.items()),
    ]
    print_table(["", ""], rows)


@app.command(epilog="Example: solera runs diff digits digits-2")
def diff(first: Name, second: Name, root: Root = Path("runs"), as_json: AsJson = False) -> None:
    """In what two runs differ: their files, their environments, and what came out."""
    from solera.study import runs

    a, b = (runs.load(runs.resolve(name, root)) for name in (first, second))
    differences = runs.diff(a, b)
    if as_json:
        print_json(differences)
        return
    if not differences:
        typer.echo("the two runs do not differ")
        return
    rows = []
    for d in differences:
        gap = d.second - d.first if d.what == "metric" and None not in (d.first, d.second) else None
        rows.append([d.what, d.name, _cell(d.first), _cell(d.second), _cell(gap)])
    print_table(["", "", f">{a.name}", f">{b.name}", ">difference"], rows)


@app.command(epilog="Example: solera runs export demo --to pdf --output demo.pdf")
def export(
    run: Name,
    to: Annotated[Target, typer.Option(help="What to make of it.")] = "csv",
    output: Annotated[
        str | None, typer.Option(help="A file, a folder (tensorboard) or a URI (mlflow).")
    ] = None,
    root: Root = Path("runs"),
) -> None:
    """Write a run as a table, a document, or into MLflow or TensorBoard."""
    from solera.study import exporters, runs
    from solera.study.report.export import export_report

    folder = runs.resolve(run, root)
    runs.load(folder)
    usual = {"markdown": f"{folder.name}.md", "mlflow": "sqlite:///mlflow.db"}
    where = output or usual.get(to, f"{folder.name}.{to}")
    if to == "mlflow":
        name = folder.name
        runs.export(folder, lambda cell: exporters.MLflow(where, experiment=name, run=cell))
    elif to == "tensorboard":
        runs.export(folder, lambda cell: exporters.TensorBoard(Path(where) / cell))
    elif to == "csv":
        shutil.copyfile(folder / "metrics.csv", where)
    elif to == "json":
        runs.read(folder).to_json(where, orient="records", indent=1)
    elif to == "parquet":
        runs.read(folder).to_parquet(where)
    else:
        export_report(folder, Path(where))
    typer.echo(where)


def _cell(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:+.4f}" if isinstance(value, float) else str(value)

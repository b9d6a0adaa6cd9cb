"""``solera predict``: the answers of a saved model for a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from solera.cli.output import stderr

_PREDICTION = "prediction"


def predict(
    model: Annotated[Path, typer.Argument(help="A model that save wrote.")],
    table: Annotated[
        str, typer.Argument(help="A CSV or Parquet file, a folder of them, or sql:URL#SELECT ….")
    ],
    out: Annotated[
        Path | None, typer.Option(help="A .csv or .parquet file; by default CSV on stdout.")
    ] = None,
    proba: Annotated[
        bool, typer.Option("--proba", help="Also the probability of every class or label.")
    ] = False,
    folder: Annotated[
        Path | None,
        typer.Option(help="This client's folder, for a model of which it keeps its own part."),
    ] = None,
) -> None:
    """What a model predicts for the rows of a table, in their order.

    Columns are found by name and read as they were in training, in whatever order they are.
    """
    from solera.core.errors import UsageError
    from solera.data.own_tables import read_table
    from solera.learn.base import load

    if out is not None and out.suffix not in (".csv", ".parquet"):
        raise UsageError(f"--out {out} is no .csv or .parquet file")
    learner = load(model)
    if not hasattr(learner, "predict"):
        raise UsageError(f"{model} is a {type(learner).__name__}, which does not predict")
    if folder is not None:
        from solera.serve.agent.memory import own_model

        learner = own_model(learner, folder)
    with stderr().status(f"reading {table}"):
        frame = read_table(table)
    answers = _answers(learner, frame, proba)
    if out is None:
        typer.echo(answers.to_csv(index=False), nl=False)
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.suffix == ".parquet":
        answers.to_parquet(out, index=False)
    else:
        answers.to_csv(out, index=False)
    stderr().print(f"{len(answers):,} predictions: {out}")


def _answers(learner: Any, frame: Any, proba: bool) -> Any:
    """A frame with a column for the prediction, or one per label or number of several."""
    import pandas as pd

    from solera.core.errors import UsageError

    schema = learner.schema_
    predicted = learner.predict(frame)
    if predicted.ndim == 1:
        columns = {_PREDICTION: predicted}
    else:
        names = schema.target_names or range(predicted.shape[1])
        columns = {f"{_PREDICTION} {n}": v for n, v in zip(names, predicted.T, strict=True)}
    if proba:
        if not learner.predicts or schema.target not in ("classes", "labels"):
            raise UsageError(f"--proba: this {type(learner).__name__} predicts no classes")
        names = schema.label_names if schema.target == "labels" else schema.classes.tolist()
        p = learner.predict_proba(frame).T
        columns |= {f"probability {n}": v for n, v in zip(names, p, strict=True)}
    return pd.DataFrame(columns)

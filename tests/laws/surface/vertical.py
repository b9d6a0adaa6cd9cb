"""The same table, its columns dealt to two parties, and what is read of a learner of these."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
from cases import VERTICAL, example

import solera as so
from surface import oracle
from surface.dealt import COLUMNS, PARTS, SEED, Dealt, deal
from surface.oracle import NAMES
from surface.surfaces import Absent, Wrong, close, figures, metrics_are, require

DIVISIBLE = ("float64", "float32", "int", "constant", "text", "frame")
"""Kinds of rows that have columns to deal; the others are given as horizontal federations."""
VERTICAL_SURFACES: dict[str, Callable[[VerticalCase], None]] = {}
_OFFERED = ("predict", "predict_proba", "score", "evaluate")


def table_of(dealt: Dealt) -> Any:
    """A frame with its target and a column of identifiers."""
    columns = [f"x{j}" for j in range(5)]
    named = dealt.X if dealt.is_frame else pd.DataFrame(dealt.X, columns=columns)
    table = dealt.with_rows(named).table()
    table["id"] = [f"p{row}" for row in range(len(table))]
    return table


def divided(dealt: Dealt, engine: str = "local") -> Any:
    """A bank with the target and two columns, a shop with the others."""
    table = table_of(dealt)
    features = [name for name in table.columns if name not in (*COLUMNS[dealt.target], "id")]
    names = COLUMNS[dealt.target] or ["outcome"]
    return so.simulate_vertical(
        table,
        columns={"bank": features[:2], "shop": features[2:]},
        target=names[0] if len(names) == 1 else names,
        id="id",
        seed=SEED,
        engine=engine,
        **({} if engine == "local" else {"workers": 1}),
    )


TARGETS_OF_PARTIES = {so.learn.VerticalPoissonRegression: {"numbers": "counts"}}
"""Targets that are of a kind, but of a shape of their own."""


class VerticalCase:
    """A fitted vertical learner, and what it was fitted on."""

    def __init__(self, cls: type, dealt: Dealt) -> None:
        self.cls, self.dealt = cls, dealt
        self.federation = divided(dealt) if dealt.kind in DIVISIBLE else dealt.shared()
        self.model = example(cls, VERTICAL).fit(self.federation, progress=False)

    def predicted(self, model: Any = None, federation: Any = None, part: Any = None) -> Any:
        """Predictions of rows of a part, by who they are of."""
        model = self.model if model is None else model
        return model.predict(self.federation if federation is None else federation, part)


def rows_of(predicted: Any) -> Any:
    """The numbers of the rows that predictions are of."""
    return np.array([int(str(name).removeprefix("p")) for name in predicted.index])


def surface(check: Callable[[VerticalCase], None]) -> Callable[[VerticalCase], None]:
    VERTICAL_SURFACES[check.__name__] = check
    return check


@surface
def fit(case: VerticalCase) -> None:
    """All columns, the target's classes by their names, and nothing of the parties' weights."""
    require(len(case.model.schema_.features) == 5, "columns of the parties")
    if case.dealt.target in NAMES:
        require(case.model.classes_.tolist() == NAMES[case.dealt.target], "classes")


@surface
def predict(case: VerticalCase) -> None:
    """One answer for every person, who is named."""
    found = case.predicted()
    require(sorted(rows_of(found)) == list(range(len(case.dealt.owners))), "not one for each")
    if case.dealt.target in NAMES:
        require({*found.tolist()} <= {*NAMES[case.dealt.target]}, f"classes {found.unique()}")
    else:
        require(np.isfinite(found).all(), "predictions that are no numbers")


@surface
def predict_proba(case: VerticalCase) -> None:
    p, predicted = case.model.predict_proba(case.federation), case.predicted()
    require(p.index.equals(predicted.index), "of other persons than the predictions")
    names = NAMES[case.dealt.target]
    require(list(map(str, p.columns)) == names, f"columns {list(p.columns)}")
    close(p.to_numpy().sum(axis=1), np.ones(len(p)), "the sum of probabilities", rtol=1e-5)
    largest = np.array(names)[p.to_numpy().argmax(axis=1)]
    require(np.array_equal(largest, predicted), "predictions are not the most probable")


@surface
def score_federation(case: VerticalCase) -> None:
    predicted = case.predicted()
    y = case.dealt.y[rows_of(predicted)]
    wanted = oracle.score(case.dealt.target, y, predicted.to_numpy())
    close(float(case.model.score(case.federation)), wanted, "score of the federation")


@surface
def evaluate(case: VerticalCase) -> None:
    """Metrics of every part by the persons that predictions of it name."""
    for part in (None, *PARTS):
        if part == "validation" and not case.model.validation:
            continue
        if part == "test" and not case.model.test:
            continue
        predicted = case.predicted(part=part)
        found = case.model.evaluate(case.federation, part).metrics
        y = case.dealt.y[rows_of(predicted)]
        metrics_are(found, case.dealt.target, y, predicted.to_numpy(), f"part {part}")


@surface
def card(case: VerticalCase) -> None:
    evaluation = case.model.evaluate(case.federation, None)
    text = case.model.card(evaluation)
    for name, value in figures(evaluation.metrics).items():
        require(f"{name}: {value:.4g}" in text, f"the card does not say {name}")


@surface
def save(case: VerticalCase) -> None:
    with TemporaryDirectory() as folder:
        back = so.load(case.model.save(Path(folder) / "model.sol"))
    close(case.predicted(back), case.predicted(), "after load", rtol=0, atol=0)


@surface
def clone(case: VerticalCase) -> None:
    federation = divided(case.dealt)
    copy = case.model.clone().fit(federation, progress=False)
    close(case.predicted(copy, federation), case.predicted(), "a clone", rtol=0, atol=0)


@surface
def processes(case: VerticalCase) -> None:
    with divided(case.dealt, "processes") as federation:
        model = case.model.clone().fit(federation, progress=False)
        close(case.predicted(model, federation), case.predicted(), "processes", rtol=1e-6)


@surface
def other_rows(case: VerticalCase) -> None:
    """Rows, and clients with all columns, are refused by every method that takes a federation."""
    X, horizontal = np.ones((3, 5)), deal("two", "float64").shared()
    answered = []
    for name in _OFFERED:
        for what, given in {"rows": X, "clients with all columns": horizontal}.items():
            try:
                with contextlib.suppress(so.errors.SoleraError):
                    getattr(case.model, name)(given)
                    answered.append(f"{name} of {what} is answered")
            except Exception as error:
                answered.append(f"{name} of {what}: raw {type(error).__name__}: {error}")
    require(not answered, "; ".join(answered))


@surface
def export(case: VerticalCase) -> None:
    with TemporaryDirectory() as folder:
        case.model.export(Path(folder) / "model.onnx")
    raise Wrong("one file of what two parties keep")


@surface
def pipeline(case: VerticalCase) -> None:
    so.Pipeline(so.FedScaler(), case.model.clone()).fit(case.federation, progress=False)
    raise Wrong("a transformer in common of clients that hold different columns")


@surface
def cross_validation(case: VerticalCase) -> None:
    """Rows of several parties cannot be chosen by number."""
    case.federation[np.arange(10)]
    raise Wrong("rows of several parties by number")


@surface
def describe(case: VerticalCase) -> None:
    so.describe(case.federation)
    raise Wrong("a description of rows that no client holds")


@surface
def history(case: VerticalCase) -> None:
    if not case.model.history_:
        raise Absent
    last = case.model.history_[-1]
    numbers = [v for v in last.values() if isinstance(v, float)]
    require(np.isfinite(numbers).all(), "a history with NaN")

"""What a learner is and what it logged, as notebooks show it: a table, and a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from solera.core.constraints import nearest
from solera.core.errors import UsageError
from solera.core.html import html_table
from solera.core.pictures import new_figure
from solera.core.rounds import Callback, Round, logged
from solera.evaluation.figure import Figure, in_words
from solera.evaluation.metrics import metric_label


class NameRows(Callback):
    """Says of which rows the loss is that a learner logged as a bare number."""

    def on_round(self, learner: Any, round: Round) -> None:
        loss = round.metrics.get("loss")
        if loss is not None and not isinstance(loss, Figure):
            about = learner.rows_of_loss(round)
            round.metrics["loss"] = Figure(loss, metric="loss", **about)


def plot_history(history: Sequence[Mapping[str, Any]], names: Sequence[str] = ()) -> Any:
    """A matplotlib figure with a curve of every number that was logged, or of those named."""
    known = list(dict.fromkeys(name for entry in history for name in logged(entry)))
    if not known:
        raise UsageError("there is no history to show", hint="learners without rounds log nothing")
    for name in names:
        if name not in known:
            raise UsageError(f"{name!r} was not logged", hint=nearest(name, known))
    shown = list(names) or known
    figure = new_figure(figsize=(7, 0.6 + 2.2 * len(shown)))
    for axes, name in zip(figure.subplots(len(shown), squeeze=False)[:, 0], shown, strict=True):
        points = [(e["round"] + 1, e[name]) for e in history if name in e]
        rounds, values = zip(*points, strict=True)
        axes.plot(rounds, values, marker="o" if len(rounds) < 30 else None, markersize=3)
        axes.set_ylabel(metric_label(name))
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.25)
    axes.set_xlabel("round")
    return figure


def learner_html(learner: Any) -> str:
    """The parameters and, once it is fitted, columns, classes and the last numbers logged."""
    rows: list[tuple[str, Any]] = list(learner.get_params(deep=False).items())
    trained_with = learner._trained_with or {}
    rows[:0] = [("warning", text) for text in trained_with.get("warnings", ())]
    schema = vars(learner).get("schema_")
    if schema is not None:
        rows.append(("fitted on", f"{schema.width:,} columns"))
        if schema.target == "classes":
            rows.append(("classes", ", ".join(map(str, schema.classes.tolist()[:20]))))
        if learner.history_:
            rows.append(("rounds", len(learner.history_)))
            last = logged(learner.history_[-1])
            rows += [(f"last {name}", in_words(value)) for name, value in last.items()]
    if "accounts_" in vars(learner):
        rows.append(("ε spent", f"{learner.epsilon_:.4g} at δ = {learner.accounts_['delta']:g}"))
    return html_table(rows, title=type(learner).__name__)

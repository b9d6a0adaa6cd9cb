"""Evaluation in a closed job: mean loss, and of numbers MSE and R², over a whole part of the rows.

All of them are sums over the rows of all owners. Counts by cell, accuracy included, wait for the
next version, which adds noise to the persons behind a cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from solera.core.aggregation import Sum
from solera.core.clients import Client, Part
from solera.core.component import describe_fitted
from solera.core.errors import DataError
from solera.core.federation import Federation
from solera.core.task import task
from solera.evaluation.counts import figures_of, metrics_of
from solera.evaluation.evaluation import Evaluation
from solera.learn.closed import check_jobs, count_all_persons
from solera.learn.closed_losses import sum_losses
from solera.learn.judging import judge_rows
from solera.trust.board.engine import NotClosed
from solera.trust.constructors import count_by, sum_by


@task("evaluation.targets")
def sum_targets(client: Client, ask: Any) -> dict[str, Any]:
    """The numbers of a part's rows: about their mean, sums of squares lose no digits."""
    rows, part = client.data.part(ask["part"]), ask["part"]
    return {"rows": count_by(None, part=part), "y": sum_by(None, rows.y, part=part)}


_NOTE = "counts by cell, such as accuracy, wait for the next version"


def evaluate_closed(
    model: Any, federation: Federation, part: Part, scores: Any, metrics: Sequence[str]
) -> Evaluation:
    """What all owners' rows of a part say of a model; nobody learns anything of a single owner."""
    if scores or metrics:
        asked = "scores=" if scores else f"metrics={list(metrics)}"
        raise NotClosed(
            f"evaluate({asked}): {_NOTE}",
            hint="model.evaluate(federation): mean loss, of numbers MSE and R²; or 'trusted'",
        )
    check_jobs(federation, "evaluation")
    if not count_all_persons(federation)[part]:
        raise DataError(
            f"all owners together have too few {part} rows",
            hint=f"set some aside, for example so.simulate({part}=0.2)",
        )
    ask = {"model": describe_fitted(model.for_prediction()), "part": part}
    numbers = model.schema_.target == "numbers"
    if numbers:
        mean = federation.ask(sum_targets, {"part": part}).fold(Sum())
        total = federation.ask(judge_rows, {**ask, "pivot": mean["y"] / mean["rows"]}).fold(Sum())
        found = metrics_of(total)
    else:
        total = federation.ask(sum_losses, ask).fold(Sum())
        found = {"loss": float(total["loss"] / total["rows"])}
    owners = {"clients": len(federation), "asked": len(federation), "absent": 0, "withheld": 0}
    counts = {**total, **owners}
    figures = figures_of(found, counts, part=part)
    notes = () if numbers else (_NOTE,)
    return Evaluation(figures, {}, counts, notes=notes, positive=model.schema_.positive)

"""``solera compare``: which of several runs is better, and whether chance explains it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from solera.cli.data import AsJson
from solera.cli.output import print_blocks, print_json

if TYPE_CHECKING:
    from solera.study.comparison import Comparison


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUNS", help="Run folders.")],
    by: Annotated[
        str, typer.Option(help="What to compare: learner, partition, scheme, run, learner.lr, …")
    ] = "learner",
    metric: Annotated[
        str | None,
        typer.Option(help="The metric to compare by: accuracy, subset accuracy or R² at first."),
    ] = None,
    part: Annotated[
        Literal["test", "clients"],
        typer.Option(help="Scores on the data set's rows (test) or the clients' own (clients)."),
    ] = "test",
    alpha: Annotated[
        float, typer.Option(min=1e-9, max=0.5, help="The level of significance.")
    ] = 0.05,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LABEL=VALUE",
            help="Only scores with this, such as scheme=federated; may be repeated.",
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Save the critical-difference diagram, as .svg.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare runs: pairs of methods on the same test rows, and tests over several data sets.

    Pairs are compared by McNemar's test or a paired bootstrap over rows, with Holm's correction;
    means over data sets by Friedman, Nemenyi and Wilcoxon. What counts is what all methods have a
    score for. A run folder that cannot be read is named and skipped. Trained alone, federated
    and centralised, a learner is three methods.
    """
    from solera.core.errors import UsageError
    from solera.study import comparison
    from solera.study.report.critical_difference import critical_difference
    from solera.study.report.significance import comparison_blocks

    if plot is not None and plot.suffix != ".svg":
        raise typer.BadParameter(f"{plot} does not end in .svg", param_hint="--plot")
    metric = comparison.headline(runs, part) if metric is None else metric
    scores, skipped = comparison.gather(runs, metric, part)
    for line in skipped:
        typer.echo(f"skipped: {line}", err=True)
    scores = comparison.where(scores, _conditions(where or [])) if scores else scores
    if not scores:
        raise UsageError("there is nothing to compare", hint="give folders of finished runs")
    outcome = comparison.compare(scores, by, metric, alpha)
    if plot is not None:
        if outcome.critical_difference is None:
            raise UsageError(
                "one data set has no critical difference", hint="compare on more data sets"
            )
        picture = critical_difference(outcome.methods, outcome.ranks, outcome.critical_difference)
        plot.parent.mkdir(parents=True, exist_ok=True)
        picture.savefig(plot)
    if as_json:
        print_json(_content(outcome, skipped))
    else:
        print_blocks(comparison_blocks(outcome, by))
        if plot is not None:
            typer.echo(f"picture: {plot}")


def _conditions(pairs: list[str]) -> dict[str, str]:
    conditions = {}
    for pair in pairs:
        label, equals, value = pair.partition("=")
        if not (label and equals):
            raise typer.BadParameter(
                f"{pair!r} is not of the form LABEL=VALUE", param_hint="--where"
            )
        conditions[label] = value
    return conditions


def _content(outcome: Comparison, skipped: list[str]) -> dict[str, object]:
    result = outcome.friedman
    return {
        "metric": outcome.metric,
        "methods": list(outcome.methods),
        "rows": list(outcome.rows),
        "scores": outcome.scores.tolist(),
        "left_out": outcome.left_out,
        "skipped": skipped,
        "means": outcome.scores.mean(axis=0).tolist(),
        "mean_ranks": list(outcome.ranks),
        "friedman": None if result is None else {"statistic": result.statistic, "p": result.p},
        "critical_difference": outcome.critical_difference,
        "wilcoxon_holm": [pair._asdict() for pair in outcome.pairs],
        "on_rows": {
            name: [pair._asdict() for pair in pairs] for name, pairs in outcome.on_rows.items()
        },
    }

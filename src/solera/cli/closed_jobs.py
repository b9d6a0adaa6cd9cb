"""Closed jobs for researchers on the command line: ``solera job start`` and what came of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from solera.cli.output import print_json, print_table
from solera.core.errors import UsageError
from solera.serve.closed import ClosedJob
from solera.serve.closed_words import job_words, name_of, parsed
from solera.serve.connection import Connection

if TYPE_CHECKING:
    from solera.learn.learner import Learner
    from solera.serve.driver.closed.driver import ClosedDriver
    from solera.serve.job_spec import JobSpec


def is_closed(connection: Connection, federation: str) -> bool:
    """Whether owners of a federation run jobs themselves."""
    from solera.serve.driver.closed.epochs import policies_of

    return policies_of(connection, federation) != {"trusted"}


def start(
    connection: Connection, spec: JobSpec, *, follow: bool, out: Path | None, as_json: bool
) -> None:
    """Show owners the text of a job file; with ``out`` wait, and save the model there."""
    from solera.learn.closed import check_learners

    if spec.standing:
        raise UsageError('standing jobs are no sums: they run under the policy "trusted" only')
    check_learners(spec.grid or [spec.learner])
    driver = _driver(connection, spec)
    attached = driver.register(spec.grid or spec.learner)
    if as_json:
        print_json(attached.job)
    else:
        typer.echo(f"{name_of(parsed(attached.job))}: {job_words(attached.job)}")
        typer.echo(f"hash {attached.jid}")
    if not follow and out is None:
        return
    model = _fitted(driver, spec)
    if out is not None:
        model.save(out)
        typer.echo(f"{out}: the model that all owners signed")
    if spec.evaluates and spec.test:
        typer.echo(str(driver.evaluate(model, "test", spec.scores, ())))


def _fitted(driver: ClosedDriver, spec: JobSpec) -> Learner:
    """What all owners came to; of a grid its best point, after the losses of all."""
    if not spec.grid:
        model = spec.learner.clone()
        driver.fit(model, (), None)
        return model
    best, points = driver.fit_grid(spec.grid)
    losses = [point.get("refused") or f"{point['loss']:.4g}" for point in points]
    lines = [[repr(learner), loss] for learner, loss in zip(spec.grid, losses, strict=True)]
    print_table(["learner", ">mean loss, validation folds"], lines)
    typer.echo(f"the smallest loss: {best!r}")
    return best


def listed(connection: Connection, federation: str) -> list[ClosedJob]:
    """The closed jobs of a federation."""
    return connection.call("GET", f"/v1/federations/{federation}/closed", list[ClosedJob])


def row(job: ClosedJob, created: str) -> list[Any]:
    """A closed job in the table of jobs."""
    text = parsed(job)
    return [job.jid[:16], f"closed {text.kind}", job_words(job), text.researcher, created]


def _driver(connection: Connection, spec: JobSpec) -> ClosedDriver:
    from solera.serve.driver.closed.driver import ClosedDriver
    from solera.serve.driver.closed.researcher import Researcher

    researcher = Researcher.load(spec.owner)
    return ClosedDriver(
        connection,
        spec.federation,
        researcher,
        spec.seed,
        spec.selection,
        positive=spec.positive or None,
    )

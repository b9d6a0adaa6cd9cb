"""``solera jobs`` and ``solera job …``: what a coordinator is asked to do, and what came of it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import to_builtins

from solera.cli import closed_jobs
from solera.cli.client import FOLDER, Folder
from solera.cli.data import AsJson
from solera.cli.output import print_json, print_table
from solera.cli.serve import FederationName, Reason, check_name, driver_command, extra, moment
from solera.core.errors import UsageError
from solera.evaluation.figure import Figure, figures, restored
from solera.serve.connection import Connection
from solera.serve.wire import Event, Job, JobInWords, NewJob, NewState, StartedJob

job = typer.Typer(no_args_is_help=True, help="Start a job at a coordinator, and look after it.")

JobName = Annotated[str, typer.Argument(metavar="JOB", help="The job's name.")]
Follow = Annotated[bool, typer.Option("--follow", help="Print what happens until the job ends.")]
_ENDED = ("finished", "failed", "cancelled", "expired")
_LOOK_SECONDS = 1.0


@driver_command
def jobs(connection: Connection, federation: FederationName, as_json: AsJson = False) -> None:
    """The jobs of a federation, oldest first."""
    check_name("--federation", federation)
    listed = connection.call("GET", f"/v1/federations/{federation}/jobs", list[JobInWords])
    closed = closed_jobs.listed(connection, federation)
    if as_json:
        print_json([*closed, *listed])
        return
    rows = [closed_jobs.row(job, moment(job.created)) for job in closed]
    rows += [[j.id, j.kind, j.words, j.owner, moment(j.created)] for j in listed]
    print_table(["job", "kind", "state", "owner", "created"], rows)


def contribute(
    name: JobName,
    folder: Folder = FOLDER,
) -> None:
    """Tell a standing job that this client has new rows.

    Its agent is asked again and answers for all its rows; the earlier answer no longer counts.
    """
    with extra("contributing to a job"):
        from solera.serve.agent.contributing import contribute as ask
    check_name("JOB", name)
    typer.echo(f"contribution {ask(folder, name)} to {name}")


@job.command("start", epilog="Example: solera job start readmission.toml --follow")
@driver_command
def start(
    connection: Connection,
    file: Annotated[Path, typer.Argument(metavar="JOB.toml", help="What to run; see the docs.")],
    follow: Follow = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Of a closed job: wait, and save the model there."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Let the owners run a learner, as a closed job.

    The file names the federation, the learner and its parameters. Starting the same file again
    finds the job that was started before, and its result. Where the policy of all owners is
    "trusted", the coordinator runs it.
    """
    with extra("a job file"):
        from solera.serve.job_spec import read_job
    from solera.core.config import read_text

    spec = read_job(file)
    if closed_jobs.is_closed(connection, spec.federation):
        closed_jobs.start(connection, spec, follow=follow, out=out, as_json=as_json)
        return
    described = spec.describe(read_text(file))
    blob = connection.upload(described.to_bytes())
    new = NewJob.of(described, id=described.job, spec=blob)
    started = connection.call("POST", f"/v1/federations/{spec.federation}/jobs", StartedJob, new)
    if as_json:
        print_json(started)
    else:
        again = " (it was started before)" if started.resumed else ""
        typer.echo(f"job {started.id} is {started.state}{again}")
        typer.echo(f"hash {started.hash}")
    if follow:
        _follow(connection, spec.name, as_json)


@job.command("show", epilog="Example: solera job show readmission")
@driver_command
def show(connection: Connection, name: JobName, as_json: AsJson = False) -> None:
    """One job: its state, how far it is, its latest model."""
    check_name("JOB", name)
    shown = connection.request("GET", f"/v1/jobs/{name}").json()
    judged = _judged(connection, name)
    if as_json:
        print_json({**shown, "judged": judged})
        return
    progress, model = shown.pop("progress"), shown.pop("model")
    for key in ("created", "changed", "deadline"):
        shown[key] = None if shown[key] is None else moment(shown[key])
    replies = ", ".join(f"{n} {state}" for state, n in progress.get("deliveries", {}).items())
    shown["state"] = shown.pop("words")
    shown.pop("reason")
    shown["asks"] = progress["asks"]
    if "task" in progress:
        shown["last ask"] = f"{progress['task']}, round {progress['round']}: {replies}"
    if model is not None:
        made = f" of {len(model['contributions'])} clients" if model["contributions"] else ""
        shown["model"] = f"version {model['version']}{made}, {moment(model['time'])}"
    rows = [[key, value] for key, value in shown.items() if value not in (None, "")]
    rows += [[metric, figure.words] for metric, figure in judged.items()]
    print_table(["what", "is"], rows)


@job.command("logs", epilog="Example: solera job logs readmission --follow")
@driver_command
def logs(
    connection: Connection,
    name: JobName,
    follow: Follow = False,
    as_json: AsJson = False,
) -> None:
    """What happened in a job: rounds, models, and every refusal and failure with its reason."""
    check_name("JOB", name)
    if follow:
        _follow(connection, name, as_json)
    else:
        _print_new(connection, name, 0, as_json)


@job.command("cancel", epilog="Example: solera job cancel readmission --reason 'wrong λ'")
@driver_command
def cancel(
    connection: Connection,
    name: JobName,
    reason: Reason = "",
) -> None:
    """End a job now. Clients are asked nothing more, its last model stays."""
    check_name("JOB", name)
    change = NewState("cancelled", reason)
    connection.request("POST", f"/v1/jobs/{name}/state", json=change)
    typer.echo(f"job {name} is cancelled")


@job.command("model", epilog="Example: solera job model readmission --out readmission.sol")
@driver_command
def model(
    connection: Connection,
    name: JobName,
    out: Annotated[Path, typer.Option(help="Where the model goes; so.load reads it.")],
    as_json: AsJson = False,
) -> None:
    """Fetch the latest model of a job, its card, and the coordinator's signed statement about it.

    The statement says where the model comes from: [bold]solera model verify[/bold] checks it.
    """
    from solera.evaluation.evaluation import Evaluation
    from solera.learn.base import load
    from solera.learn.card import CARD
    from solera.serve.driver.published import fetch
    from solera.serve.provenance import ENDING

    check_name("JOB", name)
    statement = fetch(connection, name, out)
    metrics = _judged(connection, name)
    card = load(out).card(Evaluation(metrics, {}, {}) if metrics else None)
    Path(f"{out}{CARD}").write_text(card, encoding="utf-8")
    if as_json:
        print_json({**to_builtins(statement), "file": str(out)})
        return
    made = f"made of {len(statement.clients)} clients"
    typer.echo(f"{out}: version {statement.version} of {moment(statement.time)}, {made}")
    typer.echo(f"{out}{ENDING}: signed with key {statement.key}")


def _judged(connection: Connection, name: str) -> dict[str, Figure]:
    """What the clients of a job said of its model."""
    judged = connection.call("GET", f"/v1/jobs/{name}/events?event=evaluated", list[Event])
    return figures(judged[-1].facts or {}) if judged else {}


def _follow(connection: Connection, name: str, as_json: bool) -> None:
    last = 0
    while True:
        state = connection.call("GET", f"/v1/jobs/{name}", Job).state
        last = _print_new(connection, name, last, as_json)
        if state in _ENDED:
            if state != "finished":
                raise UsageError(f"job {name} is {state}", hint="see the lines above for why")
            return
        time.sleep(_LOOK_SECONDS)


def _print_new(connection: Connection, name: str, after: int, as_json: bool) -> int:
    """Print the events after number ``after``; the number of the last one."""
    path = f"/v1/jobs/{name}/events?after="
    while events := connection.call("GET", f"{path}{after}", list[Event]):
        for event in events:
            if as_json:
                print_json(event)
            else:
                typer.echo(_line(event))
        after = events[-1].id
    return after


def _line(event: Event) -> str:
    who = "" if event.client is None else f" client {event.client}"
    facts = restored(event.facts or {})
    hidden = ("hash", "kind", "owner", "digest", "payload", "prepare", "clients")
    shown = [f"{k}={_short(v)}" for k, v in facts.items() if k not in hidden and v is not None]
    parts = (moment(event.time), event.event + who, event.reason, *shown)
    return " ".join(part for part in parts if part)


def _short(value: Any) -> str:
    if isinstance(value, Figure):
        return value.words
    return f"{value:.6g}" if isinstance(value, float) else str(value)

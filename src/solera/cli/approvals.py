"""``solera approve`` and what else the people do who decide about jobs at an owner's side."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from solera.cli.client import FOLDER, Folder, check_folder
from solera.cli.data import AsJson
from solera.cli.output import print_json
from solera.cli.serve import check_name, extra
from solera.core.errors import UsageError

if TYPE_CHECKING:
    from solera.serve.agent.approvals import Verdict

approver = typer.Typer(no_args_is_help=True, help="The people who decide which jobs may run.")

Job = Annotated[str, typer.Argument(metavar="HASH", help="The job's hash, 64 digits.")]
Key = Annotated[Path, typer.Option(metavar="FILE", help="The approver's own key.")]
PolicyFile = Annotated[Path, typer.Option(metavar="FILE", help="The client's policy.")]


@approver.command("new", epilog="Example: solera approver new ana --key ana.key")
def new(
    name: Annotated[str, typer.Argument(help="The approver's name in the policy.")],
    key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to keep it; NAME.key by default.")
    ] = None,
) -> None:
    """Make a key with which a person approves jobs; only its public half goes into the policy.

    The key belongs to the person, not to the machine of the agent: whoever has it decides.
    """
    with extra("approving jobs"):
        from solera.serve.agent.approvals import Approver

    check_name("NAME", name)
    path = key or Path(f"{name}.key")
    made = Approver.create(path, name)
    typer.echo(f"{path} is the key; keep it where only {name} can read it")
    typer.echo("the policy names its public half:")
    typer.echo(f'[approval.approvers]\n{name} = "{made.public}"')


def approve(
    job: Job,
    key: Key,
    policy: PolicyFile,
    until: Annotated[
        datetime | None,
        typer.Option(formats=["%Y-%m-%d", "%Y-%m-%dT%H:%M"], help="It ends then at the latest."),
    ] = None,
    folder: Folder = FOLDER,
) -> None:
    """Let a job run on the client's data, where the policy has mode = "ask".

    The approval holds for exactly the job of this hash, for as long as the job and the policy say.
    An agent that runs sees it at once.
    """
    _decide(job, "approved", key, policy, folder, until=until and until.astimezone())


def reject(
    job: Job,
    key: Key,
    policy: PolicyFile,
    reason: Annotated[str, typer.Option(help="Why; whoever asked is told.")],
    folder: Folder = FOLDER,
) -> None:
    """Refuse a job: everything that it asks is answered with the reason, until it is approved."""
    _decide(job, "rejected", key, policy, folder, reason=reason)


def withdraw(
    job: Annotated[
        str | None, typer.Argument(metavar="HASH", help="The job's hash, 64 digits.")
    ] = None,
    key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The approver's own key.")
    ] = None,
    policy: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The client's policy.")
    ] = None,
    unit: Annotated[
        str | None,
        typer.Option(metavar="ID", help="A person to leave out, as the column of units names it."),
    ] = None,
    folder: Folder = FOLDER,
) -> None:
    """Take back the approval of a job, or leave a person out.

    A job: nothing more of it runs, and no reply of it leaves. A person (--unit): no task from the
    next one on sees the rows; [bold]solera contribute[/bold] then takes the person out of the
    models of standing jobs, too.
    """
    if unit is None:
        if job is None or key is None or policy is None:
            raise UsageError(
                "withdraw what?", hint="HASH --key FILE --policy FILE of a job, or --unit ID"
            )
        _decide(job, "withdrawn", key, policy, folder)
        return
    if job is not None:
        raise UsageError("withdraw a job or a person, one at a time")
    with extra("taking part in a federation"):
        from solera.serve.agent.withdrawn import withdraw as leave_out

    check_folder(folder)
    persons = leave_out(folder, unit)
    typer.echo(f"left out from the next task on; {persons} so far have withdrawn here")


def _decide(
    job: str, verdict: Verdict, key: Path, policy: Path, folder: Path, **terms: Any
) -> None:
    with extra("approving jobs"):
        from solera.serve.agent.approvals import Approver
        from solera.serve.agent.decisions import decide
        from solera.serve.agent.policy import OwnerPolicy

    rules, person = OwnerPolicy.read(policy), Approver.load(key)
    check_folder(folder)
    decide(folder, rules, person, job, verdict, **terms)
    what = "the approval of job" if verdict == "withdrawn" else "job"
    typer.echo(f"{person.name} has {verdict} {what} {job[:12]}")


def held(
    folder: Folder = FOLDER,
    policy: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Leave out what people it names have approved."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """The jobs that wait for approval here, and what each of them is.

    As of the agent's last look; no connection is needed. The hash is of the description that is
    shown: [bold]solera approve[/bold] approves exactly that.
    """
    with extra("looking at jobs"):
        from solera.serve.agent import home
        from solera.serve.agent.approvals import Approvals
        from solera.serve.agent.closed.held import held_texts
        from solera.serve.agent.held_jobs import HeldJobs
        from solera.serve.agent.policy import OwnerPolicy

    check_folder(folder)
    jobs = [*held_texts(folder), *HeldJobs(folder / home.HELD).read()]
    if policy is not None:
        approvers = OwnerPolicy.read(policy).approval.approvers
        approvals = Approvals(folder / home.APPROVALS, approvers)
        jobs = [job for job in jobs if approvals.approval(job.hash) is None]
    if as_json:
        print_json(jobs)
        return
    for job in jobs:
        typer.echo(job.hash)
        asks = f"; asks for {job.task}" if job.task else ""
        about = f"{job.job}, {job.kind}, of {job.owner or 'nobody named'}{asks}; since {job.since}"
        for line in (about, *job.description.splitlines()):
            typer.echo("    " + "".join(c if c.isprintable() else "�" for c in line))
    if not jobs:
        typer.echo("no job waits for approval")

"""``solera policy``: what an owner's policy allows, and what a job needs of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from solera.cli.output import complain
from solera.cli.serve import extra

if TYPE_CHECKING:
    from solera.serve.description import Description

app = typer.Typer(no_args_is_help=True, help="Read, check and write the policies of owners.")

Job = Annotated[Path, typer.Argument(metavar="JOB.toml", help="What is to run.")]
File = Annotated[Path, typer.Argument(metavar="FILE.toml", help="The policy.")]


@app.command(epilog="Example: solera policy show policy.toml")
def show(file: File) -> None:
    """Check a policy and say in sentences what it allows."""
    from solera.serve.agent.policy import Policy

    typer.echo(Policy.read(file).describe())


@app.command(epilog="Example: solera policy explain policy.toml")
def explain(file: File) -> None:
    """Say in sentences what may leave under a policy, and what remains possible all the same."""
    from solera.serve.agent.policy import Policy
    from solera.serve.agent.policy_words import explain as explained

    typer.echo(explained(Policy.read(file)))


@app.command("for", epilog="Example: solera policy for job.toml > policy.toml")
def for_job(job: Job) -> None:
    """Print a policy that is just enough for a job: its tasks, with parameters in its ranges."""
    from solera.serve.agent.policy_for import policy_for

    typer.echo(policy_for(_described(job)), nl=False)


@app.command(epilog="Example: solera policy check policy.toml job.toml")
def check(file: File, job: Job) -> None:
    """Everything that a policy would refuse of what a job asks, at once; exit code 1 if anything.

    What depends on the rows, such as counts too small to leave, is not known before they are asked.
    """
    from solera.serve.agent.policy import Policy
    from solera.serve.agent.policy_for import missing

    policy, described = Policy.read(file), _described(job)
    lacking = missing(policy, described)
    for line in lacking:
        typer.echo(line)
    if lacking:
        hint = f"`solera policy for {job}` prints what is needed"
        complain(f"{file} refuses {len(lacking)} of what job {described.job!r} asks", hint)
        raise typer.Exit(1)
    typer.echo(f"{file} allows all that job {described.job!r} asks")
    if policy.approval.mode == "ask":
        typer.echo(f"once {' or '.join(policy.approval.approvers)} has approved it")


def _described(job: Path) -> Description:
    from solera.core.config import read_text

    with extra("a job file"):
        from solera.serve.job_spec import read_job
    return read_job(job).describe(read_text(job))

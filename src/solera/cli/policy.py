"""``solera policy``: what an owner lets out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from solera.cli.client import FOLDER, Folder
from solera.cli.serve import extra
from solera.core.errors import UsageError
from solera.trust.policy import NAMES, PROMISE

app = typer.Typer(no_args_is_help=True, help="Write, explain and check the policies of owners.")

File = Annotated[Path, typer.Argument(metavar="FILE.toml", help="The policy.")]

_TEMPLATE = """\
# What may leave: "sums" (recommended), "noise" or "trusted". See: solera policy explain
policy = "{name}"
# jobs = ["statistics", "evaluation", "training"]
# exact_training = true      # models of many rounds by exact sums; only noise hides every person

# [data]
# columns = ["age", "bmi"]   # the only columns tasks see besides the target
# unit = "patient_id"        # whose row it is, where a person may have several

# [approval]                 # a named person approves every job by its hash
# mode = "ask"
# [approval.approvers]
# ana = "…"                  # made by: solera approver new ana

# [privacy]                  # what noise may tell of these rows, over all jobs
# epsilon = 4.0
# delta = 1e-6
"""


@app.command(epilog="Example: solera policy init policy.toml")
def init(
    file: File,
    policy: Annotated[str, typer.Option(help=f"One of {', '.join(NAMES)}.")] = "sums",
) -> None:
    """Write a policy to start from; a file that exists is never replaced."""
    from solera.core.private_files import write_file
    from solera.trust.policy import Policy

    Policy.of({"policy": policy})
    if file.exists():
        raise UsageError(f"{file} exists", hint="solera policy check reads it")
    write_file(file, _TEMPLATE.format(name=policy).encode(), 0o644, overwrite=False)
    typer.echo(f"{file} says policy = {policy!r}; next: solera policy check {file}")


@app.command(epilog="Example: solera policy explain policy.toml")
def explain(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE.toml]", help="Say what this policy says, too.")
    ] = None,
) -> None:
    """The five sentences that every owner reads, then the rules of a policy."""
    for number, sentence in enumerate(PROMISE, start=1):
        typer.echo(f"{number}. {sentence}")
    if file is not None:
        from solera.serve.agent.policy import OwnerPolicy

        typer.echo(f"\n{OwnerPolicy.read(file).describe()}")


@app.command(epilog="Example: solera policy check policy.toml job.toml --folder agent")
def check(
    file: File,
    text: Annotated[
        str | None,
        typer.Argument(metavar="[TEXT]", help="A job file, or the hash of a text that waits here."),
    ] = None,
    folder: Folder = FOLDER,
) -> None:
    """Read a policy, and say what is wrong with it by its line; exit code 2 if anything is.

    With a TEXT also what that job would tell: how many numbers for each person, what its noise is
    worth, and what somebody who knows all columns could work out. The folder has the epoch.
    """
    from solera.serve.agent.policy import OwnerPolicy

    policy = OwnerPolicy.read(file)
    typer.echo(f"{file} is a policy")
    typer.echo(policy.describe())
    if text is None:
        return
    with extra("reading a job"):
        from solera.serve.agent.closed.rehearsal import find_text, what_it_tells
        from solera.serve.agent.epoch_files import EpochFiles
    signed = EpochFiles(folder).current()
    if signed is None:
        raise UsageError(f"{folder} has no epoch in which jobs run", hint="--folder names another")
    for what, said in what_it_tells(policy, find_text(text, folder), signed.epoch):
        typer.echo(f"  {what:9} {said}")

"""``solera audit``: what a client has written down of what it did."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from solera.cli.client import FOLDER, Folder
from solera.cli.data import AsJson
from solera.cli.output import complain, print_json, print_table
from solera.cli.serve import extra
from solera.core.errors import UsageError

audit = typer.Typer(no_args_is_help=True, help="Check what a client has written down.")


@audit.command("verify", epilog="Example: solera audit verify agent/audit.log --folder agent")
def audit_verify(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="The log; LOG.head lies beside it.")],
    folder: Folder = FOLDER,
    key: Annotated[
        str | None,
        typer.Option(metavar="HEX", help="The client's public key, instead of its folder."),
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(
            metavar="N:HASH",
            help="A line that the log must hold: its number and hash, from whoever remembers them.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check that no line of an audit log was changed, removed or added by others.

    Who cuts off the end of a log and puts back the head of that time is caught by --head: the
    coordinator keeps what it heard last, see [bold]solera clients --json[/bold]. Exit code 1 says
    that the log is not what the client wrote.
    """
    with extra("checking an audit log"):
        from solera.serve.audit import verify
        from solera.serve.identity import Identity
    anchor = None if head is None else _head(head)
    signer = Identity.load(folder).sign_key if key is None else _public_key(key)
    report = verify(log, signer, anchor)
    if as_json:
        content = {"lines": report.head.n, "head": report.head.hash, "torn": report.torn}
        print_json({"ok": report.ok, **content, "problems": report.problems})
    else:
        typer.echo(f"{log}: {report.head.n:,} lines, head {report.head.hash}")
        if report.torn:
            typer.echo(f"{report.torn:,} bytes of a line that a crash cut short")
        typer.echo("ok: nothing was changed" if report.ok else "NOT OK")
    for problem in report.problems:
        complain(problem)
    if not report.ok:
        raise typer.Exit(1)


@audit.command("report", epilog="Example: solera audit report --folder agent --job readmission")
def audit_report(
    log: Annotated[
        Path | None, typer.Argument(metavar="LOG", help="The log; by default the folder's.")
    ] = None,
    folder: Folder = FOLDER,
    key: Annotated[
        str | None,
        typer.Option(metavar="HEX", help="The client's public key, instead of its folder."),
    ] = None,
    job: Annotated[str, typer.Option(help="Only this job.")] = "",
    since: Annotated[str, typer.Option(metavar="DATE", help="Only from this day or time on.")] = "",
    as_json: AsJson = False,
) -> None:
    """What has left: by job, by who asked, and by task.

    *Numbers* is how many left. The log is checked first, as by [bold]solera audit verify[/bold];
    exit code 1 if it is not what the client wrote.
    """
    with extra("reading an audit log"):
        from solera.serve.agent import home
        from solera.serve.agent.what_left import add_up
        from solera.serve.audit import entries, verify
        from solera.serve.identity import Identity
    path = folder / home.LOG if log is None else log
    signer = Identity.load(folder).sign_key if key is None else _public_key(key)
    if not path.exists():
        raise UsageError(f"there is no log {path}", hint="--folder names the client's folder")
    totals = add_up(entries(path, signer), job=job, since=since)
    if as_json:
        print_json(totals)
    else:
        names = ["job", "recipient", "task", ">answered", ">refused", ">failed", ">numbers"]
        rows = [
            [
                t.job,
                t.recipient,
                t.task,
                t.answered,
                t.refused,
                t.failed,
                f"{t.numbers:,}",
                f"{t.bytes:,}",
                f"{t.epsilon:g}",
            ]
            for t in totals
        ]
        print_table([*names, ">bytes", ">ε"], rows)
    if not verify(path, signer).ok:
        complain(f"{path} is not what the client wrote", f"solera audit verify {path} says why")
        raise typer.Exit(1)


@audit.command("check-report", epilog="Example: solera audit check-report left.pdf --key HEX")
def audit_check_report(
    file: Annotated[Path, typer.Argument(metavar="PDF", help="From the owner's page.")],
    key: Annotated[
        str | None, typer.Option(metavar="HEX", help="The key that must have signed it.")
    ] = None,
) -> None:
    """Check that a report of what left is as the client signed it; exit code 1 if not."""
    with extra("checking a report"):
        from solera.serve.owner.report import check_report

    signer = check_report(file.read_bytes())
    if key is not None and _public_key(key).hex() != signer:
        raise UsageError(f"{file} is signed with another key, {signer}")
    typer.echo(f"ok: {file} is as key {signer} signed it")


@audit.command("new-key", epilog="Example: solera audit new-key copies")
def audit_new_key(
    name: Annotated[Path, typer.Argument(help="NAME.key will open copies, NAME.pub close them.")],
) -> None:
    """Make a key pair for copies of what leaves: keep_copies = "NAME.pub" in the policy.

    Keep NAME.key away from the agent's machine.
    """
    with extra("keeping copies"):
        from solera.serve.agent.copies import new_key

    private, public = new_key(name)
    typer.echo(f"{private} opens copies; keep it elsewhere")
    typer.echo(f'keep_copies = "{public}"')


@audit.command("open", epilog="Example: solera audit open agent/copies/*.copy --key copies.key")
def audit_open(
    copies: Annotated[list[Path], typer.Argument(metavar="COPY", help="Copies of replies.")],
    key: Annotated[Path, typer.Option(metavar="FILE", help="The key that opens them.")],
) -> None:
    """Show what left, from the copies that the policy's keep_copies made."""
    with extra("opening copies"):
        from solera.serve.agent.copies import open_copy

    for path in copies:
        copy, reply = open_copy(path, key)
        about = f"{copy.federation}, {copy.job}, ask {copy.sequence}, {copy.task}, {copy.digest}"
        typer.echo(f"{about}\n{reply}")


def _public_key(text: str) -> bytes:
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != 32:
        raise UsageError(f"--key {text!r} is not a public key: 64 hexadecimal digits")
    return key


def _head(text: str) -> tuple[int, str]:
    match = re.fullmatch(r"([0-9]{1,15}):([0-9a-f]{64})", text)
    if match is None:
        raise UsageError(
            f"--head {text!r} is no line of a log", hint="write its number, a colon and its hash"
        )
    return int(match[1]), match[2]

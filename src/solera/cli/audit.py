"""``solera audit``: what a client has written down of what it did."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from solera.cli.client import FOLDER, Folder
from solera.cli.data import AsJson
from solera.cli.output import complain, print_json
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

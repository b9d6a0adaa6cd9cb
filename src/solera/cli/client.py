"""``solera join`` and what the owners of data do: policies, approvals, the audit log."""

from __future__ import annotations

import functools
import json
import logging
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from solera.cli.data import AsJson
from solera.cli.output import complain, print_json
from solera.cli.serve import Authority, check_ca, check_url, extra
from solera.core.errors import UsageError

audit = typer.Typer(no_args_is_help=True, help="Check what a client has written down.")

Folder = Annotated[Path, typer.Option(help="The client's folder: its keys, state and log.")]
_FOLDER = Path("agent")
_PLACE = "place.json"


def join(
    url: Annotated[str, typer.Argument(metavar="URL", help="The coordinator's address.")],
    data: Annotated[
        str,
        typer.Option(
            metavar="SOURCE",
            help="The rows: a .csv, .csv.gz or .parquet file, a folder of them, "
            "'sql:URL#SELECT …' or 'python:package.module:function'.",
        ),
    ],
    policy: Annotated[
        Path,
        typer.Option(metavar="FILE", help="What may be asked; see [bold]solera policy[/bold]."),
    ],
    token: Annotated[
        str | None, typer.Option(help="The invitation; needed only the first time.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The column to predict.")
    ] = None,
    folder: Folder = _FOLDER,
    ca: Authority = None,
    once: Annotated[
        bool, typer.Option("--once", help="Look for work once, do it and exit.")
    ] = False,
    wait: Annotated[
        float, typer.Option(min=0, max=50, help="Seconds that one look for work may take.")
    ] = 20.0,
) -> None:
    """Take part in a federation with data that stays here, until interrupted.

    The first time, keys are made and enrolled with the invitation. Later the same command goes on
    where it stopped. It only ever connects outwards; what leaves is in audit.log in the folder.
    """
    with extra("taking part in a federation"):
        from solera.serve.agent import Agent
        from solera.serve.policy import Policy
        from solera.serve.sources import open_source
        from solera.serve.worker import Worker
    url, authority = check_url(url), check_ca(ca)
    place = _place(folder, url, token)
    rules = Policy.read(policy)
    columns = rules.data.columns or None
    _log_to_stderr()
    # Before the token is used up: data that cannot be read is found out first.
    worker = Worker(functools.partial(open_source, data, target=target, columns=columns))
    try:
        if place is None:
            place = Agent.join(folder, url, token or "", ca=authority)
        elif authority not in (None, place["ca"]):
            _trust(folder, place, authority)
        agent = Agent(folder, worker, rules)
    except BaseException:
        worker.close()
        raise
    try:
        typer.echo(
            f"client {place['client']}, {place['name']}, of federation {place['federation']}"
        )
        typer.echo(f"{worker.rows:,} rows, policy {rules.hash()[:12]}")
        if once:
            done = agent.step(wait)
            typer.echo(f"answered {done} {'ask' if done == 1 else 'asks'}")
        else:
            agent.run(wait)
    finally:
        agent.close()


def _place(folder: Path, url: str, token: str | None) -> dict[str, Any] | None:
    """Where this folder's client has joined, if it has."""
    try:
        place: dict[str, Any] = json.loads((folder / _PLACE).read_text())
    except FileNotFoundError:
        if not token:
            raise UsageError(
                f"no client in {folder} has joined yet",
                hint="pass --token with an invitation, made with `solera invite`",
            ) from None
        return None
    except ValueError:
        raise UsageError(f"{folder / _PLACE} is damaged", hint="restore it from a copy") from None
    if place["url"] != url:
        raise UsageError(
            f"the client in {folder} has joined {place['url']}",
            hint="give that address, or another --folder to join a second coordinator",
        )
    return place


def _trust(folder: Path, place: dict[str, Any], authority: str | None) -> None:
    """The owner names another authority, as when the old one has expired."""
    from solera.core.private_files import write_file

    content = json.dumps(place | {"ca": authority}).encode()
    write_file(folder / _PLACE, content, 0o600, overwrite=True)


def _log_to_stderr() -> None:
    """What the agent has to say, repeated lines once."""
    log = logging.getLogger("solera.agent")
    last: list[str] = []

    def is_news(record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if last == [text]:
            return False
        last[:] = [text]
        return True

    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    handler.addFilter(is_news)
    log.handlers[:] = [handler]
    log.setLevel(logging.INFO)
    log.propagate = False


def approve(
    job: Annotated[str, typer.Argument(metavar="HASH", help="The job's hash, 64 digits.")],
    person: Annotated[str, typer.Option(help="Who approves, a name from the policy.")],
    policy: Annotated[Path, typer.Option(metavar="FILE", help="The client's policy.")],
    folder: Folder = _FOLDER,
) -> None:
    """Let a job run on the client's data, where the policy has mode = "ask".

    The approval holds for exactly the job of this hash. An agent that runs sees it at once.
    """
    from solera.serve.approvals import Approvals
    from solera.serve.policy import Policy

    rules = Policy.read(policy)
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}", hint="--folder names the client's folder")
    approvals = Approvals(folder / "approvals.json", rules.approval.approvers)
    approvals.approve(job, person, datetime.now().astimezone())
    typer.echo(f"{person} approved job {job[:12]}")


def policy(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="The policy.")],
) -> None:
    """Check a policy and say in sentences what it allows."""
    from solera.serve.policy import Policy

    typer.echo(Policy.read(file).describe())


@audit.command("verify", epilog="Example: solera audit verify agent/audit.log --folder agent")
def audit_verify(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="The log; LOG.head lies beside it.")],
    folder: Folder = _FOLDER,
    key: Annotated[
        str | None,
        typer.Option(metavar="HEX", help="The client's public key, instead of its folder."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check that no line of an audit log was changed, removed or added by others.

    Exit code 1 says that the log is not what the client wrote.
    """
    with extra("checking an audit log"):
        from solera.serve.audit import verify
        from solera.serve.identity import Identity
    report = verify(log, Identity.load(folder).sign_key if key is None else _public_key(key))
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

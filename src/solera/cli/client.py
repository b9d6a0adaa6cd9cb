"""``solera join`` and ``solera leave``: an owner takes part in a federation, and ends it."""

from __future__ import annotations

import functools
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import to_builtins

from solera.cli.data import AsJson, Target
from solera.cli.output import print_json, print_table
from solera.cli.serve import Authority, check_ca, check_url, extra
from solera.cli.settings import AgentConfig, hidden_from_ps, warn_of_ps
from solera.core.errors import UsageError
from solera.serve.settings import read_secret_file

if TYPE_CHECKING:
    from solera.serve.agent.home import Place
    from solera.serve.agent.leaving import Holdings

Folder = Annotated[Path, typer.Option(help="The client's folder: its keys, state and log.")]
FOLDER = Path("agent")


def join(
    context: typer.Context,
    url: Annotated[str, typer.Argument(metavar="URL", help="The coordinator's address.")],
    data: Annotated[
        str,
        typer.Option(
            metavar="SOURCE",
            callback=hidden_from_ps,
            help="The rows: a .csv, .csv.gz, .parquet or .arff file, a folder of them, "
            "'sql:URL#SELECT …' or 'python:package.module:function'.",
        ),
    ],
    policy: Annotated[
        Path,
        typer.Option(metavar="FILE", help="What may leave; see [bold]solera policy[/bold]."),
    ],
    token: Annotated[
        str | None,
        typer.Option(
            envvar="SOLERA_INVITATION",
            show_envvar=True,
            help="The invitation; needed only the first time. Better in a file, where `ps` does "
            "not show it.",
        ),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A file that holds the invitation.")
    ] = None,
    target: Target = None,
    id: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="Vertical learning: the column that says who a row is about."
        ),
    ] = None,
    test: Annotated[
        float,
        typer.Option(min=0, max=0.9, help="Share of the rows that is only ever judged on."),
    ] = 0.0,
    folder: Folder = FOLDER,
    ca: Authority = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Say what tasks would see; join not."),
    ] = False,
    once: Annotated[
        bool, typer.Option("--once", help="Look for work once, do it and exit.")
    ] = False,
    wait: Annotated[
        float, typer.Option(min=0, max=50, help="Seconds that one look for work may take.")
    ] = 20.0,
    config: AgentConfig = None,
) -> None:
    """Take part in a federation with data that stays here, until interrupted.

    The first time, keys are made and enrolled with the invitation. Later the same command goes on
    where it stopped, and waits for rows that cannot be read yet. It only ever connects outwards;
    what leaves is in audit.log in the folder. SIGTERM ends it in good order.
    """
    with extra("taking part in a federation"):
        from msgspec.structs import replace

        from solera.serve.agent.agent import Agent
        from solera.serve.agent.home import write_place
        from solera.serve.agent.policy_file import PolicyFile
        from solera.serve.agent.sources import check_there
        from solera.serve.agent.started import Started
        from solera.serve.agent.task_process import Guard
        from solera.serve.agent.worker import Worker

    columns = target[0] if target and len(target) == 1 else target
    started = Started(policy=str(policy), data=data, target=columns, id=id, test=test)
    rows_for = functools.partial(started.rows, folder)
    url, authority = check_url(url), check_ca(ca)
    file = PolicyFile(policy)
    rules = file.policy
    if dry_run:
        from solera.serve.agent.dry_run import dry_run as told

        rows = rows_for(rules)
        for line in told(lambda columns: rows(columns=columns), rules):
            typer.echo(line)
        return
    if token is None and token_file is not None and token_file.exists():
        token = read_secret_file(token_file)
    place = _place(folder, url, token)
    _log_to_stderr()
    # Before the token is used up: data that cannot be read is found out first.
    table_for = functools.partial(started.table, folder)
    guard = Guard(rules.rules)
    if place is None and not guard.lets_ask:
        check_there(data)
    worker = Worker(rows_for(rules), begin=place is None, guard=guard, table=table_for(rules))
    try:
        if place is None:
            warn_of_ps(context, "token", "use --token-file, or set SOLERA_INVITATION")
            place = Agent.join(folder, url, token or "", ca=authority)
        elif authority not in (None, place.ca):  # as when the old one has expired
            place = replace(place, ca=authority)
            write_place(folder, place)
        agent = Agent(folder, worker, file, source=rows_for, table=table_for)
        started.remember(folder)
    except BaseException:
        worker.close()
        raise
    try:
        typer.echo(f"client {place.client}, {place.name}, of federation {place.federation}")
        typer.echo(f"policy {rules.hash()[:12]}")
        if once:
            done = agent.step(wait)
            typer.echo(f"answered {done} {'ask' if done == 1 else 'asks'}")
        else:
            agent.run(wait)
    finally:
        agent.close()


def _place(folder: Path, url: str, token: str | None) -> Place | None:
    """Where this folder's client has joined, if it has."""
    from solera.serve.agent.home import find_place

    place = find_place(folder)
    if place is None and not token:
        raise UsageError(
            f"no client in {folder} has joined yet",
            hint="pass --token-file or --token with an invitation, made with `solera invite`",
        )
    if place is not None and place.url != url:
        raise UsageError(
            f"the client in {folder} has joined {place.url}",
            hint="give that address, or another --folder to join a second coordinator",
        )
    return place


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


def leave(
    folder: Folder = FOLDER,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete it, there and here; there is no way back.")
    ] = False,
    log: Annotated[
        bool, typer.Option("--log", help="With --delete: delete the audit log, too.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List everything that is held for this client, at the coordinator and here; or delete it.

    Deleted are the client's rows and blobs at the coordinator, and its keys, state and approvals
    here. The audit log stays: it proves what has left. Models of standing jobs are folded again
    without the client, other models that were trained stay. The coordinator signs a receipt.
    """
    with extra("leaving a federation"):
        from solera.serve.agent import leaving
        from solera.serve.identity import Identity

    if log and not delete:
        raise UsageError("--log says what to delete as well", hint="give --delete with it")
    held = leaving.holdings(folder)
    if as_json:
        print_json({"deleted": delete, **to_builtins(held)})
    else:
        _print_holdings(folder, held)
    if not delete:
        return
    key = None if held.place is None else Identity.load(folder).sign_key.hex()
    receipt = leaving.leave(folder, log=log)
    if as_json:
        return
    if receipt is not None:
        refolded = ", ".join(receipt.refolded)
        again = f"; folded again without it: {refolded}" if refolded else ""
        typer.echo(f"the coordinator signed a receipt with key {receipt.key}{again}")
    typer.echo("all of it was deleted" if log else "all of it was deleted but the audit log")
    if key is not None and not log:
        typer.echo(f"check the log with: solera audit verify {folder / 'audit.log'} --key {key}")


def _print_holdings(folder: Path, held: Holdings) -> None:
    if held.place is not None:
        there = f"{held.place.name} of {held.place.federation} at {held.place.url}"
        if held.rows is None:
            typer.echo(f"{there}: the coordinator knows this client no more")
        else:
            rows: list[list[Any]] = [[there, name, n, ""] for name, n in held.rows.items()]
            rows.append([there, "blobs", held.blobs, f"{held.bytes:,}"])
            print_table(["where", "what", ">number", ">bytes"], rows)
    files = [[str(folder), name, f"{size:,}"] for name, size in held.files.items()]
    print_table(["where", "what", ">bytes"], files)


def check_folder(folder: Path) -> None:
    """An error unless the folder is there."""
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}", hint="--folder names the client's folder")

"""``solera serve`` and what the people who run a coordinator do: certificates, invitations."""

from __future__ import annotations

import inspect
import re
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import update_wrapper
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from solera.cli.data import AsJson
from solera.cli.output import print_json, print_table
from solera.cli.settings import BlobStore, CoordinatorConfig, Database, DatabaseFile, database_url
from solera.core.errors import MissingExtra, UsageError
from solera.serve.connection import HERE, Connection, trusting
from solera.serve.connection import check_url as check_url
from solera.serve.wire import NAME, Invite, Members, NewInvite, Why

tls = typer.Typer(no_args_is_help=True, help="Make certificates for a small federation.")

LOOPBACK = ("127.0.0.1", "::1", "localhost")
_PATIENCE = 5.0
"""Seconds to wait for a coordinator: a person sits in front of this."""

FederationName = Annotated[
    str, typer.Option("--federation", "-f", metavar="NAME", help="The federation.")
]
Reason = Annotated[str, typer.Option(help="Why; it is written down.")]
Url = Annotated[str, typer.Option(envvar="SOLERA_URL", help="The coordinator's address.")]
Token = Annotated[
    str | None,
    typer.Option(
        envvar="SOLERA_TOKEN",
        show_envvar=True,
        help="The driver's token, from driver.token in the coordinator's folder. Better set in "
        "the environment, where others do not see it.",
    ),
]
Authority = Annotated[
    Path | None,
    typer.Option(
        "--ca",
        envvar="SOLERA_CA",
        help="The authority to trust, ca.pem of [bold]solera tls init[/bold]; the system's "
        "authorities by default.",
    ),
]


@contextmanager
def extra(what: str) -> Iterator[None]:
    """Imports in this block come with the extra 'serve'."""
    try:
        yield
    except ImportError as error:
        if isinstance(error, MissingExtra) or (error.name or "").startswith("solera"):
            raise
        raise MissingExtra.of(what, "serve") from None


def check_ca(ca: Path | None) -> str | None:
    """The authority's file as an absolute path, if it is one."""
    if ca is None:
        return None
    trusting(str(ca))
    return str(ca.resolve())


# --- certificates ---


@tls.command("init", epilog="Example: solera tls init --host fl.hospital.org --host 10.0.0.5")
def tls_init(
    host: Annotated[
        list[str] | None,
        typer.Option(help="A name or address that clients reach the coordinator by; repeatable."),
    ] = None,
    folder: Annotated[Path, typer.Option(help="Where the files go.")] = Path("tls"),
    name: Annotated[str, typer.Option(help="The name of the certificate's files.")] = "coordinator",
    as_json: AsJson = False,
) -> None:
    """Make an authority and a certificate for the coordinator.

    Clients get ca.pem and compare its fingerprint over the telephone. An authority that is in the
    folder already is kept and signs one more certificate. Without --host the certificate is good
    for 127.0.0.1.
    """
    with extra("making certificates"):
        from solera.serve.tls import fingerprint, issue, make_ca
    ca = folder / "ca.pem"
    if not ca.exists():
        make_ca(folder)
    certificate, key = issue(folder, name, host or ["127.0.0.1"])
    rows = [
        ("authority", str(ca), "for every client"),
        ("authority key", str(folder / "ca.key"), "keep it offline"),
        ("certificate", str(certificate), "for solera serve"),
        ("key", str(key), "for solera serve"),
        ("fingerprint", fingerprint(ca), "of ca.pem"),
    ]
    if as_json:
        print_json({what.replace(" ", "_"): value for what, value, _ in rows})
        return
    print_table(["what", "where", "use"], rows)


@tls.command("renew", epilog="Example: solera tls renew --folder tls")
def tls_renew(
    folder: Annotated[Path, typer.Option(help="Where authority and certificate are.")] = Path(
        "tls"
    ),
    name: Annotated[str, typer.Option(help="The name of the certificate's files.")] = "coordinator",
    as_json: AsJson = False,
) -> None:
    """Replace the coordinator's certificate by a new one, for the same names.

    It needs ca.key of the authority. A coordinator that runs shows the new one at once, agents go
    on without a change.
    """
    with extra("making certificates"):
        from solera.serve.tls import expiry, renew
    certificate, key = renew(folder, name)
    end = expiry(certificate)
    if as_json:
        print_json({"certificate": certificate, "key": key, "expires": end})
    else:
        typer.echo(f"{certificate} is good until {moment(end)}")


# --- the coordinator ---


def serve(
    folder: Annotated[
        Path, typer.Option(help="Where database, blobs and the driver's token live.")
    ] = Path("coordinator"),
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port to listen on.")] = 8443,
    database: Database = None,
    database_file: DatabaseFile = None,
    certificate: Annotated[
        Path | None, typer.Option(help="The certificate, PEM; needed unless on loopback.")
    ] = None,
    key: Annotated[Path | None, typer.Option(help="The certificate's key, PEM.")] = None,
    log_format: Annotated[
        Literal["text", "json"], typer.Option(help="How the log on standard error is written.")
    ] = "text",
    uploads: Annotated[
        int,
        typer.Option(
            metavar="MB",
            min=1,
            help="Megabytes that a client, or drivers, may have uploaded and not used yet.",
        ),
    ] = 4096,
    workers: Annotated[
        int,
        typer.Option(min=1, max=256, help="Processes behind the address; several need PostgreSQL."),
    ] = 1,
    blobs: BlobStore = None,
    config: CoordinatorConfig = None,
) -> None:
    """Run a coordinator until it is interrupted.

    It stores asks and replies and never sees a row. Everything is kept in the folder: started
    again, it goes on where it was. [bold]solera tls init[/bold] makes a certificate.
    """
    with extra("a coordinator"):
        import uvicorn  # noqa: F401  serve() needs it only later

        from solera.serve.coordinator import run
    if (certificate is None) != (key is None):
        raise UsageError("--certificate and --key belong together", hint="give both, or neither")
    if certificate is not None and key is not None:
        _check_pair(certificate, key)
    if certificate is not None or host in LOOPBACK:
        _check_free(host, port)
        scheme = "https" if certificate else "http"
        name = f"[{host}]" if ":" in host else host
        typer.echo(f"coordinator: {scheme}://{name}:{port}")
        typer.echo(f"driver's token: in {folder / 'driver.token'}")
    run.serve(
        folder,
        host=host,
        port=port,
        database=database_url(database, database_file),
        certificate=None if certificate is None else str(certificate),
        key=None if key is None else str(key),
        log_format=log_format,
        uploads=uploads << 20,
        workers=workers,
        bucket=blobs,
    )
    raise KeyboardInterrupt  # what else ends a server


def _check_pair(certificate: Path, key: Path) -> None:
    for path in (certificate, key):
        path.open("rb").close()
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except ssl.SSLError:
        raise UsageError(f"{key} is not the key of a certificate in {certificate}") from None


def _check_free(host: str, port: int) -> None:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        raise UsageError(
            f"cannot listen on port {port} of {host}: {error.strerror}",
            hint="choose others with --host and --port",
        ) from None


# --- who takes part ---


def driver_command(command: Callable[..., None]) -> Callable[..., None]:
    """A command with a connection to the coordinator, and the options that say where that is."""

    def connected(
        *, url: Url = HERE, token: Token = None, ca: Authority = None, **given: Any
    ) -> None:
        with coordinator(url, token, ca) as connection:
            command(connection, **given)

    _, *given = inspect.signature(command, eval_str=True).parameters.values()
    *options, _ = inspect.signature(connected, eval_str=True).parameters.values()
    parameters = [*(p.replace(kind=p.KEYWORD_ONLY) for p in given), *options]
    update_wrapper(connected, command)
    connected.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    connected.__annotations__ = {p.name: p.annotation for p in parameters}
    return connected


@driver_command
def invite(
    connection: Connection,
    name: Annotated[str, typer.Argument(help="What the client will be called.")],
    federation: FederationName,
    as_json: AsJson = False,
) -> None:
    """Print a token with which one client may join, once, within a week.

    The federation begins with its first invitation. Send the token in confidence: whoever has it
    first is the client.
    """
    check_name("NAME", name)
    path = f"{_path(federation)}/invites"
    token = connection.call("POST", path, Invite, NewInvite(name)).token
    if as_json:
        print_json({"federation": federation, "name": name, "token": token})
    else:
        typer.echo(token)


@driver_command
def clients(connection: Connection, federation: FederationName, as_json: AsJson = False) -> None:
    """Who takes part in a federation, when each was last heard of, and what it was doing.

    --json also tells where each client's audit log ended.
    """
    members = connection.call("GET", _path(federation), Members).clients
    if as_json:
        print_json(members)
        return
    rows = [[m.id, m.name, m.status, moment(m.seen), m.doing or "-", len(m.tasks)] for m in members]
    print_table([">id", "name", "status", "last seen", "doing", ">tasks"], rows)


@driver_command
def revoke(
    connection: Connection,
    client: Annotated[int, typer.Argument(metavar="ID", min=0, help="Its number in the list.")],
    federation: FederationName,
    reason: Reason,
) -> None:
    """Shut a client out of a federation, at once and for good.

    [bold]solera clients[/bold] lists the numbers.
    """
    path = f"{_path(federation)}/clients/{client}/revoke"
    connection.request("POST", path, json=Why(reason))
    typer.echo(f"client {client} of {federation} is revoked")


def _path(federation: str) -> str:
    check_name("--federation", federation)
    return f"/v1/federations/{federation}"


@contextmanager
def coordinator(url: str, token: str | None, ca: Path | None) -> Iterator[Connection]:
    """A driver's connection to the coordinator."""
    if not token:
        raise UsageError(
            "no driver's token",
            hint="set SOLERA_TOKEN to what is in driver.token of the coordinator's folder",
        )
    authorised = {"Authorization": f"Bearer {token.strip()}"}
    with closing(
        Connection(check_url(url), lambda *_: authorised, ca=check_ca(ca), patience=_PATIENCE)
    ) as connection:
        yield connection


def check_name(what: str, name: str) -> None:
    if not re.fullmatch(NAME, name):
        raise UsageError(
            f"{what} {name!r} is not a name",
            hint="letters, digits, '.', '_' and '-', at most 64, a letter or digit first",
        )


def moment(seen: float | None) -> str:
    if seen is None:
        return "never"
    return datetime.fromtimestamp(seen, UTC).astimezone().isoformat(" ", "seconds")

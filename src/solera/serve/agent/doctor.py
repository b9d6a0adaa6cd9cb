"""``solera doctor`` at an agent: folder, disk, host name, port, authority, clock, membership."""

from __future__ import annotations

import email.utils
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from http.client import HTTPSConnection
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from solera.core.errors import SoleraError
from solera.serve.agent import home
from solera.serve.agent.epoch_boards import CoordinatorBoard
from solera.serve.connection import CoordinatorError, check_url
from solera.serve.findings import Finding, State, check_disk, check_log, look
from solera.serve.identity import REQUEST_SECONDS, Identity
from solera.serve.wire import Peers
from solera.trust.epoch.runtime import differences, runtime

_PATIENCE = 5.0
_UNKNOWN_AUTHORITY = (18, 19, 20, 21)
"""OpenSSL's codes: self-signed, or signed by somebody who is not trusted."""
_EXPIRED, _NOT_YET = 10, 9
_OTHER_NAME = (62, 64)


def examine(folder: Path, url: str | None = None, ca: str | None = None) -> list[Finding]:
    """Everything that can be between a client and its coordinator.

    Before the client has joined, ``url`` and ``ca`` say whom it is to join; later what it joined.
    """
    place = home.find_place(folder)
    if place is None:
        says = f"no client in {folder} has joined yet"
        state: State = "wrong" if url is None else "soon"
        found = [Finding("folder", state, says, "solera join URL --token-file FILE …")]
        if url is not None:
            found += _check_way(check_url(url), ca)
        return found
    found = look("folder", partial(_check_folder, folder, place))
    found += look("disk", partial(check_disk, folder))
    found += _check_way(place.url, ca or place.ca)
    if (folder / home.LOG).exists():
        identity = Identity.load(folder)
        found += look("signed log", partial(check_log, folder / home.LOG, identity))
    if all(finding.state == "ok" for finding in found):
        found += look("membership", partial(_check_membership, folder, place))
    if all(finding.state == "ok" for finding in found):
        found += look("epoch", partial(_check_epoch, folder, place))
    return found


def _check_folder(folder: Path, place: home.Place) -> Iterator[Finding]:
    Identity.load(folder)  # an error where others can read it
    yield Finding("folder", "ok", f"{place.name} of {place.federation} at {place.url}")


def _check_epoch(folder: Path, place: home.Place) -> Iterator[Finding]:
    """Whether this machine computes what the owners of the newest draft compute."""
    here = runtime()
    yield Finding("runtime", "ok", f"the pinned path gives {here['numbers'][:16]}")
    connection = home.connect_to(place, Identity.load(folder), _PATIENCE)
    with closing(connection):
        try:
            seen = CoordinatorBoard(connection, place.federation).look()
        except CoordinatorError as error:
            if error.status != 404:
                raise
            yield Finding("epoch", "ok", "no dictionary was drafted yet")
            return
    others = {name: differences(here, part.runtime) for name, part in seen.parts.items()}
    for name, differs in others.items():
        if differs:
            who = "your own part, as it was entered," if name == place.name else name
            says = f"{who} computes with something else: {'; '.join(differs)}"
            yield Finding("epoch", "wrong", says, "the same versions at all owners, then sign anew")
    if any(others.values()):
        return
    signed = seen.signed()
    missing = seen.waiting if signed is None else signed.missing
    unsettled = () if signed is None else signed.unsettled
    state: State = "soon" if missing or unsettled else "ok"
    says = f"waits for {', '.join(missing)}" if missing else "signed by all"
    if unsettled and not missing:
        says = f"signed by all; the atoms wait for the agents of {', '.join(unsettled)}"
    yield Finding("epoch", state, says, "solera dictionary sign" if place.name in missing else "")


def _check_way(url: str, ca: str | None) -> list[Finding]:
    """Name, port, authority and clock; each needs the one before.

    Where HTTPS_PROXY names a proxy, name and port are the proxy's: agents go through it, too.
    """
    found: list[Finding] = []
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or 443
    first = _proxy(host) or (host, port)
    for what, check in (
        ("host name", partial(_check_name, first[0])),
        ("port", partial(_check_port, *first)),
        ("authority", partial(_check_authority, host, port, ca)),
    ):
        if what == "authority" and parts.scheme == "http":
            continue
        found += look(what, check)
        if found[-1].state == "wrong":
            break
    return found


def _proxy(host: str) -> tuple[str, int] | None:
    """The proxy through which connections to a host go, if any."""
    named = getproxies().get("https")
    if named is None or proxy_bypass(host):
        return None
    parts = urlsplit(named)
    return parts.hostname or "", parts.port or 3128


def _check_name(host: str) -> Iterator[Finding]:
    try:
        address = socket.getaddrinfo(host, None)[0][4][0]
    except OSError as error:
        says = f"nobody knows the name {host}: {error.strerror}"
        mend = f"getent hosts {host}; then mend the address, or the DNS"
        yield Finding("host name", "wrong", says, mend)
        return
    yield Finding("host name", "ok", f"{host} is {address}")


def _check_port(host: str, port: int) -> Iterator[Finding]:
    try:
        socket.create_connection((host, port), timeout=_PATIENCE).close()
    except TimeoutError:
        says = f"nothing comes back from port {port} of {host}"
        mend = f"ask your network people to let connections out to {host}:{port}"
        yield Finding("port", "wrong", says, mend)
    except OSError as error:
        says = f"port {port} of {host}: {error.strerror}"
        yield Finding(
            "port", "wrong", says, "solera doctor --folder coordinator, at the coordinator"
        )
    else:
        yield Finding("port", "ok", f"{host}:{port} answers")


def _check_authority(host: str, port: int, ca: str | None) -> Iterator[Finding]:
    """A handshake as an agent makes it, and what the coordinator's clock says."""
    context = ssl.create_default_context(cafile=ca)
    proxy = _proxy(host)
    connection = HTTPSConnection(*(proxy or (host, port)), timeout=_PATIENCE, context=context)
    if proxy is not None:
        connection.set_tunnel(host, port)
    try:
        connection.request("GET", "/healthz")
        told = connection.getresponse().getheader("Date")
    except ssl.SSLCertVerificationError as error:
        yield _distrust(error, host, ca)
        return
    except ssl.SSLError as error:
        says = f"{host}:{port} does not speak TLS: {error.reason}"
        yield Finding(
            "authority", "wrong", says, "mend the address: is this the coordinator's port?"
        )
        return
    finally:
        connection.close()
    yield Finding("authority", "ok", f"{ca or 'a public authority'} vouches for {host}")
    yield from _check_clock(told)


def _distrust(error: ssl.SSLCertVerificationError, host: str, ca: str | None) -> Finding:
    """Why the coordinator's certificate is not believed."""
    code = error.verify_code
    if code in _OTHER_NAME:
        says = f"the coordinator's certificate is not for {host}"
        mend = f"at the coordinator: solera tls init --host {host} --name other, and serve with it"
        return Finding("host name", "wrong", says, mend)
    if code == _EXPIRED:
        mend = (
            "at the coordinator: solera tls renew; if its clock or yours is wrong, set that right"
        )
        return Finding("authority", "wrong", "the coordinator's certificate has expired", mend)
    if code == _NOT_YET:
        says = "the coordinator's certificate is not valid yet: this clock is behind"
        return Finding("clock", "wrong", says, "timedatectl set-ntp true")
    if code in _UNKNOWN_AUTHORITY:
        says = f"{ca or 'no public authority'} does not vouch for {host}"
        mend = "get ca.pem of the coordinator, compare its fingerprint by telephone, join with --ca"
        return Finding("authority", "wrong", says, mend)
    return Finding("authority", "wrong", error.verify_message, "join with the right --ca")


def _check_clock(told: str | None) -> Iterator[Finding]:
    if told is None:
        return
    apart = time.time() - email.utils.parsedate_to_datetime(told).timestamp()
    says = f"{abs(apart):.0f} s {'ahead of' if apart > 0 else 'behind'} the coordinator's"
    if abs(apart) > REQUEST_SECONDS:
        yield Finding("clock", "wrong", says, "timedatectl set-ntp true")
    else:
        yield Finding("clock", "ok", says)


def _check_membership(folder: Path, place: home.Place) -> Iterator[Finding]:
    connection = home.connect_to(place, Identity.load(folder), _PATIENCE)
    try:
        connection.call("GET", "/v1/peers", Peers)
    except CoordinatorError as error:
        mend = "ask whoever runs the coordinator for a new invitation"
        yield Finding("membership", "wrong", error.message, mend)
    except SoleraError as error:
        yield Finding("membership", "wrong", error.message, error.hint or "")
    else:
        yield Finding("membership", "ok", f"the coordinator knows {place.name}")
    finally:
        connection.close()

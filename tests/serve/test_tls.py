"""Certificates of a federation's own: the handshake works, and only with the right authority."""

from __future__ import annotations

import os
import socket
import ssl
import stat
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography", reason="the extra 'serve' (cryptography) is not installed")

from cryptography import x509

from solera.core.errors import UsageError
from solera.serve import tls

posix = pytest.mark.skipif(os.name != "posix", reason="file modes are POSIX")
HOSTS = ["127.0.0.1", "localhost", "::1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    folder = tmp_path_factory.mktemp("tls") / "ca"
    tls.make_ca(folder)
    tls.issue(folder, "coordinator", HOSTS)
    return folder


def handshake(folder: Path, ca: Path, host: str) -> str:
    """Connect over loopback as ``host``; the certificate's fingerprint as the client saw it."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "coordinator.pem", folder / "coordinator.key")
    client = ssl.create_default_context(cafile=ca)
    client.verify_flags |= ssl.VERIFY_X509_STRICT

    def serve() -> None:
        raw, _ = listener.accept()
        try:
            with server.wrap_socket(raw, server_side=True) as connection:
                connection.sendall(b"hello")
        except OSError:
            pass  # the client hung up on us

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with (
                socket.create_connection(listener.getsockname(), timeout=60) as raw,
                client.wrap_socket(raw, server_hostname=host) as connection,
            ):
                assert connection.recv(5) == b"hello"
                assert connection.version() == "TLSv1.3"
                der = connection.getpeercert(binary_form=True)
                return tls.fingerprint(ssl.DER_cert_to_PEM_cert(der or b"").encode())
        finally:
            thread.join()


@pytest.mark.parametrize("host", HOSTS)
def test_the_handshake_works_for_every_host(folder: Path, host: str) -> None:
    seen = handshake(folder, folder / "ca.pem", host)
    assert seen == tls.fingerprint(folder / "coordinator.pem")
    assert len(seen) == 64


def test_another_host_is_refused(folder: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(folder, folder / "ca.pem", "coordinator.example")


def test_another_authority_is_refused(folder: Path, tmp_path: Path) -> None:
    other = tls.make_ca(tmp_path)  # the same name, another key
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(folder, other, "localhost")


def test_a_server_certificate_is_no_authority(folder: Path) -> None:
    cert = x509.load_pem_x509_certificate((folder / "coordinator.pem").read_bytes())
    assert not cert.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert cert.not_valid_after_utc - cert.not_valid_before_utc <= timedelta(days=tls.MAX_DAYS)
    assert cert.public_key().curve.name == "secp256r1"


@posix
def test_keys_are_for_their_owner_alone(folder: Path, tmp_path: Path) -> None:
    for name in ("ca.key", "coordinator.key"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
    tls.make_ca(tmp_path)
    (tmp_path / "ca.key").chmod(0o644)
    with pytest.raises(UsageError, match="open to other users"):
        tls.issue(tmp_path, "server", ["localhost"])


def test_nothing_is_replaced(folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(UsageError, match=r"ca\.key exists"):
        tls.make_ca(folder)
    with pytest.raises(UsageError, match=r"coordinator\.key exists"):
        tls.issue(folder, "coordinator", HOSTS)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize(
    ("name", "hosts", "days"),
    [
        ("../x", ["localhost"], 1),
        ("ca", ["localhost"], 1),
        ("", ["localhost"], 1),
        ("s", [], 1),
        ("s", "localhost", 1),
        ("s", ["a b"], 1),
        ("s", ["é.example"], 1),
        ("s", ["x" * 64], 1),
        ("s", ["localhost"], 826),
        ("s", ["localhost"], 0),
    ],
)
def test_nonsense_is_refused(folder: Path, name: str, hosts: Any, days: int) -> None:
    with pytest.raises(UsageError):
        tls.issue(folder, name, hosts, days=days)


def test_a_missing_or_foreign_authority_is_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"ca\.pem: No such file"):
        tls.issue(tmp_path, "server", ["localhost"])
    tls.make_ca(tmp_path)
    (tmp_path / "ca.pem").write_bytes((folder / "ca.pem").read_bytes())
    with pytest.raises(UsageError, match="does not belong"):
        tls.issue(tmp_path, "server", ["localhost"])
    with pytest.raises(UsageError, match="not a PEM certificate"):
        tls.fingerprint(b"nothing")

"""A certificate authority of one's own, for tests and small federations.

``make_ca`` once, ``issue`` for the coordinator, and give the clients ``ca.pem``: they then accept
this coordinator and no other, whatever public authorities say. Larger federations bring their own
certificates. Keys are ECDSA P-256 and readable by their owner alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from solera.core.errors import MissingExtra, UsageError
from solera.core.private_files import read_private, write_file

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError:
    raise MissingExtra.of("making certificates", "serve") from None

MAX_DAYS: Final = 825
"""The longest life of a server's certificate that all common clients accept."""
_CA_DAYS: Final = 3650
_SKEW: Final = timedelta(minutes=5)


def make_ca(folder: str | Path, name: str = "Solera federation") -> Path:
    """A new authority: ``ca.pem`` for everyone, ``ca.key`` (0600) to keep. Never replaced.

    It may sign servers but no further authorities.
    """
    folder = Path(folder)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    end = datetime.now(UTC) + timedelta(days=_CA_DAYS)
    builder = _builder(name, _name(name), key.public_key(), end)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(ca=True), critical=True)
    return _store(folder, "ca", key, builder.sign(key, hashes.SHA256()))[0]


def issue(
    folder: str | Path, name: str, hosts: Sequence[str], *, days: int = MAX_DAYS
) -> tuple[Path, Path]:
    """A server's certificate and key, ``name.pem`` and ``name.key`` (0600), signed by the authority
    in ``folder`` and good for exactly these host names and IP addresses."""
    return _issue(Path(folder), name, hosts, days, overwrite=False)


def _issue(
    folder: Path, name: str, hosts: Sequence[str], days: int, *, overwrite: bool
) -> tuple[Path, Path]:
    if not re.fullmatch(r"\w[\w.-]{0,62}", name, re.ASCII) or name == "ca":
        raise UsageError.of("issue", "name", name, "must be letters, digits, '_', '.' and '-'")
    if not 1 <= days <= MAX_DAYS:
        raise UsageError.of("issue", "days", days, f"must be between 1 and {MAX_DAYS}")
    if isinstance(hosts, str) or not hosts:
        raise UsageError.of("issue", "hosts", hosts, "must name at least one host, in a list")
    authority, signer = _load_ca(folder)
    key = ec.generate_private_key(ec.SECP256R1())
    end = min(datetime.now(UTC) + timedelta(days=days), authority.not_valid_after_utc)
    builder = _builder(name, authority.subject, key.public_key(), end)
    server = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    alternatives = x509.SubjectAlternativeName([_host(host) for host in hosts])
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    builder = (
        builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(ca=False), critical=True)
        .add_extension(server, critical=False)
        .add_extension(alternatives, critical=False)
        .add_extension(issuer, critical=False)
    )
    return _store(folder, name, key, builder.sign(signer, hashes.SHA256()), overwrite=overwrite)


def renew(folder: str | Path, name: str, *, days: int = MAX_DAYS) -> tuple[Path, Path]:
    """Another certificate with another key in the place of ``name.pem``, for the same hosts.

    A coordinator that runs with it takes it up by itself; clients trust the authority, and notice
    nothing.
    """
    folder = Path(folder)
    old = _parse(_read(folder / f"{name}.pem"))
    names = old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    hosts = [*names.get_values_for_type(x509.DNSName)]
    hosts += [str(address) for address in names.get_values_for_type(x509.IPAddress)]
    return _issue(folder, name, hosts, days, overwrite=True)


def fingerprint(cert: str | Path | bytes) -> str:
    """SHA-256 of a certificate (a PEM file or its bytes), to be compared over the telephone."""
    data = cert if isinstance(cert, bytes) else _read(Path(cert))
    return _parse(data).fingerprint(hashes.SHA256()).hex()


def expiry(cert: str | Path | bytes) -> float:
    """When a certificate ends, in seconds since 1970."""
    data = cert if isinstance(cert, bytes) else _read(Path(cert))
    return _parse(data).not_valid_after_utc.timestamp()


def _builder(
    name: str, issuer: x509.Name, key: ec.EllipticCurvePublicKey, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - _SKEW)
        .not_valid_after(end - _SKEW)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not ca, key_cert_sign=ca, crl_sign=ca,
        content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        pass
    label = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
    if len(host) > 253 or not re.fullmatch(rf"(\*\.)?{label}(\.{label})*", host, re.I | re.ASCII):
        raise UsageError.of("issue", "host", host, "is neither an IP address nor a host name")
    return x509.DNSName(host)


def _store(
    folder: Path,
    name: str,
    key: ec.EllipticCurvePrivateKey,
    cert: x509.Certificate,
    *,
    overwrite: bool = False,
) -> tuple[Path, Path]:
    """Key first: a certificate without its key would be of no use."""
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    cert_path, key_path = folder / f"{name}.pem", folder / f"{name}.key"
    write_file(key_path, secret, 0o600, overwrite=overwrite)
    write_file(cert_path, cert.public_bytes(pem), 0o644, overwrite=overwrite)
    return cert_path, key_path


def _load_ca(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    cert = _parse(_read(folder / "ca.pem"))
    secret = read_private(folder / "ca.key")
    try:
        key = serialization.load_pem_private_key(secret, None)
    except (ValueError, TypeError):
        raise UsageError(f"{folder / 'ca.key'} is not a private key") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != cert.public_key():
        raise UsageError(f"{folder}: ca.key does not belong to ca.pem")
    return cert, key


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", hint="make_ca(folder) comes first") from None


def _parse(data: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(data)
    except ValueError:
        raise UsageError("these bytes are not a PEM certificate") from None

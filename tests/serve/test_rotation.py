"""A coordinator's certificate is renewed while a job runs: agents and learners go on."""

from __future__ import annotations

import ssl
import time
from pathlib import Path

import numpy as np
import pytest

import solera as so

for library in ("fastapi", "uvicorn", "httpx", "sqlalchemy", "alembic", "cryptography"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

from network import Network  # noqa: E402

from solera.serve import tls  # noqa: E402
from solera.serve.connection import CoordinatorError  # noqa: E402
from solera.serve.coordinator.certificate import Certificate  # noqa: E402
from solera.serve.description import Description  # noqa: E402

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 3))
DATA = so.data.FederatedData(X, (X[:, 0] > 0).astype(int), np.array([0, 30, 60]))
JOB = """
name = "trend"
federation = "cardio"
clients = 2

[learner]
kind = "FedLinear"
rounds = 2
"""


def test_a_job_of_the_coordinator_goes_on_under_another_certificate(tmp_path):
    network = Network(tmp_path)
    network.start()
    try:
        for client, name in enumerate(("north", "south")):
            network.enrol(name)
            network.give(name, DATA, client)
        network.work("north")
        start_job(network)
        wait(lambda: bool(network.replies("trend", 0)))

        old, learners = shown(network), learners_of(network)
        assert learners
        assert tls.renew(tmp_path / "tls", "coordinator") == network.certificate
        new = tls.fingerprint(network.certificate[0])
        assert new != old
        wait(lambda: shown(network) == new)
        wait(lambda: bool(learners_of(network) - learners))

        network.work("south")
        wait(lambda: job(network)["state"] == "finished")
    finally:
        network.close()


def start_job(network: Network) -> None:
    driver = network.driver()
    described = Description(
        job="trend", federation="cardio", toml=JOB, kind="managed", owner="", seed=0
    )
    new = {"id": "trend", "spec": driver.upload(described.to_bytes()), "kind": "managed", "seed": 0}
    driver.request("POST", "/v1/federations/cardio/jobs", json={**new, "owner": ""})
    driver.close()


def job(network: Network) -> dict[str, str]:
    driver = network.driver()
    found = driver.request("GET", "/v1/jobs/trend").json()
    driver.close()
    assert found["state"] != "failed", found
    return found


def learners_of(network: Network) -> set[str]:
    """The processes of learners: each trusts the one certificate that it began with."""
    found = set()
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = process.read_bytes().split(b"\0")
        except OSError:
            continue  # it has just ended
        if network.url.encode() in words and b"solera.serve.driver.managed" in words:
            found.add(process.parent.name)
    return found


def shown(network: Network) -> str:
    """The fingerprint of what a new connection sees."""
    address = (network.host, network.port)
    pem = ssl.get_server_certificate(address, ca_certs=network.ca, timeout=60)
    return tls.fingerprint(pem.encode())


def wait(ready) -> None:
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        try:
            if ready():
                return
        except CoordinatorError:
            pass  # not asked yet
        time.sleep(0.1)
    raise TimeoutError("it did not happen")


def test_a_certificate_without_its_key_is_not_taken_up(tmp_path):
    tls.make_ca(tmp_path)
    certificate, key = tls.issue(tmp_path, "coordinator", ["127.0.0.1"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    pair = Certificate(str(certificate), str(key), context)
    assert not pair.reload(), "nothing has changed"
    old = Path(key).read_bytes()
    tls.renew(tmp_path, "coordinator")
    new = Path(key).read_bytes()
    Path(key).write_bytes(old)
    assert not pair.reload(), "the key is the old one"
    Path(key).unlink()
    assert not pair.reload(), "there is no key"
    Path(key).write_bytes(new)
    assert pair.reload()
    assert not pair.reload()


def test_a_renewed_certificate_is_for_the_same_names_and_a_key_of_its_own(tmp_path):
    from cryptography import x509

    tls.make_ca(tmp_path)
    hosts = ["fl.example.org", "127.0.0.1", "::1"]
    certificate, key = tls.issue(tmp_path, "coordinator", hosts, days=3)
    before = x509.load_pem_x509_certificate(certificate.read_bytes())
    end, secret = tls.expiry(certificate), key.read_bytes()
    tls.renew(tmp_path, "coordinator")
    after = x509.load_pem_x509_certificate(certificate.read_bytes())
    names = [
        set(cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
        for cert in (before, after)
    ]
    assert names[0] == names[1]
    assert tls.expiry(certificate) > end + 300 * 24 * 3600
    assert key.read_bytes() != secret
    assert key.stat().st_mode & 0o077 == 0

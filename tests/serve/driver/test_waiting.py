"""A driver that waits says for whom; one that does not trust the coordinator says what to name."""

from __future__ import annotations

import logging
from threading import Thread

import numpy as np
import pytest

import solera as so
from solera.core.errors import UsageError

for library in ("fastapi", "uvicorn", "httpx", "sqlalchemy", "alembic", "cryptography"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

from network import Network  # noqa: E402

from solera.serve import tls  # noqa: E402
from solera.serve.connection import CoordinatorError  # noqa: E402
from solera.serve.driver import engine  # noqa: E402

X = np.random.default_rng(0).normal(size=(90, 3))
DATA = so.data.FederatedData(X, (X[:, 0] > 0).astype(int), np.array([0, 30, 60, 90]))
NAMES = ("hospital-1", "hospital-2", "hospital-3")


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    here = Network(tmp_path_factory.mktemp("waiting"))
    here.start()
    for client, name in enumerate(NAMES):
        here.enrol(name)
        here.give(name, DATA, client)
    yield here
    here.close()


def test_a_fit_that_waits_says_for_whom_and_since_when(network, monkeypatch, caplog):
    """Two of three do not work yet; they begin when the driver has said so."""
    monkeypatch.setattr(engine, "_WAIT", 0)
    monkeypatch.setattr(engine, "_PATIENCE", 0.0)
    said = []

    class Begin(logging.Handler):
        def emit(self, record):
            text = record.getMessage()
            if "waiting for" in text and not said:
                said.append(text)
                Thread(target=lambda: [network.work(name) for name in NAMES[1:]]).start()

    network.work(NAMES[0])
    handler = Begin()
    logging.getLogger("solera").addHandler(handler)
    try:
        model = so.FedHEONN().fit(network.connect("patient"))
    finally:
        logging.getLogger("solera").removeHandler(handler)
    assert model.score(X, (X[:, 0] > 0).astype(int)) > 0.9
    names, since = said[0].removeprefix("patient: waiting for ").split(" since ")
    assert set(NAMES[1:]) <= set(names.split(", ")) <= set(NAMES)
    assert len(since) == len("12:34:56")
    waits = [record for record in caplog.records if "waiting for" in record.getMessage()]
    assert len(waits) <= 2  # one for each ask, however often it was looked


def test_a_certificate_of_an_authority_that_nobody_named(network, tmp_path, monkeypatch):
    monkeypatch.delenv("SOLERA_CA", raising=False)
    with pytest.raises(CoordinatorError, match="its certificate is not to be trusted") as error:
        so.connect(network.url, federation="cardio", token="any")
    assert network.url in error.value.message
    assert "SOLERA_CA=ca.pem" in error.value.hint
    other = tls.make_ca(tmp_path / "other")
    with pytest.raises(CoordinatorError, match="its certificate is not to be trusted"):
        so.connect(network.url, federation="cardio", token="any", ca=str(other))


def test_an_authority_that_cannot_be_read(network, tmp_path):
    with pytest.raises(UsageError, match=r"authority .*ca\.pem cannot be used: No such file"):
        so.connect(network.url, federation="cardio", token="any", ca=str(tmp_path / "ca.pem"))
    (tmp_path / "ca.pem").write_text("nothing")
    with pytest.raises(UsageError, match="not a PEM certificate"):
        so.connect(network.url, federation="cardio", token="any", ca=str(tmp_path / "ca.pem"))

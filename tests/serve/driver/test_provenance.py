"""Where a model comes from: the coordinator's statement, and attempts to forge it."""

from __future__ import annotations

import hashlib

import msgspec
import numpy as np
import pytest

import solera as so

for library in ("fastapi", "uvicorn", "httpx", "sqlalchemy", "alembic", "cryptography"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

from msgspec.structs import replace  # noqa: E402
from network import Network  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

from solera.cli.app import app  # noqa: E402
from solera.serve.coordinator.store.store import Store  # noqa: E402
from solera.serve.identity import Identity, verify  # noqa: E402
from solera.serve.provenance import ENDING, problems, read  # noqa: E402
from solera.serve.statements import signed  # noqa: E402

rng = np.random.default_rng(0)
X = rng.normal(size=(120, 4))
Y = (X @ rng.normal(size=(4, 3))).argmax(axis=1)

DATA = so.data.FederatedData(X, Y, np.array([0, 70, 120]))


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A model of two clients, its statement, and the coordinator's folder."""
    folder = tmp_path_factory.mktemp("provenance")
    network = Network(folder)
    try:
        network.start()
        for i, name in enumerate(("north", "south")):
            network.enrol(name)
            network.give(name, DATA, i)
            network.work(name)
        federation = network.connect("heart", seed=1)
        model = so.FedHEONN(lam=0.1).fit(federation)
        out = folder / "heart.sol"
        federation.engine.publish(model, out)
        federation.close()
        yield out, network
    finally:
        network.close()


def test_a_fetched_model_verifies(published):
    out, network = published
    statement = read(out.with_name(out.name + ENDING))
    coordinator = Identity.load(network.folder / "coordinator" / "identity")
    log = network.folder / "coordinator" / "audit.log"
    key = coordinator.sign_key.hex()
    assert problems(statement, out.read_bytes(), key, log) == []
    assert [took.name for took in statement.clients.values()] == ["north", "south"]
    assert all(took.replies >= 1 for took in statement.clients.values())
    assert so.load(out).score(X, Y) > 0.5
    told = CliRunner().invoke(app, ["model", "verify", str(out), "--key", key, "--log", str(log)])
    assert told.exit_code == 0, told.output
    assert "north" in told.output


def test_the_replies_named_are_those_that_clients_signed(published):
    out, network = published
    statement = read(out.with_name(out.name + ENDING))
    with (
        Store(f"sqlite:///{network.folder}/coordinator/coordinator.sqlite") as store,
        store._read() as connection,
    ):
        rows = connection.exec_driver_sql(
            "SELECT client, signature FROM deliveries WHERE job = ? AND status = 'ok' ORDER BY seq",
            (statement.job,),
        ).all()
    for client, took in statement.clients.items():
        own = [signature for who, signature in rows if who == int(client)]
        assert took.replies == len(own)
        assert took.signatures == hashlib.sha256(b"".join(own)).hexdigest()


def test_another_model_another_word_or_another_key_is_noticed(published, tmp_path):
    out, network = published
    statement = read(out.with_name(out.name + ENDING))
    content, log = out.read_bytes(), network.folder / "coordinator" / "audit.log"
    assert any("SHA-256" in p for p in problems(statement, content + b" "))
    changes = {
        "job": "other", "federation": "other", "version": 7, "time": 0.0, "line": 1,
        "clients": {}, "spec": "0" * 64, "kind": "managed",
    }  # fmt: skip
    for name, value in changes.items():
        changed = replace(statement, **{name: value})
        assert any("was changed" in p for p in problems(changed, content)), name
    stranger = Identity.create(tmp_path / "stranger")
    forged = signed(statement, stranger)
    assert problems(forged, content) == []
    assert any("signed the statement, not" in p for p in problems(forged, content, statement.key))
    assert problems(forged, content, log=log)
    coordinator = Identity.load(network.folder / "coordinator" / "identity")
    other = b"a model that was never published"
    invented = signed(replace(statement, model=hashlib.sha256(other).hexdigest()), coordinator)
    assert problems(invented, other, statement.key) == []
    assert any("does not say" in p for p in problems(invented, other, statement.key, log))
    beside = tmp_path / "changed.json"
    beside.write_bytes(msgspec.json.encode(replace(statement, job="other")))
    told = CliRunner().invoke(app, ["model", "verify", str(out), "--provenance", str(beside)])
    assert told.exit_code == 1
    assert "NOT OK" in told.output


def test_the_signature_is_for_this_purpose_only(published):
    out, _ = published
    statement = read(out.with_name(out.name + ENDING))
    fields = msgspec.structs.asdict(statement)
    del fields["signature"]
    bare = msgspec.json.encode(fields, order="sorted")
    assert not verify(bytes.fromhex(statement.key), bare, bytes.fromhex(statement.signature))


def test_without_a_statement_the_error_names_the_way_out(tmp_path):
    model = tmp_path / "m.sol"
    model.write_bytes(b"x")
    told = CliRunner().invoke(app, ["model", "verify", str(model)])
    assert told.exit_code != 0
    assert "solera job model" in told.output

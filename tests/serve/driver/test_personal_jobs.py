"""Clients' own models stay with their owners: judged by asking, and used where they are."""

from __future__ import annotations

import csv
import time

import numpy as np
import pytest

import solera as so

for library in ("fastapi", "uvicorn", "httpx", "sqlalchemy", "alembic", "cryptography"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

from network import Network  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

from solera.cli.app import app  # noqa: E402
from solera.serve import wire  # noqa: E402
from solera.serve.agent.memory import own_model  # noqa: E402
from solera.serve.driver.published import fetch  # noqa: E402
from solera.serve.job_spec import parse_job  # noqa: E402

draw = np.random.default_rng(0)
X = draw.normal(size=(120, 4))
CODES = (X @ draw.normal(size=(4, 3))).argmax(axis=1)
Y = np.concatenate([(CODES[40 * k : 40 * (k + 1)] + k) % 3 for k in range(3)])
NAMES = ("Lugo", "Vigo", "Noia")
DATA = so.data.FederatedData(X, Y, np.arange(0, 121, 40))
LEARNER = so.FedPer(so.nn.mlp(4, 6, 3), rounds=12, lr=0.3)
TOML = """
name = "managed"
federation = "cardio"
seed = 5
clients = 3
evaluate = "train"

[learner]
kind = "FedPer"
rounds = 12
lr = 0.3
model = {kind = "MLP", sizes = [4, 6, 3]}
"""


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    network = Network(tmp_path_factory.mktemp("personal"))
    network.start()
    for client, name in enumerate(NAMES):
        network.enrol(name)
        network.give(name, DATA, client)
        network.work(name)
    yield network
    network.close()


@pytest.fixture(scope="module")
def simulated():
    fed = so.simulate(DATA, seed=5)
    model = LEARNER.clone().fit(fed)
    return model, model.evaluate(fed, "train")


def test_a_model_is_judged_by_asking_and_used_by_its_owners(network, simulated, tmp_path):
    expected, judged = simulated
    federation = network.connect("driven", seed=5)
    model = LEARNER.clone().fit(federation)
    another = LEARNER.clone().set_params(rounds=1).fit(federation)
    found = model.evaluate(federation, "train")
    assert found["accuracy"] == judged["accuracy"] > 0.6
    assert [float(found.clients[k]["accuracy"]) for k in range(3)] == [
        float(judged.clients[k]["accuracy"]) for k in range(3)
    ]
    assert another.evaluate(federation, "train")["accuracy"] < found["accuracy"]
    assert model.evaluate(federation, "train", scores=True)["log_loss"] < 1.0
    with pytest.raises(so.errors.UsageError, match=r"with their owners.*solera predict"):
        model.at("Lugo")
    with pytest.raises(so.errors.UsageError, match="solera predict MODEL ROWS --folder"):
        model.predict(X)

    file = model.save(tmp_path / "model.sol")
    rows = tmp_path / "rows.csv"
    np.savetxt(rows, X, delimiter=",", header="x0,x1,x2,x3", comments="")
    for client, name in enumerate(NAMES):
        folder = network.folder / name
        own = own_model(so.load(file), folder)
        np.testing.assert_array_equal(own.predict(X), expected.at(client).predict(X))
        assert f"of client: {name}" in own.card()
        out = tmp_path / f"{name}.csv"
        arguments = ["predict", str(file), str(rows), "--folder", str(folder), "--out", str(out)]
        told = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert told.exit_code == 0, told.output
        with out.open() as answers:
            said = [int(line["prediction"]) for line in csv.DictReader(answers)]
        assert said == expected.at(client).predict(X).tolist()
    averaged = so.FedAvg(LEARNER.model, rounds=1).fit(so.simulate(DATA))
    with pytest.raises(so.errors.UsageError, match="keeps no part of this FedAvg"):
        own_model(averaged, network.folder / "Lugo")


def test_a_managed_job_is_judged_by_own_models(network, simulated, tmp_path):
    expected, judged = simulated
    spec = parse_job(TOML)
    driver = network.driver()
    described = spec.describe(TOML)
    new = wire.NewJob.of(described, id="managed", spec=driver.upload(described.to_bytes()))
    driver.request("POST", "/v1/federations/cardio/jobs", json=new)
    ends = time.monotonic() + 300
    while driver.call("GET", "/v1/jobs/managed", wire.Job).state not in ("finished", "failed"):
        assert time.monotonic() < ends, "the job does not end"
        time.sleep(0.2)
    notes = driver.call("GET", "/v1/jobs/managed/events?event=evaluated", list[wire.Event])
    accuracy = (notes[-1].facts or {})["accuracy"]
    assert accuracy["value"] == pytest.approx(float(judged["accuracy"]))
    fetch(driver, "managed", tmp_path / "managed.sol")
    own = own_model(so.load(tmp_path / "managed.sol"), network.folder / "Vigo")
    np.testing.assert_array_equal(own.predict(X), expected.at(1).predict(X))
    driver.close()

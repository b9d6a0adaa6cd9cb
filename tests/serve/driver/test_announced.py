"""A driver says what it learns before it asks."""

from __future__ import annotations

import numpy as np
import pytest

import solera as so
from solera.core.component import describe_fitted
from solera.core.payload import encode

for library in ("fastapi", "uvicorn", "httpx", "sqlalchemy", "alembic", "cryptography"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

from network import Network  # noqa: E402

from solera.serve.description import Description  # noqa: E402

rng = np.random.default_rng(0)
X = rng.normal(size=(400, 4))
Y = (X @ rng.normal(size=(4, 3))).argmax(axis=1)
DATA = so.data.FederatedData(X, Y, np.array([0, 250, 400]))
LEARNER = so.Pipeline(so.FedScaler(), so.FedLinear(rounds=2, epochs=2))


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """Two clients that trust the driver."""
    here = Network(tmp_path_factory.mktemp("announced"))
    here.start()
    for client, name in enumerate(("north", "south")):
        here.enrol(name)
        here.give(name, DATA, client)
        here.work(name)
    yield here
    here.close()


def descriptions(network, *names):
    driver = network.driver()
    jobs = [driver.request("GET", f"/v1/jobs/{name}").json() for name in names]
    found = [Description.from_bytes(driver.download(job["spec"])) for job in jobs]
    assert [job["owner"] for job in jobs] == [description.owner for description in found]
    driver.close()
    return found


def test_what_a_program_asks_is_described_job_by_job_and_replayed(network):
    def program():
        federation = network.connect("p", seed=5)
        assert repr(federation).startswith("Federation(2 clients")
        learner = LEARNER.clone().fit(federation)
        judged = learner.evaluate(federation, "train")
        told = federation.ask("data.describe").collect()
        federation.ask("data.describe").collect()
        federation.close()
        return encode([describe_fitted(learner), judged.metrics, [r.payload for r in told]])

    first = program()
    fitted, judged, asked = descriptions(network, "p", "p.2", "p.3")
    assert fitted.learner["kind"] == "Pipeline"
    assert fitted.learner["steps"][1]["epochs"] == 2
    assert asked.learner == {}
    assert [d.job for d in (fitted, judged, asked)] == ["p", "p.2", "p.3"]
    assert program() == first
    driver = network.driver()
    jobs = driver.request("GET", "/v1/federations/cardio/jobs").json()
    assert [job["id"] for job in jobs if job["id"].startswith("p")] == ["p", "p.2", "p.3"]
    driver.close()

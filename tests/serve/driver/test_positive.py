"""Over a real federation the driver says which class counts as positive, and clients follow."""

from __future__ import annotations

import numpy as np
import pytest

import solera as so

for library in ("fastapi", "uvicorn", "httpx", "sqlalchemy", "alembic", "cryptography"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

from network import Network  # noqa: E402

from solera.serve.job_spec import parse_job  # noqa: E402

rng = np.random.default_rng(0)
X = rng.normal(size=(300, 2))
DIED = X[:, 0] + rng.normal(size=300) > 0
ORDER = np.argsort(DIED, kind="stable")
X, Y = X[ORDER], np.where(DIED, "died", "survived")[ORDER]
FIRST = 100
"""So many rows of the first client, all of whom survived."""


def test_the_positive_class_of_a_driver(tmp_path):
    assert set(Y[:FIRST]) == {"survived"}
    data = so.data.FederatedData(X, Y, np.array([0, FIRST, 300]))
    network = Network(tmp_path)
    network.start()
    try:
        for client, name in enumerate(("north", "south")):
            network.enrol(name)
            network.give(name, data, client)
            network.work(name)
        federation = network.connect("p", seed=5, positive="died")
        model = so.FedGLM(family="binomial").fit(federation)
        found = model.evaluate(federation, "train")
        federation.close()
    finally:
        network.close()
    pooled = so.FedGLM(family="binomial").fit(so.simulate(data, positive="died"))
    np.testing.assert_allclose(model.params_, pooled.params_, rtol=1e-6)
    assert model.classes_.tolist() == ["survived", "died"]
    assert found["sensitivity"].positive == "died"
    recall = np.mean(model.predict(X)[Y == "died"] == "died")
    assert found["sensitivity"] == pytest.approx(recall)


def test_a_job_file_names_it():
    text = 'name = "j"\nfederation = "f"\npositive = "died"\n[learner]\nkind = "FedLinear"\n'
    assert parse_job(text).positive == "died"
    assert parse_job(text.replace('positive = "died"\n', "")).positive == ""

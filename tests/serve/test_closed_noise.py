"""Noise inside the sums of closed jobs over a real network, and what the owners' ledgers count."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import numpy as np
import pandas as pd
import pytest

import solera as so

for library in ("fastapi", "uvicorn", "httpx", "sqlalchemy", "alembic", "cryptography"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")
pytest.importorskip("dp_accounting")

from closed_network import NAMES, ClosedNetwork, learned  # noqa: E402

from solera.serve.agent import home  # noqa: E402
from solera.serve.agent.ledger import Ledger  # noqa: E402
from solera.serve.driver.closed.attached import ClosedJobEnded  # noqa: E402

POLICY = """
policy = "sums"
[approval]
mode = "auto"
[privacy]
epsilon = 8.0
delta = 1e-5
"""
NOISED = {"policy": "sums", "privacy": {"epsilon": 8.0, "delta": 1e-5}}


def frame(rows=400):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 4)).round(3)
    score = X @ [1, -1, 0.5, 0] + rng.logistic(size=rows)
    return pd.DataFrame(X, columns=list("abcd")).assign(died=np.where(score > 0, "yes", "no"))


@pytest.fixture
def network(tmp_path):
    here = ClosedNetwork(tmp_path, frame(), policy=POLICY)
    yield here
    here.close()


def statements(network):
    """By owner, what its ledger says."""
    found = {}
    for name in NAMES:
        with closing(Ledger(network.folder / name / home.LEDGER)) as ledger:
            found[name] = ledger.statement()
    return found


def records(network):
    """By owner, how many jobs have posted anything."""
    return [
        sqlite3.connect(network.folder / name / "closed.sqlite")
        .execute("SELECT count(*) FROM lines WHERE event = 'closed record'")
        .fetchone()[0]
        for name in NAMES
    ]


def dp(epsilon=2.0, **more):
    return so.DP(epsilon=epsilon, delta=1e-5, **more)


LEARNERS = {
    "linear": lambda: so.FedLinear(rounds=3, dp=dp(clip=1.0)),
    "glm": lambda: so.FedGLM("binomial", rounds=3, dp=dp(level="record", clip=2.0)),
    "trees": lambda: so.FedHistGBDT(rounds=2, max_depth=2, bins=4, dp=dp(level="record")),
}


def test_noised_fits_have_the_bytes_of_their_simulation_and_one_price(network):
    """Driver, ledgers and simulation say one ε; the same call again costs nothing more."""
    spent = []
    for name, make in LEARNERS.items():
        model = make().fit(network.closed())
        simulated = make().fit(network.simulation(policy=NOISED))
        assert learned(model) == learned(simulated), name
        spent.append(model.epsilon_)
        again = make().fit(network.closed())
        assert learned(again) == learned(model)
        for statement in statements(network).values():
            assert statement.jobs[-1].epsilon == pytest.approx(model.epsilon_, rel=1e-9)
            assert statement.jobs[-1].job == type(model).__name__
            assert "2 other owners are honest" in statement.jobs[-1].task
            assert len(statement.jobs) == len(spent)
            assert statement.epsilon < sum(spent) + 1e-9
    before = statements(network)
    with pytest.raises(ClosedJobEnded, match="the privacy budget is ε = 8") as refused:
        so.FedLinear(rounds=3, dp=dp(7.9, clip=1.0)).fit(network.closed())
    assert "north" in str(refused.value) or "refused" in str(refused.value)
    assert statements(network) == before


def test_what_one_owner_refuses_is_given_back_by_the_others(network):
    (network.folder / "west.toml").write_text(POLICY.replace("epsilon = 8.0", "epsilon = 1.0"))
    with pytest.raises(ClosedJobEnded, match="ε = 1 "):
        LEARNERS["linear"]().fit(network.closed())
    for _ in range(100):
        if not any(statement.jobs for statement in statements(network).values()):
            break
        import time

        time.sleep(0.1)
    assert not any(statement.jobs for statement in statements(network).values())

"""Selectors over a real network: valuations and resources are tasks like any other."""

from __future__ import annotations

import numpy as np
import pytest

import solera as so

for library in ("fastapi", "uvicorn", "httpx", "sqlalchemy", "alembic", "cryptography"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

from network import Network  # noqa: E402

CLIENTS = 4
FAST = "samples_per_second = 50.0\nbits_per_second = 1e6\n"
SLOW = "samples_per_second = 0.01\nbits_per_second = 1e6\nupload = true\n"


def rows():
    draw = np.random.default_rng(5)
    X = draw.normal(size=(CLIENTS * 25, 3))
    y = (X[:, 0] > 0).astype(int)
    return so.data.FederatedData(X, y, 25 * np.arange(CLIENTS + 1))


def network(folder, monkeypatch):
    place = Network(folder)
    place.start()
    for client in range(CLIENTS):
        name = f"client-{client}"
        stated = folder / f"{name}.resources"
        stated.write_text(SLOW if client == 1 else FAST)
        monkeypatch.setenv("SOLERA_RESOURCES", str(stated))
        place.enrol(name)
        place.give(name, rows(), client)
        place.work(name)
    return place


@pytest.fixture(scope="module")
def talking(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    place = network(tmp_path_factory.mktemp("talking"), patch)
    yield place
    place.close()
    patch.undo()


SELECTORS = {
    "uniform": so.selectors.Uniform(),
    "robin": so.selectors.RoundRobin(),
    "active": so.ActiveSampling(),
    "explore": so.ActiveSampling(explore=True),
    "power": so.selectors.PowerOfChoice(candidates=3),
    "greedy": so.selectors.GreedyShapley(part="train"),
    "ucb": so.selectors.ShapleyUCB(part="train"),
    "softmax": so.selectors.ShapleySoftmax(part="train"),
}
LEARNERS = {
    "linear": lambda select: so.FedLinear(rounds=3, per_round=2, select=select),
    "mlp": lambda select: so.FedAvg(
        so.nn.mlp(3, 4, 2), rounds=2, per_round=2, select=select, dtype="float64"
    ),
}


@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize("name", SELECTORS)
def test_selectors_choose_as_in_simulation(talking, name, learner):
    make = LEARNERS[learner]
    there = make(SELECTORS[name]).fit(talking.connect(f"{learner}-{name}", seed=4))
    here = make(SELECTORS[name]).fit(so.Federation(so.simulate(rows()).engine, seed=4))
    assert [entry["clients"] for entry in there.history_] == [2] * len(there.history_)
    for mine, theirs in zip(here.get_model().values(), there.get_model().values(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(
    "selector", [so.selectors.FedCS, so.selectors.HybridFL, so.selectors.DynHybridFL]
)
def test_resources_are_what_clients_state(talking, selector):
    watch = so.selectors.Selections()
    learner = so.FedLinear(rounds=2, select=selector(deadline=60.0))
    learner.fit(talking.connect(f"by-{selector.__name__}", seed=4), callbacks=[watch])
    assert watch.chosen_.tolist() == [2, 0, 2, 2]  # client 1 says that it is slow
    if selector is not so.selectors.FedCS:
        assert learner.history_[0]["uploaded"] == 25  # and lets its rows be sent
        assert "time" not in learner.history_[0]

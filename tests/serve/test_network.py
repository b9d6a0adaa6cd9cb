"""The same learners over a real network: processes, TLS, signatures, policies, kill -9."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

import solera as so
from solera.core.component import describe_fitted
from solera.core.payload import encode
from solera.serve.connection import CoordinatorError

for library in ("fastapi", "uvicorn", "httpx", "sqlalchemy", "alembic", "cryptography"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

from network import Network, kill  # noqa: E402

rng = np.random.default_rng(0)
X = rng.normal(size=(120, 4))
Y = (X @ rng.normal(size=(4, 3))).argmax(axis=1)
NAMES = ("north", "south", "west")


def data():
    return so.data.FederatedData(X, Y, np.array([0, 50, 90, 120]))


@pytest.fixture
def network(tmp_path):
    here = Network(tmp_path)
    here.start()
    for k, name in enumerate(NAMES):
        here.enrol(name)
        here.give(name, data(), k)
        here.work(name)
    yield here
    here.close()


def learned(model):
    return encode(describe_fitted(model))


LEARNERS = [
    lambda: so.FedLinear(rounds=3, epochs=2, batch_size=8),
    lambda: so.FedHEONN(),
    lambda: so.Pipeline(so.FedScaler(), so.FedHEONN(derivative="thesis")),
]


def test_learners_give_the_same_as_in_simulation_and_repeat_bit_for_bit(network):
    for number, make in enumerate(LEARNERS):
        here = make().fit(so.simulate(data(), seed=7))
        there = make().fit(network.connect(f"job-{number}", seed=7))
        again = make().fit(network.connect(f"again-{number}", seed=7))
        np.testing.assert_allclose(
            there.predict_proba(X), here.predict_proba(X), rtol=1e-9, atol=1e-12
        )
        assert learned(again) == learned(there)


def test_energy_over_a_network_is_of_the_driver_and_says_so(network):
    fed = network.connect("metered", seed=7)
    with so.energy.track_energy(fed, source="model") as tracked:
        so.FedLinear(rounds=2).fit(fed)
    use = tracked.use
    assert use.elsewhere
    assert "of the driver alone: clients elsewhere are not metered" in str(use)
    assert use.clients == [], "what the driver took while it waited is nobody's share"
    assert sum(use.tasks.values()) == pytest.approx(use.kwh)
    with so.energy.track_energy(so.simulate(data()), source="model") as simulated:
        pass
    assert (use + simulated.use).of_work().elsewhere > simulated.use.elsewhere
    assert "driver" not in str(simulated.use)


def test_a_driver_that_is_run_again_gets_the_stored_replies(network):
    first = so.FedLinear(rounds=3).fit(network.connect("once", seed=1))
    for process in network.agents.values():
        kill(process)
    again = so.FedLinear(rounds=3).fit(network.connect("once", seed=1))
    assert learned(again) == learned(first)
    with pytest.raises(CoordinatorError, match=r"409|another|else"):
        so.FedLinear(rounds=3, lr=0.5).fit(network.connect("once", seed=1))


@pytest.mark.parametrize("victim", ["coordinator", "north"])
def test_kill_and_restart_gives_the_same_model(network, victim):
    expected = learned(so.FedLinear(rounds=12).fit(network.connect("calm", seed=3)))
    trouble = []

    def strike():
        if victim == "coordinator":
            kill(network.coordinator)
            network.start()
        else:
            kill(network.agents[victim])
            network.work(victim)

    class Chaos(so.callbacks.Callback):
        def on_round(self, learner, round):
            if round.index in (1, 4, 8):  # somewhere in the next round
                trouble.append(threading.Timer(0.02 * round.index, strike))
                trouble[-1].start()
            elif round.index in (3, 7, 11):
                trouble[-1].join()

    model = so.FedLinear(rounds=12).fit(network.connect("stormy", seed=3), callbacks=[Chaos()])
    for blow in trouble:
        blow.join()
    assert len(trouble) == 3
    assert learned(model) == expected


def test_a_policy_refuses_and_the_reason_arrives(network):
    kill(network.agents["west"])
    network.give("west", data(), 2, 'policy = "sums"\n')
    network.work("west")
    ask = ("linear.train", {"coef": np.zeros((4, 3))})
    replies = network.connect().ask(*ask, quorum=0)
    assert {r.client for r in replies} <= {0, 1}
    reasons = {f.client: f for f in replies.failures}
    assert reasons[2].kind == "refused"
    assert "answer no open ask, here for 'linear.train'" in reasons[2].reason


def test_a_held_job_runs_once_a_named_person_approves_it(network):
    from datetime import datetime

    from solera.serve.agent.approvals import Approvals, Approver

    kill(network.agents["west"])
    garcia = Approver.create(network.folder / "garcia.key", "garcia")
    approvers = {"garcia": garcia.public}
    rules = 'policy = "trusted"\n[approval]\nmode = "ask"\n'
    rules += f'approvers = {{ garcia = "{garcia.public}" }}\n'
    network.give("west", data(), 2, rules)
    network.work("west")
    hash = network.driven("held", seed=4)
    fed = network.drive("held", seed=4)
    replies = fed.ask("data.describe")
    answered = []
    reader = threading.Thread(target=lambda: answered.extend(replies))
    reader.start()
    waiting = network.folder / "west" / "held.json"
    while not (waiting.exists() and hash in waiting.read_text()):
        time.sleep(0.05)
    assert reader.is_alive()
    approvals = Approvals(network.folder / "west" / "approvals.json", approvers)
    approvals.decide("0" * 64, "approved", garcia, datetime.now())
    time.sleep(1.5)
    assert reader.is_alive(), "the approval of another job must not count"
    approvals.decide(hash, "approved", garcia, datetime.now())
    reader.join(timeout=300)
    assert sorted(r.client for r in answered) == [0, 1, 2]


def test_wrong_tokens_and_revoked_clients_are_refused(network):
    from solera.serve.driver.driven import connect

    with pytest.raises(CoordinatorError, match="refused"):
        connect(network.url, federation="cardio", token="wrong", ca=network.ca)
    driver = network.driver()
    driver.request("POST", "/v1/federations/cardio/clients/1/revoke", json={"reason": "left"})
    fed = network.connect()
    assert len(fed) == 2
    assert [r.client for r in fed.ask("data.describe")] == [0, 1]
    with pytest.raises(CoordinatorError, match="401"):
        driver.request("GET", "/v1/work")

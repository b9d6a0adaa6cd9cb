"""Solera over Flower, without Flower: messages go from driver to agents and back in this process.

``test_flower_superlink.py`` does the same over a real SuperLink.
"""

from __future__ import annotations

import csv
import json
from datetime import UTC, datetime

import numpy as np
import pytest
from sklearn.datasets import load_iris

import solera as so
from solera.core.errors import NotEnoughReplies, UsageError

for library in ("fastapi", "httpx", "cryptography", "pandas"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

from solera.serve.agent.flower import answer  # noqa: E402
from solera.serve.driver.flower import Lost, over_nodes  # noqa: E402
from solera.serve.driver.signatures import ForgedReply  # noqa: E402

CLIENTS = 3
TRUSTED = 'policy = "trusted"\n'


def simulation():
    X, y = load_iris(return_X_y=True)
    return so.simulate(X, y, clients=CLIENTS, seed=3)


@pytest.fixture(scope="module")
def data():
    return simulation().engine.source


def configs(folder, data, policy=TRUSTED):
    """The node configuration of every client, with its rows and its policy in files."""
    found = []
    for client in range(data.clients):
        own = folder / f"site-{client}"
        own.mkdir()
        rows = data.segments(np.array([client]))[0]
        with open(own / "rows.csv", "w", newline="") as file:
            out = csv.writer(file)
            out.writerow(["a", "b", "c", "d", "label"])
            out.writerows([*map(repr, x), y] for x, y in zip(rows.X.tolist(), rows.y, strict=True))
        (own / "policy.toml").write_text(policy)
        files = {"data": str(own / "rows.csv"), "policy": str(own / "policy.toml")}
        found.append({"client": client, "target": "label", "folder": str(own / "agent"), **files})
    return found


class InProcess:
    """Nodes of this process, by ids that are not the clients' numbers."""

    def __init__(self, configs):
        self.configs = {701 - 3 * n: config for n, config in enumerate(configs)}
        self.waiting = []
        self.asked = []
        self.dead = set()
        self.change = lambda node, parts: parts

    def ids(self):
        return [node for node in self.configs if node not in self.dead]

    def send(self, action, messages, seconds):
        return [(action, node, parts) for node, parts in messages.items()]

    def receive(self, tickets):
        found = {}
        for action, node, parts in tickets:
            self.asked.append((action, node))
            if node in self.dead:
                found[node] = Lost("the node is gone")
            else:
                told = answer(action, dict(parts), self.configs[node])
                found[node] = self.change(node, told) if action == "ask" else told
        tickets.clear()
        return found


@pytest.fixture
def nodes(tmp_path, data):
    return InProcess(configs(tmp_path, data))


def over(nodes, job="run-1", **options):
    return over_nodes(nodes, job=job, clients=CLIENTS, seconds=60, seed=3, **options)


CENTRES = load_iris(return_X_y=True)[0][[0, 60, 120]]
LEARNERS = {
    "FedHEONN": lambda: so.FedHEONN(lam=0.01),
    "FedAvg": lambda: so.FedAvg(so.nn.mlp(4, 5, 3), rounds=2, dtype="float64"),
    "FedKMeans": lambda: so.FedKMeans(3, rounds=2, init=CENTRES),
    "FedHistGBDT": lambda: so.FedHistGBDT(rounds=1, max_depth=2, min_rows=5),
}


def outputs(model, X):
    return model.predict_proba(X) if hasattr(model, "predict_proba") else model.centroids_


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] if n != "FedHEONN" else []) for n in LEARNERS],
)
def test_a_learner_gives_what_it_gives_in_simulation(name, nodes):
    if name == "FedAvg":
        pytest.importorskip("torch")
    X, _ = load_iris(return_X_y=True)
    with over(nodes) as federation:
        there = outputs(LEARNERS[name]().fit(federation), X)
    here = outputs(LEARNERS[name]().fit(simulation()), X)
    assert np.abs(there - here).max() < 1e-9


def test_sums_are_secure_if_wanted(nodes):
    X, _ = load_iris(return_X_y=True)
    with over(nodes, secure=True) as federation:
        there = so.FedHEONN(lam=0.01).fit(federation)
    here = so.FedHEONN(lam=0.01).fit(simulation())
    assert np.abs(there.predict_proba(X) - here.predict_proba(X)).max() < 1e-6


def test_what_a_policy_does_not_allow_arrives_as_a_refusal(nodes, tmp_path):
    for client in range(CLIENTS):
        (tmp_path / f"site-{client}" / "policy.toml").write_text('policy = "sums"\n')
    with over(nodes) as federation, pytest.raises(NotEnoughReplies) as raised:
        so.FedHEONN().fit(federation)
    assert [(f.client, f.kind) for f in raised.value.failures] == [(c, "refused") for c in range(3)]
    log = (tmp_path / "site-1" / "agent" / "audit.log").read_text()
    assert '"status":"refused"' in log.replace(" ", "")


def test_a_node_that_is_gone_is_a_client_that_dropped_out(nodes):
    with over(nodes) as federation:
        nodes.dead.add(698)
        replies = federation.ask("data.describe")
        assert [reply.client for reply in replies.collect()] == [0, 2]
        (failure,) = replies.failures
        assert (failure.client, failure.kind, failure.reason) == (1, "dropped", "the node is gone")
        nodes.configs[44] = nodes.configs[698]  # started again, it has another id
        federation.ask("data.describe").collect()
        assert len(federation.ask("data.describe").collect()) == CLIENTS


def test_a_reply_that_was_changed_on_the_way_is_not_believed(nodes):
    def other(node, parts):
        reply = json.loads(parts["reply"])
        reply["status"] = "refused"
        return {**parts, "reply": json.dumps(reply).encode()}

    nodes.change = other
    with over(nodes) as federation, pytest.raises(ForgedReply):
        federation.ask("data.describe").collect()


def test_an_ask_that_needs_an_approval_is_held_until_it_has_one(nodes, tmp_path, monkeypatch):
    from solera.serve.agent.approvals import Approvals, Approver
    from solera.serve.agent.held_jobs import HeldJobs
    from solera.serve.driver import flower

    monkeypatch.setattr(flower, "_HELD_SECONDS", 0.0)
    ana = Approver.create(tmp_path / "ana.key", "ana")
    rules = f'[approval]\nmode = "ask"\n[approval.approvers]\nana = "{ana.public}"\n'
    (tmp_path / "site-0" / "policy.toml").write_text(TRUSTED + rules)
    agent = tmp_path / "site-0" / "agent"
    held = []

    def approve(node, parts):
        if "held" in parts:
            (job,) = HeldJobs(agent / "held.json").read()
            approvals = Approvals(agent / "approvals.json", {"ana": ana.public})
            approvals.decide(job.hash, "approved", ana, datetime.now(UTC))
            held.append(node)
        return parts

    nodes.change = approve
    with over(nodes) as federation:
        so.FedHEONN().fit(federation)
    assert held == [701]


def test_an_error_tells_the_server_nothing_of_the_rows(nodes, tmp_path):
    (tmp_path / "site-2" / "rows.csv").write_text("a,b,secret\n1,2,3\n")
    with over(nodes) as federation:
        replies = federation.ask("data.describe")
        replies.collect()
    (failure,) = replies.failures
    reason = "cannot work: the rows cannot be read"
    assert (failure.client, failure.kind, failure.reason) == (2, "failed", reason)


def test_two_clients_of_one_number_are_an_error(nodes):
    nodes.configs[698] = {**nodes.configs[698], "client": 0}
    with pytest.raises(UsageError, match="two nodes say that they are client 0"):
        over(nodes)


def test_a_node_of_another_federation_is_not_waited_for_in_vain(nodes):
    nodes.configs[698] = {**nodes.configs[698], "federation": "cardio"}
    with pytest.raises(UsageError, match=r"2 of 3 clients answered.*takes part in 'cardio' only"):
        over_nodes(nodes, job="run-1", clients=CLIENTS, seconds=0.0)


def test_a_folder_belongs_to_one_client(nodes):
    nodes.configs[698] = {**nodes.configs[698], "folder": nodes.configs[701]["folder"]}
    with pytest.raises(UsageError, match="its owner's log says why"):
        over_nodes(nodes, job="run-1", clients=CLIENTS, seconds=0.0)

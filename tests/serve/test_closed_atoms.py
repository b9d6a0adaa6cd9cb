"""Agents find the atoms of an epoch by themselves, and sign what their own run has found."""

from __future__ import annotations

import shutil
import time
from contextlib import closing, suppress

import numpy as np
import pandas as pd
import pytest

for library in ("fastapi", "uvicorn", "httpx", "sqlalchemy", "cryptography", "pandas"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

from closed_network import NAMES, ClosedNetwork  # noqa: E402
from network import kill  # noqa: E402

import solera as so  # noqa: E402
from solera.serve.agent import home  # noqa: E402
from solera.serve.agent.closed.rules import refusal  # noqa: E402
from solera.serve.agent.closed.store import ClosedStore  # noqa: E402
from solera.serve.agent.epoch_files import current_epoch  # noqa: E402
from solera.serve.agent.epoch_signing import Signing  # noqa: E402
from solera.serve.agent.policy import OwnerPolicy  # noqa: E402
from solera.serve.driver.closed.epochs import policies_so_far  # noqa: E402
from solera.serve.identity import Identity  # noqa: E402
from solera.trust.board.atoms import atoms_text  # noqa: E402
from solera.trust.board.text import JobText, parse  # noqa: E402

ASKS = 'policy = "sums"\n[approval]\nmode = "ask"\n[approval.approvers]\n'


def frame(rows=200):
    draw = np.random.default_rng(0)
    age = draw.integers(40, 90, rows)
    ward = draw.choice(["eye", "heart", "skin", "rare"], rows, p=[0.4, 0.3, 0.28, 0.02])
    cost = np.round(draw.lognormal(4, 1.5, rows), 2)
    died = np.where(age + draw.normal(0, 15, rows) > 65, "yes", "no")
    return pd.DataFrame({"age": age, "ward": ward, "cost": cost, "died": died})


@pytest.fixture
def network(tmp_path):
    """Owners who have signed; their people approve every text by hand. No agent runs yet."""
    policy = ASKS + f'ana = "{"0" * 64}"\n'
    here = ClosedNetwork(tmp_path, frame(), policy=policy, agents_find_atoms=True, working=())
    yield here
    here.close()


def jobs(network, name):
    """The closed jobs of an owner, as its agent keeps them."""
    path = network.folder / name / home.CLOSED
    if not path.exists():
        return []
    store = ClosedStore(path)
    try:
        return store.jobs()
    finally:
        store.close()


def until(holds, seconds=120.0):
    end = time.monotonic() + seconds
    while not (value := holds()):
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.02)
    return value


def sums(network, name):
    with suppress(Exception):  # the agent writes at this moment
        return max((job.sums for job in jobs(network, name)), default=0)
    return 0


def test_agents_find_what_a_simulation_finds_though_they_are_killed(network):
    """Coordinator and an agent die on the way; nobody is asked for anything."""
    expected = network.simulation().atoms
    for name in NAMES:
        network.work(name)
    until(lambda: sums(network, "west") >= 2)
    kill(network.agents["west"])
    network.work("west")
    until(lambda: sums(network, "north") >= 5)
    kill(network.coordinator)
    network.start()
    epoch = network.settled()
    assert epoch.atoms == expected
    assert [job.state for job in jobs(network, "east")] == ["finished"]
    assert epoch.words() == epoch.agreed.words()
    until(lambda: current_epoch(network.folder / "west") is not None)
    assert current_epoch(network.folder / "west").epoch == epoch
    with pytest.raises(so.errors.UsageError, match="seed of a closed job"):
        so.FedGLM("binomial").fit(network.closed(seed=10))  # the epoch is in force


def test_an_agent_that_was_set_back_ends_the_run_and_signing_again_starts_another(network):
    copy = network.folder / "west before"
    shutil.copytree(network.folder / "west", copy)
    for name in NAMES:
        network.work(name)
    until(lambda: sums(network, "west") >= 2)
    kill(network.agents["west"])
    shutil.rmtree(network.folder / "west")
    shutil.copytree(copy, network.folder / "west")
    network.work("west")
    board = network.board("north")
    until(lambda: board.look().search.startswith("ended"))
    assert board.look().atoms is None
    assert current_epoch(network.folder / "north") is None
    folder = network.folder / "north"
    signing = Signing(folder, "north", Identity.load(folder), None, board)
    signing.remind(board.look().signed())
    assert network.settled().atoms == network.simulation().atoms
    assert {parse(job.text).repeat for job in jobs(network, "north")} == {0, 1}


def test_only_the_text_of_the_atoms_runs_before_there_are_any(network):
    epoch, policy = network.epoch, OwnerPolicy.parse('policy = "sums"')
    assert refusal(policy, parse(atoms_text(3)), epoch) is None
    key = bytes(31) + b"\1"
    other = JobText("atoms", None, population="some", target=(), researcher_key=key)
    assert "not the text" in refusal(policy, other, epoch)
    text = JobText("training", so.FedGLM("binomial"), researcher_key=key)
    assert "yet to be found" in refusal(policy, text, epoch)
    settled = network.settle()
    assert "not the text" in refusal(policy, parse(atoms_text()), settled)
    assert refusal(policy, text, settled) is None
    narrow = 'policy = "sums"\n[data]\ncolumns = ["age", "ward"{}]'
    some, all_ = (OwnerPolicy.parse(narrow.format(more)) for more in ("", ', "cost"'))
    assert "does not hold cost" in refusal(some, parse(atoms_text()), epoch)
    assert refusal(all_, parse(atoms_text()), epoch) is None, "the target is no column of [data]"
    strict = OwnerPolicy.parse('policy = "sums"\nmin_peers = 4')
    assert "at least 4 other owners" in refusal(strict, parse(atoms_text()), epoch)


def test_a_driver_is_told_that_the_atoms_are_waited_for(network):
    for name in NAMES[:3]:
        network.work(name)
    with closing(network.driver()) as connection:
        until(lambda: "sums" in policies_so_far(connection, network.federation)[0])
    with pytest.raises(so.errors.UsageError, match=r"atoms of federation .* yet to be found"):
        so.FedGLM("binomial").fit(network.closed())

"""Noise inside the sums of closed jobs over a real network, and what the owners' ledgers count."""

from __future__ import annotations

import random
import re
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import solera as so
from solera.core.component import describe

for library in ("fastapi", "uvicorn", "httpx", "sqlalchemy", "alembic", "cryptography"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")
pytest.importorskip("dp_accounting")

from closed_faults import Driven, storm  # noqa: E402
from closed_network import NAMES, ClosedNetwork, learned  # noqa: E402
from scipy.stats import norm  # noqa: E402

from solera.serve.agent import home  # noqa: E402
from solera.serve.agent.closed.rules import OwnerRules  # noqa: E402
from solera.serve.agent.closed.store import ClosedStore, OwnJob  # noqa: E402
from solera.serve.agent.ledger import Ledger  # noqa: E402
from solera.serve.agent.policy import OwnerPolicy  # noqa: E402
from solera.serve.driver.closed.attached import ClosedJobEnded  # noqa: E402
from solera.serve.job_spec import read_job  # noqa: E402
from solera.trust.board.text import JobText  # noqa: E402

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
        time.sleep(0.1)
    assert not any(statement.jobs for statement in statements(network).values())


def checked(network, name, *text):
    from typer.testing import CliRunner

    from solera.cli.app import app

    policy = str(network.folder / f"{name}.toml")
    done = CliRunner().invoke(
        app, ["policy", "check", policy, *text, "--folder", str(network.folder / name)]
    )
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


JOB = """
name = "risk"
federation = "cardio"
[learner]
kind = "FedLinear"
rounds = 3
dp = { epsilon = 7.9, delta = 1e-5, clip = 1.0 }
"""


def test_policy_check_says_what_a_job_would_tell_by_the_accountant_of_all(network):
    """7.9 asked is 7.9 at the driver, in the ledgers, and in what an owner reads beforehand."""
    so.FedScaler().fit(network.closed())  # the atoms of the epoch are there
    job = network.folder / "job.toml"
    job.write_text(JOB)
    said = checked(network, "north", str(job))
    told = {float(number) for number in re.findall(r"ε = (7\.9\d*|7\.8\d+)", said)}
    model = read_job(job).learner.fit(network.closed())
    assert told == {float(f"{model.epsilon_:.4g}")}
    for statement in statements(network).values():
        assert statement.epsilon == pytest.approx(model.epsilon_, rel=1e-9)
    assert "if 2 other owners are honest" in said
    assert "of 8 at δ = 1e-05" in said
    assert "about " in said
    assert "of 400 persons" in said
    best = float(re.search(r"at most ([\d.]+) %", said)[1])
    mu = 1 / (model.accounts_["noise"] / np.sqrt(3))
    assert best == pytest.approx(100 * norm.cdf(mu / 2), abs=0.06)
    with closing(ClosedStore(network.folder / "north" / home.CLOSED)) as store:
        jid = store.jobs()[-1].jid
    assert checked(network, "north", jid[:12]).split("tells")[1] == said.split("tells")[1]


def test_policy_check_of_exact_jobs_names_what_nothing_bounds(network):
    so.FedScaler().fit(network.closed())
    job = network.folder / "job.toml"
    job.write_text(JOB.replace("dp =", "# dp ="))
    assert "refused" in checked(network, "north", str(job))
    exact = POLICY.replace('"sums"', '"sums"\nexact_training = true')
    (network.folder / "north.toml").write_text(exact)
    said = checked(network, "north", str(job))
    numbers = int(re.search(r"about ([\d,]+) numbers of 400 persons", said)[1].replace(",", ""))
    most = min(numbers, 400)
    assert f"the targets of up to {most} of 400 persons" in " ".join(said.split())
    assert "20 boosted trees" in said
    job.write_text(
        JOB.replace("dp =", "# dp =").replace("FedLinear", "FedHEONN").replace("rounds", "# r")
    )
    said = checked(network, "north", str(job))
    assert "in a closed job it is one for six" in said


def test_kills_of_anybody_draw_no_noise_twice(network):
    """What was posted is posted again: the same bytes, and the ledgers count the job once."""
    learner = so.FedLinear(rounds=12, dp=dp(clip=1.0))
    driven = Driven(network, describe(learner), 0, 0.2)
    struck = storm(network, driven, 5, random.Random(4))
    expected = learner.clone().fit(network.simulation(policy=NOISED, test=0.2))
    assert driven.wait() == learned(expected), struck
    for statement in statements(network).values():
        assert [job.replies for job in statement.jobs] == [1]
        assert statement.epsilon == pytest.approx(expected.epsilon_, rel=1e-9)


# --- reservations ---


def reserve(folder, jid, epsilon):
    """What an owner of a budget of ε = 8 says of a text, and its ledger's statement after it."""
    rules = OwnerRules(folder, None, lambda: OwnerPolicy.parse(POLICY))
    learner = so.FedLinear(rounds=3, dp=dp(epsilon, clip=1.0))
    text = JobText("training", learner, researcher_key=b"1" * 32)
    job = OwnJob(jid, "e", b"", 0.0, "held", "", 0, "", [], 0.0)
    return rules, rules._reserved(job, text, SimpleNamespace(owners=NAMES))


def statement_of(folder):
    with closing(Ledger(folder / home.LEDGER)) as ledger:
        return ledger.statement()


def test_of_jobs_at_once_no_more_are_approved_than_the_budget_has(tmp_path):
    with ThreadPoolExecutor(8) as at_once:
        said = list(at_once.map(lambda i: reserve(tmp_path, f"{i}", 3.0)[1], range(8)))
    verdicts = [one.verdict for one in said]
    approved = verdicts.count("approved")
    assert 2 <= approved < 8
    assert len(statement_of(tmp_path).jobs) == 1  # one learner, several jobs of it
    assert statement_of(tmp_path).jobs[0].replies == approved
    assert statement_of(tmp_path).epsilon <= 8.0
    refused = next(one for one in said if one.verdict == "refused")
    assert "the privacy budget is ε = 8" in refused.reason


def test_a_job_counts_once_and_is_given_back_where_nothing_has_left(tmp_path):
    rules, first = reserve(tmp_path, "a", 7.0)
    assert first.verdict == reserve(tmp_path, "a", 7.0)[1].verdict == "approved"
    assert statement_of(tmp_path).epsilon == pytest.approx(7.0, rel=1e-3)
    assert reserve(tmp_path, "b", 7.0)[1].verdict == "refused"
    rules.give_back("a")
    assert not statement_of(tmp_path).jobs
    assert reserve(tmp_path, "b", 7.0)[1].verdict == "approved"

"""Closed jobs over a real network: four agents, TLS; the bytes of their simulation."""

from __future__ import annotations

import json
import random
import re
import shutil
import sqlite3
import threading
import time
from contextlib import suppress

import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import GridSearchCV

import solera as so
from solera.cli.closed_jobs import listed
from solera.core.component import describe
from solera.core.errors import PolicyRefusal, UsageError
from solera.serve.agent.closed.rules import refusal
from solera.serve.agent.policy import OwnerPolicy
from solera.serve.closed import ClosedJob
from solera.serve.closed_words import job_words
from solera.serve.driver.closed.epochs import policies_so_far
from solera.trust.board.text import JobText

for library in ("fastapi", "uvicorn", "httpx", "sqlalchemy", "alembic", "cryptography"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

from closed_faults import Driven, storm  # noqa: E402
from closed_network import NAMES, POLICY, ClosedNetwork, learned, validation_loss  # noqa: E402
from network import kill  # noqa: E402

from solera.serve.driver.closed.attached import ClosedJobEnded  # noqa: E402
from solera.trust.board.engine import NotClosed  # noqa: E402

LINEAR = so.FedLinear(rounds=6)


def features():
    """The SIMD levels among which NumPy chooses on this machine."""
    from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

    found = {name for name in __cpu_dispatch__ if __cpu_features__.get(name)}
    return found | ({"AVX2"} if "X86_V3" in found else set())


def frame(rows=400):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 4)).round(3)
    score = X @ [1, -1, 0.5, 0] + rng.logistic(size=rows)
    return pd.DataFrame(X, columns=list("abcd")).assign(died=np.where(score > 0, "yes", "no"))


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    here = ClosedNetwork(tmp_path_factory.mktemp("closed"), frame())
    until(lambda: here.closed().engine._answers_nobody)  # all owners have said their policies
    yield here
    here.close()


@pytest.fixture
def own_network(tmp_path):
    """A network for a test that leaves nothing as it was."""
    here = ClosedNetwork(tmp_path, frame())
    yield here
    here.close()


def states(network):
    """By owner: state and reason of every closed job."""
    found = {name: [] for name in NAMES}
    for name in NAMES:
        with suppress(sqlite3.OperationalError):  # an agent that has just begun
            db = sqlite3.connect(network.folder / name / "closed.sqlite")
            found[name] = db.execute("SELECT state, reason FROM jobs ORDER BY since").fetchall()
    return found


shared_memory = shutil.ignore_patterns("*-shm")
"""SQLite makes it anew; an old one may be cut under whoever reads at that moment."""


def until(holds, seconds=60.0):
    end = time.monotonic() + seconds
    while not (value := holds()):
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.05)
    return value


def words_of(evaluation):
    """Every figure to the last digit, with its bounds."""
    return {name: repr(figure.to_payload()) for name, figure in evaluation.metrics.items()}


def test_a_call_that_is_made_again_is_the_same_job(network):
    first = LINEAR.clone().fit(network.closed(seed=1))
    began = time.monotonic()
    again = LINEAR.clone().fit(network.closed(seed=1))
    assert time.monotonic() - began < 2.0, "the stored result"
    assert learned(again) == learned(first)
    other = LINEAR.clone().fit(network.closed(seed=2))
    assert learned(other) != learned(first), "another repeat has other draws"


def test_a_model_is_scored_once_on_a_part(network):
    model = LINEAR.clone().fit(network.closed(seed=3, test=0.2))
    first = model.evaluate(network.closed(seed=3, test=0.2))
    again = model.evaluate(network.closed(seed=7, test=0.2))
    assert words_of(again) == words_of(first)
    before = {name: len(jobs) for name, jobs in states(network).items()}
    scores = model.evaluate(network.closed(test=0.2), scores=True)
    assert {name: scores[name] for name in first.metrics} == first.metrics
    assert "auroc" in scores.metrics
    other = model.evaluate(network.closed(seed=3, test=0.2), metrics=["closed_cost"])
    assert "without closed_cost" in repr(other)
    assert {name: len(jobs) for name, jobs in states(network).items()} == before
    with pytest.raises(ClosedJobEnded, match="its figures stand"):
        model.evaluate(network.closed(test=0.1))


def test_describe_is_a_closed_job(network):
    assert str(so.describe(network.closed())) == str(so.describe(network.simulation()))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda fed: so.FedKMeans(3, epochs=2).fit(fed), "cannot be a closed job"),
        (lambda fed: LINEAR.clone().fit(fed, checkpoint="x"), "checkpoint"),
        (lambda fed: LINEAR.clone().fit(fed, keep=True), "keep"),
        (lambda fed: so.FedLinear(lr=0.12345).fit(fed), "significant digits"),
        (lambda fed: LINEAR.clone().fit(so.simulate(frame(), target="died")).evaluate(fed),
         "comes from elsewhere"),
        (lambda fed: fed.ask("data.flaws").collect(), "sums"),
        (lambda fed: GridSearchCV(LINEAR, {"rounds": [2, 3]}).fit(fed), "every owner approves"),
    ],
)  # fmt: skip
def test_what_no_text_carries_is_refused_before_it_is_registered(network, call, says):
    before = {name: len(jobs) for name, jobs in states(network).items()}
    with pytest.raises((NotClosed, UsageError, PolicyRefusal), match=says):
        call(network.closed())
    assert {name: len(jobs) for name, jobs in states(network).items()} == before


def test_a_text_with_columns_that_a_policy_hides_is_refused(network):
    rules = OwnerPolicy.parse('policy = "sums"\n[data]\ncolumns = ["x0"]\n')
    about = {"researcher": "ana", "researcher_key": b"k" * 32}
    said = refusal(rules, JobText("training", so.FedGLM("binomial"), **about), network.epoch)
    assert said.startswith("[data] columns of the policy does not hold ")
    first = network.epoch.dictionary.columns[0].name
    rules = OwnerPolicy.parse(f'policy = "sums"\n[data]\ncolumns = ["{first}"]\n')
    one = JobText("training", so.FedGLM("binomial"), columns=(first,), **about)
    assert refusal(rules, one, network.epoch) is None


def test_a_grid_is_refused_where_one_of_its_points_would_be(network):
    rules = OwnerPolicy.parse('policy = "sums"\n[privacy]\nepsilon = 8.0\ndelta = 1e-5\n')
    about = {"researcher": "ana", "researcher_key": b"k" * 32}
    about |= {"training": (0, 1), "validation": (2,)}

    def said(*points):
        return refusal(rules, JobText("training", list(points), **about), network.epoch)

    assert said(so.FedGLM("binomial"), so.FedHEONN()) is None
    assert "exact_training = true" in said(so.FedGLM("binomial"), so.FedLinear())
    noised = so.FedLinear(dp=so.DP(epsilon=4.0, delta=1e-5, clip=1.0))
    assert "no ε counts the losses" in said(so.FedGLM("binomial"), noised)


def test_where_all_say_sums_an_open_ask_is_refused_before_it_is_sent(network):
    fed, deadline = network.closed(), time.monotonic() + 60
    while policies_so_far(fed.engine.connection, network.federation)[1]:
        assert time.monotonic() < deadline, "agents say their policies when they begin"
        time.sleep(0.1)
    with pytest.raises(PolicyRefusal, match="answer no open ask") as refused:
        fed.ask("data.describe")
    assert "learner.fit(federation)" in str(refused.value)


def test_a_seed_is_a_repeat(network):
    with pytest.raises(UsageError, match="0 to 9"):
        LINEAR.clone().fit(network.closed(seed=10))


def test_a_policy_refuses_at_once_and_tells_the_researcher_why(own_network):
    network = own_network
    (network.folder / "east.toml").write_text(POLICY.replace("exact_training = true\n", ""))
    time.sleep(1.5)
    with pytest.raises(ClosedJobEnded, match=r"east: .*exact_training = true"):
        LINEAR.clone().fit(network.closed())


def test_people_approve_a_text_by_its_hash(own_network):
    from datetime import datetime

    from solera.serve.agent.approvals import Approvals, Approver

    network = own_network
    ana = Approver.create(network.folder / "ana.key", "ana")
    rules = f'[approval]\nmode = "ask"\n[approval.approvers]\nana = "{ana.public}"\n'
    policy = POLICY.partition("[approval]")[0] + rules
    (network.folder / "south.toml").write_text(policy)
    time.sleep(1.5)
    done = []
    fit = threading.Thread(target=lambda: done.append(LINEAR.clone().fit(network.closed())))
    fit.start()
    state = until(lambda: [s for s, _ in states(network)["south"]])
    assert state == ["held"]
    assert not done
    with sqlite3.connect(network.folder / "south" / "closed.sqlite") as db:
        ((jid,),) = db.execute("SELECT jid FROM jobs").fetchall()
    approvals = Approvals(network.folder / "south" / "approvals.json", {"ana": ana.public})
    approvals.decide(jid, "approved", ana, datetime.now().astimezone())
    fit.join(60)
    assert learned(done[0]) == learned(LINEAR.clone().fit(network.simulation()))


def test_without_a_signed_epoch_fit_names_who_is_missing(tmp_path):
    network = ClosedNetwork(tmp_path, frame(), signed=3)
    try:
        with pytest.raises(UsageError, match=r"missing west .*solera dictionary sign"):
            LINEAR.clone().fit(network.closed())
    finally:
        network.close()


# --- faults ---


CLUSTERS = pytest.param(so.FedKMeans(3, init="atoms"), marks=pytest.mark.slow)


@pytest.mark.parametrize("learner", [so.FedLinear(rounds=12), CLUSTERS], ids=["linear", "k-means"])
def test_kills_of_anybody_change_no_byte(own_network, learner):
    draw = random.Random(3)
    driven = Driven(own_network, describe(learner), 0, 0.2)
    struck = storm(own_network, driven, 6, draw)
    expected = learner.clone().fit(own_network.simulation(test=0.2))
    assert driven.wait() == learned(expected), struck


def test_an_owner_that_is_away_is_waited_for(own_network):
    network = own_network
    kill(network.agents["west"])
    driven = Driven(network, describe(LINEAR), 0, 0.2)
    time.sleep(4.0)
    assert not driven.result.exists()
    network.work("west")
    assert driven.wait() == learned(LINEAR.clone().fit(network.simulation(test=0.2)))


@pytest.mark.parametrize("when", ["before it started", "after some sums"])
def test_an_owner_restored_from_an_old_copy_never_posts_another(own_network, when):
    """What it would post again is the same, or nothing is posted."""
    network, name = own_network, "north"
    fit = so.FedLinear(rounds=30)
    copy = network.folder / "old"
    if when == "before it started":
        kill(network.agents[name])
        shutil.copytree(network.folder / name, copy, ignore=shared_memory)
        network.work(name)
    driven = Driven(network, describe(fit), 0, 0.2)
    until(lambda: sums(network, name) > 3)
    kill(network.agents[name])
    if when == "after some sums":
        shutil.copytree(network.folder / name, copy, ignore=shared_memory)
        network.work(name)
        until(lambda: sums(network, name) > 10)
        kill(network.agents[name])
    shutil.rmtree(network.folder / name)
    copy.rename(network.folder / name)
    network.work(name)
    if when == "after some sums":
        assert driven.wait(60) == learned(fit.clone().fit(network.simulation(test=0.2)))
    else:
        reason = until(lambda: [r for s, r in states(network)[name] if s == "ended"])[0]
        assert "was my folder set back?" in reason
    with sqlite3.connect(network.folder / "coordinator" / "coordinator.sqlite") as db:
        (second,) = db.execute("SELECT count(*) FROM events WHERE event = 'second post'").fetchone()
    assert not second


def sums(network, name):
    """How many sums an owner has records of."""
    with suppress(sqlite3.OperationalError):
        db = sqlite3.connect(network.folder / name / "closed.sqlite")
        return db.execute("SELECT count(*) FROM records WHERE name LIKE 'sum%'").fetchone()[0]
    return 0


def test_an_owner_that_is_away_for_good_ends_the_run(tmp_path):
    """After the patience of the text, by the clock of the others."""
    network = ClosedNetwork(tmp_path, frame(), clock=True)
    try:
        driven = Driven(network, describe(LINEAR), 0, 0.2)
        until(lambda: any(s == "running" for s, _ in states(network)["north"]))
        kill(network.agents["west"])
        until(lambda: waits(network, "north") == ["west"])
        (job,) = listed(network.driver(), network.federation)
        path = f"/v1/closed/{job.jid}"
        said = until(
            lambda: re.search(r"sums done, round (\d+); waits for west", words(network, path))
        )
        assert 1 <= int(said[1]) <= LINEAR.rounds
        (network.folder / "later").write_text(str(8 * 24 * 3600))
        for name in NAMES[:3]:
            reason = until(lambda n=name: [r for s, r in states(network)[n] if s == "ended"])[0]
            assert "is away for too long" in reason or "another owner ended" in reason
        assert not driven.result.exists()
    finally:
        network.close()


def words(network, path):
    """How far a job is, as pages and drivers say it."""
    return job_words(network.driver().call("GET", path, ClosedJob))


def waits(network, name):
    """For whom an owner waits."""
    db = sqlite3.connect(network.folder / name / "closed.sqlite")
    return json.loads(db.execute("SELECT waits FROM jobs").fetchone()[0])


@pytest.mark.skipif("AVX2" not in features(), reason="this machine has one level only")
def test_workers_of_other_simd_levels_end_with_one_anothers_bytes(tmp_path):
    """What workers compute may differ in the last bit; what all owners sign is one result."""
    levels = ["", "AVX512F AVX512_SKX X86_V4", "AVX2 FMA3 X86_V3 AVX512F", ""]
    network = ClosedNetwork(tmp_path, frame(), simd=dict(zip(NAMES, levels, strict=True)))
    try:
        model = so.FedGLM("binomial").fit(network.closed())
        simulated = so.FedGLM("binomial").fit(network.simulation())
        np.testing.assert_allclose(model.params_, simulated.params_, rtol=1e-9, atol=1e-12)
        assert {state for jobs in states(network).values() for state, _ in jobs} == {"finished"}
    finally:
        network.close()


def test_a_job_file_does_what_python_does(network, monkeypatch):
    from typer.testing import CliRunner

    from solera.cli.app import app

    monkeypatch.setenv("SOLERA_TOKEN", network.token)
    monkeypatch.setenv("SOLERA_RESEARCHER_KEY", str(network.folder / "researcher.key"))
    file, out = network.folder / "job.toml", network.folder / "model.sol"
    file.write_text(
        'name = "risk"\nfederation = "cardio"\nowner = "ana"\nseed = 4\ntest = 0.2\n'
        'evaluate = "test"\n[learner]\nkind = "FedGLM"\nfamily = "binomial"\n'
    )
    place = ["--url", network.url, "--ca", network.ca]
    done = CliRunner().invoke(app, ["job", "start", str(file), "--out", str(out), *place])
    assert done.exit_code == 0, done.output
    assert "accuracy=" in done.output
    simulated = so.FedGLM("binomial").fit(network.simulation(seed=4, test=0.2))
    assert learned(so.load(out)) == learned(simulated)
    listed = CliRunner().invoke(app, ["jobs", "-f", "cardio", *place])
    assert "closed training" in listed.output


def test_interrupted_a_fit_is_detached_and_says_so(network, capsys, monkeypatch):
    from solera.serve.driver.closed.attached import Attached

    def interrupt(self):
        raise KeyboardInterrupt

    federation = network.closed(seed=5)
    with monkeypatch.context() as patch:
        patch.setattr(Attached, "_next", interrupt)
        with pytest.raises(KeyboardInterrupt):
            LINEAR.clone().fit(federation)
    assert "goes on without this program; the same call attaches again" in capsys.readouterr().err
    model = LINEAR.clone().fit(network.closed(seed=5))
    assert learned(model) == learned(LINEAR.clone().fit(network.simulation(seed=5)))


@pytest.mark.slow
def test_a_grid_has_the_same_bytes_whoever_is_killed(own_network):
    """What clients keep of one point is no other's, whatever is done again."""
    network = own_network
    points = [so.FedPer(so.nn.mlp(4, 5, 2), rounds=6, batch_size=20, lr=r) for r in (0.01, 0.1)]
    points.append(so.learn.Scaffold(so.nn.mlp(4, 5, 2), rounds=6))
    parts = {"test": 0.2, "validation": 0.2}
    driven = Driven(network, [describe(point) for point in points], 0, **parts)
    struck = storm(network, driven, 12, random.Random(29))
    judged = []
    for point in points:
        owners = network.simulation(**parts)
        model = point.clone().fit(owners)
        judged.append((validation_loss(model, owners), learned(model)))
    assert driven.wait(600) == min(judged)[1], struck


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_five_hundred_kills(tmp_path, request, database):
    """250 for each database, over four learners: the same bytes every time."""
    options = {}
    if database == "postgresql":
        from databases import new_database

        options["database"] = new_database(request.getfixturevalue("postgres"))
    network = ClosedNetwork(tmp_path, frame(), **options)
    learners = [
        lambda: so.FedLinear(rounds=15),
        lambda: so.Pipeline(so.FedScaler(), so.FedGLM("binomial")),
        lambda: so.learn.Scaffold(so.nn.mlp(4, 5, 2), rounds=8),
        lambda: so.Pipeline(so.FedImputer(), so.FedScaler(), so.FedHEONN()),
    ]
    draw, killed, seed = random.Random(28), 0, 0
    try:
        while killed < 250:
            make = learners[seed % len(learners)]
            repeat, test = seed // len(learners) % 10, seed // (10 * len(learners)) % 5 / 10
            driven = Driven(network, describe(make()), repeat, test)
            struck = storm(network, driven, 10, draw)
            expected = learned(make().fit(network.simulation(seed=repeat, test=test)))
            assert driven.wait(600) == expected, (seed, struck)
            killed, seed = killed + len(struck), seed + 1
            print(f"{killed} kills, {seed} fits", flush=True)
    finally:
        network.close()

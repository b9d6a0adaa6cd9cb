"""A coordinator that lies about posts, over TLS: the run ends before the owner posts again."""

from __future__ import annotations

import random
import sqlite3
import time

import msgspec
import numpy as np
import pandas as pd
import pytest

import solera as so

for library in ("fastapi", "uvicorn", "httpx", "sqlalchemy", "alembic", "cryptography"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

from closed_liar import LIES, STEPS, Liar  # noqa: E402
from closed_network import NAMES, ClosedNetwork, learned  # noqa: E402
from network import kill  # noqa: E402

from solera.serve.agent import home  # noqa: E402
from solera.serve.driver.closed.attached import ClosedJobEnded  # noqa: E402

VICTIM = "south"


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(200, 3)).round(3), columns=list("abc"))
    frame["died"] = np.where(frame.a + rng.logistic(size=200) > 0, "yes", "no")
    here = ClosedNetwork(tmp_path_factory.mktemp("lies"), frame)
    yield here
    here.close()


@pytest.fixture(scope="module")
def liar(network):
    """The coordinator as one owner reaches it."""
    kill(network.agents[VICTIM])
    made = Liar(network)
    folder = network.folder / VICTIM
    place = home.read_place(folder)
    home.write_place(folder, msgspec.structs.replace(place, url=made.url))
    network.work(VICTIM)
    yield made
    made.shutdown()


def test_who_tells_the_truth_is_believed(network, liar):
    liar.tell("", None)
    model = so.FedLinear(rounds=2).fit(network.closed())
    assert learned(model) == learned(so.FedLinear(rounds=2).fit(network.simulation()))


def ends(network, liar, name, step, number):
    """Lie once; the job ends, and its victim has posted nothing after it was lied to."""
    draw = random.Random(number)
    liar.tell(step, LIES[name](draw))
    learner = so.FedLinear(rounds=4, lr=float(f"{0.001 * (1 + number % 900):.3g}"))
    with pytest.raises(ClosedJobEnded):
        learner.fit(network.closed(seed=1 + number // 900))
    assert liar.told, "nobody was lied to"
    jid, state, reason = own_job(network)
    until = time.monotonic() + 60
    while state == "running" and time.monotonic() < until:
        time.sleep(0.1)
        jid, state, reason = own_job(network)
    assert state == "ended"
    with sqlite3.connect(network.folder / "coordinator" / "coordinator.sqlite") as db:
        query = "SELECT step FROM closed_posts WHERE jid = ? AND owner = ? ORDER BY time"
        posted = [row[0] for row in db.execute(query, (jid, NAMES.index(VICTIM)))]
    allowed = ["start", "have", *(f"sum{k}" for k in range(9))]
    last = "start" if step == "keys" else step
    assert [s for s in posted if s != "evidence"] == allowed[: allowed.index(last) + 1], reason


def own_job(network):
    with sqlite3.connect(network.folder / VICTIM / "closed.sqlite") as db:
        query = "SELECT jid, state, reason FROM jobs ORDER BY since DESC LIMIT 1"
        return db.execute(query).fetchone()


@pytest.mark.parametrize(
    ("name", "step"),
    [("flip", "start"), ("swap", "keys"), ("replay", "sum1"), ("cut", "sum0"), ("swap", "sum3")],
)
def test_a_post_that_was_altered_ends_the_run(network, liar, name, step):
    number = 10 * list(LIES).index(name) + STEPS.index(step)
    ends(network, liar, name, step, number)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(100, 300))
def test_two_hundred_altered_posts(network, liar, number):
    draw = random.Random(number)
    ends(network, liar, draw.choice(list(LIES)), draw.choice(STEPS), number)

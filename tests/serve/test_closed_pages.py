"""The page of one closed job, at the coordinator and at an owner who decides there."""

from __future__ import annotations

import json
import re
import threading
import time

import httpx
import numpy as np
import pandas as pd
import pytest

import solera as so

for library in ("fastapi", "uvicorn", "httpx", "sqlalchemy", "alembic", "cryptography", "argon2"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

from closed_network import POLICY, ClosedNetwork  # noqa: E402
from starlette.testclient import TestClient  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

from solera.cli.app import app  # noqa: E402
from solera.serve.agent.approvals import Approver  # noqa: E402
from solera.serve.closed_view import MANY_SUMS, STEERED  # noqa: E402
from solera.serve.coordinator.store.store import Store  # noqa: E402
from solera.serve.coordinator.web.visitors import new_account  # noqa: E402
from solera.serve.driver.closed.attached import ClosedJobEnded  # noqa: E402
from solera.serve.owner.site import OwnerSite  # noqa: E402

PASSWORD = "correct horse battery"


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """Four owners, of whom south decides by ana."""
    draw = np.random.default_rng(0)
    frame = pd.DataFrame(draw.normal(size=(200, 2)).round(3), columns=["age", "<b>bmi</b>"])
    frame["died"] = np.where(frame.age + draw.logistic(size=200) > 0, "yes", "no")
    here = ClosedNetwork(tmp_path_factory.mktemp("pages"), frame)
    ana = Approver.create(here.folder / "ana.key", "ana")
    asks = f'[approval]\nmode = "ask"\n[approval.approvers]\nana = "{ana.public}"\n'
    (here.folder / "south.toml").write_text(POLICY.partition("[approval]")[0] + asks)
    with Store(f"sqlite:///{here.folder}/coordinator/coordinator.sqlite") as store:
        for name, federation in (("vera", None), ("olga", "other")):
            store.add_account(new_account(name, PASSWORD, "viewer", federation), "test")
    time.sleep(1.5)
    yield here
    here.close()


@pytest.fixture
def owner(network):
    """A browser on the page of south."""
    folder = network.folder
    ana = Approver.load(folder / "ana.key")
    site = OwnerSite(folder / "south", folder / "south.toml", ana)
    client = TestClient(site.app(), base_url="http://127.0.0.1:1", client=("127.0.0.1", 1))
    link = site.access.link(1)
    client.get(link[link.index("/open") :])
    return client


def signed_in(network, name):
    client = httpx.Client(base_url=network.url, verify=network.ca, timeout=60)
    assert client.post("/sign-in", data={"name": name, "password": PASSWORD}).status_code == 303
    return client


def fitting(network, learner, seed=0):
    """A fit in a thread; what came of it goes into the list."""
    done = []

    def fit():
        try:
            done.append(learner.fit(network.closed(seed=seed, test=0.2)))
        except ClosedJobEnded as error:
            done.append(error)

    thread = threading.Thread(target=fit, daemon=True)
    thread.start()
    return thread, done


def held(owner):
    """The address of the text that waits, once the agent has seen it."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        page = owner.get("/waiting").text
        if found := re.findall(r'href="(/closed/[0-9a-f]{64})".*?waits for your decision', page):
            return found[-1]
        time.sleep(0.2)
    raise AssertionError("nothing waits")


def decide(owner, address, **said):
    csrf = re.search(r'name="csrf" value="([^"]+)"', owner.get(address).text)[1]
    path = address.replace("/closed/", "/decide/")
    headers = {"Origin": "http://127.0.0.1:1"}
    return owner.post(path, data={"csrf": csrf, **said}, headers=headers)


def test_both_pages_say_who_is_waited_for_and_a_person_approves(network, owner):
    thread, done = fitting(network, so.Pipeline(so.FedScaler(), so.FedLinear(rounds=3)))
    address = held(owner)
    end = time.monotonic() + 60
    while "3 of 4" not in owner.get(address).text and time.monotonic() < end:
        time.sleep(0.2)
    page = owner.get(address).text
    assert "FedScaler → FedLinear" in page
    assert "3 of 4 owners have approved; waits for south" in page
    assert STEERED in page.replace("&#39;", "'")
    assert MANY_SUMS in page.replace("&#39;", "'")
    assert "Approve as ana" in page
    shown = CliRunner().invoke(app, ["held", "--folder", str(network.folder / "south")]).output
    assert address.removeprefix("/closed/") in shown
    assert "learner: Pipeline(steps=[FedScaler(" in shown
    vera = signed_in(network, "vera")
    assert "waits for south" in vera.get(address).text
    assert address in vera.get("/federations/cardio").text
    assert signed_in(network, "olga").get(address).status_code == 404
    assert decide(owner, address, verdict="approved").status_code in (200, 303)
    thread.join(60)
    assert isinstance(done[0], so.Pipeline)
    assert "finished" in vera.get(address).text
    page = owner.get(address).text
    assert "approved by ana" in page
    told = int(re.search(r"have told ([\d,]+) numbers", page)[1].replace(",", ""))
    assert told > 10
    left = owner.get("/left").text
    assert "closed sum0" in left
    assert address.removeprefix("/closed/")[:16] in left
    arguments = ["audit", "report", "--folder", str(network.folder / "south"), "--json"]
    (total,) = json.loads(CliRunner().invoke(app, arguments).output)
    assert (total["task"], total["recipient"]) == ("closed job", "all owners")
    assert (total["numbers"], total["job"]) == (told, address.removeprefix("/closed/")[:16])
    assert total["answered"] == left.count("closed sum")
    assert total["bytes"] > 100 * total["answered"]


def test_a_person_refuses_and_the_researcher_is_told_why(network, owner):
    thread, done = fitting(network, so.FedGLM("binomial"))
    address = held(owner)
    assert STEERED not in owner.get(address).text
    assert decide(owner, address, verdict="rejected", reason="not <this> month").status_code < 400
    thread.join(60)
    assert "south: not <this> month" in str(done[0])
    assert "not &lt;this&gt; month" in signed_in(network, "vera").get(address).text

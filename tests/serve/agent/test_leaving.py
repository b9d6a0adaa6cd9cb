"""Point 13: one command lists, then deletes, everything held for a client, on both sides."""

from __future__ import annotations

import json
import threading
import time

import numpy as np
import pytest

import solera as so
from solera.core.payload import encode
from solera.serve.connection import CoordinatorError

for library in ("fastapi", "uvicorn", "httpx", "sqlalchemy", "alembic", "cryptography"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

from network import Network, kill  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

from solera.cli.app import app  # noqa: E402
from solera.serve.agent import home as folders  # noqa: E402
from solera.serve.coordinator.store.store import Store  # noqa: E402
from solera.serve.identity import Identity  # noqa: E402

rng = np.random.default_rng(8)
X = rng.normal(size=(100, 4))
Y = (X @ rng.normal(size=(4, 3))).argmax(axis=1)
DATA = so.data.FederatedData(X, Y, np.array([0, 60, 100]))
NAMES = ("north", "south")
STATE = {"place.json", "identity.key", "memory.sol", "held.json", "agent.lock"}


@pytest.fixture
def network(tmp_path):
    here = Network(tmp_path)
    try:
        here.start()
        for k, name in enumerate(NAMES):
            here.enrol(name)
            here.give(name, DATA, k)
            here.work(name)
        yield here
    finally:
        here.close()


def solera(*arguments, code=0):
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, result.output
    return result


def stored(network):
    """Every byte at the coordinator, and its database."""
    home = network.folder / "coordinator"
    blobs = {path.parent.name + path.name for path in (home / "blobs").glob("??/*")}
    with Store(f"sqlite:///{home / 'coordinator.sqlite'}") as store:
        return blobs, store.held(network.federation, 0), store.digests()


def test_point_13_leaving_lists_then_deletes_everything(network):
    home, folder = network.folder / "north", network.folder / "coordinator"
    key = Identity.load(home).sign_key.hex()
    fed = network.connect("study", seed=2)
    north, south = ({"centroids": np.full((2, 4), float(k))} for k in range(2))
    alone = so.messages.PerClient({0: north, 1: south})
    for task, payload in (("kmeans.cost", alone), ("data.flaws", None), ("data.describe", None)):
        fed.ask(task, payload).collect()
    driver = network.driver()
    theirs = {
        client: {
            row["digest"]
            for n in range(3)
            for row in driver.request("GET", f"/v1/jobs/study/asks/{n}/replies").json()["replies"]
            if row["client"] == client
        }
        for client in (0, 1)
    }
    shared = theirs[0] & theirs[1]
    assert len(shared) == 1, "no flaws, in the same bytes"
    assert len(theirs[0]) == 3

    listed = solera("leave", "--folder", str(home), "--json").stdout
    held = json.loads(listed)
    assert held["rows"]["deliveries"] == 3
    assert held["rows"]["clients"] == 1
    assert held["rows"]["invites"] == 1
    assert held["rows"]["events"] >= 1
    assert held["blobs"] == 4, "three replies and a payload of its own"
    assert held["bytes"] > 0
    assert set(held["files"]) >= STATE | {"audit.log"}
    shown = solera("leave", "--folder", str(home)).stdout
    assert "deliveries" in shown
    assert "identity.key" in shown
    assert "all of it was deleted" not in shown
    database = b"".join(p.read_bytes() for p in folder.glob("coordinator.sqlite*"))
    assert bytes.fromhex(key) in database
    blobs, rows, _ = stored(network)
    assert theirs[0] | theirs[1] <= blobs, "listing deletes nothing"
    assert rows["clients"] == 1

    refused = solera("leave", "--folder", str(home), "--delete", code=1).stderr
    assert "an agent works in" in refused
    kill(network.agents["north"])
    said = solera("leave", "--folder", str(home), "--delete").stdout
    assert "all of it was deleted but the audit log" in said
    assert key in said
    left = {path.name.partition(".sqlite")[0] for path in home.iterdir()}
    kept = {"audit.log", "audit.log.head", "receipt.json"}
    assert left == kept, "what left is not forgotten"
    checked = solera("audit", "verify", str(home / "audit.log"), "--key", key).stdout
    assert "ok" in checked

    blobs, rows, wanted = stored(network)
    assert theirs[0] & (blobs | wanted) == shared
    assert theirs[1] <= blobs, "what others sent stays"
    assert set(rows.values()) == {0}
    contents = [path.read_bytes() for path in (folder / "blobs").glob("??/*")]
    assert encode(north) not in contents
    assert encode(south) in contents
    for path in folder.glob("coordinator.sqlite*"):
        data = path.read_bytes()
        assert not any(mark in data for mark in (bytes.fromhex(key), key.encode())), path
    events = driver.request("GET", f"/v1/federations/{network.federation}/events").json()
    assert [(e["reason"], e["client"]) for e in events if e["event"] == "left"] == [
        ("client 0", None)
    ]

    again = network.connect("after")
    assert len(again) == 1
    assert [reply.client for reply in again.ask("data.describe", deadline=600)] == [0]
    assert "no client lives in" in solera("leave", "--folder", "nowhere", code=1).stderr


def test_who_leaves_in_the_middle_of_an_ask_counts_as_failed_and_may_come_back(network):
    home = network.folder / "north"
    kill(network.agents["north"])
    failures = []

    def ask():
        replies = network.connect("open").ask("data.describe", quorum=1, deadline=600)
        replies.collect()
        failures.extend(replies.failures)

    asking = threading.Thread(target=ask)
    asking.start()
    while not has_open_ask(network):
        time.sleep(0.05)
    said = solera("leave", "--folder", str(home), "--delete", "--log").stdout
    assert "all of it was deleted\n" in said
    asking.join(300)
    assert [(f.client, f.kind, f.reason) for f in failures] == [
        (0, "failed", "left the federation")
    ]
    assert not home.exists()
    place = json.loads((network.enrol("north") / "place.json").read_text())
    assert place["client"] == 2, "its old number stays its own"


def has_open_ask(network):
    try:
        path = "/v1/jobs/open/asks/0/replies"
        return not network.driver().request("GET", path).json()["complete"]
    except CoordinatorError:
        return False


def test_leaving_goes_on_where_it_was_cut_short(network):
    home = network.folder / "north"
    kill(network.agents["north"])
    (home / ".memory.sol.0123abcd").write_bytes(b"left by a crash")
    place = folders.read_place(home)
    connection = folders.connect_to(place, Identity.load(home), 5)
    connection.request("POST", "/v1/leave")
    with pytest.raises(CoordinatorError, match=r"unknown key.*401"):
        connection.request("GET", "/v1/work")
    assert "knows this client no more" in solera("leave", "--folder", str(home)).stdout
    (home / "place.json").unlink()
    solera("leave", "--folder", str(home), "--delete", "--log")
    assert not home.exists()

    kill(network.coordinator)
    south = network.folder / "south"
    kill(network.agents["south"])
    said = solera("leave", "--folder", str(south), "--delete", code=1).stderr
    assert "no answer" in said
    assert (south / "identity.key").exists(), "what cannot be deleted there is not deleted here"

"""“What left?”: totals from a log that nobody changed, and copies that only the owner opens."""

from __future__ import annotations

import json

import numpy as np
import pytest

import solera as so
from solera.core.errors import SoleraError, UsageError
from solera.core.payload import decode, encode

for library in ("httpx", "cryptography"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

import agent_tasks  # noqa: E402, F401
from liar import Liar, digest  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

from solera.cli.app import app  # noqa: E402
from solera.serve.agent import home  # noqa: E402
from solera.serve.agent.agent import Agent  # noqa: E402
from solera.serve.agent.approvals import Approver  # noqa: E402
from solera.serve.agent.copies import Copies, new_key, open_copy  # noqa: E402
from solera.serve.agent.policy import OwnerPolicy  # noqa: E402
from solera.serve.agent.worker import Worker  # noqa: E402
from solera.serve.identity import Identity  # noqa: E402

rng = np.random.default_rng(1)
ROWS = so.data.FederatedData(rng.normal(size=(40, 3)), np.arange(40) % 2, np.array([0, 40]))
TRUSTED = 'policy = "trusted"\n'


@pytest.fixture
def liar():
    with Liar() as here:
        yield here


@pytest.fixture
def folder(liar, tmp_path):
    folder = tmp_path / "client"
    Identity.create(folder)
    home.write_place(folder, home.Place(liar.url, None, 3, "north", "cardio"))
    return folder


def work(folder, liar, policy, *orders):
    agent = Agent(folder, Worker(ROWS), OwnerPolicy.parse(policy), patience=1)
    try:
        for order in orders:
            liar.ask(**order)
            assert agent.step() == 1
    finally:
        agent.close()


def solera(*arguments, code=0):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result


def test_the_report_adds_up_what_left_by_job_recipient_and_task(folder, liar):
    vega = liar.describe(job="other", owner="dr. vega")
    empty = encode(None)
    liar.blobs[digest(empty)] = empty
    moments = {"task": "preprocess.moments", "version": 2, "payload": digest(empty)}
    orders = [
        {},
        {},
        {"task": "agent.rows", "seed": 2},
        {"job": "other", "owner": "dr. vega", "spec": vega},
    ]
    work(folder, liar, TRUSTED, *orders)
    work(folder, liar, TRUSTED, moments, moments)
    totals = json.loads(solera("audit", "report", "--folder", folder, "--json").stdout)
    told = {(t["job"], t["recipient"], t["task"]): t for t in totals}
    assert list(told) == [
        ("job", "ana", "agent.count"),
        ("job", "ana", "agent.rows"),
        ("other", "dr. vega", "agent.count"),
        ("job", "ana", "preprocess.moments"),
    ]
    count = told["job", "ana", "agent.count"]
    sizes = [reply["size"] for reply in liar.replies if reply["status"] == "ok"]
    assert (count["answered"], count["numbers"], count["bytes"]) == (2, 6, sum(sizes[:2]))
    refused = told["job", "ana", "agent.rows"]
    assert (refused["answered"], refused["refused"], refused["bytes"]) == (0, 1, 0)
    again = told["job", "ana", "preprocess.moments"]
    assert again["answered"] == 2
    assert again["numbers"] > 0

    def jobs(*options):
        said = solera("audit", "report", "--folder", folder, "--json", *options).stdout
        return {total["job"] for total in json.loads(said)}

    assert jobs("--job", "other") == {"other"}
    assert jobs("--since", "2999-01-01") == set()
    table = solera("audit", "report", "--folder", folder).stdout
    assert "dr. vega" in table
    log = folder / "audit.log"
    log.write_bytes(log.read_bytes().replace(b'"owner":"ana"', b'"owner":"eva"'))
    said = solera("audit", "report", "--folder", folder, code=1)
    assert "is not what the client wrote" in said.stderr
    assert "eva" not in said.stdout, "a line that was not signed does not count"


def test_copies_of_what_left_open_with_the_owners_key_alone(folder, liar, tmp_path):
    solera("audit", "new-key", tmp_path / "copies")
    solera("audit", "new-key", tmp_path / "other")
    policy = f'keep_copies = "{tmp_path / "copies.pub"}"\n' + TRUSTED
    work(folder, liar, policy, {}, {"task": "agent.rows", "seed": 2})
    (path,) = (folder / "copies").iterdir()
    assert path.stat().st_mode & 0o077 == 0
    copy, reply = open_copy(path, tmp_path / "copies.key")
    assert (copy.job, copy.sequence, copy.task) == ("job", 0, "agent.count")
    assert copy.digest == liar.replies[0]["digest"]
    assert reply["times"] == 1
    said = solera("audit", "open", path, "--key", tmp_path / "copies.key").stdout
    assert "agent.count" in said
    assert "'times': 1" in said
    marker = encode(reply)[-16:]
    assert marker not in path.read_bytes()
    with pytest.raises(SoleraError, match="sealed to another key"):
        open_copy(path, tmp_path / "other.key")
    Approver.create(tmp_path / "ana.key", "ana")
    with pytest.raises(UsageError, match=r"ana.key is not a key that opens copies .*new-key"):
        open_copy(path, tmp_path / "ana.key")
    content = decode(path.read_bytes())
    for change in ({"job": "else"}, {"sequence": 1}, {"sealed": content["sealed"][:-1] + b"x"}):
        path.write_bytes(encode({**content, **change}))
        with pytest.raises(SoleraError, match=r"context|changed"):
            open_copy(path, tmp_path / "copies.key")
    with pytest.raises(UsageError, match="not a copy"):
        open_copy(tmp_path / "copies.pub", tmp_path / "copies.key")
    assert "copies.key exists" in solera("audit", "new-key", tmp_path / "copies", code=1).stderr


def test_nothing_leaves_of_which_no_copy_can_be_kept(folder, liar, tmp_path):
    new_key(tmp_path / "copies")
    policy = f'keep_copies = "{tmp_path / "copies.pub"}"\n' + TRUSTED
    (folder / "copies").write_text("in the way")
    liar.ask()
    agent = Agent(folder, Worker(ROWS), OwnerPolicy.parse(policy), patience=1)
    with pytest.raises(OSError, match=r"Not a directory|File exists"):
        agent.step()
    assert liar.replies == []
    (folder / "copies").unlink()
    assert agent.step() == 1
    agent.close()
    assert liar.replies[0]["status"] == "ok"


def test_a_key_that_is_none_is_named(folder, tmp_path):
    (tmp_path / "short.pub").write_text("abcd")
    for name in ("absent.pub", "short.pub"):
        with pytest.raises(UsageError, match="is not a file with a public key"):
            Copies.to(str(tmp_path / name), tmp_path)

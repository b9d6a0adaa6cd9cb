"""Neither side trusts the other: coordinators that lie to an agent, clients that overstep."""

from __future__ import annotations

import base64
import json
import threading
import time

import numpy as np
import pytest

import solera as so
from solera.core.component import describe_fitted
from solera.core.payload import encode

for library in ("fastapi", "uvicorn", "httpx", "sqlalchemy", "alembic", "cryptography"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

import agent_tasks  # noqa: E402, F401
from fastapi.testclient import TestClient  # noqa: E402
from liar import Liar, digest  # noqa: E402

from solera.serve import identity  # noqa: E402
from solera.serve.agent import home  # noqa: E402
from solera.serve.agent.agent import Agent  # noqa: E402
from solera.serve.agent.policy import OwnerPolicy  # noqa: E402
from solera.serve.agent.worker import Worker  # noqa: E402
from solera.serve.connection import CoordinatorError  # noqa: E402
from solera.serve.coordinator.run import coordinator_app, driver_token  # noqa: E402
from solera.serve.identity import Identity  # noqa: E402

rng = np.random.default_rng(1)
X = rng.normal(size=(40, 3))
Y = (X.sum(axis=1) > 0).astype(int)
ROWS = so.data.FederatedData(X, Y, np.array([0, 40]))
ALL = 'policy = "trusted"\n'

# --- a coordinator that lies ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def worker():
    with Worker(ROWS) as worker:
        yield worker


@pytest.fixture
def liar():
    with Liar() as here:
        yield here


@pytest.fixture
def agent(liar, worker, tmp_path):
    return agent_of(liar, worker, tmp_path)


def agent_of(liar, worker, tmp_path, policy=ALL):
    folder = tmp_path / "client"
    if not folder.exists():
        Identity.create(folder)
        home.write_place(folder, home.Place(liar.url, None, 3, "north", "cardio"))
    return Agent(folder, worker, OwnerPolicy.parse(policy), patience=1)


def answered(agent, liar):
    """The status and reason of the one reply that the agent sends."""
    before = len(liar.replies)
    assert agent.step() == 1
    assert len(liar.replies) == before + 1
    return liar.replies[-1]["status"], liar.replies[-1]["reason"]


def test_an_honest_ask_is_answered(agent, liar):
    liar.ask()
    assert answered(agent, liar) == ("ok", "")


WRONG = encode({"numbers": 9})


def test_a_payload_that_is_not_what_its_digest_says_is_not_used(agent, liar):
    for inline in (base64.b64encode(WRONG).decode(), "not base64!", "é", ""):
        liar.ask(frame=inline)
        status, reason = answered(agent, liar)
        assert status == "failed"
        assert "the coordinator sent" in reason
    liar.ask()
    honest = json.loads(liar.work)["asks"][0]["payload"]
    liar.blobs[honest] = WRONG
    status, reason = answered(agent, liar)
    assert (status, "is not" in reason) == ("failed", True)
    assert not (agent._memory().states)


@pytest.mark.parametrize("size", ["", "x", "-1", "999999999999999", "9" * 5000, "3", "1000"])
def test_a_length_that_lies_costs_neither_time_nor_memory(agent, liar, size):
    liar.ask()
    liar.sizes[json.loads(liar.work)["asks"][0]["payload"]] = size
    began = time.monotonic()
    status, reason = answered(agent, liar)
    assert status == "failed"
    assert "the coordinator s" in reason
    assert time.monotonic() - began < 120
    assert liar.served < 10


ODD = {
    "job": ["../../other", "", "a" * 65, 5, "a\n", ...],
    "sequence": [-1, 1.5, "0", 2**40, None, ...],
    "seed": [-1, 2**63, 2**70, "1"],
    "hash": ["ab", "AB" * 32, "ab" * 32 + "\n", None],
    "payload": ["ab", None, ...],
    "prepare": ["x", 5, ...],
    "task": ["x" * 201, None, ...],
    "owner": ["o" * 201, None],
    "version": [-1, "1"],
    "round": [-1, 2**31],
    "frame": [5],
}


@pytest.mark.parametrize("field", ODD)
def test_an_order_that_makes_no_sense_is_not_followed(agent, liar, field):
    for value in ODD[field]:
        liar.ask(**{field: value})
        with pytest.raises(CoordinatorError, match="makes no sense"):
            agent.step()
    assert liar.replies == []


@pytest.mark.parametrize("work", [b"", b"{", b"[]", b'{"asks": 3}', b"\xff", b"null", b"[" * 9000])
def test_noise_does_not_end_an_agent(agent, liar, work):
    liar.work = work
    running = threading.Thread(target=agent.run, args=(0,))
    running.start()
    time.sleep(0.3)
    liar.ask()
    deadline = time.monotonic() + 600
    while not liar.replies and time.monotonic() < deadline:
        time.sleep(0.02)
    agent.stop.set()
    running.join(600)
    assert liar.replies[0]["status"] == "ok"


def test_rows_pass_through_transformers_only(agent, liar):
    fed = so.simulate(ROWS)
    model = describe_fitted(so.FedLinear(rounds=1).fit(fed))
    scaler = describe_fitted(so.FedScaler().fit(fed))
    cases = [
        ([model], "refused", "the preparation 'FedLinear' is not an installed transformer"),
        ([scaler, model], "refused", "'FedLinear' is not an installed transformer"),
        ([{"made": {"$component": "os.system", "params": {}}}], "refused", "'os.system' is not"),
        ([{"made": 5, "learned": {}}], "refused", "'None' is not an installed transformer"),
        ([5, None], "refused", "is not an installed transformer"),
        (scaler, "failed", "not a list of transformers"),
    ]
    for steps, status, reason in cases:
        liar.ask(prepare=liar.prepare(steps))
        said = answered(agent, liar)
        assert said[0] == status
        assert reason in said[1]
    damaged = {**scaler, "learned": {"no": 1}}
    liar.ask(prepare=liar.prepare([damaged]))
    assert answered(agent, liar)[0] == "failed"
    liar.ask(prepare=liar.prepare([scaler]))
    assert answered(agent, liar) == ("ok", "")


def test_an_ask_of_which_a_part_is_missing_fails_and_holds_up_no_other(agent, liar):
    for field in ("spec", "payload"):
        liar.ask()
        work = json.loads(liar.work)
        broken = {**work["asks"][0], field: "cd" * 32, "sequence": 50}
        liar.missing = {"cd" * 32}
        liar.work = json.dumps({"asks": [broken, *work["asks"]]}).encode()
        before = len(liar.replies)
        assert agent.step() == 2
        first, second = liar.replies[before:]
        assert (first["status"], second["status"]) == ("failed", "ok")
        assert "does not have cdcdcdcdcdcd…" in first["reason"]


def test_an_old_reply_is_not_given_to_another_question_of_the_same_number(agent, liar):
    liar.ask(sequence=4)
    assert answered(agent, liar) == ("ok", "")
    first = liar.replies[-1]
    liar.ask(sequence=4)
    assert answered(agent, liar) == ("ok", "")
    assert liar.replies[-1] == first, "the same again is answered from the disk"
    liar.ask(sequence=4, round=1)
    assert answered(agent, liar) == ("ok", "")
    assert liar.replies[-1]["digest"] != first["digest"], "the task has run again, and counted"


def test_a_reply_is_signed_for_this_client_and_ask_alone(agent, liar):
    liar.ask(sequence=7)
    answered(agent, liar)
    reply = liar.replies[-1]
    key, signature = agent.identity.sign_key, bytes.fromhex(reply["signature"])
    (asked,) = json.loads(liar.work)["asks"]
    names = ("task", "version", "payload", "prepare", "round", "seed")
    ask = identity.ask_digest(*(asked[name] for name in names))
    fields = ("cardio", "job", 7, "3", ask, "ok", reply["digest"], reply["size"])
    assert identity.verify(key, identity.reply_message(*fields), signature)
    for name in names:
        changed = {**asked, name: 5 if isinstance(asked[name], int) else "other"}
        other = identity.ask_digest(*(changed[name] for name in names))
        message = identity.reply_message(*fields[:4], other, *fields[5:])
        assert not identity.verify(key, message, signature), name
    for i, other in [(0, "oncology"), (1, "jobs"), (2, 8), (3, "4"), (5, "failed")]:
        changed = [*fields[:i], other, *fields[i + 1 :]]
        assert not identity.verify(key, identity.reply_message(*changed), signature)


# --- clients that overstep -----------------------------------------------------------------------


class Caller:
    """A client moved by hand against a coordinator in this process."""

    def __init__(self, client, folder, federation="cardio"):
        self.client, self.federation = client, federation
        self.identity = Identity.create(folder)

    def call(self, method, path, content=None, audience=None):
        body = b"" if content is None else json.dumps(content).encode()
        headers = identity.sign_request(
            self.identity,
            audience or self.federation,
            method,
            path,
            digest(body),
            time.time(),
            self.client.app.state.coordinator.start,
        )
        headers["Content-Type"] = "application/json"
        return self.client.request(method, path, content=body, headers=headers)

    def join(self, token, **changes):
        vouched = self.identity.sign(
            identity.seal_key_message(self.federation, self.identity.seal_key)
        )
        content = {
            "token": token,
            "sign_key": self.identity.sign_key.hex(),
            "seal_key": self.identity.seal_key.hex(),
            "seal_signature": vouched.hex(),
            "tasks": {},
        }
        return self.call("POST", "/v1/join", content | changes)


@pytest.fixture
def service(tmp_path):
    with TestClient(coordinator_app(tmp_path / "coordinator")) as client:
        client.driver = {"Authorization": f"Bearer {driver_token(tmp_path / 'coordinator')}"}
        yield client


def invite(service, name, federation="cardio"):
    path = f"/v1/federations/{federation}/invites"
    return service.post(path, json={"name": name}, headers=service.driver).json()["token"]


@pytest.fixture
def two(service, tmp_path):
    callers = [Caller(service, tmp_path / name) for name in ("north", "south")]
    for caller, name in zip(callers, ("north", "south"), strict=True):
        assert caller.join(invite(service, name)).status_code == 200
    return callers


def test_strangers_cost_no_memory(service, tmp_path, two):
    nonces = service.app.state.coordinator.nonces
    before = len(nonces)
    stranger = Caller(service, tmp_path / "stranger")
    for _ in range(3):
        assert stranger.call("GET", "/v1/work").status_code == 401
        for name in ("north", "nobody"):
            answer = stranger.join(f"cardio/{name}/wrong")
            assert answer.status_code == 403
            assert "no such invite" in answer.json()["detail"], "who is here is nobody's business"
    assert len(nonces) == before
    assert two[0].call("GET", "/v1/work").status_code == 200
    assert len(nonces) == before + 1


def test_a_request_for_another_federation_is_worth_nothing(service, two):
    for audience in ("oncology", " ", "cardio2"):
        answer = two[0].call("GET", "/v1/work", audience=audience)
        assert answer.status_code == 401
        assert "the signature is not of key" in answer.json()["detail"]


def test_joining_needs_a_vouched_seal_key(service, tmp_path):
    token = invite(service, "west")
    west, other = Caller(service, tmp_path / "west"), Identity.create(tmp_path / "other")
    message = identity.seal_key_message("cardio", west.identity.seal_key)
    foreign = identity.seal_key_message("oncology", west.identity.seal_key)
    for wrong in (
        {"seal_key": other.seal_key.hex()},
        {"seal_signature": "00" * 64},
        {"seal_signature": other.sign(message).hex()},
        {"seal_signature": west.identity.sign(foreign).hex()},
        {"sign_key": other.sign_key.hex()},
    ):
        assert west.join(token, **wrong).status_code == 401
    assert west.join(token, seal_signature="").status_code == 422
    assert west.join(token).status_code == 200
    assert west.join(token).json()["client"] == 0, "the same again changes nothing"
    elsewhere = Caller(service, tmp_path / "thief")
    assert "was used already" in elsewhere.join(token).json()["detail"]


def start_job(service, payloads):
    def upload(content):
        body = encode(content)
        answer = service.post("/v1/blobs", content=body, headers=service.driver)
        return answer.json()["digest"]

    new = {"id": "j", "kind": "driven", "spec": upload({"seed": 0}), "seed": 0, "owner": "ana"}
    path = "/v1/federations/cardio/jobs"
    assert service.post(path, json=new, headers=service.driver).status_code == 200
    digests = {str(c): upload(p) for c, p in payloads.items()}
    ask = {"task": "t", "version": 1, "payload": digests, "round": 0, "clients": [*payloads]}
    answer = service.put("/v1/jobs/j/asks/0", json=ask, headers=service.driver)
    assert answer.status_code == 200
    return new["spec"], digests


def test_a_client_reads_what_is_addressed_to_it_and_nothing_else(service, two, tmp_path):
    north, south = two
    spec, mine = start_job(service, {0: {"for": "north"}, 1: {"for": "south"}})
    assert north.call("GET", f"/v1/blobs/{mine['0']}").content == encode({"for": "north"})
    assert north.call("GET", f"/v1/blobs/{spec}").content == encode({"seed": 0})
    answer = north.call("GET", f"/v1/blobs/{mine['1']}")
    assert answer.status_code == 401
    assert "not addressed to it" in answer.json()["detail"]
    assert south.call("GET", f"/v1/blobs/{mine['1']}").status_code == 200
    stranger = Caller(service, tmp_path / "onco", "oncology")
    assert stranger.join(invite(service, "east", "oncology")).status_code == 200
    for name in (spec, mine["0"]):
        assert stranger.call("GET", f"/v1/blobs/{name}").status_code == 401


def test_replies_to_asks_never_given_and_sizes_that_lie_are_refused(service, two):
    north, south = two
    _, payloads = start_job(service, {0: {"for": "north"}})

    def reply(caller, job, sequence, client, said, frame=b"SOL"):
        asked = identity.ask_digest("t", 1, payloads["0"], None, 0, 0)
        message = identity.reply_message(
            "cardio", job, sequence, str(client), asked, "ok", digest(frame), said
        )
        content = {
            "status": "ok", "digest": digest(frame), "size": said,
            "frame": base64.b64encode(frame).decode(),
            "signature": caller.identity.sign(message).hex(),
        }  # fmt: skip
        return caller.call("POST", f"/v1/jobs/{job}/asks/{sequence}/reply", content)

    assert reply(south, "j", 0, 1, 3).status_code == 403, "it was not asked"
    assert reply(north, "j", 1, 0, 3).status_code == 403, "that ask was never given"
    assert reply(north, "none", 0, 0, 3).status_code == 404
    assert reply(south, "j", 0, 0, 3).status_code == 403, "in the name of another"
    assert reply(north, "j", 0, 1, 3).status_code == 401, "signed as another"
    for size in (0, 2, 4, 1 << 40):
        answer = reply(north, "j", 0, 0, size)
        assert answer.status_code == 400
        assert "another size" in answer.json()["detail"]
    assert reply(north, "j", 0, 0, 3).json() == {"stored": True}


def test_a_heartbeat_is_checked(service, two):
    def beat(**content):
        return two[0].call("POST", "/v1/heartbeat", content).status_code

    fine = {"doing": "t", "head": [3, "ab" * 32]}
    assert beat(**fine) == 200
    for wrong in (
        {"doing": "x" * 201},
        {"head": [-1, "ab" * 32]},
        {"head": [2**60, "ab" * 32]},
        {"head": [1, "ab"]},
        {"head": [1]},
        {"head": None},
    ):
        assert beat(**(fine | wrong)) == 422
    told = service.get("/v1/federations/cardio", headers=service.driver).json()["clients"][0]
    assert (told["doing"], told["head"]) == ("t", [3, "ab" * 32])

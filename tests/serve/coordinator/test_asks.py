"""Asks that carry their payload: stored with the ask, with the bounds of an upload."""

from __future__ import annotations

import hashlib
from base64 import b64encode

import pytest
from store_rows import NOW, add_job, enrol

for library in ("fastapi", "httpx", "sqlalchemy"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

from fastapi.testclient import TestClient  # noqa: E402

from solera.serve.coordinator.app import create_app  # noqa: E402
from solera.serve.coordinator.store.blobs import Blobs  # noqa: E402
from solera.serve.coordinator.store.store import Store  # noqa: E402
from solera.serve.identity import new_token, token_hash  # noqa: E402
from solera.serve.wire import INLINE  # noqa: E402

TOKEN = new_token()
PAYLOAD = b"what is asked"


@pytest.fixture
def blobs(tmp_path):
    return Blobs(tmp_path / "blobs")


@pytest.fixture
def http(tmp_path, blobs):
    """A coordinator with a running job."""
    with Store(f"sqlite:///{tmp_path / 'store.db'}") as store:
        store.add_federation("cardio")
        enrol(store, 2)
        add_job(store)
        store.set_job_state("j", "running", "", NOW)
        app = create_app(store, blobs, token_hash(TOKEN), uploads=INLINE)
        with TestClient(app) as client:
            yield client


@pytest.fixture
def put(http, blobs):
    """Ask the clients of a job something; the answer's status, and the blobs that are kept."""

    def send(frames, *, token=TOKEN, job="j", **change):
        new = {"task": "data.flaws", "version": 1, "round": 0, "clients": [0, 1]}
        new |= {"payload": sha(PAYLOAD), "frames": frames, **change}
        headers = {"Authorization": f"Bearer {token}"}
        answer = http.put(f"/v1/jobs/{job}/asks/0", json=new, headers=headers)
        kept = [path.read_bytes() for path in blobs.folder.glob("[0-9a-f][0-9a-f]/*")]
        return answer.status_code, kept

    return send


def sha(data):
    return hashlib.sha256(data).hexdigest()


def frames(*blobs):
    return {sha(blob): b64encode(blob).decode() for blob in blobs}


def test_an_ask_and_its_payload_come_in_one_request(put):
    assert put(frames(PAYLOAD)) == (200, [PAYLOAD])
    assert put(frames(PAYLOAD)) == (200, [PAYLOAD]), "the same again changes nothing"


def test_so_do_payloads_of_single_clients_and_what_prepares_the_rows(put):
    blobs = [b"to north", b"to south", b"prepared so"]
    payload = {"0": sha(blobs[0]), "1": sha(blobs[1])}
    status, kept = put(frames(*blobs), payload=payload, prepare=sha(blobs[2]))
    assert (status, sorted(kept)) == (200, sorted(blobs))


WRONG = {
    "missing": {},
    "not base64": {sha(PAYLOAD): "?"},
    "another": {sha(PAYLOAD): b64encode(b"something else").decode()},
    "not named": frames(b"something else"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_an_ask_without_its_payload_is_refused(put, wrong):
    assert put(WRONG[wrong]) == (400, [])
    assert put(frames(PAYLOAD))[0] == 200, "and is not stored"


def test_who_may_not_ask_stores_nothing(put):
    assert put(frames(PAYLOAD), token=new_token()) == (401, [])
    assert put(frames(PAYLOAD), job="other") == (404, [])


def test_a_payload_has_the_bounds_of_an_upload(put):
    large = bytes(INLINE)
    assert put(frames(large), payload=sha(large)) == (413, [])


def test_what_is_wrong_in_path_and_query_is_told_at_once_and_only_to_who_may_ask(http):
    path = "/v1/jobs/no job/asks/first/replies?wait=soon&known=1"
    mine = {"Authorization": f"Bearer {TOKEN}"}
    assert http.get(path).status_code == 401
    answer = http.get(path, headers=mine)
    assert answer.status_code == 422
    said = answer.json()["detail"]
    assert [part.split(":")[0] for part in said.split("; ")] == [
        "path.job",
        "path.sequence",
        "query.wait",
    ]
    assert "soon" not in said
    assert "query.first: " in http.get("/v1/jobs/j/checkpoint", headers=mine).json()["detail"]
    assert http.get("/v1/jobs/j/asks/0/replies?known=0&wait=0", headers=mine).status_code == 404
    assert http.delete("/v1/jobs/j/events", headers=mine).status_code == 405
    assert http.get("/v1/jobs/j/events?newest=true&after=3", headers=mine).json() == []

"""Blobs in a bucket, against a real S3 server (moto's) where there is one."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

for library in ("fastapi", "httpx", "sqlalchemy"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

import httpx  # noqa: E402

from solera.core.errors import PayloadError, UsageError  # noqa: E402
from solera.serve.coordinator.store import s3  # noqa: E402
from solera.serve.coordinator.store.blobs import NoBlob  # noqa: E402
from solera.serve.coordinator.store.s3 import Bucket, BucketBlobs, StoreAway  # noqa: E402

KEYS = {"AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE"}
KEYS["AWS_SECRET_ACCESS_KEY"] = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
DATA = bytes(range(256)) * 40
DIGEST = hashlib.sha256(DATA).hexdigest()
SECONDS = 600


def test_a_request_is_signed_as_amazon_documents_it():
    """The example "GET Object" of *Signature Calculations for the Authorization Header*."""
    bucket = Bucket("s3://examplebucket", KEYS)
    bucket._host = "examplebucket.s3.amazonaws.com"
    empty = hashlib.sha256(b"").hexdigest()
    given = ("GET", "/test.txt", "", {"range": "bytes=0-9"}, empty, "20130524T000000Z")
    signed = bucket._signed(*given)["authorization"]
    expected = "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
    assert signed.endswith(f"Signature={expected}")


@pytest.mark.parametrize("url", ["s3://", "bucket", "https://bucket/x"])
def test_what_is_no_bucket_is_an_error(url):
    with pytest.raises(UsageError, match="is no bucket"):
        Bucket(url, KEYS)


def test_missing_keys_are_named():
    with pytest.raises(UsageError, match="AWS_SECRET_ACCESS_KEY is not set"):
        Bucket("s3://cardio", {"AWS_ACCESS_KEY_ID": "a"})


def test_a_store_that_is_away_is_an_error(monkeypatch):
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setattr(time, "sleep", lambda seconds: None)
        with pytest.raises(StoreAway, match="ConnectError"):
            Bucket("s3://cardio", {**KEYS, "AWS_ENDPOINT_URL": url}).head("x")


@pytest.fixture(scope="module")
def server():
    """The address of a new S3 server."""
    peers = Path(os.environ.get("SOLERA_PEERS", ".peers"))
    program = shutil.which("moto_server") or shutil.which(peers / "moto" / "bin" / "moto_server")
    if program is None:
        pytest.skip("moto is not installed: SOLERA_PEERS names a folder with an environment moto")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    running = subprocess.Popen([program, "-H", "127.0.0.1", "-p", str(port)], **quiet)
    url = f"http://127.0.0.1:{port}"
    try:
        end = time.monotonic() + SECONDS
        while True:
            try:
                httpx.put(f"{url}/cardio", timeout=60).raise_for_status()
                break
            except httpx.TransportError:
                assert running.poll() is None, "the S3 server did not start"
                assert time.monotonic() < end, "the S3 server does not listen"
                time.sleep(0.1)
        yield url
    finally:
        running.kill()
        running.wait()


@pytest.fixture
def blobs(server, tmp_path):
    bucket = Bucket(f"s3://cardio/{tmp_path.name}", {**KEYS, "AWS_ENDPOINT_URL": server})
    return BucketBlobs(tmp_path, bucket)


def test_what_is_put_is_read_back(blobs):
    assert blobs.put(DATA) == blobs.put(DATA) == DIGEST
    assert DIGEST in blobs
    assert blobs.read(DIGEST) == DATA
    assert blobs.size(DIGEST) == len(DATA)
    assert blobs.read_small(DIGEST, 10) is None
    size, pieces = blobs.stream(DIGEST, 300, 399)
    assert (size, b"".join(pieces)) == (len(DATA), DATA[300:400])
    assert b"".join(blobs.stream(DIGEST, len(DATA), len(DATA) + 9)[1]) == b""
    assert sorted(os.listdir(blobs.folder)) == ["lock", "parts"]
    assert not list((blobs.folder / "parts").iterdir())


def test_what_is_not_there_is_named(blobs):
    for call in (blobs.read, blobs.size, blobs.finish):
        with pytest.raises(NoBlob, match=DIGEST):
            call(DIGEST)
    assert DIGEST not in blobs


def test_an_upload_in_pieces_is_checked_before_it_is_stored(blobs):
    other = hashlib.sha256(b"something else").hexdigest()
    for digest in (DIGEST, other):
        for start in range(0, len(DATA), 3000):
            blobs.append(digest, start, DATA[start : start + 3000], "cardio@1")
    assert blobs.finish(DIGEST, "cardio@1") == len(DATA)
    assert blobs.read(DIGEST) == DATA
    with pytest.raises(PayloadError, match="have digest"):
        blobs.finish(other, "cardio@1")
    assert other not in blobs


def test_only_old_blobs_that_nobody_needs_are_collected(blobs):
    kept, gone = blobs.put(b"kept"), blobs.put(b"gone")
    assert blobs.collect({kept}) == 0, "both are new"
    assert blobs.collect({kept}, grace=-60) == 1
    assert kept in blobs
    assert gone not in blobs


def test_names_come_in_pages(blobs, monkeypatch):
    monkeypatch.setattr(s3, "_PAGE", 2)
    for number in range(3):
        blobs.put(str(number).encode())
    assert len(list(blobs.bucket.names())) == 3


def test_a_coordinator_is_backed_up_from_one_bucket_and_restored_into_another(
    server, tmp_path, monkeypatch
):
    from solera.serve.coordinator.backup import back_up, restore
    from solera.serve.coordinator.run import coordinator_app, database_of, open_blobs
    from solera.serve.coordinator.store.store import Store
    from solera.serve.wire import NewJob

    for name, value in {**KEYS, "AWS_ENDPOINT_URL": server}.items():
        monkeypatch.setenv(name, value)
    old, new = (f"s3://cardio/{tmp_path.name}-{which}" for which in ("old", "new"))
    coordinator = coordinator_app(tmp_path / "home", bucket=old).state.coordinator
    with coordinator.store as store:
        store.add_federation("cardio")
        spec = coordinator.blobs.put(DATA)
        store.add_job("cardio", NewJob("job", "driven", spec, 0, ""), time.time())
    last = back_up(tmp_path / "home", None, tmp_path / "archives", old)
    restore(Path(last.file), tmp_path / "restored", None, new)
    assert open_blobs(tmp_path / "restored", new).read(spec) == DATA
    with Store(database_of(tmp_path / "restored", None)) as store:
        assert store.job("job").spec == spec


@pytest.mark.slow
def test_a_federation_learns_with_its_blobs_in_a_bucket(server, tmp_path, monkeypatch):
    """Replies in one request and in several; a coordinator that is killed finds all of them."""
    import numpy as np
    from network import Network, kill

    import solera as so
    from solera.core.component import describe_fitted
    from solera.core.payload import encode
    from solera.serve.connection import CHUNK
    from solera.serve.wire import INLINE

    for name, value in {**KEYS, "AWS_ENDPOINT_URL": server}.items():
        monkeypatch.setenv(name, value)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(700, 540))
    y = (X[:, :20].sum(axis=1) > 0).astype(int)
    data = so.data.FederatedData(X, y, np.array([0, 60, 700]))
    url = f"s3://cardio/{tmp_path.name}"
    network = Network(tmp_path)
    try:
        network.start(bucket=url)
        for k, name in enumerate(("north", "south")):
            network.enrol(name)
            network.give(name, data, k)
            network.work(name)
        model = so.FedHEONN().fit(network.connect("first", seed=3))
        expected = so.FedHEONN().fit(so.simulate(data, seed=3))
        np.testing.assert_allclose(model.predict_proba(X), expected.predict_proba(X), rtol=1e-6)
        kill(network.coordinator)
        for agent in network.agents.values():
            kill(agent)
        network.start(bucket=url)
        again = so.FedHEONN().fit(network.connect("first", seed=3))
        assert encode(describe_fitted(again)) == encode(describe_fitted(model))
        replies = [*network.replies("first", 0), *network.replies("first", 1)]
    finally:
        network.close()
    small, _, medium, large = (reply.size for reply in replies)
    assert small <= INLINE < medium <= CHUNK < large
    assert {reply.digest for reply in replies} <= set(Bucket(url).names())
    assert not list((tmp_path / "coordinator" / "blobs").glob("[0-9a-f][0-9a-f]/*"))

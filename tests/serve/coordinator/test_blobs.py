"""Blobs are complete or absent, and nothing outside their folder can be named."""

from __future__ import annotations

import hashlib
import os
import threading
import time
import tracemalloc

import pytest

from solera.core.errors import PayloadError, PayloadTooLarge, UsageError
from solera.serve.coordinator.store.blobs import Blobs, NoBlob

DATA = bytes(range(256)) * 40
DIGEST = hashlib.sha256(DATA).hexdigest()
HOSTILE = [
    "",
    "ab",
    "../" * 21 + "a",
    "../../etc/passwd".ljust(64, "0"),
    DIGEST.upper(),
    DIGEST + "\n",
    DIGEST[:-1] + "/",
    DIGEST[:-1] + "٣",
    "\0" * 64,
    None,
]


@pytest.fixture
def blobs(tmp_path):
    return Blobs(tmp_path / "blobs", max_size=1 << 20)


def upload(blobs, data, digest=None, step=1000):
    digest = digest or hashlib.sha256(data).hexdigest()
    for start in range(0, len(data), step):
        assert blobs.uploaded(digest) == start
        blobs.append(digest, start, data[start : start + step])
    return digest


def test_what_is_put_is_read_back(blobs):
    assert blobs.put(DATA) == blobs.put(DATA) == DIGEST
    assert blobs.read(DIGEST) == DATA
    assert blobs.size(DIGEST) == blobs.uploaded(DIGEST) == len(DATA)
    assert blobs.path(DIGEST).relative_to(blobs.folder).parts == (DIGEST[:2], DIGEST[2:])
    size, pieces = blobs.stream(DIGEST, 3, 9)
    assert (size, b"".join(pieces)) == (len(DATA), DATA[3:10])
    assert DIGEST in blobs
    assert not list((blobs.folder / "parts").iterdir())


@pytest.mark.parametrize("digest", HOSTILE)
def test_hostile_digests_are_refused_everywhere(blobs, digest):
    calls = [
        lambda: blobs.path(digest),
        lambda: blobs.read(digest),
        lambda: blobs.stream(digest, 0, 1),
        lambda: blobs.stored(digest),
        lambda: blobs.size(digest),
        lambda: blobs.uploaded(digest),
        lambda: blobs.append(digest, 0, b"x"),
        lambda: blobs.finish(digest),
    ]
    for call in calls:
        with pytest.raises(UsageError, match="64 hexadecimal digits"):
            call()
    assert sorted(os.listdir(blobs.folder)) == ["lock", "parts"]


def test_absent_blobs_are_named(blobs):
    for call in (blobs.read, lambda d: blobs.stream(d, 0, 1), blobs.size, blobs.finish):
        with pytest.raises(NoBlob, match=DIGEST):
            call(DIGEST)
    assert DIGEST not in blobs


@pytest.mark.parametrize("damaged", [DATA[:-1], b"x" + DATA[1:], DATA + b"x", b""])
def test_damage_on_disk_is_noticed(blobs, damaged):
    blobs.put(DATA)
    blobs.path(DIGEST).write_bytes(damaged)
    with pytest.raises(PayloadError, match="damaged"):
        blobs.read(DIGEST)


def test_an_upload_resumes_after_a_restart(blobs):
    upload(blobs, DATA[:3000], DIGEST)
    again = Blobs(blobs.folder, max_size=1 << 20)
    assert again.uploaded(DIGEST) == 3000
    assert DIGEST not in again
    for offset in (3001, -1):
        with pytest.raises(UsageError, match="3000 is next"):
            again.append(DIGEST, offset, b"x")
    for first, last in ((0, 1000), (2000, 3000), (0, 3000)):
        assert again.append(DIGEST, first, DATA[first:last]) == 3000, "sent again"
    assert again.append(DIGEST, 2500, DATA[2500:3500]) == 3500
    assert again.append(DIGEST, 3500, DATA[3500:]) == len(DATA)
    assert again.finish(DIGEST) == again.finish(DIGEST) == len(DATA)
    assert again.read(DIGEST) == DATA
    assert again.append(DIGEST, 0, b"late chunk") == len(DATA)
    assert again.read(DIGEST) == DATA


def test_a_wrong_upload_is_thrown_away(blobs):
    upload(blobs, DATA[:-1] + b"x", DIGEST)
    with pytest.raises(PayloadError, match="received"):
        blobs.finish(DIGEST)
    assert blobs.uploaded(DIGEST) == 0
    upload(blobs, DATA)
    blobs.finish(DIGEST)
    assert blobs.read(DIGEST) == DATA


def test_sizes_are_bounded(tmp_path):
    blobs = Blobs(tmp_path, max_size=100)
    with pytest.raises(PayloadTooLarge):
        blobs.put(bytes(101))
    blobs.append(DIGEST, 0, bytes(60))
    with pytest.raises(PayloadTooLarge):
        blobs.append(DIGEST, 60, bytes(41))
    assert blobs.uploaded(DIGEST) == 60
    with pytest.raises(UsageError, match="max_size"):
        Blobs(tmp_path, max_size=0)


def test_collecting_spares_what_is_kept_or_fresh(blobs):
    old = time.time() - 1000
    kept, fresh, stale, touched = (blobs.put(bytes([i])) for i in range(4))
    blobs.append(DIGEST, 0, b"half")
    for path in (*map(blobs.path, (kept, stale, touched)), blobs.folder / "parts" / DIGEST):
        os.utime(path, (old, old))
    blobs.put(bytes([3]))
    assert blobs.collect({kept}, grace=500) == 2
    assert [d in blobs for d in (kept, fresh, stale, touched)] == [True, True, False, True]
    assert blobs.uploaded(DIGEST) == 0
    assert blobs.collect({kept}, grace=-1) == 2
    assert blobs.read(kept) == bytes([0])


def test_many_threads_store_the_same_blob(blobs):
    found = []
    threads = [threading.Thread(target=lambda: found.append(blobs.put(DATA))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [DIGEST] * 16
    assert blobs.read(DIGEST) == DATA


def test_memory_does_not_grow_with_the_blob(tmp_path):
    blobs = Blobs(tmp_path)
    chunk, times = bytes(1 << 18), 128
    digest = hashlib.sha256(chunk * times).hexdigest()
    tracemalloc.start()
    try:
        for i in range(times):
            blobs.append(digest, i * len(chunk), chunk)
        blobs.finish(digest)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert blobs.size(digest) == 32 << 20
    assert peak < 4 << 20

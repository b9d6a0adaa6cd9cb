"""The audit log: every change is noticed offline, and no crash is mistaken for one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("cryptography", reason="the extra 'serve' (cryptography) is not installed")
pytest.importorskip("fcntl", reason="file locks are POSIX")

from solera.core.errors import UsageError
from solera.serve.audit import AuditDamaged, AuditLog, Head, verify
from solera.serve.identity import Identity

APPEND = """
import sys
from solera.serve.audit import AuditLog
from solera.serve.identity import Identity
log = AuditLog(sys.argv[2], Identity.load(sys.argv[1]))
for i in range(int(sys.argv[3])):
    print(log.append("reply", who=sys.argv[4], i=i, padding="x" * 3000).n, flush=True)
"""


@pytest.fixture(scope="module")
def keys(tmp_path_factory: Any) -> Path:
    folder = tmp_path_factory.mktemp("audit") / "keys"
    Identity.create(folder)
    return folder


@pytest.fixture(scope="module")
def client(keys: Path) -> Identity:
    return Identity.load(keys)


@pytest.fixture
def log(tmp_path: Path, client: Identity) -> AuditLog:
    log = AuditLog(tmp_path / "audit.jsonl", client, clock=lambda: 1.8e9)
    log.append("ask", owner="ana", job="7", hash=b"\x01\x02")
    log.append("reply", task="kmeans.assign", digest="ab", bytes=1200, epsilon=0.5)
    log.append("refusal", reason="too few rows: é")
    return log


def lines(log: AuditLog) -> list[bytes]:
    return log.path.read_bytes().splitlines(keepends=True)


def check(log: AuditLog, head: tuple[int, str] | None = None) -> Any:
    return verify(log.path, log.identity.sign_key, head)


def start(keys: Path, path: Path, count: int, who: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", APPEND, str(keys), str(path), str(count), who]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_a_log_says_what_happened_and_verifies(log: AuditLog) -> None:
    first, second, _ = map(json.loads, lines(log))
    keys = ["n", "time", "event", "facts", "previous", "hash", "signature"]
    assert list(first) == keys
    assert first["facts"] == {"owner": "ana", "job": "7", "hash": "0102"}
    assert first["time"].startswith("2027-01-15T08:00:00")
    assert second["previous"] == first["hash"]
    report = check(log)
    assert report.ok
    assert (report.head.n, report.torn) == (3, 0)
    assert stat.S_IMODE(log.path.stat().st_mode) == 0o600


def test_every_changed_byte_is_noticed(log: AuditLog) -> None:
    whole = log.path.read_bytes()
    for i in range(len(whole)):
        for other in {whole[i] ^ 0x20, 0x0A} - {whole[i]}:
            log.path.write_bytes(whole[:i] + bytes([other]) + whole[i + 1 :])
            assert not check(log).ok, f"byte {i} became {other}"


def test_every_lost_byte_and_every_cut_is_noticed(log: AuditLog) -> None:
    whole = log.path.read_bytes()
    for i in range(len(whole)):
        log.path.write_bytes(whole[:i] + whole[i + 1 :])
        assert not check(log).ok, f"byte {i} was lost"
    for i in [*range(0, len(whole), 7), len(whole) - 1, whole.index(b"\n") + 1]:
        log.path.write_bytes(whole[:i])
        assert not check(log).ok, f"cut at byte {i}"


def test_every_changed_byte_of_the_head_is_noticed(log: AuditLog) -> None:
    head = log.path.with_name("audit.jsonl.head")
    whole = head.read_bytes()
    for i in range(len(whole)):
        head.write_bytes(whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :])
        assert not check(log).ok, f"byte {i}"


@pytest.mark.parametrize("order", [[1, 2], [0, 2], [0, 1], [], [0, 2, 1], [2, 1, 0], [0, 0, 1, 2],
                                   [0, 1, 2, 0], [0, 1, 2, 2]])  # fmt: skip
def test_deleted_moved_and_repeated_lines_are_noticed(log: AuditLog, order: list[int]) -> None:
    found = lines(log)
    log.path.write_bytes(b"".join(found[i] for i in order))
    assert not check(log).ok


def test_a_line_of_another_log_or_key_is_noticed(log: AuditLog, tmp_path: Path) -> None:
    found = lines(log)
    same_key = AuditLog(tmp_path / "other", log.identity)
    other_key = AuditLog(tmp_path / "third", Identity.create(tmp_path / "keys"))
    for other in (same_key, other_key):
        other.append("reply", task="forged")
        log.path.write_bytes(found[0] + lines(other)[0] + found[1] + found[2])
        assert not check(log).ok
    log.path.write_bytes(b"".join(found))
    assert not verify(log.path, other_key.identity.sign_key).ok


def test_a_remembered_head_catches_what_files_alone_cannot(log: AuditLog) -> None:
    copy = log.path.with_name("old")
    shutil.copy(log.path, copy)
    shutil.copy(f"{log.path}.head", f"{copy}.head")
    remembered = log.append("reply", task="to be hidden")
    assert check(log, remembered).ok
    shutil.copy(copy, log.path)
    shutil.copy(f"{copy}.head", f"{log.path}.head")
    assert check(log).ok, "an old log with its old head is a log"
    assert check(log, remembered).problems == ["the log ends at line 3, the remembered head is at "
                                               "line 4"]  # fmt: skip
    log.append("reply", task="harmless")
    assert check(log, remembered).problems == ["line 4 is not the one the remembered head names"]


def test_the_log_alone_needs_some_head(log: AuditLog) -> None:
    remembered = check(log).head
    os.unlink(f"{log.path}.head")
    assert "may have been cut" in check(log).problems[0]
    assert check(log, remembered).ok
    assert check(log, (1, json.loads(lines(log)[0])["hash"])).ok
    log.path.unlink()
    assert not check(log).ok
    assert not check(log, remembered).ok


def test_nothing_is_appended_to_a_log_that_was_cut(log: AuditLog) -> None:
    found = lines(log)
    for cut in (found[:2], found[:1], [], [*found[:2], found[2][:50]], found[1:2]):
        log.path.write_bytes(b"".join(cut))
        with pytest.raises(AuditDamaged, match="head is at line 3"):
            log.append("reply")
        assert not check(log).ok
    log.path.write_bytes(b"".join(found))
    os.unlink(f"{log.path}.head")
    with pytest.raises(AuditDamaged):
        log.append("reply")


def test_a_line_torn_anywhere_is_reported_and_signed_for(log: AuditLog) -> None:
    head = Path(f"{log.path}.head")
    whole, old_head = log.path.read_bytes(), head.read_bytes()
    log.append("reply", task="kmeans.assign")
    line = log.path.read_bytes()[len(whole) :]
    for kept in [*range(1, len(line), 9), len(line) - 2, len(line) - 1, len(line)]:
        log.path.write_bytes(whole + line[:kept])
        head.write_bytes(old_head)
        report = check(log)
        assert report.ok
        finished = kept == len(line)
        assert (report.head.n, report.torn) == ((4, 0) if finished else (3, kept))
        assert log.append("reply", task="again").n == 5
        assert check(log).ok
        assert check(log).torn == 0
        assert (json.loads(lines(log)[-2])["event"] == "audit.torn") is not finished


def test_torn_bytes_are_signed_for_and_cannot_be_changed(log: AuditLog) -> None:
    with open(log.path, "ab") as file:
        file.write(b'{"n":4,"ti')
    log.append("reply")
    whole = log.path.read_bytes()
    torn = b'{"n":4,"ti torn\n'
    start = whole.index(torn)
    for i in range(start, start + len(torn)):
        log.path.write_bytes(whole[:i] + b"?" + whole[i + 1 :])
        assert not check(log).ok
    log.path.write_bytes(whole.replace(torn, b""))
    assert not check(log).ok


def test_a_crash_while_signing_for_a_crash(log: AuditLog) -> None:
    for torn in (b"half", b"half\n", b'half\n{"n":4,"time"', b"half\r\n\n\nmore\n"):
        with open(log.path, "ab") as file:
            file.write(torn)
        assert check(log).torn == len(torn)
        log.append("reply")
        assert check(log).ok


def test_lines_longer_than_one_look_are_found(log: AuditLog) -> None:
    for size in (16_000, 17_000, 200_000, 10):
        log.append("reply", text="x" * size)
    assert check(log).ok
    with pytest.raises(UsageError, match="too many"):
        log.append("reply", text="x" * 600_000)


@pytest.mark.parametrize("fact", [float("nan"), float("inf"), object(), {1, 2}, {(1, 2): 3}])
def test_facts_that_are_not_json_leave_the_log_alone(log: AuditLog, fact: Any) -> None:
    with pytest.raises(UsageError, match="not JSON"):
        log.append("reply", fact=fact)
    with pytest.raises(UsageError, match="own use"):
        log.append("audit.torn")
    assert check(log).ok
    assert check(log).head.n == 3


facts = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(event=st.text(), fact=st.dictionaries(st.text(), facts, max_size=3))
def test_whatever_the_facts_the_chain_holds(
    client: Identity, tmp_path_factory: Any, event: str, fact: dict[str, Any]
) -> None:
    log = AuditLog(tmp_path_factory.mktemp("facts") / "log", client)
    log.append(event, **fact)
    log.append("end")
    report = check(log)
    assert report.ok
    assert report.head.n == 2


def test_several_processes_keep_one_chain(keys: Path, client: Identity, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    writers = [start(keys, path, 25, who) for who in "abc"]
    printed = [int(n) for writer in writers for n in writer.communicate(timeout=300)[0].split()]
    assert sorted(printed) == list(range(1, 76))
    report = verify(path, client.sign_key)
    assert report.ok
    assert report.head.n == 75
    found = [json.loads(line)["facts"] for line in path.read_bytes().splitlines()]
    for who in "abc":
        assert [fact["i"] for fact in found if fact["who"] == who] == list(range(25))


def test_killed_while_appending(keys: Path, client: Identity, tmp_path: Path) -> None:
    path, acknowledged = tmp_path / "audit.jsonl", 0
    log = AuditLog(path, client)
    for attempt in range(4):
        writer = start(keys, path, 1_000_000, "w")
        assert writer.stdout
        first = writer.stdout.readline()
        time.sleep(0.01 + 0.007 * attempt)
        writer.send_signal(signal.SIGKILL)
        acknowledged = int((first + writer.communicate()[0]).split()[-1])
        assert verify(path, client.sign_key).ok
        head = log.append("restart")
        report = verify(path, client.sign_key, head)
        assert report.ok
        assert (report.head, report.torn) == (Head(*head), 0)
        assert head.n > acknowledged
    assert path.read_bytes().count(b'"event":"restart"') == 4

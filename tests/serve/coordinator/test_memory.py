"""The coordinator's memory does not grow with the number of clients or with a blob.

The full size, a thousand clients and 100 MB, is in ``benchmarks/coordinator.py``.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

for library in ("fastapi", "uvicorn", "httpx", "sqlalchemy", "alembic", "cryptography"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

import httpx  # noqa: E402
from network import free_port, kill  # noqa: E402

from solera.core.payload import encode  # noqa: E402
from solera.serve.connection import Connection  # noqa: E402
from solera.serve.coordinator.run import driver_token  # noqa: E402
from solera.serve.coordinator.store.store import Store  # noqa: E402
from solera.serve.identity import Identity, ask_digest, reply_message, sign_request  # noqa: E402

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="there is no /proc")

PROGRAM = """
import sys
from solera.serve.coordinator.run import serve
serve(sys.argv[1], port=int(sys.argv[2]))
"""
MEGABYTE = 1 << 20
CONNECTION = 400_000
"""What one open connection may cost, well below a body of a megabyte.

64 kB are read at once, 64 kB more before reading pauses, and both are there twice while they are
handed on; a download keeps a piece of 128 kB. The rest is the connection's task and its thread.
"""
FEW, MANY = 20, 60


class Simulated:
    """A client without rows: long-polls, and answers every ask with a megabyte of its own."""

    def __init__(self, http: httpx.AsyncClient, identity: Identity, number: int) -> None:
        self.http, self.identity, self.number = http, identity, number
        self.start = "0" * 32
        self.frame = encode(np.random.default_rng(number).bytes(MEGABYTE - 100))
        self.digest = hashlib.sha256(self.frame).hexdigest()

    async def send(self, method: str, path: str, body: bytes = b"", **options):
        digest = hashlib.sha256(body).hexdigest()
        kind = {"Content-Type": "application/json"} if path.endswith("/reply") else {}
        for _ in range(2):
            now = time.time()
            signed = sign_request(self.identity, "cardio", method, path, digest, now, self.start)
            answer = await self.http.request(method, path, content=body, headers=signed | kind)
            if answer.status_code != 401 or "start" not in answer.json():
                break
            self.start = answer.json()["start"]
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def work(self) -> None:
        """Until it has answered one ask."""
        orders = []
        while not orders:
            orders = (await self.send("GET", "/v1/work?wait=20"))["asks"]
        await self.send("POST", "/v1/blobs", self.frame)
        for order in orders:
            await self.send("POST", *self.reply(order))

    def reply(self, order: dict[str, Any]) -> tuple[str, bytes]:
        job, sequence = order["job"], order["sequence"]
        names = ("task", "version", "payload", "prepare", "round", "seed")
        ask = ask_digest(*(order[name] for name in names))
        what = (job, sequence, str(self.number), ask, "ok", self.digest, len(self.frame))
        signature = self.identity.sign(reply_message("cardio", *what)).hex()
        said = {"status": "ok", "digest": self.digest, "size": len(self.frame)}
        body = json.dumps(said | {"signature": signature}).encode()
        return f"/v1/jobs/{job}/asks/{sequence}/reply", body


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A coordinator with many clients, as (connection of a driver, process, identities)."""
    folder = tmp_path_factory.mktemp("memory")
    home = folder / "coordinator"
    home.mkdir(mode=0o700)
    identities = [Identity.create(folder / str(i)) for i in range(MANY)]
    with Store(f"sqlite:///{home / 'coordinator.sqlite'}") as store:
        store.add_federation("cardio")
        for i, identity in enumerate(identities):
            store.enrol("cardio", f"c{i}", identity.sign_key, identity.seal_key, {})
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(home), str(port)], stderr=subprocess.DEVNULL
    )
    authorised = {"Authorization": f"Bearer {driver_token(home)}"}
    driver = Connection(f"http://127.0.0.1:{port}", lambda *_: authorised, patience=300)
    try:
        driver.request("GET", "/healthz")
        yield driver, process, identities
    finally:
        driver.close()
        kill(process)


def peak(process) -> int:
    """The most memory that a process has had at a time."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def rounds(driver, identities, job, count) -> None:
    """Ask all of them some times; read every reply."""
    spec = driver.upload(encode(job))
    new = {"id": job, "kind": "driven", "spec": spec, "seed": 0, "owner": "test"}
    driver.request("POST", "/v1/federations/cardio/jobs", json=new)

    async def answer_once(sequence) -> None:
        limits = httpx.Limits(max_connections=None)
        base = str(driver._http.base_url)
        async with httpx.AsyncClient(base_url=base, timeout=300, limits=limits) as http:
            clients = [Simulated(http, who, number) for number, who in enumerate(identities)]
            asked = asyncio.to_thread(ask, sequence)
            await asyncio.gather(asked, *(client.work() for client in clients))

    def ask(sequence) -> None:
        time.sleep(0.3)  # all of them wait by then
        payload = driver.upload(encode(sequence))
        body = {"task": "data.describe", "version": 1, "payload": payload, "round": sequence}
        path = f"/v1/jobs/{job}/asks/{sequence}"
        driver.request("PUT", path, json=body | {"clients": list(range(len(identities)))})
        told = {"complete": False, "replies": []}
        while not told["complete"]:
            query = f"{path}/replies?known={len(told['replies'])}&wait=20"
            told = driver.request("GET", query).json()
        assert [row["status"] for row in told["replies"]] == ["ok"] * len(identities)
        for row in told["replies"]:
            assert len(driver.download(row["digest"])) == row["size"]

    for sequence in range(count):
        asyncio.run(asyncio.wait_for(answer_once(sequence), 600))


def test_memory_does_not_grow_with_the_number_of_clients(here):
    driver, process, identities = here
    rounds(driver, identities[:FEW], "few", 2)
    few = peak(process)
    rounds(driver, identities, "many", 2)
    many = peak(process)
    print(f"peak {few / 1e6:.0f} MB with {FEW} clients, {many / 1e6:.0f} MB with {MANY}")
    assert many - few < (MANY - FEW) * CONNECTION
    assert many < 300 * MEGABYTE


def stalled(driver, request, body, count) -> list[socket.socket]:
    """Connections on which a request was begun and got no further."""
    url = driver._http.base_url
    found = []
    for _ in range(count):
        link = socket.socket()
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        link.connect((url.host, url.port))
        link.sendall(request)
        link.sendall(body)
        found.append(link)
    time.sleep(1.0)
    return found


@pytest.mark.parametrize("direction", ["up", "down"])
def test_memory_does_not_grow_with_slow_clients(here, direction):
    driver, process, _ = here
    if direction == "up":
        body = bytes(MEGABYTE - 1)
        request = f"POST /v1/blobs HTTP/1.1\r\nContent-Length: {MEGABYTE}\r\n"
    else:
        digest, body = driver.upload(bytes(4 * MEGABYTE)), b""
        request = f"GET /v1/blobs/{digest} HTTP/1.1\r\n"
    shown = driver._headers("", "", b"")["Authorization"]
    request += f"Host: coordinator\r\nAuthorization: {shown}\r\n\r\n"
    open_links, peaks = [], []
    for count in (FEW, MANY - FEW):
        open_links += stalled(driver, request.encode(), body, count)
        peaks.append(peak(process))
    for link in open_links:
        link.close()
    print(f"{direction}: {peaks[0] / 1e6:.0f} MB with {FEW}, {peaks[1] / 1e6:.0f} MB with {MANY}")
    assert peaks[1] - peaks[0] < (MANY - FEW) * CONNECTION
    driver.request("GET", "/readyz")


def test_memory_does_not_grow_with_a_blob(here):
    driver, process, _ = here
    before = peak(process)
    frame = np.random.default_rng(0).bytes(64 * MEGABYTE)
    digest = driver.upload(frame)
    assert driver.download(digest) == frame
    print(f"peak {before / 1e6:.0f} MB before a blob of 64 MB, {peak(process) / 1e6:.0f} MB after")
    assert peak(process) - before < 16 * MEGABYTE

"""A stranger, an enrolled client and a driver that try to stop the others, and how the others fare.

The same is sent to a null server at the same time, which answers everything with two bytes: what
an honest request takes there is what machine, TLS and load cost by themselves.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import random
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any

from network import Network, free_port, kill

from solera.core.payload import encode
from solera.serve.identity import Identity, sign_request
from solera.serve.wire import NO_START

COORDINATOR = """
import sys
from solera.serve.coordinator.run import serve
folder, host, port, certificate, key, uploads = sys.argv[1:]
serve(folder, host=host, port=int(port), certificate=certificate, key=key, uploads=int(uploads))
"""
NULL = """
import sys, uvicorn
async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    headers = [(b"content-length", b"2"), (b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"{}"})
host, port, certificate, key = sys.argv[1:]
uvicorn.run(app, host=host, port=int(port), ssl_certfile=certificate, ssl_keyfile=key,
            log_config=None, access_log=False, loop="asyncio", http="h11")
"""
UPLOADS = 8 << 20
RATE = 40.0
"""Requests per second of each attacker to each server."""
Request = tuple[str, str, bytes, dict[str, str]]


@dataclass
class Fared:
    """What honest requests took, in seconds, at each server, and what became of them."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: {"solera": [], "null": []})
    failed: list[str] = field(default_factory=list)
    sent: Counter[str] = field(default_factory=Counter)
    answers: Counter[int] = field(default_factory=Counter)
    grown: int = 0

    def p95(self, server: str) -> float:
        return quantiles(self.seconds[server], n=20)[-1]

    def __str__(self) -> str:
        ours, null = self.p95("solera"), self.p95("null")
        return (
            f"p95 {1000 * ours:.1f} ms, null server {1000 * null:.1f} ms, ratio {ours / null:.2f}; "
            f"{len(self.seconds['solera']):,} honest requests, {len(self.failed)} failed; "
            f"{self.sent.total():,} attacks {dict(self.sent)}, answers {dict(self.answers)}; "
            f"disk grew by {self.grown / 1e6:.1f} MB"
        )


class Client:
    """Requests as one identity, over one connection that is opened again when it is closed."""

    def __init__(self, siege: Siege, port: int, identity: Identity | None = None) -> None:
        self.siege, self.port, self.identity = siege, port, identity
        self._connection: http.client.HTTPSConnection | None = None
        self.start = NO_START

    def send(
        self, method: str, path: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int, bytes]:
        if self._connection is None:
            context = self.siege.context
            self._connection = http.client.HTTPSConnection(
                "127.0.0.1", self.port, timeout=600, context=context
            )
        if self.identity is not None:
            digest = hashlib.sha256(body).hexdigest()
            now = time.time()
            signed = (self.identity, "cardio", method, path, digest, now, self.start)
            headers = headers | sign_request(*signed)
        try:
            self._connection.request(method, path, body, headers)
            answer = self._connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException):
            self.close()
            raise
        if answer.status == 401 and b'"start"' in content:
            self.start = json.loads(content)["start"]
            return self.send(method, path, body, headers)
        if answer.will_close:
            self.close()
        return answer.status, content

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Siege:
    """A coordinator and a null server, attackers of both, and honest clients of both."""

    def __init__(self, folder: Path) -> None:
        self.network = Network(folder)
        self.null_port = free_port()
        self.context = ssl.create_default_context(cafile=self.network.ca)
        self.log = folder / "coordinator.log"
        self.fared = Fared()
        self._stop = threading.Event()

    def run(self, seconds: float) -> Fared:
        here = self.network
        certificate = [str(path) for path in here.certificate]
        with self.log.open("wb") as log:
            ours = [sys.executable, "-c", COORDINATOR, *here.place, str(UPLOADS)]
            null = [sys.executable, "-c", NULL, "127.0.0.1", str(self.null_port), *certificate]
            servers = [subprocess.Popen(ours, stderr=log), subprocess.Popen(null)]
        try:
            here.wait()
            self._wait(self.null_port)
            self._staff()
            before = self.disk()
            threads = [
                threading.Thread(target=target, args=arguments, daemon=True)
                for target, *arguments in self._threads()
            ]
            for thread in threads:
                thread.start()
            self._stop.wait(seconds)
            self._stop.set()
            for thread in threads:
                thread.join(300)
            self.fared.grown = self.disk() - before
        finally:
            self._stop.set()
            for server in servers:
                kill(server)
        return self.fared

    def _wait(self, port: int) -> None:
        end = time.monotonic() + 600
        while time.monotonic() < end:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.05)
        raise TimeoutError("the null server did not start")

    def _staff(self) -> None:
        """Honest clients, a hostile one, and a job in which all of them are asked something."""
        for name in ("honest-0", "honest-1", "hostile"):
            self.network.enrol(name)
        driver = self.network.driver()
        new = {"id": "job", "kind": "driven", "spec": driver.upload(encode(0)), "seed": 0}
        driver.request("POST", "/v1/federations/cardio/jobs", json=new | {"owner": "ana"})
        ask = {"task": "t", "version": 1, "payload": driver.upload(encode(1)), "round": 0}
        driver.request("PUT", "/v1/jobs/job/asks/0", json=ask | {"clients": [0, 1, 2]})
        driver.close()

    def disk(self) -> int:
        """Bytes of the coordinator's folder and of its log."""
        folder = self.network.folder / "coordinator"
        files = [*folder.rglob("*"), self.log]
        total = 0
        for path in files:
            with suppress(FileNotFoundError):
                total += path.stat().st_size if path.is_file() else 0
        return total

    def _threads(self) -> Iterator[tuple[Any, ...]]:
        for number in range(2):
            yield self._be_honest, self._identity(f"honest-{number}"), number
        for port in (self.network.port, self.null_port):
            yield self._attack, "stranger", port, None, self._strange
            yield self._attack, "client", port, self._identity("hostile"), self._overstep
            yield self._attack, "driver", port, None, self._drive
            yield self._hold, port

    def _identity(self, name: str) -> Identity:
        return Identity.load(self.network.folder / name)

    # --- honest clients ---

    def _be_honest(self, identity: Identity, number: int) -> None:
        """Look for work at one server and the other, now one first and now the other."""
        ours = Client(self, self.network.port, identity)
        null = Client(self, self.null_port, identity)
        servers = [("solera", ours), ("null", null)]
        while not self._stop.wait(0.05):
            servers.reverse()  # the first after a pause finds a colder processor
            for name, client in servers:
                began = time.perf_counter()
                try:
                    status, said = client.send("GET", "/v1/work?wait=0", b"", {})
                    if status != 200 or (client is ours and b'"job"' not in said):
                        self.fared.failed.append(f"{status} {said[:200]!r}")
                except (OSError, http.client.HTTPException) as error:
                    self.fared.failed.append(repr(error))
                self.fared.seconds[name].append(time.perf_counter() - began)

    # --- attackers ---

    def _attack(
        self,
        name: str,
        port: int,
        identity: Identity | None,
        attack: Callable[[random.Random], Request],
    ) -> None:
        """Send attacks at the same rate to each server, whatever it answers."""
        client, chance = Client(self, port, identity), random.Random(name)
        due = time.monotonic()
        while not self._stop.is_set():
            due += 1 / RATE
            time.sleep(max(0.0, due - time.monotonic()))
            with suppress(OSError, http.client.HTTPException, ValueError):
                status, _ = client.send(*attack(chance))
                if port == self.network.port:
                    self.fared.answers[status] += 1
            if port == self.network.port:
                self.fared.sent[name] += 1

    def _strange(self, chance: random.Random) -> Request:
        """Wrong tokens, unknown keys, large bodies, what is dear to answer."""
        unknown = {
            "Solera-Key": f"{chance.getrandbits(256):064x}",
            "Solera-Time": f"{time.time():.3f}",
            "Solera-Nonce": "0" * 32,
            "Solera-Start": "0" * 32,
            "Solera-Digest": "0" * 64,
            "Solera-Signature": "0" * 128,
        }
        return chance.choice(
            [
                ("GET", "/v1/work", b"", unknown),
                ("GET", "/v1/federations/cardio", b"", {"Authorization": f"Bearer {chance}"}),
                ("POST", "/v1/join", json.dumps({"token": "x" * 1000}).encode(), unknown),
                ("POST", "/v1/blobs", bytes(70_000), unknown),
                ("GET", "/openapi.json", b"", {}),
                ("GET", "/metrics", b"", {}),
                ("GET", "/readyz", b"", {}),
                ("GET", f"/v1/{chance.getrandbits(64):x}", b"", {}),
            ]
        )

    def _overstep(self, chance: random.Random) -> Request:
        """Heartbeats that convict their sender, uploads for nothing, replies to nothing."""
        line = chance.randrange(1000)
        beat = {"doing": "x" * 200, "head": [line, f"{chance.getrandbits(256):064x}"]}
        data = chance.randbytes(60_000)
        digest = hashlib.sha256(data).hexdigest()
        failed = {"status": "failed", "size": 0, "signature": "0" * 128, "reason": "x" * 2000}
        plain = {"Content-Type": "application/json"}
        return chance.choice(
            [
                ("POST", "/v1/heartbeat", json.dumps(beat).encode(), plain),
                ("PUT", f"/v1/uploads/{digest}?offset=0", data, {}),
                ("POST", "/v1/blobs", data, {}),
                ("POST", "/v1/jobs/job/asks/0/reply", json.dumps(failed).encode(), plain),
                ("POST", "/v1/jobs/job/contributions", b"", {}),
                ("GET", f"/v1/blobs/{digest}", b"", {}),
                ("GET", "/v1/peers", b"", {}),
                ("GET", "/v1/held", b"", {}),
            ]
        )

    def _drive(self, chance: random.Random) -> Request:
        """Notes, invitations, jobs and uploads without end."""
        token = {"Authorization": f"Bearer {self.network.token}"}
        plain = token | {"Content-Type": "application/json"}
        note = {"event": "round", "facts": {f"k{i}" * 12: 1.0 for i in range(40)}}
        wrong = {"event": "round", "facts": {"k" * 50_000: 1.0}}
        problem = {"client": 0, "reason": "x" * 2000}
        name = {"name": f"n{chance.getrandbits(64):x}"}
        return chance.choice(
            [
                ("POST", "/v1/jobs/job/notes", json.dumps(note).encode(), plain),
                ("POST", "/v1/jobs/job/notes", json.dumps(wrong).encode(), plain),
                ("POST", "/v1/jobs/job/asks/0/problems", json.dumps(problem).encode(), plain),
                ("POST", "/v1/federations/cardio/invites", json.dumps(name).encode(), plain),
                ("POST", "/v1/blobs", chance.randbytes(60_000), token),
                ("GET", "/v1/jobs/job/events?newest=true", b"", token),
                ("GET", "/v1/federations/cardio", b"", token),
                ("GET", "/v1/jobs/job/asks/0/replies?wait=0", b"", token),
            ]
        )

    def _hold(self, port: int) -> None:
        """Connections that say nothing, half a head, or half a body, opened again when closed."""
        key = f"{os.getpid():064x}"
        half = (
            f"POST /v1/join HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\nSolera-Key: {key}\r\n"
        )
        openings = [b"", half.encode(), half.encode() + b"\r\n" + bytes(30_000)]
        held: list[ssl.SSLSocket] = []
        while not self._stop.wait(0.1):
            with suppress(OSError):
                raw = socket.create_connection(("127.0.0.1", port), 5)
                connection = self.context.wrap_socket(raw, server_hostname="127.0.0.1")
                connection.sendall(openings[len(held) % len(openings)])
                held.append(connection)
            if len(held) > 200:
                held.pop(0).close()
        for connection in held:
            connection.close()

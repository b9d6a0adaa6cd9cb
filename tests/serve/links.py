"""Ways between clients and a coordinator that are not a straight, good wire."""

from __future__ import annotations

import fcntl
import heapq
import os
import random
import select
import socket
import socketserver
import ssl
import struct
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import httpx


class Tunnels(socketserver.ThreadingTCPServer):
    """An HTTP proxy that knows CONNECT, as companies have them; remembers what it was asked."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Tunnel)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.asked: list[str] = []
        self.carried = bytearray()
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Tunnel(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        line = self.rfile.readline().decode()
        method, target, _ = line.split()
        while self.rfile.readline().strip():
            continue
        self.server.asked.append(f"{method} {target}")
        if method != "CONNECT":
            self.wfile.write(b"HTTP/1.1 405 No\r\n\r\n")
            return
        host, _, port = target.rpartition(":")
        with socket.create_connection((host, int(port))) as far:
            self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
            self._carry(self.connection, far)

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        while True:
            for source in select.select([near, far], [], [])[0]:
                data = source.recv(1 << 16)
                if not data:
                    return
                self.server.carried += data
                (far if source is near else near).sendall(data)


class Front(ThreadingHTTPServer):
    """A reverse proxy: hands what comes under a prefix on to a coordinator with another name."""

    daemon_threads = True

    def __init__(self, url: str, ca: str, prefix: str) -> None:
        super().__init__(("127.0.0.1", 0), _Front)
        self.prefix = prefix
        self.url = f"http://127.0.0.1:{self.server_address[1]}{prefix}"
        context = ssl.create_default_context(cafile=ca)
        self.behind = httpx.Client(base_url=url, verify=context, trust_env=False, timeout=60)
        self.passed = 0
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Front(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        front: Any = self.server
        if not self.path.startswith(front.prefix + "/"):
            self.send_error(404)
            return
        front.passed += 1
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        away = ("host", "connection", "accept-encoding")
        headers = {k: v for k, v in self.headers.items() if k.lower() not in away}
        headers |= {"Host": "inner.example", "X-Forwarded-For": "192.0.2.1"}
        path = self.path.removeprefix(front.prefix)
        try:
            answer = front.behind.request(self.command, path, content=body, headers=headers)
        except httpx.TransportError:
            self.send_error(502)
            return
        self.send_response(answer.status_code)
        for name in ("Content-Type", "Solera-Size"):
            if name in answer.headers:
                self.send_header(name, answer.headers[name])
        self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    do_POST = do_PUT = do_GET

    def log_message(self, *_: Any) -> None:
        """Tests are quiet."""


# --- a bad link ----------------------------------------------------------------------------------

_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x1, 0x1000


def missing() -> str | None:
    """Why no bad link can be made here."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "network namespaces need root"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "there is no /dev/net/tun"
    try:
        name = f"solera-{os.getpid()}-x"
        for verb in ("add", "del"):
            subprocess.run(["ip", "netns", verb, name], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return "network namespaces cannot be made (ip netns add)"
    return None


class BadLink:
    """Two network namespaces, and between them a link that loses packets and is slow.

    The link is this process: it carries packets from one tunnel device to the other.
    """

    hosts = ("10.77.13.1", "10.77.13.2")

    def __init__(self, *, loss: float, delay: float) -> None:
        self.loss, self.delay = loss, delay
        self.names = [f"solera-{os.getpid()}-{end}" for end in "ab"]
        self.carried = self.lost = 0
        self._over = False

    def __enter__(self) -> Self:
        self.ends = [
            self._end(name, host) for name, host in zip(self.names, self.hosts, strict=True)
        ]
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        self._thread.join()
        for end in self.ends:
            os.close(end)
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False)

    def inside(self, end: int, *command: str) -> list[str]:
        """A command that is run at one end of the link."""
        return ["ip", "netns", "exec", self.names[end], *command]

    def _end(self, name: str, host: str) -> int:
        tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        device = f"st{os.getpid() % 100_000}{name[-1]}"
        fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", device.encode(), _IFF_TUN | _IFF_NO_PI))
        _ip("netns", "add", name)
        _ip("link", "set", device, "netns", name)
        _ip("-n", name, "addr", "add", f"{host}/24", "dev", device)
        for up in (device, "lo"):
            _ip("-n", name, "link", "set", up, "up")
        return tun

    def _carry(self) -> None:
        chance = random.Random(1)
        under_way: list[tuple[float, int, int, bytes]] = []
        while not self._over:
            wait = under_way[0][0] - time.monotonic() if under_way else 0.1
            for tun in select.select(self.ends, [], [], min(max(wait, 0.0), 0.1))[0]:
                packet = os.read(tun, 65536)
                self.carried += 1
                if chance.random() < self.loss:
                    self.lost += 1
                    continue
                other = self.ends[1 - self.ends.index(tun)]
                heapq.heappush(
                    under_way, (time.monotonic() + self.delay, self.carried, other, packet)
                )
            while under_way and under_way[0][0] <= time.monotonic():
                _, _, tun, packet = heapq.heappop(under_way)
                os.write(tun, packet)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)

"""A coordinator that lies to one owner about what others have posted, over TLS."""

from __future__ import annotations

import hashlib
import json
import random
import ssl
import threading
from base64 import b64decode, b64encode
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
from network import Network

from solera.serve import tls

Posts = dict[int, bytes]
Lie = Callable[[str, Posts, Posts], Posts]
"""Of a step, what was posted for it and for the step before, makes what one owner is shown."""


class Liar(ThreadingHTTPServer):
    """Hands everything on to a coordinator, but lies by ``lie`` where it is asked for ``step``."""

    daemon_threads = True

    def __init__(self, network: Network) -> None:
        super().__init__(("127.0.0.1", 0), _Liar)
        certificate, key = tls.issue(network.folder / "tls", "liar", ["127.0.0.1"])
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.url = f"https://127.0.0.1:{self.server_address[1]}"
        trusted = ssl.create_default_context(cafile=network.ca)
        self.behind = httpx.Client(base_url=network.url, verify=trusted, timeout=60)
        self.step, self.told = "", 0
        self.lie: Lie | None = None
        self.seen: dict[str, Posts] = {}
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def tell(self, step: str, lie: Lie) -> None:
        """Lie about this step from now on."""
        self.step, self.lie, self.told, self.seen = step, lie, 0, {}

    def shown(self, step: str, answer: dict[str, Any]) -> dict[str, Any]:
        """What the owner is shown of a step."""
        posts = {post["owner"]: b64decode(post["frame"]) for post in answer["posts"]}
        before = self.seen.get("last", posts)
        if step != self.step or self.lie is None:
            self.seen["last"] = posts
            return answer
        self.told += 1
        told = self.lie(step, posts, before)
        return {**answer, "posts": [_post(owner, content) for owner, content in told.items()]}


def _post(owner: int, content: bytes) -> dict[str, Any]:
    digest = hashlib.sha256(content).hexdigest()
    frame = b64encode(content).decode()
    return {"owner": owner, "digest": digest, "size": len(content), "frame": frame}


class _Liar(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        liar: Any = self.server
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        away = ("host", "connection", "accept-encoding")
        headers = {k: v for k, v in self.headers.items() if k.lower() not in away}
        headers["Accept-Encoding"] = "identity"
        try:
            answer = liar.behind.request(self.command, self.path, content=body, headers=headers)
        except httpx.TransportError:
            self.send_error(502)
            return
        content = answer.content
        parts = self.path.partition("?")[0].split("/")
        if self.command == "GET" and len(parts) == 6 and parts[4] == "posts" and answer.is_success:
            content = json.dumps(liar.shown(parts[5], json.loads(content))).encode()
        self.send_response(answer.status_code)
        for name in ("Content-Type", "Solera-Size"):
            if name in answer.headers:
                self.send_header(name, answer.headers[name])
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_PUT = do_GET

    def log_message(self, *_: Any) -> None:
        """Tests are quiet."""


# --- lies ---


def flip(draw: random.Random) -> Lie:
    """One bit of one post."""

    def lie(step: str, posts: Posts, before: Posts) -> Posts:
        owner = draw.choice(sorted(posts))
        content = bytearray(posts[owner])
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        return {**posts, owner: bytes(content)}

    return lie


def swap(draw: random.Random) -> Lie:
    """The post of one owner as that of another."""

    def lie(step: str, posts: Posts, before: Posts) -> Posts:
        one, other = draw.sample(sorted(posts), 2) if len(posts) > 1 else (0, 0)
        return {**posts, one: posts[other] if other != one else bytes(len(posts[one]))}

    return lie


def replay(draw: random.Random) -> Lie:
    """What an owner posted for the step before."""

    def lie(step: str, posts: Posts, before: Posts) -> Posts:
        owner = draw.choice(sorted(posts))
        return {**posts, owner: before.get(owner, b"") + (b"" if step != "start" else b"x")}

    return lie


def cut(draw: random.Random) -> Lie:
    """A post without its end, or with more than it has."""

    def lie(step: str, posts: Posts, before: Posts) -> Posts:
        owner = draw.choice(sorted(posts))
        content = posts[owner]
        other = content[: draw.randrange(len(content))] if draw.random() < 0.5 else content + b"\0"
        return {**posts, owner: other}

    return lie


LIES = {"flip": flip, "swap": swap, "replay": replay, "cut": cut}
STEPS = ("start", "keys", "have", "sum0", "sum1", "sum3")

"""A coordinator that says whatever a test wants it to say."""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from solera.core.payload import encode
from solera.serve.description import Description


def digest(data):
    return hashlib.sha256(data).hexdigest()


class Liar:
    """A server that says what a test wants and keeps what the agent sends."""

    def __init__(self):
        self.work, self.blobs, self.sizes, self.replies, self.served = b"", {}, {}, [], 0
        self.missing = set()
        self.beats, self.dead, self.hung = [], False, None
        liar = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                liar.served += 1
                if self.path.startswith("/v1/work"):
                    return self.say(liar.work)
                name = self.path.rpartition("/")[2]
                if name in liar.missing:
                    self.send_response(404)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return None
                data = liar.blobs.get(name, b"")
                first = int(self.headers["Range"].removeprefix("bytes=").split("-")[0])
                return self.say(data[first:], size=liar.sizes.get(name, str(len(data))))

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.path.endswith("/reply"):
                    liar.replies.append(json.loads(body))
                if self.path == "/v1/heartbeat":
                    liar.beats.append(json.loads(body))
                if liar.hung is not None:
                    liar.hung.wait(300)
                if not liar.dead:
                    self.say(b"{}")

            def say(self, data, size=None):
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                if size is not None:
                    self.send_header("Solera-Size", size)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def ask(self, **changes):
        """An ask of agent.count; a change of a field to ``...`` leaves it out."""
        payload = encode({"numbers": 2})
        self.blobs[digest(payload)] = payload
        order = {
            "job": "job", "sequence": len(self.replies), "kind": "driven", "hash": "ab" * 32,
            "owner": "ana", "seed": 1, "task": "agent.count", "version": 1, "spec": self.describe(),
            "payload": digest(payload), "frame": None, "prepare": None, "round": 0,
        }  # fmt: skip
        order = {k: v for k, v in (order | changes).items() if v is not ...}
        self.work = json.dumps({"asks": [order]}).encode()

    def describe(self, **changes):
        """The digest of a description of the job, which can be had here."""
        fields = {"job": "job", "federation": "cardio", "kind": "driven", "owner": "ana", "seed": 1}
        frame = Description(**{**fields, **changes}).to_bytes()
        self.blobs[digest(frame)] = frame
        return digest(frame)

    def prepare(self, steps):
        frame = encode(steps)
        self.blobs[digest(frame)] = frame
        return digest(frame)

"""Whatever is sent to a coordinator, by anyone: it never answers with an error of its own."""

from __future__ import annotations

import copy
import hashlib
import json
import time
from http import HTTPStatus

import numpy as np
import pytest

for library in ("fastapi", "uvicorn", "httpx", "sqlalchemy", "alembic", "prometheus_client"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from hypothesis.extra import numpy as arrays  # noqa: E402
from starlette.testclient import TestClient  # noqa: E402
from store_rows import add_ask, add_job, add_reply, answer  # noqa: E402

from solera.core.aggregation import Mean  # noqa: E402
from solera.core.errors import PayloadError  # noqa: E402
from solera.core.payload import decode, encode  # noqa: E402
from solera.serve.connection import Connection  # noqa: E402
from solera.serve.coordinator.app import create_app  # noqa: E402
from solera.serve.coordinator.store.blobs import Blobs  # noqa: E402
from solera.serve.coordinator.store.store import Store  # noqa: E402
from solera.serve.driver.driven import connect  # noqa: E402
from solera.serve.identity import (  # noqa: E402
    Identity,
    ask_digest,
    reply_message,
    sign_request,
    token_hash,
)
from solera.serve.wire import Call  # noqa: E402

TOKEN = "token"
BLOB = encode({"a": 1})
DIGEST = hashlib.sha256(BLOB).hexdigest()
REAL = {
    "job": ["j", "standing", "none"],
    "federation": ["cardio", "none"],
    "sequence": [0, 1, 7, -1, 2**31, 2**70],
    "client": [0, 1, 7, -1, 2**70],
    "digest": [DIGEST, "0" * 64],
    "wait": [0, 0.01, -1],
    "offset": [0, 1, len(BLOB), -1, 2**70],
}
"""Names and numbers that exist, and some that do not: pure chance would hardly ever hit one."""


def _signed(identity, start):
    def headers(method, path, body):
        digest = hashlib.sha256(body).hexdigest()
        return sign_request(identity, "cardio", method, path, digest, time.time(), start)

    return headers


def _shown(*_):
    return {"Authorization": f"Bearer {TOKEN}"}


class Speaker:
    """The service as somebody sees it whose requests are all authenticated on their way."""

    def __init__(self, app, headers, document):
        self.app, self.headers, self.document = app, headers, document

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        if scope["path"] == "/openapi.json":
            return await self._describe(send)
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        query = scope["query_string"].decode("latin-1")
        path = scope["path"] + (f"?{query}" if query else "")
        ours = self.headers(scope["method"], path, body)
        named = {name.lower().encode() for name in ours}
        kept = [(name, value) for name, value in scope["headers"] if name not in named]
        added = [(name.lower().encode(), value.encode()) for name, value in ours.items()]
        sent = False

        async def again():
            nonlocal sent
            if sent:
                return await receive()
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        return await self.app(scope | {"headers": kept + added}, again, send)

    async def _describe(self, send):
        body = json.dumps(self.document).encode()
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def _narrowed(document):
    """The description with names that exist."""
    document = copy.deepcopy(document)
    for path in document["paths"].values():
        for operation in path.values():
            for parameter in operation.get("parameters", ()):
                if parameter["name"] in REAL:
                    parameter["schema"] = {"enum": REAL[parameter["name"]]}
            operation.pop("security", None)
    for schema in document["components"]["schemas"].values():
        for name in ("digest", "payload", "spec", "prepare"):
            if name in schema.get("properties", {}):
                schema["properties"][name] = {"enum": [DIGEST, "0" * 64]}
        if "clients" in schema.get("properties", {}):
            schema["properties"]["clients"]["items"] = {"enum": REAL["client"]}
    return document


class World:
    """A coordinator with two clients, a driven job with an ask, and a standing job."""

    def __init__(self, folder):
        self.store = Store(f"sqlite:///{folder / 'store.db'}")
        self.blobs = Blobs(folder / "blobs")
        self.blobs.put(BLOB)
        self.app = create_app(self.store, self.blobs, token_hash(TOKEN))
        self.identity = Identity.create(folder / "client")
        self.store.add_federation("cardio")
        keys = self.identity.sign_key, self.identity.seal_key
        self.store.enrol("cardio", "north", *keys, {"data.describe": 1})
        self.other = Identity.create(folder / "other")
        keys = self.other.sign_key, self.other.seal_key
        self.store.enrol("cardio", "south", *keys, {})
        add_job(self.store, spec=DIGEST)
        add_job(self.store, "standing", kind="standing", spec=DIGEST)
        for job in ("j", "standing"):
            self.store.set_job_state(job, "running", "", time.time())
        add_ask(self.store, payload=DIGEST, clients=[0, 1], seconds=None)
        self.store.set_question("standing", Call(task="heonn.fit", version=1, payload=DIGEST))


def profile(examples):
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


@pytest.mark.parametrize("examples", [6, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("who", ["driver", "client", "nobody"])
def test_no_request_makes_the_service_fail(who, examples, tmp_path):
    schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    shared = World(tmp_path)
    document = _narrowed(shared.app.openapi())

    def operations(world):
        headers = {
            "driver": _shown,
            "client": _signed(world.identity, world.app.state.coordinator.start),
            "nobody": lambda *_: {},
        }
        speaker = Speaker(world.app, headers[who], document)
        return schemathesis.openapi.from_asgi("/openapi.json", speaker)

    everywhere = operations(shared)
    answers = {}
    for number, (path, methods) in enumerate(document["paths"].items()):
        world, schema = shared, everywhere
        if who != "nobody" and set(methods) != {"get"}:  # what these change stays with them
            folder = tmp_path / str(number)
            folder.mkdir()
            world = World(folder)
            schema = operations(world)
        for method in methods:
            answers[method, path] = _fuzz(schema[path][method.upper()], examples)
        if world is not shared:
            world.store.close()
    shared.store.close()
    reached = {where for where, seen in answers.items() if 200 in seen}
    assert len(reached) >= {"driver": 18, "client": 9, "nobody": 3}[who], reached


def _fuzz(operation, examples):
    """The statuses of many answers, none of which is an error of the service."""
    seen = set()

    @profile(examples)
    @given(case=operation.as_strategy())
    def send(case):
        answer = case.call()
        assert answer.status_code < HTTPStatus.INTERNAL_SERVER_ERROR, (case, answer.text)
        seen.add(answer.status_code)

    send()
    return seen


# --- replies -------------------------------------------------------------------------------------

ASKED = {
    "coef": np.zeros((4, 3)),
    "intercept": np.zeros(3),
    "loss": "softmax",
    "classes": np.arange(3),
    "lr": 0.1,
    "l2": 0.0,
    "epochs": 1,
    "batch_size": 8,
}
MODEL = {"coef": np.full((4, 3), 2.0), "intercept": np.ones(3), "loss": 0.5}
GOOD = {"change": MODEL, "rows": 20}
HONEST = encode(GOOD)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=20)
    | arrays.arrays(arrays.scalar_dtypes(), arrays.array_shapes(max_dims=3, max_side=5))
)
ODD = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from([*GOOD, *MODEL, "x"]) | st.text(max_size=3), inner, max_size=5
        )
    ),
    max_leaves=8,
)


def _encoded(payload):
    try:
        return encode(payload)
    except PayloadError:
        return b""


def _cut(frame, start, stop, middle):
    return frame[:start] + middle + frame[stop:]


FRAMES = (
    st.binary(max_size=200)
    | st.builds(_cut, st.just(HONEST), *[st.integers(0, len(HONEST))] * 2, st.binary(max_size=9))
    | ODD.map(_encoded)
    | st.fixed_dictionaries(
        {
            "rows": st.just(GOOD["rows"]) | ODD,
            "change": st.fixed_dictionaries({name: st.just(MODEL[name]) | ODD for name in MODEL}),
        }
    ).map(_encoded)
)


class Answered(Connection):
    """A driver's connection to a coordinator whose clients answer at once, with given frames."""

    def __init__(self, world):
        super().__init__("http://127.0.0.1", _shown)
        self._http.close()
        self._http = TestClient(world.app, raise_server_exceptions=False)
        self.world, self.frames = world, {}

    def request(self, method, path, **options):
        response = super().request(method, path, **options)
        if method == "PUT" and "/asks/" in path:
            job, sequence = path.split("/")[3], int(path.split("/")[5])
            for client, frame in self.frames.items():
                digest = self.upload(frame)
                asked = self.world.store.asked(job, sequence, "cardio", client)
                ask = ask_digest(
                    asked.task, asked.version, asked.payload, asked.prepare, asked.round, 0
                )
                what = (job, sequence, str(client), ask, "ok", digest, len(frame))
                identity = (self.world.identity, self.world.other)[client]
                signature = identity.sign(reply_message("cardio", *what)).hex()
                reply = answer(status="ok", digest=digest, size=len(frame), signature=signature)
                add_reply(self.world.store, job, sequence, "cardio", client, reply, time.time())
        return response


def _flat(payload):
    """The entries of nested tables by their path."""
    flat = {}
    for name, value in payload.items():
        inner = {"": value} if not isinstance(value, dict) else _flat(value)
        flat |= {(name, *([place] if place else [])): each for place, each in inner.items()}
    return flat


def _sound(payload):
    """Whether a payload could be an answer: what was asked for, in shape, and finite."""
    if not isinstance(payload, dict) or _flat(payload).keys() != _flat(GOOD).keys():
        return False
    found, good = _flat(payload), _flat(GOOD)
    values = [(np.asarray(found[name]), np.asarray(good[name])) for name in good]
    return all(a.shape == b.shape and a.dtype.kind in "iufb" for a, b in values) and all(
        np.isfinite(a).all() for a, _ in values
    )


def test_odd_replies_never_reach_an_aggregate(tmp_path, monkeypatch):
    world = World(tmp_path)
    connection = Answered(world)
    monkeypatch.setattr("solera.serve.driver.driven.Connection", lambda *_, **__: connection)
    federation = connect("http://127.0.0.1", federation="cardio", token=TOKEN, job="fuzz")
    connection.frames = {0: HONEST}
    alone = encode(federation.ask("linear.train", ASKED, to=[0]).fold(Mean("rows")))
    counted = []

    @profile(75)
    @given(frame=FRAMES)
    def reply(frame):
        connection.frames = {0: HONEST, 1: frame}
        replies = federation.ask("linear.train", ASKED, quorum=1)
        result = replies.fold(Mean("rows"))
        if replies.failures:
            (failure,) = replies.failures
            assert (failure.client, bool(failure.reason)) == (1, True)
            assert failure.kind in ("corrupt", "invalid")
            assert encode(result) == alone
        else:
            assert _sound(decode(frame)), decode(frame)
            counted.append(frame)

    reply()
    assert len(counted) < 15, "most of these replies are odd"
    connection.close()
    world.store.close()

"""The service describes itself: who may ask what, with an example of every body."""

from __future__ import annotations

import json

import pytest

for library in ("fastapi", "uvicorn", "httpx", "sqlalchemy", "alembic", "prometheus_client"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

from solera.serve import closed, epochs, wire  # noqa: E402
from solera.serve.coordinator.app import create_app  # noqa: E402
from solera.serve.coordinator.store.blobs import Blobs  # noqa: E402
from solera.serve.coordinator.store.store import Store  # noqa: E402

OPEN_TO_ALL = {"/healthz", "/readyz", "/metrics"}
WITHOUT_BODY = {"/v1/uploads/{digest}", "/v1/leave", "/v1/jobs/{job}/contributions"}


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    folder = tmp_path_factory.mktemp("openapi")
    with Store(f"sqlite:///{folder / 'store.db'}") as store:
        yield json.loads(json.dumps(create_app(store, Blobs(folder / "blobs"), b"").openapi()))


def operations(document):
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def test_every_route_says_what_it_does_and_who_may(document):
    found = list(operations(document))
    assert len(found) > 30
    for path, method, operation in found:
        where = f"{method} {path}"
        assert operation["summary"], where
        assert len(operation["description"]) > 5, where
        assert operation["tags"], where
        assert bool(operation.get("security")) == (path not in OPEN_TO_ALL), where
        for status, answer in operation["responses"].items():
            assert answer["description"], (where, status)
    assert set(document["components"]["securitySchemes"]) == {"driver", "client"}


def test_every_body_has_an_example_that_is_valid(document):
    seen = set()
    for path, method, operation in operations(document):
        body = operation.get("requestBody")
        if body is None:
            assert method not in ("post", "put") or path in WITHOUT_BODY, (method, path)
            continue
        ((kind, content),) = body["content"].items()
        if kind == "application/octet-stream":
            assert content["example"]
            continue
        name = content["schema"]["$ref"].rpartition("/")[2]
        examples = document["components"]["schemas"][name]["examples"]
        assert examples, name
        message = next(getattr(m, name) for m in (wire, closed, epochs) if hasattr(m, name))
        for example in examples:
            read = wire.read(json.dumps(example).encode(), message)
            assert set(example) <= set(read.__struct_fields__), "an example shows what is read"
        seen.add(name)
    assert len(seen) >= 13


def test_references_lead_somewhere(document):
    text = json.dumps(document)
    for name in {part.partition('"')[0] for part in text.split('"#/components/schemas/')[1:]}:
        assert name in document["components"]["schemas"]

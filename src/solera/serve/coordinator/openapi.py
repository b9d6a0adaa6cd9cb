"""The service's description, ``/openapi.json``: what FastAPI finds out, and what it cannot know.

That is who may ask (a driver's token or a client's signature), bodies that are bytes, and how a
refusal looks.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain
from typing import Any

import msgspec
from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from solera.serve.coordinator.routes.messages import MessageRoute
from solera.serve.coordinator.service import Coordinator

_SCHEMES = {
    "driver": {"type": "http", "scheme": "bearer", "description": "The driver's token."},
    "client": {
        "type": "apiKey",
        "in": "header",
        "name": "Solera-Signature",
        "description": "An Ed25519 signature over the request, with Solera-Key, Solera-Time and "
        "Solera-Nonce beside it.",
    },
}
_REFUSAL = {
    "type": "object",
    "properties": {"detail": {"type": "string"}},
    "required": ["detail"],
    "examples": [{"detail": "no job 'risk-3'"}],
}
_REFUSALS = {
    "400": "The request makes no sense.",
    "401": "Who asks is not known, or may not.",
    "403": "Who asks has no right to this.",
    "404": "Nothing of that name is stored.",
    "409": "Something else is stored under that name, or it is too late.",
    "413": "The body is too large, or of unknown length.",
    "422": "The request is malformed.",
}
_OF_BYTES = (
    ("/v1/blobs", {"POST"}),
    ("/v1/uploads/{digest}", {"PUT"}),
    ("/v1/jobs/{job}/asks/{sequence}/reply", {"PUT"}),
    ("/v1/closed/{jid}/posts/{step}", {"PUT"}),
    ("/v1/closed/{jid}/result", {"PUT"}),
)
_BYTES = {
    "required": True,
    "content": {
        "application/octet-stream": {
            "schema": {"type": "string", "format": "binary"},
            "example": "the bytes themselves",
        }
    },
}


def describe(
    app: FastAPI, coordinator: Coordinator, routers: Sequence[APIRouter]
) -> dict[str, Any]:
    """The OpenAPI document of a service with the routes of these routers."""
    document = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    ours = [route for router in routers for route in router.routes]
    messages, schemas = _schemas([route for route in ours if isinstance(route, MessageRoute)])
    document["components"] = {
        "securitySchemes": _SCHEMES,
        "schemas": {**schemas, "Refusal": _REFUSAL},
    }
    for route in chain(app.routes, ours):
        if isinstance(route, APIRoute) and route.include_in_schema:
            for method in route.methods or ():
                operation = document["paths"][route.path_format][method.lower()]
                _complete(operation, route, coordinator)
                if isinstance(route, MessageRoute):
                    _add_messages(operation, route, messages)
    return document


def _schemas(routes: Sequence[MessageRoute]) -> tuple[dict[Any, Any], dict[str, Any]]:
    """What describes each message that is taken or returned, and the schemas it refers to."""
    kinds = [kind for route in routes for kind in (route.takes, route.returns) if kind]
    described, schemas = msgspec.json.schema_components(
        kinds, ref_template="#/components/schemas/{name}"
    )
    for kind in {route.takes for route in routes if route.takes is not None}:
        schema = schemas[kind.__name__]
        examples = {name: _example(p) for name, p in schema["properties"].items()}
        schema["examples"] = [{name: value for name, value in examples.items() if value}]
    text = json.dumps(schemas).replace(r"\\Z", "$")  # as regular expressions are in JSON Schema
    return dict(zip(kinds, described, strict=True)), json.loads(text)


def _example(schema: dict[str, Any]) -> Any:
    """An example of a field: that of its type, or the first that an enumeration allows."""
    kinds = [schema, *schema.get("anyOf", ())]
    return next(
        (kind[key][0] for key in ("examples", "enum") for kind in kinds if key in kind), None
    )


def _add_messages(operation: dict[str, Any], route: MessageRoute, messages: Any) -> None:
    if route.takes is not None:
        content = {"application/json": {"schema": messages[route.takes]}}
        operation["requestBody"] = {"required": True, "content": content}
    if route.returns is not None:
        answer = operation["responses"]["200"]
        answer["content"] = {"application/json": {"schema": messages[route.returns]}}


def _complete(operation: dict[str, Any], route: APIRoute, coordinator: Coordinator) -> None:
    asked = [dependency.call for dependency in route.dependant.dependencies]
    if coordinator.driver in asked or coordinator.asker in asked:
        operation["security"] = [{"driver": []}]
    elif coordinator.client in asked or route.path == "/v1/join":
        operation["security"] = [{"client": []}]
    elif coordinator.anyone in asked:
        operation["security"] = [{"driver": []}, {"client": []}]
    if (route.path, route.methods) in _OF_BYTES:
        operation["requestBody"] = _BYTES
    shape = {"application/json": {"schema": {"$ref": "#/components/schemas/Refusal"}}}
    for status, meaning in _REFUSALS.items():
        operation["responses"][status] = {"description": meaning, "content": shape}

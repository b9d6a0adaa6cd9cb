"""The service's description, ``/openapi.json``: what FastAPI finds out, and what it cannot know.

That is who may ask (a driver's token or a client's signature), bodies that are bytes, and how a
refusal looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

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
_OF_BYTES = (("/v1/blobs", {"POST"}), ("/v1/uploads/{digest}", {"PUT"}))
_BYTES = {
    "required": True,
    "content": {
        "application/octet-stream": {
            "schema": {"type": "string", "format": "binary"},
            "example": "the bytes themselves",
        }
    },
}


def describe(app: FastAPI, here: Coordinator, routers: Sequence[APIRouter]) -> dict[str, Any]:
    """The OpenAPI document of a service with the routes of these routers."""
    document = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    parts = document.setdefault("components", {})
    parts["securitySchemes"] = _SCHEMES
    schemas = parts["schemas"]
    schemas["Refusal"] = _REFUSAL
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    for route in chain(app.routes, *(router.routes for router in routers)):
        if isinstance(route, APIRoute):
            for method in route.methods or ():
                _complete(document["paths"][route.path_format][method.lower()], route, here)
    return document


def _complete(operation: dict[str, Any], route: APIRoute, here: Coordinator) -> None:
    asked = [dependency.call for dependency in route.dependant.dependencies]
    if here.driver in asked:
        operation["security"] = [{"driver": []}]
    elif here.client in asked or route.path == "/v1/join":
        operation["security"] = [{"client": []}]
    elif here.anyone in asked:
        operation["security"] = [{"driver": []}, {"client": []}]
    if (route.path, route.methods) in _OF_BYTES:
        operation["requestBody"] = _BYTES
    shape = {"application/json": {"schema": {"$ref": "#/components/schemas/Refusal"}}}
    for status, meaning in _REFUSALS.items():
        operation["responses"][status] = {"description": meaning, "content": shape}

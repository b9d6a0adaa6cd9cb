"""Routes that take and return messages of :mod:`solera.serve.wire`.

They are declared as FastAPI wants it, which describes them (``/openapi.json``), and are answered
without it: what FastAPI does for a request besides took more than half the time of one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import msgspec
from fastapi import Depends, HTTPException, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from solera.core.errors import PayloadError
from solera.serve import wire

Name = Annotated[str, Path(pattern=wire.NAME)]
Digest = Annotated[str, Path(pattern=wire.DIGEST)]
Signature = Annotated[str, Query(pattern=wire.SIGNATURE)]


class MessageRoute(APIRoute):
    """A parameter that is a message is read from the body, once it is known who asks.

    ``takes`` is its type, ``returns`` that of an answer in JSON, for the service's description.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        signature = inspect.signature(endpoint)
        parameters = list(signature.parameters.values())
        bodies = [p for p in parameters if _is_message(p.annotation)]
        self.takes = bodies[0].annotation if bodies else None
        returns = signature.return_annotation
        self.returns = None if returns in (Response, inspect.Signature.empty) else returns
        for body in bodies:
            parameters.remove(body)
            reader = Annotated[Any, Depends(_reader(body.annotation))]
            parameters.append(body.replace(annotation=reader, kind=body.KEYWORD_ONLY))
        answering = _answering(endpoint)
        answering.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        super().__init__(path, answering, **{**options, "response_model": None})
        asked = {"request", *(dependency.name for dependency in self.dependant.dependencies)}
        self._takes_request = "request" in signature.parameters
        self._named = [
            (p.name, p.default, TypeAdapter(p.annotation))
            for p in parameters
            if p.name not in asked
        ]

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Find out who asks, read the body if it is a message, then path and query, and answer."""
        methods = self.methods or set()
        if scope["method"] not in methods:
            raise HTTPException(405, headers={"Allow": ", ".join(methods)})
        request = Request(scope, receive, send)
        given: dict[str, Any] = {"request": request} if self._takes_request else {}
        for dependency in self.dependant.dependencies:
            assert dependency.call is not None
            found = await dependency.call(request)
            if dependency.name is not None:
                given[dependency.name] = found
        given |= self._read(request)
        response: Response = await self.endpoint(**given)
        await response(scope, receive, send)

    def _read(self, request: Request) -> dict[str, Any]:
        """What path and query give; an error that names all that is wrong."""
        found, wrong = {}, []
        for name, default, kind in self._named:
            place = "path" if name in request.path_params else "query"
            text = (request.path_params if place == "path" else request.query_params).get(name)
            if text is None and default is not inspect.Parameter.empty:
                found[name] = default
                continue
            try:
                found[name] = kind.validate_python(text)
            except ValidationError as error:
                said = error.errors(include_url=False, include_input=False, include_context=False)
                wrong += [{**each, "loc": (place, name)} for each in said]
        if wrong:
            raise RequestValidationError(wrong)
        return found


def _is_message(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, wire.Message)


def _answering(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its answer written as JSON; one that may block runs in a thread."""
    may_block = not inspect.iscoroutinefunction(endpoint)

    @wraps(endpoint)
    async def answer(**given: Any) -> Response:
        pending = run_in_threadpool(endpoint, **given) if may_block else endpoint(**given)
        content = await pending
        if isinstance(content, Response):
            return content
        return Response(msgspec.json.encode(content), media_type="application/json")

    return answer


def _reader(kind: type[wire.Message]) -> Callable[..., Any]:
    async def body(request: Request) -> wire.Message:
        try:
            return wire.read(await request.body(), kind)
        except PayloadError as error:
            raise HTTPException(422, f"body: {error.message}") from None

    return body

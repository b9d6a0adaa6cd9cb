"""Routes that take and return messages of :mod:`solera.serve.wire`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import msgspec
from fastapi import Depends, HTTPException, Path, Query, Request, Response
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool

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

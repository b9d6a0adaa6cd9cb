"""What the pages' servers do with requests: forms, where they come from, files and redirects."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from solera.serve.web.rendering import HEADERS

_MOST_FORM = 60_000


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form, each once; other kinds of bodies have none."""
    body = await request.body()
    if len(body) > _MOST_FORM:
        return {}
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if kind != "application/x-www-form-urlencoded":
        return {}
    fields = parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=200)
    return {name: values[-1] for name, values in fields.items()}


def is_same_origin(request: Request) -> bool:
    """Whether the browser says that the form is of this site, if it says anything."""
    origin = request.headers.get("origin")
    return origin in (None, "null") or urlsplit(origin).netloc == request.headers.get("host")


def csrf_field(secret: str) -> Callable[[], Markup]:
    """What shows in a form that it is one of ours."""
    hidden = Markup('<input type="hidden" name="csrf" value="{}">').format(escape(secret))
    return lambda: hidden


def download(content: bytes, name: str, kind: str) -> Response:
    """A file to keep."""
    shown = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(content, media_type=kind, headers={**HEADERS, **shown})


def to(path: str) -> Response:
    """Look there now."""
    return RedirectResponse(path, 303, dict(HEADERS))

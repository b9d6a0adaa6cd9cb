"""Pages from templates: everything is escaped, and nothing comes from elsewhere.

A page holds no script and no style of its own; the content security policy forbids them, so that
text that somebody smuggles into a name or a reason stays text.
"""

from __future__ import annotations

import mimetypes
import time
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse, Response

from solera.core.meter import size
from solera.evaluation.metrics import metric_label

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_KEPT = {**HEADERS, "Cache-Control": "public, max-age=3600"}


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("solera.serve.web", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"moment": moment, "ago": ago, "size": size, "short": short, "zip": zip}
    made.filters["metric_label"] = metric_label
    return made


def page(template: str, status: int = 200, **content: Any) -> HTMLResponse:
    """A page of this template."""
    text = _environment().get_template(template).render(**content)
    return HTMLResponse(text, status, dict(HEADERS))


@cache
def asset(name: str) -> Response | None:
    """A file that pages need, if there is one of this name."""
    folder = files("solera.serve.web") / "assets"
    if name not in {path.name for path in folder.iterdir()}:
        return None
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return Response((folder / name).read_bytes(), media_type=kind, headers=dict(_KEPT))


# --- words ---


def moment(seconds: float | None) -> str:
    """When, in UTC, for people."""
    if seconds is None:
        return "never"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def ago(seconds: float | None) -> str:
    """How long ago."""
    if seconds is None:
        return "never"
    passed = max(0.0, time.time() - seconds)
    for unit, length in (("day", 86400.0), ("hour", 3600.0), ("minute", 60.0), ("second", 1.0)):
        if passed >= length:
            count = int(passed // length)
            return f"{count} {unit}{'' if count == 1 else 's'} ago"
    return "now"


def short(text: str, most: int = 16) -> str:
    """The beginning of a long key or digest."""
    return text if len(text) <= most else f"{text[:most]}…"

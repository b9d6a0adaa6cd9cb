"""The coordinator's own log: a line per request and per problem, for people or for machines.

Lines name routes, never paths, queries or headers: what a stranger sends does not end up in the
log, and neither does a token.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

Format: TypeAlias = Literal["text", "json"]
FIELDS = ("method", "route", "status", "ms", "who", "bytes_in", "bytes_out")
"""What is told of a request, in this order."""

requests = logging.getLogger("solera.requests")


def set_up(style: Format) -> None:
    """Send everything from level info on to standard error, in one format."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if style == "json" else TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # its lines show whole addresses


_MOST_LINES = 600
_MINUTE = 60.0
_lines: dict[str, int] = {}
_since = time.monotonic()


def log_request(facts: dict[str, Any], error: Exception | None = None) -> None:
    """One line for one request; an error comes with its traceback.

    Of one client, or of all strangers together, so many in a minute and no more: how many were left
    out is told. A log that anybody can make grow without end fills the disk.
    """
    global _since
    if time.monotonic() - _since > _MINUTE:
        left_out = {who: count - _MOST_LINES for who, count in _lines.items()}
        for who, count in left_out.items():
            if count > 0:
                requests.warning("%d requests of %s were not logged", count, who)
        _lines.clear()
        _since = time.monotonic()
    _lines[facts["who"]] = _lines.get(facts["who"], 0) + 1
    if _lines[facts["who"]] > _MOST_LINES:
        return
    level = logging.INFO if error is None else logging.ERROR
    requests.log(level, "request", exc_info=error, extra={"facts": facts})


class JsonLines(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _moment(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextLines(logging.Formatter):
    """One line of words; a traceback follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        facts = getattr(record, "facts", None)
        text = record.getMessage()
        if facts is not None:
            text = " ".join(f"{name}={facts[name]}" for name in FIELDS)
        # A message may quote what somebody sent: it must not look like a line of its own.
        text = text.replace("\r", "\\r").replace("\n", "\\n")
        line = f"{_moment(record)} {record.levelname.lower()} {record.name} {text}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def _moment(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")

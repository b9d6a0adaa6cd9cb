"""Docstrings as Markdown, for the reference pages of the site.

Sphinx roles become plain code, underlined sections become lists, examples become code blocks.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension

_ROLE = re.compile(r":(?:class|func|meth|mod|attr|data|exc):(?=`)")
_SECTION = re.compile(r"^(Parameters|Attributes)\n-+\n(.+?)(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)
_ENTRY = re.compile(r"^([\w*]+(?:, [\w*]+)*):\s", re.MULTILINE)
_EXAMPLE = re.compile(r"^>>>.*(?:\n.*\S.*)*\n?", re.MULTILINE)
"""From the first prompt to the next empty line: what is printed belongs to it."""


def _listed(section: re.Match[str]) -> str:
    entries = _ENTRY.sub(lambda entry: f"- `{entry[1]}`: ", section[2])
    return f"**{section[1]}**\n\n{entries}"


def markdown(text: str) -> str:
    """The docstring in the Markdown that mkdocs understands."""
    text = _ROLE.sub("", text)
    text = _SECTION.sub(_listed, text)
    return _EXAMPLE.sub(lambda example: f"```pycon\n{example[0].rstrip()}\n```\n", text)


class Docstrings(Extension):
    """Rewrites every docstring before it is shown."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)

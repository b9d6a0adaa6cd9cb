"""What may be said of an error in a task: a code and facts of the schema, never its text.

The text may quote a value of a row, so it stays in the owner's own log.
"""

from __future__ import annotations

import logging
import re

from solera.core.errors import (
    DataError,
    MissingExtra,
    PayloadError,
    PolicyRefusal,
    Refusal,
    SchemaError,
    TaskVersionMismatch,
    UnknownTask,
    UsageError,
)
from solera.core.schema import Schema

log = logging.getLogger("solera.agent")

_CODES: dict[type[BaseException], str] = {
    UnknownTask: "unknown-task: no such task is installed",
    TaskVersionMismatch: "task-version: another version of the task is installed",
    Refusal: "declined: the task declined to answer",
    SchemaError: "schema: the rows have other columns or classes than the ask",
    DataError: "data: the rows do not fit the ask",
    PayloadError: "payload: the ask or the reply is not a payload within its limits",
    MissingExtra: "missing-extra: the task needs a package that is not installed",
    UsageError: "usage: a parameter of the ask makes no sense for these rows",
    ArithmeticError: "arithmetic: a number left its range",
}
"""In this order: the first that an error is an instance of."""
_OTHERS = "error: the task failed"


def code_of(error: BaseException, task: str, schema: Schema) -> str:
    """The error as it may leave, with the columns of the schema that its text names.

    Only what the policy itself refuses leaves in its own words. A column counts as named only where
    its whole name stands in quotes, as our errors write it.
    """
    if isinstance(error, PolicyRefusal):
        return str(error)
    log.warning("task %s failed: %s", task, error, exc_info=error)
    code = next((said for kind, said in _CODES.items() if isinstance(error, kind)), _OTHERS)
    known = {feature.name for feature in schema.features}
    named = [name for name in re.findall(r"'([^']{1,80})'", str(error)[:10_000]) if name in known]
    facts = [f"task {task}", f"{schema.width} columns", *(f"column {n!r}" for n in named[:5])]
    return f"{code} ({', '.join(dict.fromkeys(facts))})"

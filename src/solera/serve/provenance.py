"""Where a model of a real federation comes from: a statement that the coordinator signs.

It names the job, the model by its SHA-256, every client that contributed with the key by which it
signed its replies, and the line of the coordinator's log up to which all of this is written down.
Whoever holds the model, the statement and the coordinator's public key can check them anywhere;
with the log, that the model was published in it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import ClassVar, Final

import msgspec

from solera.core.errors import UsageError
from solera.serve import audit
from solera.serve.statements import is_genuine
from solera.serve.wire import Digest, Message, Statement

ENDING: Final = ".provenance.json"
"""What the file of a statement is called: the model's file and this."""
PUBLISHED: Final = "published"
"""The event of a model in the coordinator's log."""


class Took(Message):
    """What a client had to do with a model: its name and key, and how many replies it signed.

    ``signatures`` is the SHA-256 of the signatures of these replies, in the order of the asks.
    """

    name: str
    key: str
    replies: int
    signatures: Digest


class Provenance(Statement):
    """A statement about the ``version`` of a job's model; ``line`` and ``hash`` are of the log."""

    purpose: ClassVar[str] = "provenance"
    federation: str
    job: str
    kind: str
    spec: Digest
    version: int
    model: Digest
    time: float
    clients: dict[str, Took]
    line: int
    hash: Digest


def read(path: Path) -> Provenance:
    """The statement in a file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Provenance)
    except FileNotFoundError:
        raise UsageError(
            f"there is no statement {path}",
            hint="solera job model writes it beside the model; --provenance names another file",
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is no statement of a coordinator: {error}") from None


def problems(
    statement: Provenance, model: bytes, key: str | None = None, log: Path | None = None
) -> list[str]:
    """Why a model and its statement do not belong together, or are not the coordinator's.

    ``key`` is the coordinator's public key as somebody trusted gave it, ``log`` a copy of its log.
    """
    found = []
    if not is_genuine(statement):
        found.append("the statement was changed, or another key signed it than it names")
    if key is not None and statement.key != key.lower():
        found.append(f"key {statement.key} signed the statement, not {key.lower()}")
    digest = hashlib.sha256(model).hexdigest()
    if digest != statement.model:
        found.append(f"the model's SHA-256 is {digest}, the statement is about {statement.model}")
    if log is not None and not found:
        found += _against_log(statement, log)
    return found


def _against_log(statement: Provenance, log: Path) -> list[str]:
    signer = bytes.fromhex(statement.key)
    report = audit.verify(log, signer, (statement.line, statement.hash))
    if not report.ok:
        return report.problems
    wanted = {"job": statement.job, "digest": statement.model, "version": statement.version}
    for entry in audit.entries(log, signer):
        if entry.n > statement.line:
            break
        if entry.event == PUBLISHED and wanted.items() <= entry.facts.items():
            return []
    return [f"up to line {statement.line} the log does not say that this model was published"]

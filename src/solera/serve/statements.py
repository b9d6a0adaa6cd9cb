"""Statements: signed by a coordinator, checked by whoever holds its key."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec.structs import asdict, replace

from solera.serve.identity import Identity, signed_message, verify
from solera.serve.wire import Statement

S = TypeVar("S", bound=Statement)


def signed(statement: S, identity: Identity) -> S:
    """The statement with the coordinator's key and signature."""
    statement = replace(statement, key=identity.sign_key.hex(), signature="")
    return replace(statement, signature=identity.sign(_message(statement)).hex())


def is_genuine(statement: Statement) -> bool:
    """Whether the key that it names signed it as it is."""
    try:
        key, signature = bytes.fromhex(statement.key), bytes.fromhex(statement.signature)
    except ValueError:
        return False
    return verify(key, _message(statement), signature)


def _message(statement: Statement) -> bytes:
    fields = {name: value for name, value in asdict(statement).items() if name != "signature"}
    return signed_message(statement.purpose, msgspec.json.encode(fields, order="sorted"))

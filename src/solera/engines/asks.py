"""An ask as a payload, for workers of the same machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from solera.core.engine import Ask, PerClient, Preparation


def ask_to_payload(ask: Ask) -> dict[str, Any]:
    """The fields of an ask; payloads of their own are those of the clients asked."""
    message = {field.name: getattr(ask, field.name) for field in fields(ask)}
    message["prepare"] = [[step.description, step.digest] for step in ask.prepare]
    message["per_client"] = isinstance(ask.payload, PerClient)
    if isinstance(ask.payload, PerClient):
        message["payload"] = [[c, ask.payload.payloads[c]] for c in ask.clients.tolist()]
    return message


def ask_from_payload(message: Mapping[str, Any]) -> Ask:
    """What :func:`ask_to_payload` was given."""
    given = dict(message)
    given["prepare"] = tuple(Preparation(*step) for step in given["prepare"])
    if given.pop("per_client"):
        given["payload"] = PerClient(dict(given["payload"]))
    return Ask(**given)

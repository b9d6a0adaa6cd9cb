"""Messages from client to client, which the coordinator relays and cannot read.

A task that is declared with ``sealed=True`` writes them in the clear, in the entry ``sealed`` of
its reply, each with its recipient and the ask that will read it::

    {"loss": 0.4, "sealed": [message(2, "split.backward", round, {"gradient": g})]}

Where the reply leaves the client each content becomes bytes that only the
recipient opens, and only in an ask of that task and round of the same job. The coordinator hands
them on in the entry ``sealed`` of an ask (:func:`deliver`); before the task runs they
are opened again, and the task finds ``[{"sender": 0, "content": {"gradient": g}}]``. Tasks hold
no key, and cannot forget to seal.

Clients name each other by the numbers under which they are enrolled, ``client.id``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from solera.core.errors import PayloadError, Refusal
from solera.core.payload import decode, encode
from solera.core.task import Task

SEALED = "sealed"
"""The entry of asks and replies that holds messages."""


class Sealer(Protocol):
    """Seals for one client and opens what was sealed to it."""

    def seal(self, sender: int, to: int, data: bytes, *, context: bytes) -> bytes:
        """Bytes that only ``to`` can read, and that only ``sender`` can have made."""

    def open(self, recipient: int, sender: int, sealed: bytes, *, context: bytes) -> bytes:
        """What ``sender`` sealed to ``recipient`` for this context, or an error."""


class SealedOutside:
    """For a process that runs tasks and has no key: whoever started it seals and opens."""

    def seal(self, sender: int, to: int, data: bytes, *, context: bytes) -> bytes:
        return data

    def open(self, recipient: int, sender: int, sealed: bytes, *, context: bytes) -> bytes:
        return sealed


def message(to: int, task: str | Task, round: int, content: Any) -> dict[str, Any]:
    """A message that client ``to`` reads when it is asked for this task in this round."""
    name = task.name if isinstance(task, Task) else task
    return {"to": int(to), "task": name, "round": int(round), "content": content}


def deliver(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The entry of an ask for one client, of messages that have their ``sender`` beside them."""
    return [{"sender": int(m["sender"]), SEALED: m[SEALED]} for m in messages]


def each_message(tree: Any, change: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> Any:
    """An ask or a reply with each of its messages changed."""
    if not isinstance(tree, Mapping) or SEALED not in tree:
        return tree
    return {**tree, SEALED: [change(m) for m in tree[SEALED]]}


def seal_reply(task: Task, reply: Any, client: int, scope: Iterable[str], sealer: Sealer) -> Any:
    """The reply of a client as it leaves; ``scope`` names federation and job."""

    def sealed(m: Mapping[str, Any]) -> dict[str, Any]:
        packed = encode(m["content"])
        return {**_address(m), SEALED: seal_message({**m, SEALED: packed}, client, scope, sealer)}

    return each_message(reply, sealed) if task.sealed else reply


def seal_message(m: Mapping[str, Any], client: int, scope: Iterable[str], sealer: Sealer) -> bytes:
    """The bytes of a message, for its recipient and for the ask that it is meant for."""
    context = context_of(scope, m["task"], m["round"], client, m["to"])
    return sealer.seal(client, m["to"], m[SEALED], context=context)


def _address(m: Mapping[str, Any]) -> dict[str, Any]:
    return {"to": int(m["to"]), "task": m["task"], "round": int(m["round"])}


def open_ask(
    task: Task, payload: Any, round: int, client: int, scope: Iterable[str], sealer: Sealer
) -> Any:
    """The payload of an ask as the task reads it; what is not for it is a :class:`Refusal`."""

    def opened(m: Mapping[str, Any]) -> dict[str, Any]:
        packed = open_message(task, m, round, client, scope, sealer)
        return {"sender": int(m["sender"]), "content": decode(packed)}

    return each_message(payload, opened) if task.sealed else payload


def open_message(
    task: Task, m: Any, round: int, client: int, scope: Iterable[str], sealer: Sealer
) -> bytes:
    """The bytes that another client sealed to this one for this ask, or a :class:`Refusal`."""
    try:
        sender, sealed = int(m["sender"]), bytes(m[SEALED])
    except (LookupError, TypeError, ValueError):
        raise Refusal("a message of another client is not sealed") from None
    context = context_of(scope, task.name, round, sender, client)
    try:
        return sealer.open(client, sender, sealed, context=context)
    except PayloadError as error:
        raise Refusal(f"a message of client {sender} does not open: {error.message}") from None


def context_of(scope: Iterable[str], task: str, round: int, sender: int, recipient: int) -> bytes:
    """What a message is for: it opens nowhere else."""
    return encode(["solera message 1", *scope, task, int(round), int(sender), int(recipient)])

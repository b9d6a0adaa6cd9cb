"""What runs at a SuperNode of Flower: the agent of a client, for the length of one message.

The SuperNode's ``--node-config`` says where the owner's rows, policy and folder are. Keys, state,
approvals, budgets, the memory of what left and the audit log lie in the folder, as those of
``solera join`` do: they outlive the process that Flower starts for a message. An ask that waits for
a person is answered with ``held``, and comes again.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from solera.core.errors import UsageError
from solera.core.task import installed_tasks
from solera.serve import wire
from solera.serve.agent import home
from solera.serve.agent.agent import TROUBLE, Agent, in_short
from solera.serve.agent.policy_file import PolicyFile
from solera.serve.agent.sources import owned_rows
from solera.serve.agent.worker import Worker
from solera.serve.carried import CarriedConnection, Parts
from solera.serve.identity import Identity, seal_key_message

log = logging.getLogger("solera.agent")

_URL = "flower"
"""Where clients have joined whose asks Flower carries."""
_TURN = "flower.lock"


class NodeConfig(Struct, frozen=True):
    """What a SuperNode says of its client: ``--node-config 'client=0 data="rows.csv" …'``."""

    client: wire.Number
    data: str
    policy: str
    folder: str = "agent"
    name: str = ""
    target: str | None = None
    id: str | None = None
    test: Annotated[float, Meta(ge=0, le=0.9)] = 0.0
    federation: wire.Name = "flower"

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> NodeConfig:
        """The configuration, checked; what else Flower's users put there is theirs."""
        try:
            return msgspec.convert(dict(given), cls)
        except msgspec.ValidationError as error:
            raise UsageError(
                f"the SuperNode's --node-config: {error}",
                hint='it needs at least client=0 data="rows.csv" policy="policy.toml"',
            ) from None


def answer(action: str, parts: Parts, config: Mapping[str, Any]) -> Parts:
    """What this client says to a message: who it is, or what became of an ask.

    Flower would send the text of an error to the ServerApp, and such a text may quote a row: it
    goes to the owner's log alone.
    """
    try:
        node = NodeConfig.read(config)
        folder = Path(node.folder)
        with _turn(folder):
            if action == "hello":
                return _introduction(node, folder, parts["federation"].decode())
            return _reply(node, folder, parts)
    except TROUBLE as error:
        log.warning("%s", error)
        return {"trouble": f"cannot work: {in_short(error)}".encode()}
    except Exception as error:
        log.exception("a message could not be answered", exc_info=error)
        return {"trouble": b"the client cannot work; its owner's log says why"}


def _introduction(node: NodeConfig, folder: Path, federation: str) -> Parts:
    """Number, name and keys, for the federation that the owner takes part in."""
    if federation != node.federation:
        return {"trouble": f"its owner takes part in {node.federation!r} only".encode()}
    identity, place = _joined(node, folder)
    vouched = identity.sign(seal_key_message(federation, identity.seal_key))
    peer = wire.Peer(
        place.client,
        place.name,
        identity.sign_key.hex(),
        identity.seal_key.hex(),
        vouched.hex(),
    )
    tasks = {name: task.version for name, task in installed_tasks().items()}
    return {"introduction": msgspec.json.encode(wire.Introduction(peer, tasks))}


def _joined(node: NodeConfig, folder: Path) -> tuple[Identity, home.Place]:
    """The client of the folder; a new one gets its keys now."""
    name = node.name or f"client-{node.client}"
    place = home.Place(_URL, None, node.client, name, node.federation)
    known = home.find_place(folder)
    try:
        identity = Identity.load(folder)
    except UsageError:
        if known is not None:
            raise
        identity = Identity.create(folder)
    if known is None:
        home.write_place(folder, place)
    elif known != place:
        raise UsageError(
            f"{folder} is of client {known.client}, {known.name}, of {known.federation!r} at "
            f"{known.url}",
            hint="give this SuperNode a `folder` of its own in its --node-config",
        )
    return identity, place


def _reply(node: NodeConfig, folder: Path, parts: Parts) -> Parts:
    """What became of an ask, as an agent would send it; ``held`` if it waits for an approval."""
    _joined(node, folder)
    message = _Message(parts)
    policy = PolicyFile(node.policy)
    rows = partial(owned_rows, node.data, folder, target=node.target, id=node.id, test=node.test)
    with Worker(rows(policy.policy), begin=False) as worker:
        agent = Agent(folder, worker, policy, source=rows, connection=message)
        try:
            agent.step()
        finally:
            agent.close()
    return message.replied


class _Message(CarriedConnection):
    """Stands where an agent's connection to a coordinator stands, for one ask."""

    def __init__(self, parts: Parts) -> None:
        super().__init__()
        self.replied: Parts = {"held": b"1"}
        self._ask = wire.read(parts["ask"], wire.PendingAsk)
        self._peers = parts.get("peers")
        self.blobs |= parts

    def answer(self, method: str, path: str, message: Any) -> Any:
        if path.startswith("/v1/work"):
            return wire.Work([self._ask])
        if path == "/v1/peers" and self._peers is not None:
            return wire.read(self._peers, wire.Peers)
        if isinstance(message, wire.NewReply):
            self.replied = {"reply": msgspec.json.encode(message)}
            if message.digest is not None:
                self.replied[message.digest] = self.blobs[message.digest]
            return {}
        raise self.no_such(method, path)


@contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """One message at a time: of two runs, one waits for the other."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(os.open(folder / _TURN, os.O_RDWR | os.O_CREAT, 0o600), "r+") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        yield

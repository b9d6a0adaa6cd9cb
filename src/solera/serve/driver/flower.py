"""The engine of a Flower ServerApp: asks travel through a SuperLink to SuperNodes.

The ServerApp's process is driver and coordinator in one: :class:`NodesConnection` answers the few
requests that an :class:`~solera.serve.driver.engine.HttpEngine` makes of a coordinator, and sends
every ask to the nodes as one message each. Announced plans, signatures and the checks of replies
are those of a real federation. A run that dies starts from the beginning: Flower keeps no replies.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from solera.core.errors import PayloadError, UsageError
from solera.core.federation import Federation
from solera.core.task import find_task
from solera.core.topology import Topology
from solera.privacy.secure_sum.tasks import give_shares
from solera.serve import wire
from solera.serve.carried import CarriedConnection, Parts
from solera.serve.description import Description, job_hash
from solera.serve.driver.driven import DrivenEngine
from solera.serve.driver.engine import HttpEngine
from solera.serve.peers import KnownKeys

log = logging.getLogger("solera")

_LOOK_SECONDS = 0.1
_HELD_SECONDS = 5.0
"""After which an ask that waits for an approval is sent again."""
_ASK = re.compile(r"/v1/jobs/([^/]+)/asks/(\d+)(/replies|/problems)?(?:\?.*)?")


@dataclass(frozen=True, slots=True)
class Lost:
    """A node that gave no answer, and why."""

    reason: str


class Nodes(Protocol):
    """What carries messages: the Grid of a ServerApp, see :mod:`solera.serve.flower`."""

    def ids(self) -> list[int]:
        """The nodes that are there now."""

    def send(self, action: str, messages: Mapping[int, Parts], seconds: float | None) -> list[Any]:
        """Send each node its message; the tickets with which to look for answers."""

    def receive(self, tickets: list[Any]) -> dict[int, Parts | Lost]:
        """The answers that have come since, by node, each once."""


class NodesConnection(CarriedConnection):
    """Stands where a driver's connection to a coordinator stands.

    It waits until ``clients`` nodes have introduced themselves. One ask is on its way at a time;
    the next one forgets the replies to it.
    """

    def __init__(self, nodes: Nodes, federation: str, clients: int, seconds: float) -> None:
        super().__init__()
        self._nodes = nodes
        self.federation = federation
        self._clients: dict[int, wire.Introduction] = {}
        self._node_of: dict[int, int] = {}
        self._strangers: dict[int, str] = {}
        self._greeted: list[Any] = []
        self._jobs: dict[str, wire.Job] = {}
        self._specs: Parts = {}
        self._sent: _Sent | None = None
        self._meet(clients, seconds)

    # --- who is there ---

    def _meet(self, clients: int, seconds: float) -> None:
        """Wait for so many clients; an error says why the others are none."""
        end = time.monotonic() + seconds
        while len(self._clients) < clients:
            self._greet()
            if time.monotonic() > end:
                why = "".join(f"; {reason}" for reason in self._strangers.values())
                raise UsageError(
                    f"{len(self._clients)} of {clients} clients answered within {seconds:g} s{why}",
                    hint="start a SuperNode for each, or set `clients` in the run's configuration",
                )
            time.sleep(_LOOK_SECONDS)

    def _greet(self) -> None:
        """Ask new nodes who they are, such as one that was started again; hear who has answered."""
        new = [node for node in self._nodes.ids() if node not in self._strangers]
        hello = {"federation": self.federation.encode()}
        if new:
            self._strangers |= {node: f"node {node} has not answered" for node in new}
            self._greeted += self._nodes.send("hello", dict.fromkeys(new, hello), None)
        for node, parts in self._nodes.receive(self._greeted).items():
            if reason := self._introduce(node, parts):
                log.warning("node %d: %s", node, reason)
            self._strangers[node] = f"node {node}: {reason}"

    def _introduce(self, node: int, parts: Parts | Lost) -> str:
        """Know a client by its node from now on; why not, if not."""
        if isinstance(parts, Lost):
            return parts.reason
        if "introduction" not in parts:
            return _said(parts)
        try:
            told = wire.read(parts["introduction"], wire.Introduction)
        except PayloadError as error:
            return error.message
        number = told.peer.id
        before = self._clients.get(number)
        if before is not None and before.peer.sign_key != told.peer.sign_key:
            raise UsageError(
                f"two nodes say that they are client {number}, with different keys",
                hint="give every SuperNode a `client` of its own in its --node-config",
            )
        self._clients[number] = told
        self._node_of[number] = node  # a node that was started again has another id
        return ""

    # --- what a driver asks of a coordinator ---

    def answer(self, method: str, path: str, message: Any) -> Any:
        asked = _ASK.fullmatch(path)
        if path == f"/v1/federations/{self.federation}":
            return self._members()
        if path == f"/v1/federations/{self.federation}/jobs":
            return self._open(message)
        if path.removeprefix("/v1/jobs/") in self._jobs:
            return self._jobs[path.removeprefix("/v1/jobs/")]
        if asked is not None and asked[3] is None:
            return self._put(asked[1], int(asked[2]), message)
        if asked is not None and asked[3] == "/replies" and self._sent is not None:
            return self._replies(self._sent, asked[1], int(asked[2]))
        if asked is not None and asked[3] == "/problems":
            log.warning("client %d: %s", message.client, message.reason)
            return {}
        raise self.no_such(method, path)

    def _members(self) -> wire.Members:
        status = {"status": "active", "seen": None, "doing": "", "head": None}
        found = [
            wire.Member.of(told.peer, told, **status)
            for _, told in sorted(self._clients.items())
        ]  # fmt: skip
        return wire.Members(self.federation, found)

    def _open(self, new: wire.NewJob) -> wire.Job:
        """A job that this run asks in; its description goes along with every ask."""
        self._specs[new.spec] = self.blobs[new.spec]
        now = time.time()
        self._jobs[new.id] = job = wire.Job.of(
            new,
            federation=self.federation,
            hash=job_hash(self.federation, new.id, new.spec),
            deadline=None if new.seconds is None else now + new.seconds,
            state="running",
            reason="",
            created=now,
            changed=now,
            clients=sorted(self._clients),
        )
        return job

    def _put(self, name: str, sequence: int, new: wire.NewAsk) -> dict[str, bool]:
        """Send an ask to every client of it; what was uploaded for it is not needed after that."""
        self._greet()
        job = self._jobs[name]
        self._sent = sent = _Sent(name, sequence, new.seconds)
        roster = wire.Peers([told.peer for told in self._clients.values()])
        peers = msgspec.json.encode(roster) if _meets_others(new.task) else b""
        for client in new.clients:
            payload = new.payload if isinstance(new.payload, str) else new.payload[client]
            pending = wire.PendingAsk.of(
                new, job, payload=payload, job=name, sequence=sequence, deadline=None
            )
            blobs = [digest for digest in (payload, new.prepare) if digest is not None]
            parts = {digest: self.download(digest, new.frames.get(digest)) for digest in blobs}
            parts |= {job.spec: self._specs[job.spec], "ask": msgspec.json.encode(pending)}
            sent.messages[client] = parts | ({"peers": peers} if peers else {})
        self.blobs.clear()
        self._send(sent, list(sent.messages))
        return {"new": True}

    def _send(self, sent: _Sent, clients: list[int]) -> None:
        messages = {self._node_of[client]: sent.messages[client] for client in clients}
        sent.clients |= {self._node_of[client]: client for client in clients}
        sent.tickets += self._nodes.send("ask", messages, sent.seconds)

    def _replies(self, sent: _Sent, job: str, sequence: int) -> wire.Replies:
        """Wait until all clients have answered, or the time of the ask is over."""
        if (sent.job, sent.sequence) != (job, sequence):
            raise UsageError(
                "over Flower one ask is made at a time",
                hint="collect() the replies to an ask before the next one",
            )
        while len(sent.replies) < len(sent.messages) and not sent.over():
            for node, parts in self._nodes.receive(sent.tickets).items():
                self._take(sent, sent.clients[node], parts)
            now = time.monotonic()
            due = [client for client, at in sent.held.items() if at <= now]
            for client in due:
                del sent.held[client]
            if due:
                self._send(sent, due)
            time.sleep(_LOOK_SECONDS)
        return wire.Replies(True, list(sent.replies.values()))

    def _take(self, sent: _Sent, client: int, parts: Parts | Lost) -> None:
        """What became of an ask at one client."""
        if isinstance(parts, Lost):
            reply = wire.Reply(client=client, status="dropped", size=0, reason=parts.reason)
        elif "held" in parts:
            sent.held[client] = time.monotonic() + _HELD_SECONDS
            return
        else:
            try:
                reply = wire.Reply.of(wire.read(parts.pop("reply"), wire.NewReply), client=client)
                self.blobs |= parts
            except (KeyError, PayloadError):
                reply = wire.Reply(client=client, status="failed", size=0, reason=_said(parts))
        sent.replies[client] = reply


@dataclass(slots=True)
class _Sent:
    """An ask that was sent, and what came back so far."""

    job: str
    sequence: int
    seconds: float | None
    messages: dict[int, Parts] = field(default_factory=dict)
    clients: dict[int, int] = field(default_factory=dict)
    tickets: list[Any] = field(default_factory=list)
    replies: dict[int, wire.Reply] = field(default_factory=dict)
    held: dict[int, float] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)

    def over(self) -> bool:
        return self.seconds is not None and time.monotonic() > self.began + self.seconds


class FlowerEngine(DrivenEngine):
    """Carries the asks of a run; made by :func:`over_nodes`."""

    def checkpoint_store(self) -> None:  # type: ignore[override]
        """Nothing outlives the ServerApp: a loop is kept only where its user says."""


def over_nodes(
    nodes: Nodes,
    *,
    job: str,
    federation: str = "flower",
    clients: int = 2,
    seconds: float = 600.0,
    seed: int = 0,
    owner: str = "",
    topology: Topology | None = None,
    known_keys: str | None = None,
    secure: Any = False,
) -> Federation:
    """The clients behind Flower's nodes, to be asked like simulated ones.

    Waits up to ``seconds`` for so many ``clients``. The other parameters are those of
    :func:`solera.connect`.
    """
    connection = NodesConnection(nodes, federation, clients, seconds)
    known = KnownKeys(known_keys)
    described = Description(job=job, federation=federation, kind="driven", owner=owner, seed=seed)
    engine = FlowerEngine(connection, described, lambda job: HttpEngine(connection, job, known))
    return Federation(engine, seed=seed, topology=topology, secure=secure)


def _meets_others(task: str) -> bool:
    """Whether clients need each other's keys for this task."""
    return task == give_shares.name or find_task(task).sealed


def _said(parts: Parts) -> str:
    """What a node gives as its reason, which is nobody's but its own."""
    return parts.get("trouble", b"the node answered something else").decode(errors="replace")[:500]

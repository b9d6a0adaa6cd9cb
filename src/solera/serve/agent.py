"""The client's agent: connects outwards, runs what its policy allows, and remembers what it did.

One ask at a time: look for work, check the policy, run the task in the worker process, write state
and reply to disk in one step, log what leaves, send it. Whatever dies in between, the ask is still
pending at the coordinator afterwards; an ask whose reply is on disk is answered from there, so that
a task never counts twice.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from base64 import b64encode
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from solera.core.errors import PayloadError, Refusal, UsageError
from solera.core.federation import Ask, Preparation
from solera.core.payload import decode, encode
from solera.core.private_files import write_file
from solera.core.task import installed_tasks
from solera.engines.connection import INLINE, Connection, CoordinatorError
from solera.serve.approvals import Approvals
from solera.serve.audit import AuditLog
from solera.serve.identity import Identity, reply_message, sign_request
from solera.serve.policy import JobFacts, NeedsApproval, Policy
from solera.serve.worker import Worker

log = logging.getLogger("solera.agent")

_PLACE = "place.json"
_MEMORY = "memory.sol"
_HELD_SECONDS = 1.0


class Agent:
    """The agent of one client, living in ``folder``; see :meth:`join` and :meth:`run`."""

    def __init__(
        self,
        folder: str | Path,
        worker: Worker,
        policy: Policy,
        *,
        patience: float = 60.0,
    ) -> None:
        self.folder = Path(folder)
        self.worker = worker
        self.policy = policy
        self.identity = Identity.load(self.folder)
        self.place: dict[str, Any] = json.loads((self.folder / _PLACE).read_text())
        self.approvals = Approvals(self.folder / "approvals.json", policy.approval.approvers)
        self.audit = AuditLog(self.folder / "audit.log", self.identity)
        self.connection = _connection(self.identity, self.place, patience)
        self.stop = threading.Event()
        self._held = False

    # --- joining ---

    @staticmethod
    def join(folder: str | Path, url: str, token: str, *, ca: str | None = None) -> dict[str, Any]:
        """Make keys, enrol them with a one-time token, and remember where."""
        folder = Path(folder)
        try:
            identity = Identity.load(folder)
        except UsageError:
            identity = Identity.create(folder)
        place: dict[str, Any] = {"url": url, "ca": ca}
        connection = _connection(identity, place, 10.0)
        tasks = {name: task.version for name, task in installed_tasks().items()}
        told = connection.request(
            "POST",
            "/v1/join",
            json={
                "token": token,
                "sign_key": identity.sign_key.hex(),
                "seal_key": identity.seal_key.hex(),
                "tasks": tasks,
            },
        ).json()
        connection.close()
        place |= told
        write_file(folder / _PLACE, json.dumps(place).encode(), 0o600, overwrite=True)
        return place

    # --- working ---

    def run(self, wait: float = 20.0) -> None:
        """Work until :attr:`stop` is set; a coordinator that is away is waited for."""
        pause = 0.1
        while not self.stop.is_set():
            try:
                self._held = False
                self.step(wait)
                pause = 0.1
                if self._held:  # an ask that waits for approval is looked at now and then
                    self.stop.wait(_HELD_SECONDS)
            except CoordinatorError as error:
                log.warning("%s", error)
                self.stop.wait(pause)
                pause = min(2 * pause, 10.0)

    def step(self, wait: float = 0.0) -> int:
        """Look for work once and do it; the number of asks answered."""
        asks = self.connection.request("GET", f"/v1/work?wait={wait:g}").json()["asks"]
        return sum(self._answer(order) for order in asks)

    def _answer(self, order: dict[str, Any]) -> int:
        memory = self._memory()
        if (memory["job"], memory["sequence"]) != (order["job"], order["sequence"]):
            try:
                memory = self._work(order, memory["state"])
            except NeedsApproval as error:
                log.info("held: %s", error)
                self._held = True
                return 0
            self._remember(memory)
        self._send(order, memory)
        return 1

    def _work(self, order: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
        """What this client answers, and what it keeps."""
        done: dict[str, Any] = {
            "job": order["job"],
            "sequence": order["sequence"],
            "status": "ok",
            "reason": "",
            "frame": b"",
            "state": state,
        }
        try:
            ask = self._ask(order)
            job = JobFacts(order["hash"], order["owner"], order["kind"])
            approved = self.approvals.approved(order["hash"])
            client = self.place["client"]
            self.policy.check_ask(
                job, ask, client, self.worker.rows, datetime.now(), approved=approved
            )
            outcome = self.worker.run(ask, client, state)
            if outcome.kind == "refused":
                return done | {"status": "refused", "reason": outcome.reason}
            if outcome.reply is None:
                return done | {"status": "failed", "reason": f"{outcome.kind}: {outcome.reason}"}
            reply = self.policy.suppress(ask.task, decode(outcome.reply))
            frame = encode(reply)
            self.policy.check_reply(ask.task, len(frame), reply)
            return done | {"frame": frame, "state": outcome.state}
        except NeedsApproval:
            raise
        except Refusal as error:
            return done | {"status": "refused", "reason": str(error)}
        except PayloadError as error:
            return done | {"status": "failed", "reason": str(error)}

    def _ask(self, order: dict[str, Any]) -> Ask:
        prepare = []
        if order["prepare"]:
            for description in decode(self.connection.download(order["prepare"])):
                digest = hashlib.sha256(encode(description)).hexdigest()
                prepare.append(Preparation(description, digest))
        return Ask(
            order["task"],
            order["version"],
            decode(self.connection.download(order["payload"], order.get("frame"))),
            np.array([self.place["client"]], dtype=np.int64),
            order["seed"],
            order["round"],
            None,
            tuple(prepare),
        )

    def _send(self, order: dict[str, Any], done: dict[str, Any]) -> None:
        frame: bytes = done["frame"]
        status = done["status"]
        digest = hashlib.sha256(frame).hexdigest() if status == "ok" else ""
        self.audit.append(
            "reply",
            job=order["job"],
            sequence=order["sequence"],
            hash=order["hash"],
            owner=order["owner"],
            task=order["task"],
            status=status,
            digest=digest,
            bytes=len(frame),
            reason=done["reason"],
        )
        small = len(frame) <= INLINE
        if status == "ok" and not small:
            self.connection.upload(frame)
        message = reply_message(
            self.place["federation"],
            order["job"],
            order["sequence"],
            str(self.place["client"]),
            status,
            digest,
            len(frame),
        )
        self.connection.request(
            "POST",
            f"/v1/jobs/{order['job']}/asks/{order['sequence']}/reply",
            json={
                "status": status,
                "digest": digest or None,
                "size": len(frame),
                "frame": b64encode(frame).decode() if status == "ok" and small else None,
                "reason": done["reason"][:2000],
                "signature": self.identity.sign(message).hex(),
            },
        )

    # --- remembering ---

    def _memory(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = decode((self.folder / _MEMORY).read_bytes())
        except FileNotFoundError:
            return {"job": None, "sequence": None, "state": {}}
        return found

    def _remember(self, memory: dict[str, Any]) -> None:
        """State and reply in one file, replaced in one step."""
        write_file(self.folder / _MEMORY, encode(memory), 0o600, overwrite=True)

    def close(self) -> None:
        self.stop.set()
        self.worker.close()
        self.connection.close()


def _connection(identity: Identity, place: dict[str, Any], patience: float) -> Connection:
    def headers(method: str, path: str, body: bytes) -> dict[str, str]:
        return sign_request(identity, method, path, hashlib.sha256(body).hexdigest(), time.time())

    return Connection(place["url"], headers, ca=place["ca"], patience=patience)

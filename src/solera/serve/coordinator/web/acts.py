"""What the forms of the pages do; each is written to the log with who did it."""

from __future__ import annotations

import re
import time
from typing import Any

from fastapi import Response

from solera.core.errors import UsageError
from solera.serve.coordinator.store.base import Conflict, NotFound
from solera.serve.coordinator.store.tables import TokenRow
from solera.serve.coordinator.web.health import Health
from solera.serve.coordinator.web.looks import Looks
from solera.serve.coordinator.web.visible import Visible, shown_page
from solera.serve.coordinator.web.visitors import Visitor, new_account
from solera.serve.identity import new_token, token_hash
from solera.serve.job_spec import parse_job
from solera.serve.web.requests import to
from solera.serve.wire import NAME, NewJob

_INVITE_SECONDS = 7 * 24 * 3600.0


class Acts(Visible):
    """One method for each form: who sends it, and what it says."""

    def __init__(self, looks: Looks, health: Health) -> None:
        super().__init__(looks.coordinator)
        self._accounts = looks.accounts
        self._health = health

    def invite(self, visitor: Visitor, given: Any) -> Response:
        federation, client = given.get("federation", ""), given.get("client", "")
        _check_names(federation, client)
        if not visitor.sees(federation):
            raise NotFound(f"There is no federation {federation!r}.")
        self.store.add_federation(federation)
        token = f"{federation}/{client}/{new_token()}"
        self.store.add_invite(federation, client, token_hash(token), time.time() + _INVITE_SECONDS)
        self._acted(visitor, f"invited {client}", federation=federation)
        file = f"{federation}-{client}.invitation"
        command = (
            "pip install 'solera[serve]'\n"
            f"solera join COORDINATOR-ADDRESS --ca ca.pem --token-file {file} \\\n"
            "  --data patients.csv --target ill --policy policy.toml\n"
        )
        return shown_page(
            visitor, "invited.html", federation=federation, client=client, command=command,
            token=token, file=file,
        )  # fmt: skip

    def revoke(self, visitor: Visitor, given: Any) -> Response:
        federation = self.own_federation(visitor, given["federation"])
        if not str(given["client"]).isdigit():
            raise NotFound("no such client")
        self.store.revoke(federation, int(given["client"]), given.get("reason", ""))
        self.coordinator.forget_clients()
        self._acted(visitor, f"revoked client {given['client']}", federation=federation)
        return to(f"/federations/{federation}")

    def start(self, visitor: Visitor, given: Any) -> Response:
        federation = self.own_federation(visitor, given["federation"])
        text = given.get("toml", "").replace("\r\n", "\n")
        spec = parse_job(text, file="the file", name="")
        if spec.federation != federation:
            raise UsageError(f"the file is for {spec.federation!r}, not for {federation!r}")
        if self.coordinator.log_problem:
            raise Conflict(f"no job can begin: {self.coordinator.log_problem}")
        described = spec.describe(text)
        digest = self.coordinator.blobs.put(described.to_bytes())
        new = NewJob.of(described, id=described.job, spec=digest)
        job = self.store.add_job(federation, new, time.time())
        self._acted(visitor, f"started {job.id}", federation=federation, job=job.id)
        return to(f"/jobs/{job.id}")

    def cancel(self, visitor: Visitor, given: Any) -> Response:
        job = self.own_job(visitor, given["job"])
        self.store.set_job_state(job.id, "cancelled", given.get("reason", ""), time.time())
        self.coordinator.notifier.notify()
        self._acted(visitor, f"cancelled {job.id}", federation=job.federation, job=job.id)
        return to(f"/jobs/{job.id}")

    def add_account(self, visitor: Visitor, given: Any) -> Response:
        self._accounts(visitor, given)
        password = new_token()[:20]
        account = new_account(given.get("name", ""), password, _role(given), self._limit(given))
        self.store.add_account(account, visitor.name)
        shown = {"what": f"The password of {account.name}.", "secret": password}
        return self._accounts(visitor, given, shown)

    def remove_account(self, visitor: Visitor, given: Any) -> Response:
        self._accounts(visitor, given)
        if given["account"] == visitor.name:
            raise Conflict("You cannot remove your own account.")
        self.store.remove_account(given["account"], visitor.name, time.time())
        return to("/accounts")

    def add_token(self, visitor: Visitor, given: Any) -> Response:
        self._accounts(visitor, given)
        name, days = given.get("name", "").strip(), given.get("days", "30")
        if not name or len(name) > 80 or not days.isdigit() or not 1 <= int(days) <= 365:
            raise UsageError("a token has a name and 1 to 365 days")
        secret, now = new_token(), time.time()
        token = TokenRow(
            token_hash(secret), name, _role(given), self._limit(given), now, now + int(days) * 86400
        )
        self.store.add_token(token, visitor.name)
        self.coordinator.forget_tokens()
        return self._accounts(visitor, given, {"what": f"The token {name}.", "secret": secret})

    def revoke_token(self, visitor: Visitor, given: Any) -> Response:
        self._accounts(visitor, given)
        self.store.revoke_token(given["token"], visitor.name, time.time())
        self.coordinator.forget_tokens()
        return to("/accounts")

    def verify(self, visitor: Visitor, given: Any) -> Response:
        self._health.verify()
        self._acted(visitor, "verified the signed log")
        return to("/health")

    def _limit(self, given: Any) -> str | None:
        federation: str = given.get("federation", "").strip()
        if federation and federation not in self.store.federations():
            raise NotFound(f"There is no federation {federation!r}.")
        return federation or None

    def _acted(self, visitor: Visitor, what: str, **about: Any) -> None:
        facts = {"actor": visitor.name, "role": visitor.role}
        self.store.log("act", time.time(), reason=what, facts=facts, **about)


def _role(given: Any) -> Any:
    role = given.get("role", "")
    if role not in ("viewer", "researcher", "administrator"):
        raise UsageError(f"there is no role {role!r}")
    return role


def _check_names(*names: str) -> None:
    for name in names:
        if not re.fullmatch(NAME, name):
            raise UsageError(f"{name!r} is not a name; one is like cardio-2")

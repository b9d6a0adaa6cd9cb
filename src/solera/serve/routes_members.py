"""Who takes part: invitations, enrolment, revocation."""

import time
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException
from starlette.concurrency import run_in_threadpool

from solera.serve.coordinator import Coordinator
from solera.serve.identity import new_token, token_hash
from solera.serve.messages import Join, Name, NewInvite, Reason
from solera.serve.tables import Client

_INVITE_SECONDS = 7 * 24 * 3600.0


def members(here: Coordinator) -> APIRouter:
    """The routes of people who join, and of those who let them."""
    routes = APIRouter(tags=["members"])
    store = here.store
    driver = Depends(here.driver)

    @routes.post("/v1/federations/{federation}/invites", dependencies=[driver])
    def invite(federation: Name, new: NewInvite) -> dict[str, str]:
        """A token with which one client may join, once, within a week."""
        if federation not in {f.name for f in store.federations()}:
            store.add_federation(federation)
        token = f"{federation}/{new.name}/{new_token()}"
        store.add_invite(federation, new.name, token_hash(token), time.time() + _INVITE_SECONDS)
        return {"token": token}

    @routes.post("/v1/join")
    async def join(new: Join, key: Annotated[bytes, Depends(here.key)]) -> dict[str, Any]:
        """Enrol the key that signed this request."""
        if key.hex() != new.sign_key:
            raise await here.refusal("join", "the request is signed by another key than it names")
        federation, _, rest = new.token.partition("/")

        def enrol() -> Client:
            return store.enrol(
                federation,
                rest.partition("/")[0],
                key,
                bytes.fromhex(new.seal_key),
                new.tasks,
                token_hash=token_hash(new.token),
            )

        client = await run_in_threadpool(enrol)
        here.bell.ring()
        return {"client": client.id, "name": client.name, "federation": client.federation}

    @routes.get("/v1/federations/{federation}", dependencies=[driver])
    def federation_of(federation: Name) -> dict[str, Any]:
        """Who takes part."""
        if federation not in {f.name for f in store.federations()}:
            raise HTTPException(404, f"no federation {federation!r}")
        return {
            "name": federation,
            "clients": [
                {
                    "id": c.id,
                    "name": c.name,
                    "status": "active" if c.revoked is None else "revoked",
                    "seen": c.seen,
                    "tasks": c.tasks,
                }
                for c in store.clients(federation)
            ],
        }

    @routes.post("/v1/federations/{federation}/clients/{client}/revoke", dependencies=[driver])
    def revoke(federation: Name, client: int, why: Reason) -> dict[str, str]:
        """Shut a client out, at once."""
        store.revoke(federation, client, why.reason)
        return {"status": "revoked"}

    return routes

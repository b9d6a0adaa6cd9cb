"""Who takes part: invitations, enrolment, heartbeats, leaving, revocation."""

import asyncio
import time
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Request
from starlette.concurrency import run_in_threadpool

from solera.serve.coordinator.routes.messages import MessageRoute, Name
from solera.serve.coordinator.service import Coordinator, Refused
from solera.serve.coordinator.store.base import Denied
from solera.serve.coordinator.store.tables import ClientRow
from solera.serve.identity import new_token, seal_key_message, token_hash, verify
from solera.serve.statements import signed
from solera.serve.wire import (
    Enrolled,
    Heartbeat,
    Held,
    Invite,
    Join,
    Left,
    Member,
    Members,
    NewInvite,
    Peer,
    Peers,
    Receipt,
    Why,
)

_INVITE_SECONDS = 7 * 24 * 3600.0
_JOIN_AT_ONCE = 2
"""Strangers may try to join: they do not take all threads."""
_MOMENT = 1.0
"""Seconds that pass, at most, between storing a blob and storing the row that names it."""


def members(coordinator: Coordinator) -> APIRouter:
    """The routes of people who join, and of those who let them."""
    routes = APIRouter(tags=["members"], route_class=MessageRoute)
    store = coordinator.store
    driver = Depends(coordinator.driver)
    Client = Annotated[ClientRow, Depends(coordinator.client)]
    joining = asyncio.Semaphore(_JOIN_AT_ONCE)

    @routes.post("/v1/federations/{federation}/invites", dependencies=[driver])
    def invite(federation: Name, new: NewInvite) -> Invite:
        """A token with which one client may join, once, within a week."""
        store.add_federation(federation)
        token = f"{federation}/{new.name}/{new_token()}"
        store.add_invite(federation, new.name, token_hash(token), time.time() + _INVITE_SECONDS)
        return Invite(token)

    @routes.post("/v1/join")
    async def join(request: Request, new: Join) -> Enrolled:
        """Enrol the key that signed this request, and the key to seal to that it vouches for."""
        federation, _, rest = new.token.partition("/")
        key = await coordinator.signed(request, federation, None)
        if key.hex() != new.sign_key:
            raise Refused("join", "the request is signed by another key than it names")
        seal_key = bytes.fromhex(new.seal_key)
        vouched = bytes.fromhex(new.seal_signature)
        if not verify(key, seal_key_message(federation, seal_key), vouched):
            raise Refused("join", "the key to seal to is not signed")

        def enrol() -> ClientRow:
            name, token = rest.partition("/")[0], token_hash(new.token)
            if not store.is_invited(token, key):
                raise Denied("no such invite", hint="ask the coordinator for a token")
            return store.enrol(
                federation, name, key, seal_key, new.tasks, seal_signature=vouched, token_hash=token
            )

        async with joining:
            client = await run_in_threadpool(enrol)
        coordinator.enrolled(key)
        return Enrolled(client.id, client.name, client.federation)

    @routes.post("/v1/heartbeat")
    def heartbeat(who: Client, beat: Heartbeat) -> dict[str, str]:
        """A client lives; what it is doing, and where its audit log ends."""
        now = time.time()
        said = (beat.doing, beat.head, beat.version, beat.policy)
        store.heartbeat(who.federation, who.id, now, *said)
        return {"status": "ok"}

    @routes.get("/v1/peers")
    def peers(who: Client) -> Peers:
        """Who else takes part, and the keys to seal to, each signed by its owner."""
        present = [client for client in store.clients(who.federation) if client.revoked is None]
        return Peers([_peer(client) for client in present])

    # --- leaving ---

    @routes.get("/v1/held")
    def held(who: Client) -> Held:
        """Everything that is held for this client: rows of each table, and its blobs."""
        digests = store.client_digests(who.federation, who.id)
        sizes = [
            coordinator.blobs.size(digest) for digest in digests if digest in coordinator.blobs
        ]
        return Held(store.held(who.federation, who.id), len(sizes), sum(sizes))

    @routes.post("/v1/leave")
    async def leave(who: Client) -> Left:
        """Delete everything that is held for this client, at once and for good.

        Models of standing jobs are folded again without it. Its blobs go unless others refer to
        them, too. Whoever stores the same bytes right now has
        a moment to say what they are for.
        """
        digests = await run_in_threadpool(store.client_digests, who.federation, who.id)
        standing = await run_in_threadpool(store.standing_jobs, who.federation, who.id)
        rows = await run_in_threadpool(store.forget_client, who.federation, who.id)
        coordinator.forget_clients()
        await asyncio.sleep(_MOMENT)
        kept = await run_in_threadpool(store.digests)
        gone = await run_in_threadpool(coordinator.blobs.collect, kept, _MOMENT, among=digests)
        receipt = None
        if coordinator.identity is not None:
            facts = Receipt(who.federation, who.sign_key.hex(), rows, standing, time.time())
            receipt = signed(facts, coordinator.identity)
        return Left(rows, gone, len(digests & kept), receipt)

    # --- for drivers and administrators ---

    @routes.get("/v1/federations/{federation}", dependencies=[driver])
    def federation_of(federation: Name) -> Members:
        """Who takes part."""
        coordinator.write_heard()
        if federation not in store.federations():
            raise HTTPException(404, f"no federation {federation!r}")
        return Members(federation, [_member(client) for client in store.clients(federation)])

    @routes.post("/v1/federations/{federation}/clients/{client}/revoke", dependencies=[driver])
    def revoke(federation: Name, client: int, why: Why) -> dict[str, str]:
        """Shut a client out, at once."""
        store.revoke(federation, client, why.reason)
        coordinator.forget_clients()
        return {"status": "revoked"}

    return routes


def _member(client: ClientRow) -> Member:
    status = "active" if client.revoked is None else "revoked"
    key = client.sign_key.hex()
    return Member.of(client, status=status, doing=client.doing or "", sign_key=key)


def _peer(client: ClientRow) -> Peer:
    return Peer(
        client.id,
        client.name,
        client.sign_key.hex(),
        client.seal_key.hex(),
        client.seal_signature.hex(),
    )

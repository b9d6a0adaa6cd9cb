"""Work, for clients: what they are asked, and what they answer."""

import time
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.concurrency import run_in_threadpool

from solera.core.errors import UsageError
from solera.serve.coordinator.batches import Batches
from solera.serve.coordinator.body import received_body
from solera.serve.coordinator.routes.messages import MessageRoute, Name, Signature
from solera.serve.coordinator.service import Coordinator, Refused, uploader
from solera.serve.coordinator.store.blobs import Received
from solera.serve.coordinator.store.jobs import no_job
from solera.serve.coordinator.store.replies import Asked
from solera.serve.coordinator.store.tables import ClientRow
from solera.serve.identity import reply_message, verify
from solera.serve.wire import NewReply, Work


def work_of(coordinator: Coordinator) -> APIRouter:
    """The routes of the clients' agents."""
    routes = APIRouter(tags=["work"], route_class=MessageRoute)
    store = coordinator.store
    adding = Batches(store.add_replies)
    Client = Annotated[ClientRow, Depends(coordinator.client)]

    @routes.get("/v1/work")
    async def work(who: Client, wait: float = 0) -> Work:
        """Asks that wait for this client."""
        me = (who.federation, who.id)
        coordinator.heard[me] = time.time()
        pending = coordinator.pending
        asks = await coordinator.notifier.until(
            me, lambda: pending.find(me), wait, known=lambda: pending.known(me)
        )
        return Work(asks)

    def check(job: str, sequence: int, who: ClientRow, new: NewReply) -> Asked:
        """What the client was asked; an error unless it has signed this reply to it."""
        asked = store.asked(job, sequence, who.federation, who.id)
        message = reply_message(
            who.federation,
            job,
            sequence,
            str(who.id),
            asked.digest,
            new.status,
            new.digest or "",
            new.size,
        )
        if not verify(who.sign_key, message, bytes.fromhex(new.signature)):
            raise Refused(f"client {who.name}", "a reply that it did not sign")
        return asked

    async def add(job: str, sequence: int, who: ClientRow, new: NewReply) -> dict[str, bool]:
        """Store a reply that was checked, and whose blob is here."""
        stored = await adding((job, sequence, who.federation, who.id, new, time.time()))
        coordinator.uploads.settle(uploader(who), new.digest)
        coordinator.notifier.notify(job)
        return {"stored": stored}

    @routes.post("/v1/jobs/{job}/asks/{sequence}/reply")
    async def reply(job: Name, sequence: int, who: Client, new: NewReply) -> dict[str, bool]:
        """A client's answer, signed for this ask; the same again changes nothing.

        It may name a blob that the client has uploaded itself, and no other.
        """

        def check_blob() -> None:
            check(job, sequence, who, new)
            if new.digest is not None and new.frame is not None:
                coordinator.keep(new.digest, new.frame)
            elif new.status == "ok" and (uploader(who), new.digest) not in coordinator.uploads:
                raise UsageError("the reply's blob was not uploaded")
            if new.digest is not None and coordinator.blobs.size(new.digest) != new.size:
                raise UsageError("the reply's blob has another size than the reply says")

        await run_in_threadpool(check_blob)
        return await add(job, sequence, who, new)

    @routes.put("/v1/jobs/{job}/asks/{sequence}/reply")
    async def reply_with(
        request: Request, job: Name, sequence: int, signature: Signature, who: Client
    ) -> dict[str, bool]:
        """The same for an answer whose blob is the body of this request."""

        def take(received: Received) -> NewReply:
            digest, size = received.digest, received.size
            new = NewReply(status="ok", digest=digest, size=size, signature=signature)
            if check(job, sequence, who, new).is_open:  # one that is answered takes no more bytes
                coordinator.make_room(uploader(who), digest, size, size)
                coordinator.blobs.take(received)
            return new

        async with received_body(request, coordinator.blobs) as received:
            new = await run_in_threadpool(take, received)
        return await add(job, sequence, who, new)

    # --- contributions to standing jobs ---

    @routes.post("/v1/jobs/{job}/contributions")
    def contribute(job: Name, who: Client) -> dict[str, int]:
        """Ask to be asked: the client has something new to tell a standing job."""
        if store.job(job).federation != who.federation:
            raise no_job(job)
        number = store.contribute(job, who.id, time.time())
        coordinator.notifier.notify(job, (who.federation, who.id))
        return {"id": number}

    return routes

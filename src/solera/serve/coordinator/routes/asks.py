"""Asks, their replies and checkpoints, for drivers."""

import time

from fastapi import APIRouter, Depends, Request
from starlette.concurrency import run_in_threadpool

from solera.core.errors import UsageError
from solera.serve.coordinator.routes.messages import MessageRoute, Name
from solera.serve.coordinator.service import Coordinator, uploader
from solera.serve.coordinator.store.events import INVALID, problem
from solera.serve.coordinator.store.tables import ReplyRow
from solera.serve.wire import (
    INLINE,
    Checkpoint,
    NewAsk,
    NewCheckpoint,
    NewProblem,
    Replies,
    Reply,
)

_MOST_INLINE = 1 << 20
_LAST_CLIENT = 2**31 - 1


def asks_of(coordinator: Coordinator) -> APIRouter:
    """The routes of a learner that asks."""
    routes = APIRouter(tags=["asks"], route_class=MessageRoute)
    store = coordinator.store
    driver, asker = [Depends(coordinator.driver)], [Depends(coordinator.asker)]

    @routes.put("/v1/jobs/{job}/asks/{sequence}", dependencies=asker)
    def add_ask(request: Request, job: Name, sequence: int, new: NewAsk) -> dict[str, str | int]:
        """Ask clients of a job; the same again changes nothing."""
        payloads = [new.payload] if isinstance(new.payload, str) else new.payload.values()
        federation = store.job(job).federation
        owner = uploader(None, request)
        for digest, frame in new.frames.items():
            if digest not in {*payloads, new.prepare}:
                raise UsageError(f"blob {digest[:12]}… is sent along and not named")
            coordinator.make_room(owner, digest, len(frame), len(frame))
            coordinator.keep(digest, frame)
            coordinator.uploads.finish(owner, digest)
        coordinator.check_uploaded(*payloads, new.prepare)
        now = time.time()
        stored = store.add_ask(job, sequence, new, now)
        coordinator.notifier.notify(*((federation, client) for client in new.clients))
        return {"job": job, "sequence": sequence, "new": stored.created == now}

    @routes.get("/v1/jobs/{job}/asks/{sequence}/replies", dependencies=driver)
    async def replies(
        job: Name,
        sequence: int,
        known: int = 0,
        wait: float = 0,
        first: int = 0,
        last: int = _LAST_CLIENT,
    ) -> Replies:
        """Replies so far; waits for more than ``known``, of clients ``first`` to ``last``."""
        missing = 1

        def look() -> Replies | None:
            nonlocal missing
            coordinator.close_late(job, sequence, time.time())
            answered = store.answered(job, sequence, first, last)
            complete = answered == asked
            if answered <= known and not complete:
                missing = min(known + 1, asked) - answered
                return None
            rows = store.replies(job, sequence, first, last)
            share = min(INLINE, _MOST_INLINE // max(1, len(rows)))
            return Replies(
                complete,
                [_reply(row, coordinator.inline(row.digest, share)) for row in rows],
            )

        ask = await run_in_threadpool(store.ask, job, sequence)
        asked = sum(first <= client <= last for client in ask.clients)
        stored_job = await run_in_threadpool(store.job, job)
        ends = [end - time.time() for end in (ask.deadline, stored_job.deadline) if end is not None]
        limit = min([wait, *(max(0.0, left) + 0.01 for left in ends)])
        news: Replies | None = await coordinator.notifier.until(
            job, lambda: run_in_threadpool(look), limit, missing=lambda: missing
        )
        return news or Replies(False, [])

    @routes.put("/v1/jobs/{job}/checkpoint", dependencies=asker)
    def save_checkpoint(job: Name, new: NewCheckpoint) -> dict[str, int]:
        """Remember where a job can go on; replies before it are forgotten."""
        store.save_checkpoint(job, new, time.time())
        return {"sequence": new.sequence}

    @routes.get("/v1/jobs/{job}/checkpoint", dependencies=driver)
    def checkpoint(job: Name, first: int) -> Checkpoint:
        """Where a replay of the loop that began with ask ``first`` goes on, if it does."""
        return store.checkpoint(job, first)

    @routes.post("/v1/jobs/{job}/asks/{sequence}/problems", dependencies=asker)
    def add_problem(job: Name, sequence: int, new: NewProblem) -> dict[str, int]:
        """The driver could not use a reply; everyone who looks at the job shall know."""
        store.ask(job, sequence)
        about = {"client": new.client, "reason": problem(sequence, new.reason)}
        return {"event": store.log(INVALID, time.time(), of=store.job(job), **about)}

    return routes


def _reply(row: ReplyRow, frame: str | None) -> Reply:
    signature = None if row.signature is None else row.signature.hex()
    return Reply.of(row, frame=frame, signature=signature)

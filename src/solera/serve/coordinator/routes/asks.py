"""Asks, their replies and checkpoints, for drivers."""

import time
from typing import Any

from fastapi import APIRouter, Depends
from starlette.concurrency import run_in_threadpool

from solera.core.errors import SoleraError, UsageError
from solera.serve.connection import INLINE
from solera.serve.coordinator.messages import Name, NewAsk, NewCheckpoint, NewProblem
from solera.serve.coordinator.service import Coordinator

_MOST_INLINE = 1 << 20


def asks_of(here: Coordinator) -> APIRouter:
    """The routes of a learner that asks."""
    routes = APIRouter(tags=["asks"])
    store = here.store
    driver = Depends(here.driver)

    @routes.put("/v1/jobs/{job}/asks/{sequence}", dependencies=[driver])
    async def add_ask(job: Name, sequence: int, new: NewAsk) -> dict[str, Any]:
        """Ask clients of a job; the same again changes nothing."""
        now = time.time()

        def add() -> str:
            named = [new.payload] if isinstance(new.payload, str) else list(new.payload.values())
            for digest in (*named, *([new.prepare] if new.prepare else [])):
                if not here.has(digest):
                    raise UsageError(f"blob {digest[:12]}… was not uploaded")
            try:
                deadline = store.ask(job, sequence).deadline
            except SoleraError:
                deadline = None if new.seconds is None else now + new.seconds
            store.add_ask(
                job, sequence, new.task, new.version, new.payload, new.prepare, new.round,
                deadline, new.clients, now,
            )  # fmt: skip
            return store.job(job).federation

        federation = await run_in_threadpool(add)
        here.bell.ring(*((federation, client) for client in new.clients))
        return {"job": job, "sequence": sequence}

    @routes.get("/v1/jobs/{job}/asks/{sequence}/replies", dependencies=[driver])
    async def replies(job: Name, sequence: int, known: int = 0, wait: float = 0) -> dict[str, Any]:
        """Replies so far; waits for more than ``known``."""

        def look() -> dict[str, Any] | None:
            here.close_late(job, sequence, time.time())
            answered = store.answered(job, sequence)
            complete = answered == asked
            if answered <= known and not complete:
                return None
            rows = store.replies(job, sequence)
            share = min(INLINE, _MOST_INLINE // max(1, len(rows)))
            return {
                "complete": complete,
                "replies": [
                    {
                        "client": r.client,
                        "status": r.status,
                        "digest": r.digest,
                        "size": r.size,
                        "reason": r.reason,
                        "frame": here.inline(r.digest, share),
                    }
                    for r in rows
                ],
            }

        ask = await run_in_threadpool(store.ask, job, sequence)
        asked = len(ask.clients)
        of = await run_in_threadpool(store.job, job)
        ends = [end - time.time() for end in (ask.deadline, of.deadline) if end is not None]
        limit = min([wait, *(max(0.0, left) + 0.01 for left in ends)])
        found = await here.bell.until(job, look, limit)
        return found or {"complete": False, "replies": []}

    @routes.put("/v1/jobs/{job}/checkpoint", dependencies=[driver])
    def save_checkpoint(job: Name, new: NewCheckpoint) -> dict[str, Any]:
        """Remember where a job can go on; replies before it are forgotten."""
        store.save_checkpoint(job, new.first, new.sequence, new.digest, time.time())
        return {"sequence": new.sequence}

    @routes.get("/v1/jobs/{job}/checkpoint", dependencies=[driver])
    def checkpoint(job: Name, first: int) -> dict[str, Any]:
        """Where a replay of the loop that began with ask ``first`` goes on, if it does."""
        found = store.checkpoint(job, first)
        return {"sequence": found[0], "digest": found[1]} if found else {}

    @routes.post("/v1/jobs/{job}/asks/{sequence}/problems", dependencies=[driver])
    def problem(job: Name, sequence: int, new: NewProblem) -> dict[str, Any]:
        """The driver could not use a reply; everyone who looks at the job shall know."""
        store.ask(job, sequence)
        federation = store.job(job).federation
        reason = f"ask {sequence}: {new.reason}"
        return {"event": store.log(federation, job, new.client, "invalid", reason, time.time())}

    return routes

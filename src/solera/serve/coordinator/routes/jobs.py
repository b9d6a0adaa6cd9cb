"""Jobs, for drivers and administrators: start, look, cancel; contributions and models."""

import hashlib
import time
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from starlette.concurrency import run_in_threadpool

from solera.core.errors import SoleraError, UsageError
from solera.serve.coordinator.messages import Name, NewJob, NewModel, NewNote, NewQuestion, NewState
from solera.serve.coordinator.service import Coordinator
from solera.serve.coordinator.store.base import NotFound
from solera.serve.coordinator.store.tables import Client


def jobs_of(here: Coordinator) -> APIRouter:
    """The routes of whoever starts jobs and watches them."""
    routes = APIRouter(tags=["jobs"])
    store = here.store
    driver = Depends(here.driver)

    @routes.post("/v1/federations/{federation}/jobs", dependencies=[driver])
    def add_job(federation: Name, new: NewJob) -> dict[str, Any]:
        """Start a job, or find the one of that name.

        A driven job runs at once, with the clients that are there. The others run once the
        coordinator has started their learner.
        """
        now = time.time()
        deadline = None if new.seconds is None else now + new.seconds
        if not here.has(new.spec):
            raise UsageError("the job's description was not uploaded")
        try:
            known = store.job(new.id)
            deadline = known.deadline
        except SoleraError:
            known = None
        job = store.add_job(
            new.id, federation, new.kind, new.spec, new.spec, new.seed, new.owner, deadline, now
        )
        if job.state == "created" and job.kind == "driven":
            job = store.set_job_state(job.id, "running", "", now)
        return {**asdict(job), "resumed": known is not None}

    @routes.get("/v1/federations/{federation}/jobs", dependencies=[driver])
    def list_jobs(federation: Name) -> list[dict[str, Any]]:
        """The jobs of a federation, oldest first."""
        return [asdict(here.expire(job.id, time.time())) for job in store.jobs(federation)]

    @routes.get("/v1/federations/{federation}/events", dependencies=[driver])
    def federation_events(federation: Name, after: int = 0) -> list[dict[str, Any]]:
        """What happened in a federation, every refusal and failure among it."""
        return [asdict(event) for event in store.events(federation, after=after)]

    @routes.get("/v1/jobs/{job}", dependencies=[driver])
    def show_job(job: Name) -> dict[str, Any]:
        """One job, and how far it is."""
        found = here.expire(job, time.time())
        try:
            model = asdict(store.model(job))
        except NotFound:
            model = None
        return {**asdict(found), "progress": store.progress(job), "model": model}

    @routes.get("/v1/jobs/{job}/events", dependencies=[driver])
    def job_events(
        job: Name, after: int = 0, event: str | None = None, newest: bool = False
    ) -> list[dict[str, Any]]:
        """What happened in a job, a thousand events at most."""
        store.job(job)
        found = store.events(job=job, event=event, after=after, newest=newest)
        return [asdict(event) for event in found]

    @routes.post("/v1/jobs/{job}/notes", dependencies=[driver])
    def add_note(job: Name, new: NewNote) -> dict[str, int]:
        """What a learner has to say, for the job's log."""
        federation = store.job(job).federation
        number = store.log(federation, job, None, new.event, "", time.time(), facts=new.facts)
        return {"event": number}

    @routes.post("/v1/jobs/{job}/state", dependencies=[driver])
    async def set_state(job: Name, new: NewState) -> dict[str, str]:
        """Move a job on, for instance to ``cancelled``."""
        now = time.time()
        await run_in_threadpool(store.set_job_state, job, new.state, new.reason, now)
        here.bell.ring()
        return {"state": new.state}

    # --- contributions ---

    @routes.put("/v1/jobs/{job}/question", dependencies=[driver])
    async def set_question(job: Name, new: NewQuestion) -> dict[str, int]:
        """What a standing job asks of everyone, now and later."""

        def put() -> int:
            for digest in (new.payload, *([new.prepare] if new.prepare else [])):
                if not here.has(digest):
                    raise UsageError(f"blob {digest[:12]}… was not uploaded")
            now = time.time()
            question = store.set_question(job, new.task, new.version, new.payload, new.prepare, now)
            store.ask_newcomers(store.job(job).federation, now)
            return question.first

        first = await run_in_threadpool(put)
        here.bell.ring()
        return {"first": first}

    @routes.get("/v1/jobs/{job}/queue", dependencies=[driver])
    async def queue(job: Name, known: str = "", wait: float = 0) -> dict[str, Any]:
        """Contributions so far: waits for another state than ``known``."""

        def look() -> dict[str, Any] | None:
            found = store.queue(job)
            answers = {
                client: {"sequence": row.seq, "digest": row.digest}
                for client, row in sorted(found.answers.items())
            }
            running = store.job(job).state == "running"
            state = hashlib.sha256(repr(answers).encode()).hexdigest()
            if state == known and running:
                return None
            return {"state": state, "answers": answers, "open": found.open, "running": running}

        return await here.bell.until(job, look, wait) or {"state": known}

    @routes.get("/v1/jobs/{job}/contributions/{sequence}")
    async def contribution(
        job: Name, sequence: int, who: Annotated[Client | None, Depends(here.anyone)]
    ) -> dict[str, Any]:
        """Where one contribution is: waiting for the client, waiting to be folded, or folded."""
        return await run_in_threadpool(
            store.contribution, job, sequence, None if who is None else (who.federation, who.id)
        )

    # --- models ---

    @routes.put("/v1/jobs/{job}/model", dependencies=[driver])
    def publish(job: Name, new: NewModel) -> dict[str, int]:
        """Make this the job's latest model."""
        if not here.has(new.digest):
            raise UsageError("the model was not uploaded")
        return {"version": store.publish(job, new.digest, new.contributions, time.time()).version}

    @routes.get("/v1/jobs/{job}/model")
    async def model(
        job: Name, who: Annotated[Client | None, Depends(here.anyone)]
    ) -> dict[str, Any]:
        """The job's latest model; clients of its federation may have it too."""
        of = await run_in_threadpool(store.job, job)
        if who is not None and of.federation != who.federation:
            raise await here.refusal(f"client {who.name}", "a model of another federation")
        found = await run_in_threadpool(store.model, job)
        return asdict(found)

    return routes

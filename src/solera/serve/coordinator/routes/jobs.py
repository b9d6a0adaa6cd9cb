"""Jobs, for drivers and administrators: start, look, cancel; contributions and models."""

import time
from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.concurrency import run_in_threadpool

from solera.serve.coordinator.routes.messages import MessageRoute, Name
from solera.serve.coordinator.service import Coordinator
from solera.serve.coordinator.store.base import Conflict, NotFound
from solera.serve.coordinator.store.jobs import no_job
from solera.serve.coordinator.store.tables import ClientRow
from solera.serve.coordinator.web import words
from solera.serve.provenance import Provenance
from solera.serve.statements import signed
from solera.serve.wire import (
    Call,
    Contribution,
    Event,
    JobInWords,
    JobProgress,
    Model,
    NewJob,
    NewModel,
    NewNote,
    NewState,
    Queue,
    StartedJob,
)

_EVENTS = 100
"""Events of one answer: more would delay all others."""


def jobs_of(coordinator: Coordinator) -> APIRouter:
    """The routes of whoever starts jobs and watches them."""
    routes = APIRouter(tags=["jobs"], route_class=MessageRoute)
    store = coordinator.store
    driver, asker = Depends(coordinator.driver), Depends(coordinator.asker)
    Anyone = Annotated[ClientRow | None, Depends(coordinator.anyone)]

    @routes.post("/v1/federations/{federation}/jobs", dependencies=[driver])
    def add_job(federation: Name, new: NewJob) -> StartedJob:
        """Start a job, or find the one of that name.

        A driven job runs at once, with the clients that are there. The others run once the
        coordinator has started their driver.
        """
        now = time.time()
        if coordinator.log_problem:
            raise Conflict(f"no job can begin: {coordinator.log_problem}")
        coordinator.check_uploaded(new.spec)
        job = store.add_job(federation, new, now)
        if job.state == "created" and job.kind == "driven":
            running = store.set_job_state(job.id, "running", "", now)
            return StartedJob.of(running, job)
        return job

    @routes.get("/v1/federations/{federation}/jobs", dependencies=[driver])
    def list_jobs(federation: Name) -> list[JobInWords]:
        """The jobs of a federation, oldest first."""
        listed = [coordinator.expire(job, time.time()) for job in store.jobs(federation)]
        said = words.of_jobs(store, federation, listed)
        return [JobInWords.of(job, words=said[job.id]) for job in listed]

    @routes.get("/v1/federations/{federation}/events", dependencies=[driver])
    def federation_events(federation: Name, after: int = 0) -> list[Event]:
        """What happened in a federation, every refusal and failure among it."""
        return store.events(federation=federation, after=after, limit=_EVENTS)

    @routes.get("/v1/jobs/{job}", dependencies=[driver])
    def show_job(job: Name) -> JobProgress:
        """One job, and how far it is."""
        stored = coordinator.expire(store.job(job), time.time())
        try:
            model = store.model(job)
        except NotFound:
            model = None
        said = words.of_jobs(store, stored.federation, [stored])[job]
        return JobProgress.of(stored, words=said, progress=store.progress(job), model=model)

    @routes.get("/v1/jobs/{job}/events", dependencies=[driver])
    def job_events(
        job: Name, after: int = 0, event: str | None = None, newest: bool = False
    ) -> list[Event]:
        """What happened in a job, some events at a time."""
        store.job(job)
        return store.events(after=after, limit=_EVENTS, newest=newest, job=job, event=event)

    @routes.post("/v1/jobs/{job}/notes", dependencies=[asker])
    def add_note(job: Name, new: NewNote) -> dict[str, int]:
        """What a learner has to say, for the job's log."""
        return {"event": store.take_note(store.job(job), new, time.time())}

    @routes.post("/v1/jobs/{job}/state", dependencies=[driver])
    def set_state(job: Name, new: NewState) -> dict[str, str]:
        """Move a job on, for instance to ``cancelled``."""
        store.set_job_state(job, new.state, new.reason, time.time())
        coordinator.notifier.notify()
        return {"state": new.state}

    # --- contributions ---

    @routes.put("/v1/jobs/{job}/question", dependencies=[asker])
    def set_question(job: Name, new: Call) -> dict[str, int]:
        """What a standing job asks of everyone, now and later."""
        coordinator.check_uploaded(new.payload, new.prepare)
        question = store.set_question(job, new)
        store.ask_newcomers(store.job(job).federation, time.time())
        coordinator.notifier.notify()
        return {"first": question.first}

    @routes.get("/v1/jobs/{job}/queue", dependencies=[driver])
    async def queue(job: Name, known: str = "", wait: float = 0) -> Queue:
        """Contributions so far: waits for another state than ``known``."""

        async def look() -> Queue | None:
            contributions = await run_in_threadpool(store.queue, job)
            is_new = contributions.state != known or not contributions.running
            return contributions if is_new else None

        news: Queue | None = await coordinator.notifier.until(job, look, wait)
        return news or Queue(known)

    @routes.get("/v1/jobs/{job}/contributions/{sequence}")
    def contribution(job: Name, sequence: int, who: Anyone) -> Contribution:
        """Where one contribution is: waiting for the client, waiting to be folded, or folded."""
        client = None if who is None else (who.federation, who.id)
        return store.contribution(job, sequence, client)

    # --- models ---

    @routes.put("/v1/jobs/{job}/model", dependencies=[asker])
    def publish(job: Name, new: NewModel) -> dict[str, int]:
        """Make this the job's latest model."""
        coordinator.check_uploaded(new.digest)
        return {"version": store.publish(job, new, time.time()).version}

    @routes.get("/v1/jobs/{job}/model")
    def model(job: Name, who: Anyone) -> Model:
        """The job's latest model; clients of its federation may have it too."""
        if who is not None and store.job(job).federation != who.federation:
            raise no_job(job)
        return store.model(job)

    @routes.get("/v1/jobs/{job}/model/provenance")
    async def provenance(job: Name, who: Anyone, wait: float = 0) -> Provenance:
        """Where the latest model comes from, signed; waits until it is in the signed log."""
        federation = (await run_in_threadpool(store.job, job)).federation
        if who is not None and federation != who.federation:
            raise no_job(job)
        identity = coordinator.identity
        if identity is None:
            raise NotFound("this coordinator keeps no signed log")
        statement: Provenance | None = await coordinator.notifier.until(
            job,
            lambda: run_in_threadpool(store.provenance, job, coordinator.signed_event),
            wait,
        )
        if statement is None:
            raise Conflict(coordinator.log_problem or "the signed log does not hold the model yet")
        return signed(statement, identity)

    return routes

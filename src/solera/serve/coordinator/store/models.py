"""Standing jobs and the models that jobs publish.

A standing job has one question, which every client answers when it can. The latest answer of a
client replaces its earlier ones, so that none counts twice; the model is made of the latest of all.
"""

from __future__ import annotations

import hashlib
from typing import Any

from msgspec.structs import asdict
from sqlalchemy import Connection, Select, func, select, update

from solera.core.errors import UsageError
from solera.serve.coordinator.store.asks import insert_ask
from solera.serve.coordinator.store.base import (
    Base,
    Conflict,
    NotFound,
    find_row,
    first_row,
    note,
)
from solera.serve.coordinator.store.events import INVALID, problem
from solera.serve.coordinator.store.jobs import find_job
from solera.serve.coordinator.store.tables import (
    OPEN,
    REPLY_COLUMNS,
    AskRow,
    QuestionRow,
    asks,
    clients,
    deliveries,
    events,
    jobs,
    models,
    questions,
    signed_log,
)
from solera.serve.provenance import PUBLISHED, Provenance, Took
from solera.serve.wire import Call, Contribution, Model, NewModel, Queue, Queued


class Models(Base):
    """Questions, contributions and models."""

    def set_question(self, job: str, call: Call) -> QuestionRow:
        """What a standing job asks from now on; the first question stands."""
        with self._write() as connection:
            stored_job = find_job(connection, job, lock=True)
            if stored_job.kind != "standing":
                raise UsageError(
                    f"job {job!r} is {stored_job.kind}, only standing jobs have a question"
                )
            first = 1 + _last_ask(connection, job)
            self._add(connection, questions, job=job, first=first, **asdict(call))
            stored = _question(connection, job)
            if Call.of(stored) != call:
                raise Conflict(f"job {job!r} has another question")
            return stored

    def contribute(self, job: str, client: int, now: float) -> int:
        """Ask a client for a contribution; the number of the ask, of the open one if there is."""
        with self._write() as connection:
            stored_job = find_job(connection, job, lock=True)
            question = _question(connection, job)
            waiting = _contributions(question).filter_by(client=client, status=OPEN)
            open_ask = connection.execute(waiting).first()
            if open_ask is not None:
                return int(open_ask.seq)
            seq = max(question.first, 1 + _last_ask(connection, job))
            ask = AskRow.of(
                question,
                seq=seq,
                round=seq - question.first,
                deadline=None,
                clients=[client],
                created=now,
            )
            insert_ask(connection, stored_job, ask, {})
            return seq

    def ask_newcomers(self, federation: str, now: float) -> int:
        """Ask everyone who was never asked for a contribution; how many asks that makes."""
        asked = select(deliveries.c.client).where(
            deliveries.c.job == jobs.c.id, deliveries.c.seq >= questions.c.first
        )
        missing = (
            select(jobs.c.id, clients.c.id)
            .join(questions, questions.c.job == jobs.c.id)
            .join(clients, clients.c.federation == jobs.c.federation)
            .where(jobs.c.federation == federation, jobs.c.state == "running")
            .where(clients.c.revoked.is_(None), clients.c.id.not_in(asked))
        )
        with self._read() as connection:
            newcomers = connection.execute(missing).all()
        for job, client in newcomers:
            self.contribute(job, client, now)
        return len(newcomers)

    def queue(self, job: str) -> Queue:
        """The contributions to a standing job so far."""
        with self._read() as connection:
            stored_job, question = find_job(connection, job), _question(connection, job)
            latest: dict[int, Queued] = {}
            waiting: list[int] = []
            for row in connection.execute(_contributions(question).order_by(deliveries.c.seq)):
                if row.status == OPEN:
                    waiting.append(row.seq)
                elif row.status == "ok" and row.digest is not None:
                    latest[row.client] = Queued(
                        row.seq, row.digest, row.size, row.seq - question.first, row.signature.hex()
                    )
        answers = dict(sorted(latest.items()))
        state = hashlib.sha256(repr(answers).encode()).hexdigest()
        return Queue(state, answers, waiting, stored_job.state == "running")

    def contribution(self, job: str, seq: int, client: tuple[str, int] | None) -> Contribution:
        """Where a contribution is; clients see only their own."""
        with self._read() as connection:
            stored_job, question = find_job(connection, job), _question(connection, job)
            row = connection.execute(_contributions(question).filter_by(seq=seq)).first()
            if row is None or client not in (None, (stored_job.federation, row.client)):
                raise NotFound(f"no contribution {seq} to job {job!r}")
            model = first_row(connection, Model, _model(job))
            against = select(events.c.reason).filter_by(job=job, client=row.client, event=INVALID)
            why = connection.scalar(against.where(events.c.reason.startswith(problem(seq))))
        state, reason = row.status, row.reason
        if state == "ok" and why is not None:
            state, reason = INVALID, why
        elif state == "ok":
            folded = {} if model is None else model.contributions
            state = "folded" if folded.get(str(row.client), -1) >= seq else "queued"
        return Contribution(seq, row.client, state, reason)

    def standing_jobs(self, federation: str, client: int) -> list[str]:
        """The running standing jobs to which a client has contributed."""
        ours = select(jobs.c.id).filter_by(federation=federation, kind="standing", state="running")
        with self._read() as connection:
            names = connection.scalars(ours.order_by(jobs.c.id)).all()
            return [
                name
                for name in names
                if connection.scalar(
                    select(func.count()).select_from(deliveries).filter_by(job=name, client=client)
                )
            ]

    # --- models ---

    def publish(self, job: str, new: NewModel, now: float) -> Model:
        """Make this the job's latest model.

        What a client contributed before the ask named for it is no longer needed.
        """
        with self._write() as connection:
            stored_job = find_job(connection, job, lock=True)
            before = first_row(connection, Model, _model(job))
            if before is not None and before.digest == new.digest:
                return before  # a driver that died after publishing publishes again
            version = 1 if before is None else before.version + 1
            contributions = {str(client): seq for client, seq in sorted(new.contributions.items())}
            model = Model(job, version, new.digest, contributions, now)
            self._put(connection, models, **asdict(model))
            for client, seq in new.contributions.items():
                own = update(deliveries).filter_by(job=job, client=client)
                done = own.where(deliveries.c.seq < seq, deliveries.c.status != OPEN)
                connection.execute(done.values(pruned=True, digest=None))
            facts = {"digest": new.digest, "version": version, "contributions": len(contributions)}
            note(connection, PUBLISHED, now, of=stored_job, facts=facts)
            return model

    def model(self, job: str) -> Model:
        """The latest model of a job."""
        with self._read() as connection:
            find_job(connection, job)
            missing = f"job {job!r} has not published a model yet"
            return find_row(connection, Model, _model(job), missing)

    def provenance(self, job: str, signed: int) -> Provenance | None:
        """What can be said of the latest model, or None before the log holds event ``signed``."""
        with self._read() as connection:
            stored_job, model = find_job(connection, job), first_row(connection, Model, _model(job))
            if model is None:
                raise NotFound(f"job {job!r} has not published a model yet")
            newest = select(func.max(events.c.id)).filter_by(job=job, event=PUBLISHED)
            head = connection.execute(select(signed_log.c.line, signed_log.c.hash)).first()
            if head is None or (connection.scalar(newest) or 0) > signed:
                return None
            replies = _replies(connection, job, model)
            members = select(clients.c.id, clients.c.name, clients.c.sign_key).filter_by(
                federation=stored_job.federation
            )
            took = {
                str(row.id): Took(
                    row.name,
                    row.sign_key.hex(),
                    len(replies[row.id]),
                    hashlib.sha256(b"".join(replies[row.id])).hexdigest(),
                )
                for row in connection.execute(members.order_by(clients.c.id))
                if row.id in replies
            }
        return Provenance(
            federation=stored_job.federation,
            job=job,
            kind=stored_job.kind,
            spec=stored_job.spec,
            version=model.version,
            model=model.digest,
            time=model.time,
            clients=took,
            line=head.line,
            hash=head.hash,
        )


def _replies(connection: Connection, job: str, model: Model) -> dict[int, list[bytes]]:
    """The signatures of the replies that a model was made of, by client, in order."""
    answered = select(deliveries.c.client, deliveries.c.seq, deliveries.c.signature)
    answered = answered.filter_by(job=job, status="ok").order_by(deliveries.c.seq)
    used = {int(client): seq for client, seq in model.contributions.items()}
    replies: dict[int, list[bytes]] = {}
    for row in connection.execute(answered):
        if row.signature is not None and (not used or used.get(row.client) == row.seq):
            replies.setdefault(row.client, []).append(row.signature)
    return replies


def _last_ask(connection: Connection, job: str) -> int:
    return connection.scalar(select(func.max(asks.c.seq)).where(asks.c.job == job)) or 0


def _question(connection: Connection, job: str) -> QuestionRow:
    chosen = select(questions).filter_by(job=job)
    missing = f"job {job!r} asks for no contributions, or not yet"
    return find_row(connection, QuestionRow, chosen, missing)


def _model(job: str) -> Select[Any]:
    return select(models).filter_by(job=job)


def _contributions(question: QuestionRow) -> Select[tuple[object, ...]]:
    ours = select(*REPLY_COLUMNS).filter_by(job=question.job)
    return ours.where(deliveries.c.seq >= question.first)

"""Standing jobs and the models that jobs publish.

A standing job has one question, which every client answers when it can. The latest answer of a
client replaces its earlier ones, so that none counts twice; the model is made of the latest of all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, and_, func, insert, select, update

from solera.core.errors import UsageError
from solera.serve.coordinator.store.asks import insert_ask
from solera.serve.coordinator.store.base import Base, Conflict, NotFound, note, row_of
from solera.serve.coordinator.store.blobs import check_digest
from solera.serve.coordinator.store.jobs import find_job
from solera.serve.coordinator.store.tables import (
    OPEN,
    Ask,
    Model,
    Question,
    ReplyRow,
    asks,
    clients,
    deliveries,
    jobs,
    models,
    questions,
)


@dataclass(frozen=True, slots=True)
class Queue:
    """Where the contributions to a standing job are.

    ``answers`` is the latest reply of each client that gave one; ``open`` are the asks, by number,
    that clients have yet to answer.
    """

    answers: dict[int, ReplyRow]
    open: list[int]


class Models(Base):
    """Questions, contributions and models."""

    def set_question(
        self, job: str, task: str, version: int, payload: str, prepare: str | None, now: float
    ) -> Question:
        """What a standing job asks from now on; the first question stands."""
        check_digest(payload)
        with self._write() as connection:
            of = find_job(connection, job, lock=True)
            if of.kind != "standing":
                raise UsageError(f"job {job!r} is {of.kind}, only standing jobs have a question")
            last = select(func.max(asks.c.seq)).where(asks.c.job == job)
            first = 1 + (connection.execute(last).scalar() or 0)
            asked = {"task": task, "version": version, "payload": payload, "prepare": prepare}
            self._add(connection, questions, job=job, first=first, **asked)
            found = _question(connection, job)
            if any(getattr(found, name) != value for name, value in asked.items()):
                raise Conflict(f"job {job!r} has another question")
            return found

    def question(self, job: str) -> Question:
        """What a standing job asks."""
        with self._read() as connection:
            return _question(connection, job)

    def contribute(self, job: str, client: int, now: float) -> int:
        """Ask a client for a contribution; the number of the ask, of the open one if there is."""
        with self._write() as connection:
            of = find_job(connection, job, lock=True)
            question = _question(connection, job)
            ours = and_(deliveries.c.job == job, deliveries.c.seq >= question.first)
            waiting = select(deliveries.c.seq).where(
                ours, deliveries.c.client == client, deliveries.c.status == OPEN
            )
            found = connection.execute(waiting).scalar()
            if found is not None:
                return int(found)
            last = connection.execute(select(func.max(asks.c.seq)).where(asks.c.job == job))
            seq = max(question.first, 1 + (last.scalar() or 0))
            ask = Ask(
                job, seq, question.task, question.version, question.payload, question.prepare,
                seq - question.first, None, [client], now, False,
            )  # fmt: skip
            insert_ask(connection, of, ask, {})
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
            found = connection.execute(missing).all()
        for job, client in found:
            self.contribute(job, client, now)
        return len(found)

    def queue(self, job: str) -> Queue:
        """The contributions to a standing job so far."""
        with self._read() as connection:
            question = _question(connection, job)
            chosen = _contributions(question).order_by(deliveries.c.seq)
            answers: dict[int, ReplyRow] = {}
            waiting: list[int] = []
            for row in connection.execute(chosen):
                if row.status == OPEN:
                    waiting.append(row.seq)
                elif row.status == "ok" and row.digest is not None:
                    answers[row.client] = row_of(ReplyRow, row)
            return Queue(answers, waiting)

    def contribution(self, job: str, seq: int, client: tuple[str, int] | None) -> dict[str, Any]:
        """Where a contribution is; clients see only their own."""
        with self._read() as connection:
            of, question = find_job(connection, job), _question(connection, job)
            row = connection.execute(
                _contributions(question).where(deliveries.c.seq == seq)
            ).first()
            if row is None or client not in (None, (of.federation, row.client)):
                raise NotFound(f"no contribution {seq} to job {job!r}")
            model = _model(connection, job)
        state, folded = row.status, {} if model is None else model.contributions
        if state == "ok":
            state = "folded" if folded.get(str(row.client), -1) >= seq else "queued"
        return {"id": seq, "client": row.client, "state": state, "reason": row.reason}

    # --- models ---

    def publish(self, job: str, digest: str, contributions: Mapping[int, int], now: float) -> Model:
        """Make this the job's latest model, made from these asks of these clients.

        What a client contributed before the ask named for it is no longer needed.
        """
        check_digest(digest)
        with self._write() as connection:
            of = find_job(connection, job, lock=True)
            before = _model(connection, job)
            if before is not None and before.digest == digest:
                return before  # a manager that died after publishing publishes again
            version = 1 if before is None else before.version + 1
            made_from = {str(client): seq for client, seq in sorted(contributions.items())}
            new = Model(job, version, digest, made_from, now)
            values = {name: getattr(new, name) for name in models.c.keys()}  # noqa: SIM118
            connection.execute(
                insert(models).values(values)
                if before is None
                else update(models).where(models.c.job == job).values(values)
            )
            for client, seq in contributions.items():
                earlier = and_(
                    deliveries.c.job == job, deliveries.c.client == client, deliveries.c.seq < seq
                )
                done = update(deliveries).where(earlier, deliveries.c.status != OPEN)
                connection.execute(done.values(pruned=True, digest=None))
            facts = {"digest": digest, "version": version, "contributions": len(contributions)}
            note(connection, "published", now, federation=of.federation, job=job, facts=facts)
            return new

    def model(self, job: str) -> Model:
        """The latest model of a job."""
        with self._read() as connection:
            find_job(connection, job)
            found = _model(connection, job)
            if found is None:
                raise NotFound(f"job {job!r} has not published a model yet")
            return found


def _question(connection: Connection, job: str) -> Question:
    row = connection.execute(select(questions).where(questions.c.job == job)).first()
    if row is None:
        raise NotFound(f"job {job!r} asks for no contributions, or not yet")
    return row_of(Question, row)


def _model(connection: Connection, job: str) -> Model | None:
    row = connection.execute(select(models).where(models.c.job == job)).first()
    return None if row is None else row_of(Model, row)


def _contributions(question: Question) -> Select[tuple[object, ...]]:
    columns = [column for column in deliveries.c if column.name != "payload"]
    ours = and_(deliveries.c.job == question.job, deliveries.c.seq >= question.first)
    return select(*columns).where(ours)

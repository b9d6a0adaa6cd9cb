"""The driver that a coordinator starts for a job: a process in which the job's learner runs.

It drives the job through the coordinator's own service, like any driver: whatever dies, it is
started again and goes through the same asks. Everything it needs to know is at the coordinator.

    python -m solera.serve.driver.managed URL JOB PARENT
"""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any

from msgspec import convert

from solera.core.errors import SoleraError
from solera.core.federation import Federation
from solera.core.payload import decode
from solera.core.rounds import Callback, Round
from solera.engines.child import die_with
from solera.evaluation.figure import Figure
from solera.green.energy import track_energy
from solera.learn.averaging.base import Averaging
from solera.learn.base import Additive, Learner, Predictor
from solera.learn.scores import gives_scores
from solera.serve import wire
from solera.serve.connection import PIN, TOKEN, Connection, CoordinatorError
from solera.serve.driver.engine import HttpEngine
from solera.serve.driver.published import publish
from solera.serve.driver.standing import Standing
from solera.serve.job_spec import JobSpec, parse_job

log = logging.getLogger("solera.driver")

_LOOK_SECONDS = 1.0


def drive(connection: Connection, job: str) -> None:
    """Run a job to its end."""
    description = connection.download(_job(connection, job).spec)
    spec = parse_job(decode(description)["toml"], file=job, name=job)
    _wait_for_clients(connection, job, spec)
    engine = HttpEngine(connection, job)
    federation = Federation(
        engine, seed=spec.seed, secure=spec.secure, positive=spec.positive or None
    )
    learner = spec.learner
    if isinstance(learner, Additive) and spec.standing:
        Standing(connection, job, learner, federation).run()
        return
    with track_energy(federation, source="model") as tracked:
        learner.fit(federation, callbacks=[_Notes(connection, engine)])
        publish(connection, job, learner)
        _evaluate(connection, job, learner, federation, spec)
    traffic = federation.meter.total()
    took = {"wh": tracked.use.wh, "bytes_down": traffic.down, "bytes_up": traffic.up}
    _note(connection, job, wire.NewNote("cost", numbers(took)))
    warnings = (learner._trained_with or {}).get("warnings", ())
    _move(connection, job, "finished", " ".join(warnings))


def _job(connection: Connection, job: str) -> wire.Job:
    return connection.call("GET", f"/v1/jobs/{job}", wire.Job)


def _wait_for_clients(connection: Connection, job: str, spec: JobSpec) -> None:
    """Begin once enough clients have joined."""
    path = f"/v1/federations/{spec.federation}"
    while True:
        state = _job(connection, job).state
        if state not in ("created", "waiting"):
            return
        members = connection.call("GET", path, wire.Members).clients
        if sum(member.status == "active" for member in members) >= spec.clients:
            _move(connection, job, "running")
            return
        if state == "created":
            _move(connection, job, "waiting", f"for {spec.clients} clients to join")
        time.sleep(_LOOK_SECONDS)


def _evaluate(
    connection: Connection, job: str, learner: Learner, federation: Federation, spec: JobSpec
) -> None:
    if not (spec.evaluates and isinstance(learner, Predictor)):
        return
    scores = spec.counts_scores and gives_scores(learner)
    found = learner.evaluate(federation, spec.evaluate, per_client=False, scores=scores)
    _note(connection, job, wire.NewNote("evaluated", numbers(found.metrics)))


def numbers(metrics: Mapping[str, Any]) -> dict[str, float | wire.Measured]:
    """The finite numbers among some values, figures with the rows that they rest on."""
    return {
        name: convert(value.to_payload(), wire.Measured)
        if isinstance(value, Figure)
        else float(value)
        for name, value in metrics.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }


def _note(connection: Connection, job: str, note: wire.NewNote) -> None:
    """Write into the job's log."""
    connection.request("POST", f"/v1/jobs/{job}/notes", json=note)


def _move(connection: Connection, job: str, state: wire.State, reason: str = "") -> None:
    change = wire.NewState(state, reason[:2000])
    connection.request("POST", f"/v1/jobs/{job}/state", json=change)


class _Notes(Callback):
    """Writes what every round came to into the job's log, once also when a round is replayed."""

    def __init__(self, connection: Connection, engine: HttpEngine) -> None:
        self.connection, self.engine = connection, engine
        path = f"/v1/jobs/{engine.job}/events?event=round&newest=true"
        events = connection.call("GET", path, list[wire.Event])
        self.last = max(((event.facts or {})["round"] for event in events), default=-1)

    def on_round(self, learner: Any, round: Round) -> None:
        told = {}
        if isinstance(learner, Averaging):
            told = self.engine.told.take(learner.update)
        if round.index > self.last:
            losses = {self.engine.numbers[client]: loss for client, loss in told.items()}
            note = wire.NewNote("round", numbers(round.metrics), losses)
            _note(self.connection, self.engine.job, note)


def main() -> None:
    """Run the job; what the learner cannot do ends the job, what the machine cannot do does not."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the coordinator decides when this ends
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    url, job, parent = sys.argv[1:]
    token = {"Authorization": f"Bearer {os.environ.pop(TOKEN)}"}
    die_with(int(parent))
    connection = Connection(url, lambda *_: token, pin=os.environ.pop(PIN, None))
    try:
        drive(connection, job)
    except CoordinatorError:
        raise  # cancelled, expired, or the coordinator is gone: it knows better what to do
    except SoleraError as error:
        log.error("%s", error)
        _move(connection, job, "failed", str(error))
    finally:
        connection.close()


if __name__ == "__main__":
    main()

"""The owner's pages of closed jobs: what its agent keeps, beside what the coordinator tells."""

from __future__ import annotations

from base64 import b64encode
from contextlib import closing
from pathlib import Path
from typing import Any

from solera.core.errors import SoleraError, UsageError
from solera.serve.agent import home
from solera.serve.agent.closed.store import OVER, ClosedStore, OwnJob
from solera.serve.agent.epoch_files import EpochFiles
from solera.serve.closed import ClosedJob, OwnerState
from solera.serve.closed_view import closed_view
from solera.serve.closed_words import clock, name_of, parsed
from solera.serve.identity import Identity
from solera.trust.board.text import jid, parse
from solera.trust.epoch import Epoch

_PATIENCE = 3.0


def closed_jobs(folder: Path) -> list[dict[str, Any]]:
    """All closed jobs that this client knows, a line for each, the newest first."""
    store = ClosedStore(folder / home.CLOSED)
    try:
        return [_line(job) for job in reversed(store.jobs())]
    finally:
        store.close()


def closed_shown(folder: Path, place: home.Place, identity: Identity, hash: str) -> dict[str, Any]:
    """One closed job; as the agent has it where the coordinator does not answer."""
    store = ClosedStore(folder / home.CLOSED)
    try:
        own = store.job(hash)
        if own is None:
            raise UsageError(f"there is no closed job {hash[:12]} here")
        told = store.numbers_told(own.epoch)
    finally:
        store.close()
    epoch = _epoch(folder, own.epoch)
    persons = 0 if epoch is None else sum(owner.persons for owner in epoch.owners)
    problem = ""
    try:
        with closing(home.connect_to(place, identity, _PATIENCE)) as connection:
            job = connection.call("GET", f"/v1/closed/{hash}", ClosedJob)
            _check(job, own)
    except SoleraError as error:
        problem, job = f"As this client has it: {error.message}", _as_here(own, epoch, place)
    shown = {"own": own, "told": told, "persons": persons, "problem": problem}
    return {"view": closed_view(job), **shown}


def _line(job: OwnJob) -> dict[str, Any]:
    text = parse(job.text)
    waits = f"waits for {', '.join(job.waits)} since {clock(job.waits_since)}" if job.waits else ""
    state = "waits for your decision" if job.state == "held" else job.state
    return {
        "jid": job.jid,
        "name": name_of(text),
        "kind": text.kind,
        "researcher": text.researcher,
        "since": clock(job.since),
        "words": "; ".join(part for part in (state, job.reason, waits) if part),
        "held": job.state == "held",
        "over": job.state in OVER,
    }


def _check(job: ClosedJob, own: OwnJob) -> None:
    """What is shown is what the hash covers, whatever the coordinator says."""
    if jid(bytes.fromhex(own.epoch), own.text).hex() != job.jid or job.text != _encoded(own):
        raise UsageError("the coordinator shows another text under this hash")
    parsed(job)


def _encoded(own: OwnJob) -> str:
    return b64encode(own.text).decode()


def _epoch(folder: Path, hash: str) -> Epoch | None:
    epochs = [signed.epoch for signed in EpochFiles(folder).all()]
    return next((e for e in epochs if hash in (e.hash.hex(), e.agreed.hash.hex())), None)


def _as_here(own: OwnJob, epoch: Epoch | None, place: home.Place) -> ClosedJob:
    owners = [] if epoch is None else epoch.owners
    states = [OwnerState(o.name, o.key.hex(), awaited=o.name in own.waits) for o in owners]
    known = {"held": "waiting", "approved": "waiting"}
    return ClosedJob(
        own.jid,
        place.federation,
        own.epoch,
        _encoded(own),
        known.get(own.state, own.state),  # type: ignore[arg-type]
        own.reason,
        own.since,
        own.since,
        states,
        own.step,
        own.waits_since if own.waits else None,
        own.sums,
    )

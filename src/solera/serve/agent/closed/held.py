"""Texts of closed jobs that wait here for people, as ``solera held`` shows them."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from solera.core.errors import UsageError
from solera.serve.agent import home
from solera.serve.agent.closed.store import ClosedStore, OwnJob
from solera.serve.agent.held_jobs import HeldJob
from solera.serve.closed_words import name_of, text_words
from solera.trust.board.text import JobText, parse


def held_texts(folder: Path) -> list[HeldJob]:
    """What waits, as of the agent's last look."""
    if not (folder / home.CLOSED).exists():
        return []
    store = ClosedStore(folder / home.CLOSED)
    try:
        held = [job for job in store.jobs() if job.state == "held"]
        return [_held(job) for job in held if parse(job.text).kind != "atoms"]
    finally:
        store.close()


def text_of_hash(folder: Path, beginning: str) -> JobText:
    """The text that this client was shown whose hash begins so."""
    store = ClosedStore(folder / home.CLOSED)
    try:
        texts = [job.text for job in store.jobs() if job.jid.startswith(beginning)]
    finally:
        store.close()
    if len(texts) != 1:
        raise UsageError(f"there is no text {beginning} here, and no file of that name")
    return parse(texts[0])


def _held(job: OwnJob) -> HeldJob:
    text = parse(job.text)
    since = datetime.fromtimestamp(job.since).astimezone().isoformat(timespec="seconds")
    name, who = name_of(text), text.researcher
    return HeldJob(job.jid, name, who, text.kind, "", since, text_words(text))

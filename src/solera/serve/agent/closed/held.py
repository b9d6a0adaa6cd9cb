"""Texts of closed jobs that wait here for people, as ``solera held`` shows them."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from solera.serve.agent import home
from solera.serve.agent.closed.store import ClosedStore, OwnJob
from solera.serve.agent.held_jobs import HeldJob
from solera.serve.closed_words import name_of, text_words
from solera.trust.board.text import parse


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


def _held(job: OwnJob) -> HeldJob:
    text = parse(job.text)
    since = datetime.fromtimestamp(job.since).astimezone().isoformat(timespec="seconds")
    name, who = name_of(text), text.researcher
    return HeldJob(job.jid, name, who, text.kind, "", since, text_words(text))

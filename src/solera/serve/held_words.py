"""How a client says, in what it does, that jobs wait for its people; and how that is read."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

_HELD = "waits for approval of "


def held_words(jobs: Iterable[tuple[str, str]]) -> str:
    """What a client does whose people have yet to approve jobs, each with the time since when."""
    said = [f"{job} since {_clock(datetime.fromisoformat(since))}" for job, since in jobs]
    return f"{_HELD}{', '.join(said)}" if said else ""


def held_since(doing: str, job: str) -> str | None:
    """Since when a client that does this holds a job back; None if it does not."""
    if not doing.startswith(_HELD):
        return None
    for part in doing[len(_HELD) :].split(", "):
        name, _, since = part.partition(" since ")
        if name == job and since:
            return since
    return None


def _clock(moment: datetime) -> str:
    moment, now = moment.astimezone(UTC), datetime.now(UTC)
    return moment.strftime("%H:%M UTC" if moment.date() == now.date() else "%Y-%m-%d %H:%M UTC")

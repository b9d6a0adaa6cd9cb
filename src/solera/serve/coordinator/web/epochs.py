"""The page of a federation's epoch: the newest draft, how far its owners are, and its words."""

from __future__ import annotations

from typing import Any

from solera.serve.coordinator.store.base import NotFound
from solera.serve.coordinator.store.store import Store
from solera.serve.epoch_view import epoch_view


def epoch_shown(store: Store, federation: str) -> dict[str, Any]:
    """What the page shows of the newest draft, and which epoch is in force beside it."""
    try:
        newest = store.newest_draft(federation)
    except NotFound:
        return {"name": federation, "view": None, "current": ""}
    settled = store.signed_epochs(federation)
    signed = settled[0].agreement().signed() if settled else None
    other = signed is not None and settled[0].draft != newest.draft
    current = f"{signed.epoch.hash.hex()[:16]}, {signed.epoch.words()}" if signed and other else ""
    return {"name": federation, "view": epoch_view(newest.agreement()), "current": current}

"""The owner's page of the epoch: what the coordinator shows, beside what was signed here."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from solera.core.errors import SoleraError
from solera.serve.agent.epoch_boards import CoordinatorBoard
from solera.serve.agent.epoch_files import EpochFiles
from solera.serve.agent.home import Place, connect_to
from solera.serve.connection import CoordinatorError
from solera.serve.epoch_view import epoch_view
from solera.serve.identity import Identity
from solera.trust.epoch import SignedEpoch
from solera.trust.epoch.agreement import Agreement

_PATIENCE = 3.0


def epoch_shown(folder: Path, place: Place, identity: Identity) -> dict[str, Any]:
    """What the page shows: the newest draft, or what was signed here where nobody answers."""
    files, problem = EpochFiles(folder), ""
    try:
        with closing(connect_to(place, identity, _PATIENCE)) as connection:
            seen: Agreement | None = CoordinatorBoard(connection, place.federation).look()
    except SoleraError as error:
        is_away = not (isinstance(error, CoordinatorError) and error.status == 404)
        problem = f"As it was signed here: {error.message}" if is_away else ""
        seen = _agreement(files.all()[-1]) if is_away and files.all() else None
    if seen is not None and (signed := seen.signed()) is not None:
        files.complete(signed)
    current = files.current()
    said, command = _next(seen, place.name, folder) if seen else ("", "")
    in_force = ""
    if current is not None and (seen is None or current.epoch.draft != seen.draft):
        in_force = f"{current.epoch.hash.hex()[:16]}, {current.epoch.words()}"
    return {
        "view": epoch_view(seen) if seen else None,
        "problem": problem,
        "next": said,
        "command": command,
        "current": in_force,
    }


def _next(seen: Agreement, name: str, folder: Path) -> tuple[str, str]:
    """What is this owner's to do, and by which command."""
    sign = f"solera dictionary sign --folder {folder}"
    if name not in seen.draft.owners:
        return "This draft does not name you.", ""
    if name in seen.waiting:
        return "Your rows are not entered yet. See whether they fit, then enter them:", (
            f"solera dictionary check --folder {folder}; {sign}"
        )
    signed = seen.signed()
    if signed is None:
        return "Your part is entered; the others are waited for.", ""
    if name in signed.missing:
        return "What signing tells, and signing:", (
            f"solera dictionary change --folder {folder}; {sign}"
        )
    if signed.unsettled and not signed.missing:
        return "You have signed. Your agent finds the atoms with the others', and signs them.", ""
    return "You have signed.", ""


def _agreement(signed: SignedEpoch) -> Agreement:
    epoch = signed.epoch
    parts = {owner.name: owner for owner in epoch.owners}
    return Agreement(epoch.draft, parts, signed.signatures, epoch.atoms)

"""What a driver learns of owners before a job: whether they trust it, and their epoch."""

from __future__ import annotations

import logging
import time

from solera.core.errors import UsageError
from solera.serve.connection import Connection, CoordinatorError
from solera.serve.epochs import DraftState
from solera.serve.wire import Members
from solera.trust.epoch.epoch import Epoch, SignedEpoch

log = logging.getLogger("solera")

_LOOK_SECONDS, _PATIENCE = 0.2, 5.0
_TRUSTED, _SILENT = "trusted", ""


def policies_so_far(connection: Connection, federation: str) -> tuple[set[str], list[str]]:
    """The names of owners' policies, and the owners that have yet to say their own."""
    members = connection.call("GET", f"/v1/federations/{federation}", Members).clients
    active = [member for member in members if member.status == "active"]
    silent = [member.name for member in active if member.policy is None]
    return {member.policy for member in active if member.policy is not None}, silent


def policies_of(connection: Connection, federation: str) -> set[str]:
    """The names of all owners' policies, as their agents say.

    Who has yet to say its own is waited for a little: its agent may be starting. In an epoch its
    policy is then taken for one that trusts nobody. Agents keep their policies whatever is believed
    of them here.
    """
    until = time.monotonic() + _PATIENCE
    while True:
        policies, silent = policies_so_far(connection, federation)
        if not silent or "sums" in policies:  # nothing is stricter
            return policies or {_TRUSTED}
        if time.monotonic() > until:
            log.info("%s: has not said which policy it has", ", ".join(silent))
            if _has_epoch(connection, federation):
                return policies | {_SILENT}
            return policies or {_TRUSTED}
        time.sleep(_LOOK_SECONDS)


def signed_epoch(connection: Connection, federation: str) -> Epoch:
    """The epoch that all owners have signed; an error that names who has not, and the commands."""
    path = f"/v1/federations/{federation}/epoch"
    try:
        signed = SignedEpoch.decode(connection.request("GET", path).content)
    except CoordinatorError as error:
        if error.status != 404:
            raise
        raise _unsigned(connection, federation) from None
    return signed.verify()


def _has_epoch(connection: Connection, federation: str) -> bool:
    try:
        connection.request("GET", f"/v1/federations/{federation}/epoch")
    except CoordinatorError as error:
        if error.status != 404:
            raise
        return False
    return True


def _unsigned(connection: Connection, federation: str) -> UsageError:
    """Who has yet to do what, and the commands."""
    try:
        path = f"/v1/federations/{federation}/dictionary"
        seen = connection.call("GET", path, DraftState).agreement()
    except CoordinatorError as error:
        if error.status != 404:
            raise
        return UsageError(
            f"federation {federation!r} has no signed epoch, and no draft of a dictionary",
            hint="one owner: solera dictionary draft, then every owner: solera dictionary sign",
        )
    signed = seen.signed()
    missing = seen.waiting if signed is None else signed.missing
    if not missing:
        return UsageError(
            f"the atoms of federation {federation!r}'s epoch are yet to be found by its owners' "
            f"agents: {seen.search or 'none has begun'}",
            hint="wait; where they have failed, at one owner: solera dictionary sign",
        )
    return UsageError(
        f"federation {federation!r} has no signed epoch: still missing {', '.join(missing)}",
        hint="there: solera dictionary check, then solera dictionary sign",
    )

"""The epoch under which a federation's closed jobs run, as its coordinator shows it."""

from __future__ import annotations

from solera.core.errors import UsageError
from solera.serve.connection import Connection, CoordinatorError
from solera.trust.epoch.epoch import Epoch, SignedEpoch


def signed_epoch(connection: Connection, federation: str) -> Epoch:
    """The epoch that all owners have signed; an error that names who has not, and the commands."""
    path = f"/v1/federations/{federation}/epoch"
    try:
        signed = SignedEpoch.decode(connection.request("GET", path).content)
    except CoordinatorError as error:
        if error.status != 404:
            raise
        raise UsageError(
            f"federation {federation!r} has no epoch: its owners have yet to agree on a dictionary",
            hint="one owner: solera dictionary draft; every owner: solera dictionary check, sign",
        ) from None
    if signed.missing:
        raise UsageError(
            f"the epoch of {federation!r} is still to be signed by {', '.join(signed.missing)}",
            hint="there: solera dictionary check, solera dictionary sign",
        )
    return signed.verify()

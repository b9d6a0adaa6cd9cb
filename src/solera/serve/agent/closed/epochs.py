"""The epoch that this owner has signed last, in the client's folder."""

from __future__ import annotations

from pathlib import Path

from solera.trust.epoch.epoch import Epoch, SignedEpoch

FILE = "epoch.sol"


def current_epoch(folder: Path) -> Epoch | None:
    """The epoch, if all owners have signed it; checked whenever it is read."""
    path = folder / FILE
    if not path.exists():
        return None
    return SignedEpoch.decode(path.read_bytes()).verify()

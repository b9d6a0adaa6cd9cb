"""Writes the epochs of a client's folder, and one as a file, as this version has them.

PYTHONPATH=.:src python tests/state/make_epochs.py tests/state/VERSION
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.trust.epoch.hospitals import NAMES, epoch_of, four, signed_by

from solera.serve.agent.epoch_files import EpochFiles
from solera.trust.epoch import SignedEpoch


def main(folder: Path) -> None:
    """An epoch that four hospitals have signed, at the first of them and as a file."""
    hospitals = four()
    epoch = epoch_of(hospitals)
    signed = signed_by(hospitals, epoch)
    assert isinstance(signed, SignedEpoch)
    assert epoch.draft.owners == NAMES
    agent = folder / "epochs" / "agent"
    agent.mkdir(parents=True)
    EpochFiles(agent).keep(signed, hospitals[0].snapshot())
    (folder / "epochs" / "heart.epoch").write_bytes(signed.encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""What an owner keeps of epochs: each that it has signed, and who was in it with what.

epochs/0001-5f0c9a2e.epoch      the epoch, and the signatures that are known here
epochs/0001-5f0c9a2e.snapshot   keyed hashes of persons and rows, to see what the next one changes
epochs/0001-5f0c9a2e.ended      a person of it withdrew: nothing runs in it here any more
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from solera.core.private_files import read_private, write_file
from solera.serve.connection import Connection, CoordinatorError
from solera.serve.epochs import DraftState
from solera.trust.epoch import Epoch, EpochError, PastSnapshot, SignedEpoch, Snapshot

FOLDER = "epochs"


@dataclass(frozen=True)
class EpochFiles:
    """The epochs in a client's folder, in the order in which it signed them."""

    folder: Path

    def keep(self, signed: SignedEpoch, snapshot: Snapshot) -> None:
        """Write down an epoch before its signature leaves."""
        (self.folder / FOLDER).mkdir(mode=0o700, exist_ok=True)
        path = self._path(signed.epoch) or self._new_path(signed.epoch)
        write_file(path.with_suffix(".snapshot"), snapshot.encode(), 0o600, overwrite=True)
        write_file(path, signed.encode(), 0o600, overwrite=True)

    def complete(self, signed: SignedEpoch) -> bool:
        """Whether an epoch that is kept here is settled, since all have signed its atoms by now.

        Before that it is kept once all have signed the rest: then the agent may look for them.
        """
        path = self._path(signed.epoch)
        if path is None:
            return False
        if SignedEpoch.decode(read_private(path)).epoch.atoms is not None:
            return True
        if signed.unsettled:  # some agents may have signed atoms, others not yet
            agreed = signed.epoch.agreed
            signatures = [s for s in signed.signatures if s.is_of(agreed)]
            signed = SignedEpoch(agreed, tuple(signatures))
        if signed.missing:
            return False
        self.check(signed)
        write_file(path, signed.encode(), 0o600, overwrite=True)
        return signed.epoch.atoms is not None

    def check(self, signed: SignedEpoch) -> Epoch:
        """The epoch, if all have signed it and consented beside every earlier one kept here."""
        before = [e for e, _ in self.earlier(signed.epoch).values()]
        return signed.verify(before)

    def current(self) -> SignedEpoch | None:
        """The newest epoch that all its owners have signed, and consented to where they must."""
        return next((s for s in self._signed() if s.epoch.atoms is not None), None)

    def agreed(self) -> SignedEpoch | None:
        """The newest epoch, if all its owners have signed it and its atoms are yet to be found."""
        signed = next(iter(self._signed()), None)
        return signed if signed is not None and signed.epoch.atoms is None else None

    def _signed(self) -> Iterator[SignedEpoch]:
        """Those signed by all, the newest first, up to one that has ended here."""
        for signed in reversed(self.all()):
            try:
                self.check(signed)
            except EpochError:
                continue
            path = self._path(signed.epoch)
            if path is None:  # of an earlier version
                continue
            if path.with_suffix(".ended").exists():
                return
            yield signed

    def end_with(self, person: bytes) -> bool:
        """End the epochs here that a person, by its mark, is in; whether there were any."""
        ended = False
        for signed in list(self._signed()):
            path = self._path(signed.epoch)
            assert path is not None
            past = PastSnapshot.decode(read_private(path.with_suffix(".snapshot")))
            if person in past.persons:
                write_file(path.with_suffix(".ended"), b"", 0o600, overwrite=True)
                ended = True
        return ended

    def earlier(self, epoch: Epoch) -> dict[bytes, tuple[Epoch, PastSnapshot]]:
        """Every other epoch that was signed before this one."""
        kept = {}
        for path in self._paths():
            before = SignedEpoch.decode(read_private(path), past=True).epoch
            if before.agreed.hash == epoch.agreed.hash:
                break
            past = PastSnapshot.decode(read_private(path.with_suffix(".snapshot")))
            kept[before.hash] = (before, past)
        return kept

    def all(self) -> list[SignedEpoch]:
        """Every epoch that was signed here, the first one first."""
        return [SignedEpoch.decode(read_private(path), past=True) for path in self._paths()]

    def _paths(self) -> list[Path]:
        return sorted((self.folder / FOLDER).glob("*.epoch"))

    def _path(self, epoch: Epoch) -> Path | None:
        name = epoch.agreed.hash.hex()[:16]
        return next((p for p in self._paths() if p.stem[5:] == name), None)

    def _new_path(self, epoch: Epoch) -> Path:
        paths = self._paths()
        number = int(paths[-1].stem[:4]) + 1 if paths else 1
        return self.folder / FOLDER / f"{number:04d}-{epoch.agreed.hash.hex()[:16]}.epoch"


def fetch_epoch(folder: Path, connection: Connection, federation: str) -> SignedEpoch | None:
    """The current epoch, after a look whether the others have signed another one by now."""
    with _where_there_is():
        found = connection.request("GET", f"/v1/federations/{federation}/epoch").content
        EpochFiles(folder).complete(SignedEpoch.decode(found))
    return current_epoch(folder)


def fetch_agreed(folder: Path, connection: Connection, federation: str) -> SignedEpoch | None:
    """The newest epoch whose atoms are yet to be found, after a look whether all have signed it."""
    with _where_there_is():
        path = f"/v1/federations/{federation}/dictionary"
        signed = connection.call("GET", path, DraftState).agreement().signed()
        if signed is not None:
            EpochFiles(folder).complete(signed)
    return EpochFiles(folder).agreed()


@contextmanager
def _where_there_is() -> Iterator[None]:
    """Pass over what the coordinator does not have."""
    try:
        yield
    except CoordinatorError as error:
        if error.status != 404:
            raise


def current_epoch(folder: Path) -> SignedEpoch | None:
    """The epoch under which closed jobs run at the client of a folder."""
    return EpochFiles(folder).current()

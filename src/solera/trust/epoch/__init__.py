"""What owners agree on before anything is asked of their rows: dictionary, populations, freeze."""

from solera.trust.epoch.atoms import Atoms
from solera.trust.epoch.changes import Changes, changes, own_faults
from solera.trust.epoch.dictionary import Dictionary, DictionaryColumn
from solera.trust.epoch.epoch import Draft, Epoch, EpochError, Owner, Signature, SignedEpoch
from solera.trust.epoch.populations import EVERYONE, Criterion, Population
from solera.trust.epoch.snapshot import FOLDS, PastSnapshot, Snapshot

__all__ = [
    "EVERYONE",
    "FOLDS",
    "Atoms",
    "Changes",
    "Criterion",
    "Dictionary",
    "DictionaryColumn",
    "Draft",
    "Epoch",
    "EpochError",
    "Owner",
    "PastSnapshot",
    "Population",
    "Signature",
    "SignedEpoch",
    "Snapshot",
    "changes",
    "own_faults",
]

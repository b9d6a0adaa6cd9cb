"""``so.epochs``: what owners sign before any job: a dictionary, populations, a data freeze."""

from solera.data.dictionary_tables import draft, read_table
from solera.data.misfits import Misfit, misfits
from solera.simulate.epochs import DraftedDictionary
from solera.trust.epoch import (
    Atoms,
    Changes,
    Dictionary,
    DictionaryColumn,
    Draft,
    Epoch,
    EpochError,
    Owner,
    Population,
    SignedEpoch,
    Snapshot,
    changes,
)

__all__ = [
    "Atoms",
    "Changes",
    "Dictionary",
    "DictionaryColumn",
    "Draft",
    "DraftedDictionary",
    "Epoch",
    "EpochError",
    "Misfit",
    "Owner",
    "Population",
    "SignedEpoch",
    "Snapshot",
    "changes",
    "draft",
    "misfits",
    "read_table",
]

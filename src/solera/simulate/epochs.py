"""Simulated owners in an epoch: their rows, folds and order are those that agents would have."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from solera.core.errors import DataError, UsageError
from solera.data.adapters import listed
from solera.data.dictionary_tables import Table, draft_of, read_table, table_of
from solera.data.epoch_rows import selected_rows, snapshot_of
from solera.data.federated import FederatedData
from solera.trust.epoch import (
    Dictionary,
    Draft,
    Epoch,
    EpochError,
    Owner,
    SignedEpoch,
    Snapshot,
    own_faults,
)
from solera.trust.epoch.selection import Selection


class DraftedDictionary(UserWarning):
    """A simulation drafted the dictionary itself, from the rows of all clients."""


@dataclass(frozen=True)
class SimulatedEpoch:
    """What a simulated federation has in place of what its owners would hold."""

    epoch: Epoch
    secrets: tuple[bytes, ...]
    selection: Selection
    data: FederatedData
    owners: Sequence[tuple[Table, Snapshot]]


def simulated_epoch(
    dealt: Any,
    table: Table | None,
    agreed: Dictionary | Epoch | SignedEpoch | None,
    selection: Selection,
    *,
    seed: int,
    secrets: Mapping[Any, bytes] | None,
    min_count: int,
) -> SimulatedEpoch:
    """The epoch of rows that were dealt to clients.

    With a ``table``, X of ``dealt`` holds the places of its rows. An ``agreed`` epoch decides who
    the clients are and in which order; of a dictionary alone an epoch is made that nobody signs.
    """
    if not isinstance(dealt, FederatedData) or dealt.sizes("train").sum() < dealt.X.shape[0]:
        raise UsageError("the rows of an epoch lie in memory, and its folds say what is set aside")
    if not dealt.schema.features:
        raise UsageError(
            "owners agree on columns, the rows are samples of a data set",
            hint="so.simulate(so.data.from_torch(dataset)) makes arrays of them; the policy "
            "'trusted' leaves them as they are",
        )
    if agreed is None:
        agreed = draft_of(dealt.schema, dealt.X, dealt.y)
        warnings.warn(
            f"the dictionary was drafted from all {dealt.X.shape[0]:,} rows, which no federation "
            "could: dictionary=so.epochs.draft(…), or one that owners have signed",
            DraftedDictionary,
            stacklevel=4,
        )
    agreed = agreed.epoch if isinstance(agreed, SignedEpoch) else agreed
    epoch = agreed
    dictionary = dictionary_of(epoch)
    if table is None:
        table = table_of(dictionary, dealt.schema, dealt.X, dealt.y, dealt.persons)
    else:
        table = table.take(dealt.X[:, 0].astype(np.int64))
    ends = dealt.offsets.tolist()
    tables = [table.take(slice(a, b)) for a, b in itertools.pairwise(ends)]
    names = dealt.names or tuple(f"client {i}" for i in range(dealt.clients))
    if isinstance(epoch, Epoch):
        order = _order(epoch, dealt.names, len(tables))
        tables, names = [tables[i] for i in order], epoch.draft.owners
    keys = _secrets(secrets, names, seed)
    snapshots = [snapshot_of(k, dictionary, rows) for k, rows in zip(keys, tables, strict=True)]
    if isinstance(epoch, Epoch):
        if secrets is not None:
            _check_commitments(epoch, snapshots)
    else:
        _check_counts(dictionary, names, snapshots, min_count)
        draft = Draft(dictionary, names, "simulation", min_count)
        epoch = Epoch(draft, tuple(map(_owner, names, keys, snapshots)))
    owners = list(zip(tables, snapshots, strict=True))
    named = names if dealt.names or agreed is epoch else ()
    data = selected_rows(dictionary, owners, selection, names=named)
    return SimulatedEpoch(epoch, keys, selection, data, owners)


def check_epoch_arguments(agreed: bool, **given: Any) -> None:
    """Refuse what means nothing without an epoch."""
    for name, value in given.items():
        if value is not None and not agreed:
            raise UsageError(
                f"simulate({name}=…) is of owners who have agreed on a dictionary",
                hint='dictionary=so.epochs.draft(…), or policy="sums"',
            )


def dictionary_of(agreed: Dictionary | Epoch | SignedEpoch) -> Dictionary:
    """The dictionary of what owners have agreed on."""
    if isinstance(agreed, SignedEpoch):
        return agreed.epoch.dictionary
    return agreed.dictionary if isinstance(agreed, Epoch) else agreed


def dealable(
    dictionary: Dictionary, frame: Any, target: str | Sequence[str] | None
) -> tuple[Table, Any]:
    """The rows of a frame by a dictionary, and the target by which a partition may deal them."""
    table = read_table(dictionary, frame)
    rows, has_target = dictionary.rows(table.values, (), target)
    if has_target.all():
        return table, rows.y
    names = dictionary.target if target is None else listed(target)
    place = [column.name for column in dictionary.columns].index(names[0])
    return table, np.nan_to_num(table.values[:, place], nan=-1.0).astype(np.int64)


def _order(epoch: Epoch, names: Sequence[str], clients: int) -> list[int]:
    """The clients in the epoch's order: by their names, where they have any."""
    owners = epoch.draft.owners
    if len(owners) != clients:
        raise UsageError(f"the epoch has {len(owners)} owners, the simulation {clients} clients")
    if not names:
        return list(range(clients))
    if set(names) != set(owners):
        raise UsageError(
            f"the clients are called {', '.join(names)}, the owners of the epoch "
            f"{', '.join(owners)}"
        )
    return [names.index(owner) for owner in owners]


def _secrets(
    secrets: Mapping[Any, bytes] | None, names: Sequence[str], seed: int
) -> tuple[bytes, ...]:
    """Every client's secret: by its name or number, or as the seed has it."""
    if secrets is None:
        return tuple(
            hashlib.sha256(f"solera simulated secret {seed} {i}".encode()).digest()
            for i in range(len(names))
        )
    absent = [name for i, name in enumerate(names) if name not in secrets and i not in secrets]
    if absent:
        raise UsageError(f"simulate(secrets=…) has none of {', '.join(absent)}")
    return tuple(bytes(secrets.get(name, secrets.get(i))) for i, name in enumerate(names))  # type: ignore[arg-type]


def _check_commitments(epoch: Epoch, snapshots: Sequence[Snapshot]) -> None:
    for owner, snapshot in zip(epoch.owners, snapshots, strict=True):
        if not hmac.compare_digest(owner.commitment, snapshot.commitment):
            raise EpochError(
                f"the rows of {owner.name} are not those that it has signed",
                hint="the epoch, the rows or the secret is another",
            )


def _check_counts(
    dictionary: Dictionary, names: Sequence[str], snapshots: Sequence[Snapshot], min_count: int
) -> None:
    columns = [column.name for column in dictionary.columns]
    for name, snapshot in zip(names, snapshots, strict=True):
        if faults := own_faults(snapshot, columns, min_count):
            raise DataError(
                f"{name} could sign no such epoch: {faults[0]}",
                hint="leave the column or population out of the dictionary",
            )


def _owner(name: str, secret: bytes, snapshot: Snapshot) -> Owner:
    key = hashlib.sha256(b"solera simulated key " + secret).digest()
    return Owner(name, key, snapshot.commitment, snapshot.person_count)

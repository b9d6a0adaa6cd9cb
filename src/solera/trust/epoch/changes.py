"""What an owner checks before it signs: its own rows in the new epoch beside all earlier ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from solera.trust.epoch.differences import (
    RowSet,
    changed_persons,
    refresh_of,
    row_sets,
    too_close,
)
from solera.trust.epoch.epoch import Epoch, EpochError, Owner, consent_to_lone_change, lone_change
from solera.trust.epoch.snapshot import PastSnapshot, Snapshot


@dataclass(frozen=True)
class Changes:
    """What signing an epoch tells of this owner's rows.

    ``faults`` cannot be consented to: the draft must change. ``reasons`` each need the owner's
    consent in writing.
    """

    faults: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()

    @property
    def consent(self) -> str:
        """What the owner signs if it consents to all of it."""
        return "; ".join(self.reasons)

    def check(self, consent: str = "") -> None:
        """Raise :class:`EpochError` unless the epoch can be signed with this consent."""
        if self.faults:
            raise EpochError("; ".join(self.faults), hint="change the draft, or the rows")
        if self.reasons and consent != self.consent:
            raise EpochError(
                f"this epoch needs the owner's consent in writing: {self.consent}",
                hint="solera dictionary change shows it, solera dictionary sign --consent gives it",
            )


def own_faults(snapshot: Snapshot, columns: Sequence[str], min_count: int) -> tuple[str, ...]:
    """What an owner's rows do not allow in any epoch: too few persons in something."""
    few = [
        f"column {name!r} has a value for {count} persons only"
        for name, count in zip(columns, snapshot.known.tolist(), strict=True)
        if 0 < count < min_count
    ]
    return (*few, *too_close(row_sets(snapshot), min_count))


def changes(
    epoch: Epoch,
    owner: Owner,
    snapshot: Snapshot,
    earlier: Mapping[bytes, tuple[Epoch, PastSnapshot]],
    *,
    refresh: int | None = None,
) -> Changes:
    """What signing ``epoch`` tells beside all ``earlier`` ones that this owner has signed.

    Of every owner nothing changes, or at least ``refresh`` persons do; and what no population of
    one epoch may tell, none of several may.
    """
    columns = [column.name for column in epoch.dictionary.columns]
    faults = own_faults(snapshot, columns, epoch.min_count)
    if faults:
        return Changes(faults)
    reasons = []
    sets: list[RowSet] = row_sets(snapshot)
    for before, past in earlier.values():
        name = before.hash.hex()[:8]
        least = refresh_of(snapshot.person_count, refresh)
        changed = changed_persons(past, snapshot)
        if 0 < changed < least:
            reasons.append(
                f"since epoch {name} {changed} persons came, left or have other values, fewer than "
                f"{least}: two totals of one job differ by these persons alone"
            )
        sets += row_sets(past, f"epoch {name}")
        lone = lone_change(before, epoch)
        if lone is not None and lone.key == owner.key:
            reasons.append(consent_to_lone_change(lone))
    if len(sets) > len(snapshot.populations):
        reasons += too_close(sets, epoch.min_count)
    return Changes((), tuple(reasons))

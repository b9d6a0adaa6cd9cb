"""What leaves with noise that the client's own code has added, as far as its budget goes.

A task that can add noise takes a table ``privacy`` in its ask and declares what its reply would be
without as the release inside a :class:`Noised`. Where the owner's policy has a budget ([privacy])
the noise is what counts: the gate computes from the ask what it is worth, puts that down in the
ledger, which refuses beyond the budget, and lets the reply go as it is. Without noise the rules of
the release inside hold. Noise without a budget is refused: rows are clipped for it, so that what
stands behind the numbers is not what the rules inside would look at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Protocol

from solera.core.accounting import Event, epsilon_of
from solera.core.clients import Client
from solera.core.errors import GateRefusal
from solera.core.release import Leaving, Release

if TYPE_CHECKING:
    from solera.core.disclosure.memory import Memory
    from solera.trust.gate import ReleaseLimits

_SMALL = 1e-9


class Ledger(Protocol):
    """What the noise on one data set was worth, over all jobs."""

    def spend(
        self, key: str, task: str, events: Sequence[Event], epsilon: float, delta: float
    ) -> None:
        """Put down events before what they are worth leaves; refuse beyond (ε, δ).

        Events of a ``key`` that is known are the same once more, and are not counted again.
        """


class MemoryLedger:
    """The ledger of a simulated client, in its memory of what left."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory

    def spend(
        self, key: str, task: str, events: Sequence[Event], epsilon: float, delta: float
    ) -> None:
        spent = [Event.from_payload(event) for event in self.memory.events]
        check_budget(spent, events, epsilon, delta)
        self.memory.events += [event.to_payload() for event in events]


def check_budget(
    spent: Sequence[Event], more: Sequence[Event], epsilon: float, delta: float
) -> None:
    """Refuse events that, with those before, are worth more than (ε, δ)."""
    after = epsilon_of([*spent, *more], delta)
    if not after <= epsilon * (1 + _SMALL):
        raise GateRefusal(
            f"the privacy budget is ε = {epsilon:g} at δ = {delta:g}; after this reply it would "
            f"be ε = {after:.4g}",
            hint="more noise, fewer rounds; `solera budget` shows what was spent",
        )


def wants_noise(payload: Any) -> bool:
    """Whether an ask has noise added."""
    return isinstance(payload, Mapping) and payload.get("privacy") is not None


def is_noised(payload: Any, limits: ReleaseLimits | None) -> bool:
    """Whether an ask has noise added, and the owner has a budget that it is counted against."""
    if limits is None or limits.budget is None or limits.trusted:
        return False
    return wants_noise(payload)


class Noised(Release):
    """Another release, whose entries may leave as they are where noise was added.

    Parameters
    ----------
    release: the rules without noise.
    spends: (client, ask) → what the noise of this reply is worth, for one row more or less; nothing
        where another release of the task says it for the whole reply.
    by_row: (ask) → whether a row is protected and a person with several is not.
    """

    def __init__(
        self,
        release: Release,
        *,
        spends: Callable[[Client, Any], Sequence[Event]],
        by_row: Callable[[Any], bool] = lambda ask: True,
    ) -> None:
        super().__init__(*release.entries)
        self.inside = release
        self.spends = spends
        self.by_row = by_row
        self.kind = release.kind  # type: ignore[misc]
        self.says = release.says  # type: ignore[misc]
        self.about_rows = release.about_rows  # type: ignore[misc]
        self.tells_rows = release.tells_rows
        self.instead = release.instead

    def can_leave(self, limits: ReleaseLimits) -> bool:
        counted = self.kind in limits.allows and limits.budget is not None
        return counted or self.inside.can_leave(limits)

    def judge(self, leaving: Leaving) -> Any:
        limits = leaving.limits
        if not wants_noise(leaving.ask):
            return self.inside.judge(leaving)
        if limits.budget is None:
            raise leaving.refuse("it adds noise, and the policy has no budget for that: [privacy]")
        if limits.unit is not None and self.by_row(leaving.ask):
            raise leaving.refuse(f"its noise protects rows, a {limits.unit!r} may have several")
        events = self.spends(leaving.client, leaving.ask)
        if events:
            key = _key(leaving, events)
            leaving.gate.ledger.spend(key, leaving.task, events, *limits.budget)
        return leaving.reply


def _key(leaving: Leaving, events: Sequence[Event]) -> str:
    """What is the same if and only if the noise is: the ask's secret, its task and the rows.

    In a simulation nothing is: "".
    """
    client = leaving.client
    if client.draws.secret is None:
        return ""
    rows = leaving.memory.rows
    told = blake2b(client.draws.secret, digest_size=16)
    told.update(b"" if rows is None else rows.tobytes())
    told.update(repr([leaving.task, *events]).encode())
    return told.hexdigest()

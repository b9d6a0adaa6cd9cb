"""Noise on contributions, added where the rows are, and what it is worth.

A reply may hold several contributions. With Δ_e the most that one row changes contribution e, each
of m is noised with deviation σ Δ_e √m (Laplace: scale b Δ_e m), so that one reply is worth one
Gaussian mechanism of noise multiplier σ, whatever it holds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableMapping, Sequence
from hashlib import blake2b
from typing import Any, Literal, NotRequired, Protocol, TypedDict

import numpy as np

from solera.core.accounting import Event, accountant_of, epsilon_of
from solera.core.clients import Client
from solera.core.constraints import Count, Positive
from solera.core.errors import GateRefusal, UsageError
from solera.core.replies import map_leaves
from solera.core.task import Task
from solera.trust.cells import Behind
from solera.trust.contributions import Contribution, Norm
from solera.trust.randomness import Randomness, protecting, row_digests

SPENT = "solera.spent"
"""Where a simulated client's state keeps what left with noise."""
_SMALL = 1e-9


class SumNoise(TypedDict):
    """How contributions are noised: by so much, of which each of several clients adds a share.

    ``clip``, where rows have to be bounded: the longest that one may be. ``level``: whether all
    that a client sends is bounded together ("client"), or what a row adds ("record").
    """

    mechanism: Literal["gaussian", "laplace"]
    noise: Positive
    share: Count
    clip: NotRequired[Positive]
    level: NotRequired[Literal["client", "record"]]


def noise_table(payload: Any) -> SumNoise | None:
    """What an ask says of noise, if it has any added."""
    return payload.get("privacy") if isinstance(payload, Mapping) else None


def with_noise(
    client: Client,
    contributions: Mapping[str, Contribution],
    behind: Mapping[str, Behind],
    privacy: SumNoise,
) -> dict[str, Any]:
    """The numbers of contributions with noise, by entry; facts have none."""
    noised: dict[str, Any] = {}
    about_rows = sum(one.about_rows for one in contributions.values())
    draw = protecting(client, "sums")
    norm: Norm = "l1" if privacy["mechanism"] == "laplace" else "l2"
    for entry, contribution in contributions.items():
        if not contribution.about_rows:
            noised[entry] = contribution.numbers(behind[entry])
            continue
        if contribution.repeats_rows:
            raise UsageError(
                f"dp=: {entry!r} counts some rows more than once, so that no noise hides one",
                hint="draw rows without replacement",
            )
        clip = privacy.get("clip")
        numbers = contribution.bounded(clip).numbers(behind[entry])
        most = contribution.sensitivity(norm, clip)
        deviation = _deviation(privacy, most, about_rows)
        noised[entry] = map_leaves(
            lambda leaf, by=deviation: _noisy(draw, leaf, by, privacy["mechanism"]), numbers
        )
    return noised


def _deviation(privacy: SumNoise, most: float, entries: int) -> float:
    if privacy["mechanism"] == "laplace":
        return privacy["noise"] * most * entries
    return privacy["noise"] * most * math.sqrt(entries / privacy["share"])


def _noisy(draw: Randomness, leaf: Any, deviation: float, mechanism: str) -> Any:
    values = np.asarray(leaf, dtype=np.float64)
    add = draw.add_laplace if mechanism == "laplace" else draw.add_normal
    noisy = add(values, deviation)
    if np.asarray(leaf).dtype.kind in "iu":
        noisy = np.rint(noisy).astype(np.int64)
    return noisy if isinstance(leaf, np.ndarray) else noisy.item()


def spent_by(privacy: SumNoise) -> list[Event]:
    """What one reply with noise tells of one row, whoever reads it alone."""
    return [Event(privacy["noise"] / math.sqrt(privacy["share"]), 1, privacy["mechanism"])]


def spent_at_sum(task: Task, client: Client, payload: Mapping[str, Any]) -> Sequence[Event]:
    """What a sum tells of one person in which the shares of as many others are as the ask says."""
    privacy = {**payload["privacy"], "share": 1}
    if task.spends is None:
        return [Event(privacy["noise"], 1, privacy["mechanism"])]
    return task.spends(client, {**payload, "privacy": privacy})


class Ledger(Protocol):
    """What the noise on one data set was worth, over all jobs."""

    def spend(
        self, key: str, task: str, events: Sequence[Event], epsilon: float, delta: float
    ) -> None:
        """Put down events before what they are worth leaves; refuse beyond (ε, δ).

        Events of a ``key`` that is known are the same once more, and are not counted again.
        """


class StateLedger:
    """The ledger of a simulated client, in its state."""

    def __init__(self, state: MutableMapping[str, Any]) -> None:
        self.state = state

    def spend(
        self, key: str, task: str, events: Sequence[Event], epsilon: float, delta: float
    ) -> None:
        known = list(self.state.get(SPENT, ()))
        check_budget([Event.from_payload(event) for event in known], events, epsilon, delta)
        self.state[SPENT] = [*known, *(event.to_payload() for event in events)]


def worth(events: Sequence[Event], delta: float) -> float:
    """ε of events as drivers, ledgers and ``solera policy check`` count it alike."""
    return epsilon_of(events, delta, accountant_of(events))


def check_budget(
    spent: Sequence[Event], more: Sequence[Event], epsilon: float, delta: float
) -> None:
    """Refuse events that, with those before, are worth more than (ε, δ)."""
    after = worth([*spent, *more], delta)
    if not after <= epsilon * (1 + _SMALL):
        raise GateRefusal(
            f"the privacy budget is ε = {epsilon:g} at δ = {delta:g}; after this reply it would "
            f"be ε = {after:.4g}",
            hint="more noise, fewer rounds; `solera budget` shows what was spent",
        )


def noise_key(client: Client, task: str, events: Sequence[Event]) -> str:
    """What is the same if and only if the noise is: the ask's secret, its task and the rows.

    In a simulation nothing is: "".
    """
    if client.draws.secret is None:
        return ""
    rows = client.data.part("train")
    told = blake2b(client.draws.secret, digest_size=16)
    told.update(row_digests(rows.X, rows.y).tobytes())
    told.update(repr([task, *events]).encode())
    return told.hexdigest()

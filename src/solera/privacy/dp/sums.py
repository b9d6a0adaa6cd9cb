"""The learner's side of noise on contributions: how much is asked for, and what it is worth."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from solera.core.accounting import Event, epsilon_of
from solera.core.aggregation import Aggregation, Sum
from solera.core.errors import UsageError
from solera.core.federation import Federation
from solera.core.task import Task
from solera.privacy.dp.mechanism import DP
from solera.trust.noise import SumNoise


def sum_noise(
    learner: object, dp: DP, asks: int, clients: int, clip: float | None = None
) -> tuple[SumNoise, dict[str, Any]]:
    """What clients are told, and the accounts of a learner that will ask so often.

    With δ = 0 noise is Laplace's, and whole at every client.
    """
    if dp.level != "record":
        name = learner if isinstance(learner, str) else type(learner).__name__
        raise UsageError(
            f"{name}(dp={dp!r}): sums over rows hide one row", hint="so.DP(level='record', …)"
        )
    mechanism: Literal["gaussian", "laplace"] = "laplace" if dp.delta == 0 else "gaussian"
    whole = dp.where == "local" or mechanism == "laplace"
    solved = dp.solve(lambda noise: [Event(noise, asks, mechanism)])
    privacy: SumNoise = {
        "mechanism": mechanism,
        "noise": solved.noise,
        "share": 1 if whole else clients,
    }
    if clip is not None:
        privacy["clip"] = clip
    accounts: dict[str, Any] = {
        "noise": solved.noise,
        "delta": solved.delta,
        "share": privacy["share"],
        "mechanism": mechanism,
        "accountant": dp.accountant,
        "events": [],
    }
    return privacy, accounts


def after_ask(accounts: Mapping[str, Any], replies: int) -> dict[str, Any]:
    """The accounts after an ask with so many replies; fewer than planned bring less noise."""
    noise = accounts["noise"] * math.sqrt(min(1.0, replies / accounts["share"]))
    event = Event(noise, 1, accounts["mechanism"])
    return {**accounts, "events": [*accounts["events"], event.to_payload()]}


@dataclass
class NoisedSums:
    """Noise that asks of several kinds share, and the accounts of all of them."""

    privacy: SumNoise
    accounts: dict[str, Any]

    def sum(
        self, federation: Federation, task: Task, ask: Mapping[str, Any], *, round: int = 0
    ) -> Any:
        """The sum of the replies to an ask with this noise."""
        replies = federation.ask(task, {**ask, "privacy": self.privacy}, round=round)
        total = replies.fold(Sum())
        self.accounts = after_ask(self.accounts, len(federation) - len(replies.failures))
        return total

    def each(
        self,
        federation: Federation,
        task: Task,
        ask: Mapping[str, Any],
        into: Aggregation,
        *,
        round: int = 0,
    ) -> Any:
        """The replies themselves; who reads one alone must find all of the noise in it."""
        privacy = {**self.privacy, "share": 1}
        replies = federation.ask(task, {**ask, "privacy": privacy}, round=round).fold(into)
        self.accounts = after_ask(self.accounts, self.privacy["share"])
        return replies


def epsilon_so_far(accounts: Mapping[str, Any]) -> float:
    """ε of all that was noised, at the δ of the accounts."""
    spent = [Event.from_payload(event) for event in accounts["events"]]
    return epsilon_of(spent, accounts["delta"], accounts["accountant"])

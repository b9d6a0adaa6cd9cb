"""``so.DP``: how much noise, on what, and how it is counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from solera.core.accounting import (
    Accountant,
    Event,
    check_installed,
    delta_of,
    epsilon_of,
    noise_for,
)
from solera.core.component import Component
from solera.core.constraints import Count, Positive, PositiveFraction, ProperFraction
from solera.core.errors import UsageError

RATE = 0.2
"""η of adaptive clipping, as Andrew et al. recommend."""


class DP(Component):
    """Differential privacy for a learner: ``so.FedAvg(model, weight=None, dp=so.DP(…))``.

    Two of ``epsilon``, ``delta`` and ``noise_multiplier`` are given; the third follows when the
    learner knows how often it asks, and whom. See ``docs/how-to/differential-privacy.md`` for what
    each choice protects from whom, and what none protects.

    Parameters
    ----------
    epsilon, delta: what is promised about all that is released, (ε, δ)-differential privacy.
    noise_multiplier: σ, the deviation of the noise over the most that a client or row can change.
    clip: C, the longest that the contribution of a client (``level="client"``: its update) or of a
        row (``level="record"``: its gradient, or its values) may be; longer ones are scaled down.
    level: whose presence is hidden, a "client" or one "record" (row) of a client.
    where: "central": every client adds a share of the noise, so that only sums carry all of it,
        together with a secure sum nobody sees less; "local": every client adds all of it. By
        default central; gradients of rows are noised at their client in any case.
    adaptive: None, or the quantile γ of the clients' norms that C follows, C ← C exp(−η (b̄ − γ))
        with b̄ the noised share of updates below C and η = 0.2 (Andrew, Thakkar, McMahan &
        Ramaswamy 2021, *Differentially private learning with adaptive clipping*).
    sampling: how the clients of a round are drawn, a "fixed" number, or each by itself ("poisson").
    rate: of ``level="record"`` where rows are drawn anew for every step: the share of its rows that
        a client takes, each by itself.
    honest_peers: in a closed job, how many of the other owners are trusted to add their share of
        noise, which is then as large as if they were all; by default all but one.
    accountant: "rdp"; "pld", which is tighter and slower and knows no fixed number; or "analytic",
        which is exact, for noise on all rows or clients without sampling. A closed job counts as
        owners' ledgers do, :func:`~solera.core.accounting.accountant_of`.
    """

    def __init__(
        self,
        *,
        epsilon: Positive | None = None,
        delta: ProperFraction | None = None,
        noise_multiplier: Positive | None = None,
        clip: Positive | None = None,
        level: Literal["client", "record"] = "client",
        where: Literal["central", "local"] | None = None,
        adaptive: PositiveFraction | None = None,
        sampling: Literal["fixed", "poisson"] = "fixed",
        rate: PositiveFraction | None = None,
        honest_peers: Count | None = None,
        accountant: Accountant = "rdp",
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.noise_multiplier = noise_multiplier
        self.clip = clip
        self.level = level
        self.where = where
        self.adaptive = adaptive
        self.sampling = sampling
        self.rate = rate
        self.honest_peers = honest_peers
        self.accountant = accountant

    def check_params(self) -> None:
        super().check_params()
        given = (self.epsilon, self.delta, self.noise_multiplier)
        if sum(value is not None for value in given) != 2:
            raise UsageError(
                f"{self!r}: give two of epsilon, delta and noise_multiplier",
                hint="the third follows from how often clients are asked",
            )
        if self.adaptive is not None and self.level == "record":
            raise UsageError.of(self, "adaptive", self.adaptive, "is for level='client'")

    def need_clip(self, learner: object, what: str) -> float:
        """C, or an error that says what it bounds."""
        if self.clip is None:
            raise UsageError(
                f"{type(learner).__name__}(dp={self!r}): clip is missing, the bound of {what}",
                hint="so.DP(…, clip=1.0)",
            )
        return float(self.clip)

    def check_selector(self, learner: Any) -> None:
        """Raise :class:`UsageError` for a selector that is told rows, counts, losses or updates."""
        select = learner.select
        if select is not None and (select.needs_updates or select.asks_clients):
            raise UsageError(
                f"{type(learner).__name__}(dp=…, select={select!r}): the selector is told what "
                "clients know without noise, which no ε counts",
                hint="select=None or so.selectors.RoundRobin()",
            )

    def solve(self, events: Callable[[float], Sequence[Event]]) -> Guarantee:
        """All three of ε, δ and σ, where ``events(σ)`` is all that will be noised."""
        check_installed()
        noise, epsilon, delta = self.noise_multiplier, self.epsilon, self.delta
        if noise is None:
            assert epsilon is not None
            assert delta is not None
            noise = noise_for(events, epsilon, delta, self.accountant)
        if delta is None:
            assert epsilon is not None
            delta = delta_of(events(noise), epsilon, self.accountant)
        if epsilon is None:
            epsilon = epsilon_of(events(noise), delta, self.accountant)
        return Guarantee(float(noise), float(epsilon), float(delta))


def whose_noise(federation: Any) -> str:
    """What a history says of its noise: in a simulation it is seeded, and protects nobody."""
    simulated = getattr(federation.engine, "simulated", False)
    return "simulated" if simulated else "drawn by clients"


@dataclass(frozen=True, slots=True)
class Guarantee:
    """σ, and the ε and δ that it gives over all rounds."""

    noise: float
    epsilon: float
    delta: float

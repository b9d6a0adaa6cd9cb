"""The coordinator's side of ``FedAvg(dp=…)``: how much noise, and what every round has spent.

What is counted is for whoever sees the model, or with ``where="local"`` for whoever sees single
updates. Neighbouring runs differ in one client, whose update is nothing but noise in one of them
(Kairouz et al. 2021), or in one row of a client (``level="record"``).
"""

from __future__ import annotations

import math
from typing import Any

from solera.core.accounting import Event
from solera.core.errors import UsageError
from solera.core.selection import Poisson, Selector
from solera.core.task import Task
from solera.learn.averaging.private_updates import Privacy
from solera.privacy.dp.mechanism import DP, RATE
from solera.privacy.dp.sums import Accounts, Noise


def check_dp(learner: Any, dp: DP) -> None:
    """Raise :class:`UsageError` for parameters that make the noise another than is counted."""
    kind = type(learner).__name__
    if learner.weighting is not None:
        raise UsageError(
            f"{kind}(dp=…) weighs clients by {learner.weighting!r}: one that weighs more than "
            "others needs more noise",
            hint=f"equal weights: {learner.equal_weights}",
        )
    if learner.send != "difference":
        raise UsageError.of(learner, "send", learner.send, "must be 'difference' with dp=")
    dp.need_clip(learner, "the norm of a client's update, or of a row's gradient")
    dp.check_selector(learner)
    if dp.level == "record" and dp.rate is None:
        raise UsageError(
            f"{kind}(dp={dp!r}): rate is missing, the share of its rows that a client draws in "
            "every step",
            hint="so.DP(level='record', rate=0.01, …); it takes the place of batch_size",
        )
    if dp.level == "record" and learner.precision != "float32":
        raise UsageError.of(learner, "precision", learner.precision, "rows are clipped in float32")
    if dp.level == "record" and dp.where == "central":
        raise UsageError.of(dp, "where", dp.where, "gradients of rows are noised at the client")
    if dp.sampling == "poisson" and (learner.select is not None or learner.per_round is None):
        raise UsageError(
            f"{kind}(dp={dp!r}): clients that come by chance need per_round= and no select="
        )


class UpdateNoise(Noise):
    """The noise that clients add to their updates themselves (:mod:`.private_updates`)."""

    def __init__(
        self, learner: Any, dp: DP, clients: int, steps: int, *, closed: bool = False
    ) -> None:
        super().__init__(learner, dp, clients, closed=closed)
        self.steps = steps
        self.rows: float | None = None
        """Of a closed job, how many rows owners have in the mean."""
        self.mechanism = "gaussian"
        by_row = dp.level == "record" and not closed
        self.in_every_reply = by_row or dp.where == "local"

    def new_accounts(self) -> dict[str, Any]:
        accounts = {**super().new_accounts(), "asked": self.asked}
        if self.dp.sampling == "poisson" and not self.in_every_reply:
            accounts["share"] = _least(self.asked)
        return accounts

    @property
    def table(self) -> Privacy:
        table = privacy_table(self.dp, self.learner.accounts_)
        if self.peers is None:
            return table
        if self.dp.level == "record":
            assert self.rows is not None
            return {**table, "rows": self.rows}
        below = table["below"]
        return {
            **table,
            "noise": 2 * table["noise"],
            "below": None if below is None else 2 * below,
        }

    def takes(self, task: Task) -> bool:
        return bool(task.name == self.learner.update.name)

    def event(self, accounts: Accounts, replies: int, times: int = 1) -> Event:
        if self.dp.level == "record":
            return Event(accounts["noise"], times * self.steps, rate=self.dp.rate or 1.0)
        return super().event(accounts, replies, times)


def _least(asked: int) -> int:
    """How many come nearly always when so many are expected and each comes by itself."""
    return max(1, math.floor(asked - 2 * math.sqrt(asked)))


def selector_of(dp: DP | None, select: Selector | None) -> Selector | None:
    """Who chooses clients: chance alone, where the accountant counts on it."""
    return Poisson() if dp is not None and dp.sampling == "poisson" else select


def privacy_table(dp: DP, accounts: Accounts) -> Privacy:
    """What clients are told about the noise."""
    noise, below = accounts["noise"], None
    if dp.adaptive is not None:
        below = max(accounts["asked"] / 20, noise)
        noise = (noise**-2 - (2 * below) ** -2) ** -0.5  # both together are worth σ
    return {
        "level": dp.level,
        "noise": noise,
        "clip": accounts["clip"],
        "share": accounts["share"],
        "below": below,
        "rate": dp.rate,
    }


def next_clip(dp: DP, clip: float, below: float) -> float:
    """C moved towards the quantile that it is to follow, C ← C exp(−η (b̄ − γ))."""
    return clip * math.exp(-RATE * (below + 0.5 - (dp.adaptive or 0.0)))

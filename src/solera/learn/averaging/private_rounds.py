"""The coordinator's side of ``FedAvg(dp=…)``: how much noise, and what every round has spent.

What is counted is for whoever sees the model, or with ``where="local"`` for whoever sees single
updates. Neighbouring runs differ in one client, whose update is nothing but noise in one of them
(Kairouz et al. 2021), or in one row of a client (``level="record"``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from solera.core.accounting import Event, grouped
from solera.core.errors import UsageError
from solera.core.selection import Poisson, Selector, Uniform
from solera.learn.averaging.private_updates import steps_of
from solera.privacy.dp.mechanism import DP, RATE

Accounts = Mapping[str, Any]
"""What a learner remembers from round to round: σ, δ, C, how clients are drawn, and all events."""


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


def open_accounts(
    learner: Any, dp: DP, clients: int | None, training: Mapping[str, Any]
) -> dict[str, Any]:
    """What is known before the first round; ``clients`` is None where only a plan is made."""
    among = clients or 1
    asked = min(learner.per_round or among, among)
    share = 1
    if dp.level == "client" and dp.where != "local":
        share = _least(asked) if dp.sampling == "poisson" else asked
    accounts: dict[str, Any] = {
        "noise": dp.noise_multiplier or 1.0,
        "delta": dp.delta or 0.0,
        "clip": dp.need_clip(learner, _what(dp)),
        "asked": asked,
        "among": among,
        "share": share,
        "uniform": learner.select is None or isinstance(learner.select, Uniform),
        "accountant": dp.accountant,
        "steps": 1 if dp.rate is None else steps_of(training, dp.rate),
        "events": [],
    }
    if clients is None:
        return accounts
    rounds = learner.rounds
    solved = dp.solve(lambda noise: [_event(dp, {**accounts, "noise": noise}, share, rounds)])
    return {**accounts, "noise": solved.noise, "delta": solved.delta}


def _what(dp: DP) -> str:
    return "the norm of " + ("a client's update" if dp.level == "client" else "a row's gradient")


def _least(asked: int) -> int:
    """How many come nearly always when so many are expected and each comes by itself."""
    return max(1, math.floor(asked - 2 * math.sqrt(asked)))


def selector_of(dp: DP | None, select: Selector | None) -> Selector | None:
    """Who chooses clients: chance alone, where the accountant counts on it."""
    return Poisson() if dp is not None and dp.sampling == "poisson" else select


def privacy_table(dp: DP, accounts: Accounts) -> Any:
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


def _event(dp: DP, accounts: Accounts, replies: int, rounds: int = 1) -> Event:
    """What rounds with so many replies spend: of fewer shares than planned, there is less noise.

    Who sees single updates sees who was asked; drawing clients hides nobody from them.
    """
    noise = accounts["noise"]
    if dp.level == "record":
        return Event(noise, rounds * accounts["steps"], rate=dp.rate or 1.0)
    if dp.where == "local":
        return Event(noise, rounds)
    noise *= math.sqrt(min(1.0, replies / accounts["share"]))
    rate = accounts["asked"] / accounts["among"] if accounts["uniform"] else 1.0
    return Event(noise, rounds, rate=rate, sampling=dp.sampling, among=accounts["among"])


def after_round(dp: DP, accounts: Accounts, mean: Mapping[str, Any]) -> dict[str, Any]:
    """The accounts after a round, with C moved towards the quantile where it is to follow one."""
    before = map(Event.from_payload, accounts["events"])
    events = grouped([*before, _event(dp, accounts, int(mean["count"]))])
    clip = accounts["clip"]
    if dp.adaptive is not None:
        clip *= math.exp(-RATE * (float(mean["below"]) + 0.5 - dp.adaptive))
    return {**accounts, "clip": clip, "events": [event.to_payload() for event in events]}

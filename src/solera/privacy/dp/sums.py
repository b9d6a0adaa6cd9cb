"""The coordinator's side of noise: how much is asked for, and what it is worth.

One mechanism serves all learners. A federation that carries a :class:`Noise` adds its table to
every ask, and every ask whose replies were read is charged to the learner's ``accounts_``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import copy
from typing import Any, Literal, Self

from solera.core.accounting import Event, accountant_of, epsilon_of, grouped
from solera.core.answers import Replies
from solera.core.errors import UsageError
from solera.core.selection import Uniform
from solera.core.task import Task, find_task
from solera.privacy.dp.mechanism import DP, whose_noise

Accounts = Mapping[str, Any]
"""What is remembered from ask to ask, and saved with a model: σ, δ, C, shares, and all events."""


class Noise:
    """The noise of ``dp=`` on all that a learner asks in a fit.

    ``share`` clients add 1/√share of it each, so that their sum carries all of it; with Laplace
    noise (δ = 0), or with ``where="local"``, every client adds all of it. In a ``closed`` job the
    sum carries all of it already where ``peers`` of the other owners add their share, and what is
    hidden is one person: an update that hides its client may turn round for one.
    """

    def __init__(self, learner: Any, dp: DP, clients: int, *, closed: bool = False) -> None:
        self.learner = learner
        self.dp = dp
        self.among = clients
        self.asked = min(getattr(learner, "per_round", None) or clients, clients)
        self.mechanism: Literal["gaussian", "laplace"] = "laplace" if dp.delta == 0 else "gaussian"
        self.in_every_reply = dp.where == "local" or self.mechanism == "laplace"
        self.peers = honest_peers(dp, clients, closed)
        self.planned: Event | None = None
        """All that will be noised, once :meth:`opened`."""

    def opened(self, asks: int) -> Self:
        """The same with accounts for so many asks: of ε, δ and σ the one that is not given."""
        accounts = self.new_accounts()
        shares = accounts["share"]
        one = self.event(accounts, shares)
        exact = asks == 1 and self.mechanism == "gaussian" and one.rate == 1
        if self.peers is not None:
            accounts["accountant"] = accountant_of([one])
        elif exact:
            accounts["accountant"] = "analytic"
        dp = self.dp.clone().set_params(accountant=accounts["accountant"])
        solved = dp.solve(lambda noise: [self.event({**accounts, "noise": noise}, shares, asks)])
        accounts = {**accounts, "noise": solved.noise, "delta": solved.delta}
        self.planned = self.event(accounts, shares, asks)
        self.learner.accounts_ = accounts
        return self

    def new_accounts(self) -> dict[str, Any]:
        """What is known before the first ask."""
        accounts: dict[str, Any] = {
            "noise": self.dp.noise_multiplier or 1.0,
            "delta": self.dp.delta or 0.0,
            "clip": self.dp.clip,
            "share": 1 if self.in_every_reply else self.peers or self.asked,
            "accountant": self.dp.accountant,
            "events": [],
        }
        return accounts if self.peers is None else {**accounts, "honest_peers": self.peers}

    def each(self) -> Self:
        """The same for replies that are read one by one, each of which carries all of the noise."""
        whole = copy(self)
        whole.in_every_reply = True
        return whole

    @property
    def table(self) -> Any:
        """What clients are told (:class:`~solera.trust.noise.SumNoise`).

        Noise is counted in what one row changes: of an update 2 C, of which a client is worth C.
        """
        accounts = self.learner.accounts_
        of_client = self.dp.level == "client" and self.peers is None
        table = {
            "mechanism": self.mechanism,
            "noise": accounts["noise"] / (2 if of_client else 1),
            "share": 1 if self.in_every_reply else accounts["share"],
        }
        if self.peers is not None:
            table["level"] = self.dp.level
        clip = accounts.get("clip")
        return table if clip is None else {**table, "clip": clip}

    def takes(self, task: Task) -> bool:
        """Whether an ask of this task carries the noise: not if it says itself what it spends."""
        return task.spends is None

    def added_to(self, task: Task, payload: Any) -> Any:
        """The payload of an ask, with the table of noise."""
        return {**payload, "privacy": self.table} if self.takes(task) else payload

    def charge(self, replies: Replies) -> None:
        """Count an ask whose replies were read; fewer than planned bring less noise."""
        ask = replies.ask
        if not self.takes(find_task(ask.task, ask.version)):
            return
        accounts = self.learner.accounts_
        event = self.event(accounts, len(ask.clients) - len(replies.failures))
        events = grouped([*map(Event.from_payload, accounts["events"]), event])
        self.learner.accounts_ = {**accounts, "events": [one.to_payload() for one in events]}

    def event(self, accounts: Accounts, replies: int, times: int = 1) -> Event:
        """What so many asks spend.

        Who sees single replies sees who was asked; drawing clients hides nobody from them.
        """
        if self.in_every_reply or self.peers is not None:
            return Event(accounts["noise"], times, self.mechanism)
        select = getattr(self.learner, "select", None)
        by_chance = select is None or isinstance(select, Uniform)
        return Event(
            accounts["noise"] * math.sqrt(min(1.0, replies / accounts["share"])),
            times,
            rate=self.asked / self.among if by_chance else 1.0,
            sampling=self.dp.sampling,
            among=self.among,
        )

    def spent(self, federation: Any) -> dict[str, Any]:
        """What the history says of a round."""
        epsilon = epsilon_so_far(self.learner.accounts_)
        if self.peers is not None:
            return {"epsilon": epsilon, "noise": "at the sum", "honest_peers": self.peers}
        return {"epsilon": epsilon, "noise": whose_noise(federation)}


def at_the_sum(peers: int) -> str:
    """Whom the ε of a closed job hides, and where."""
    others = "other owner is" if peers == 1 else "other owners are"
    return f"for one person, at the sum, if {peers} {others} honest"


def honest_peers(dp: DP, clients: int, closed: bool) -> int | None:
    """How many other owners of a closed job have to add their share of noise; None elsewhere."""
    if not closed:
        if dp.honest_peers is not None:
            hint = "policy='sums' in a simulation, or so.connect; leave honest_peers= out elsewhere"
            raise UsageError(f"{dp!r}: honest_peers= is of closed jobs", hint=hint)
        return None
    if dp.accountant == "pld":
        hint = "leave accountant= out"
        raise UsageError(f"{dp!r}: the ledgers of owners count by another accountant", hint=hint)
    peers = clients - 2 if dp.honest_peers is None else dp.honest_peers
    if peers >= clients:
        rule = f"must be below {clients}, the owners of the epoch"
        raise UsageError.of(dp, "honest_peers", peers, rule)
    return peers


def check_level(learner: object, dp: DP) -> None:
    """Raise :class:`UsageError` for noise that hides clients where sums over rows are asked for."""
    if dp.level != "record":
        raise UsageError(
            f"{type(learner).__name__}(dp={dp!r}): sums over rows hide one row",
            hint="so.DP(level='record', …)",
        )


def epsilon_so_far(accounts: Accounts) -> float:
    """ε of all that was noised, at the δ of the accounts."""
    spent = [Event.from_payload(event) for event in accounts["events"]]
    return epsilon_of(spent, accounts["delta"], accounts["accountant"])

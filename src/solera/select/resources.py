"""Selectors that look at what clients can do before a deadline: FedCS, HybridFL, DynHybridFL."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from solera.core.clients import BoolArray, FloatArray, IntArray
from solera.core.constraints import NonNegative, Positive
from solera.core.engine import Engine
from solera.core.errors import UsageError
from solera.core.rounds import Round
from solera.core.selection import Roster, Selector
from solera.select.draw import uniformly
from solera.select.reports import resources
from solera.select.schedule import Schedule, greedy_schedule
from solera.select.upload import fetch_rows, plan_upload

log = logging.getLogger("solera")


@dataclass(frozen=True, slots=True)
class Estimates:
    """What candidates would take: seconds to train and to upload, and what they told besides."""

    clients: IntArray
    training: FloatArray
    uploading: FloatArray
    link: FloatArray
    counts: IntArray
    row_bits: FloatArray
    upload: BoolArray

    @property
    def load(self) -> float:
        """φ, the mean time to train plus the mean time to upload."""
        return float(self.training.mean() + self.uploading.mean())


def ask_resources(roster: Roster, candidates: IntArray, round: int) -> Estimates | None:
    """Estimates for all candidates, or None when nobody reported.

    A candidate that does not report is taken to be as slow as the slowest that did, to have as many
    rows as the largest and the class counts of the average, and to send no rows.
    """
    learner = roster.learner
    is_classes = learner.schema_.target == "classes"
    classes = learner.schema_.classes if is_classes else np.zeros(0)
    replies = roster.ask(resources, {"classes": classes}, candidates, round)
    sound = [r for r in replies if _is_sound(r.payload, len(classes))]
    if not sound:
        return None
    reported = np.array(
        [[r["speed"], r["link"], r["rows"], r["row_bits"]] for r in sound], dtype=float
    )
    counts = np.array([r["counts"] for r in sound], dtype=np.int64)
    silent = len(candidates) - len(sound)
    if silent:
        guess = [*reported[:, :2].min(axis=0), *reported[:, 2:].max(axis=0)]
        reported = np.concatenate([reported, np.tile(guess, (silent, 1))])
        usual = np.tile(np.round(counts.mean(axis=0)).astype(np.int64), (silent, 1))
        counts = np.concatenate([counts, usual])
    known = np.array([r.client for r in sound], dtype=np.int64)
    bits, epochs = learner.workload()
    speed, link, rows, row_bits = reported.T
    return Estimates(
        clients=np.concatenate([known, np.setdiff1d(candidates, known)]),
        training=epochs * rows / speed,
        uploading=bits / link,
        link=link,
        counts=counts,
        row_bits=row_bits,
        upload=np.array([bool(r["upload"]) for r in sound] + [False] * silent),
    )


def _is_sound(report: Any, classes: int) -> bool:
    try:
        speed, link = float(report["speed"]), float(report["link"])
        rows, row_bits = int(report["rows"]), int(report["row_bits"])
        counts = np.asarray(report["counts"])
        upload = report["upload"]
    except (KeyError, TypeError, ValueError):
        return False
    return (
        0 < speed < np.inf
        and 0 < link < np.inf
        and rows >= 0
        and row_bits > 0
        and isinstance(upload, bool | np.bool_)
        and counts.shape == (classes,)
        and counts.dtype.kind in "iu"
        and bool((counts >= 0).all())
    )


class FedCS(Selector):
    """As many clients as the estimated time allows (Nishio & Yonetani 2019).

    M candidates are drawn uniformly and asked what they can do. Then the candidate that makes the
    round longer by the least, T_inc(S, k), is added while the round stays below its deadline. Where
    nobody reports or nobody fits, nobody is chosen, and the round is skipped.

    ``deadline`` is T_round in seconds, ``overhead`` T_cs + T_agg.
    """

    asks_clients = True
    _schedule: Schedule | None = None

    def __init__(self, *, deadline: Positive = 180.0, overhead: NonNegative = 0.0) -> None:
        self.deadline = deadline
        self.overhead = overhead

    def choose(self, round: int, roster: Roster, rng: np.random.Generator) -> IntArray:
        candidates = np.sort(uniformly(roster.ids, roster.budget, rng))
        estimates = ask_resources(roster, candidates, round)
        if estimates is None:
            federation = roster.federation
            assert federation is not None  # it was asked
            if federation.clock is None and getattr(federation.engine, "simulated", False):
                raise UsageError(
                    f"{self!r} chooses by what clients can do in time; without a clock they have "
                    "no speed and no link",
                    hint="so.simulate(…, clock=so.simulation.VirtualClock())",
                )
            return candidates[:0]
        deadline = self.deadline_of(estimates)
        self._schedule = self.schedule(estimates, deadline)
        if not len(self._schedule.chosen):
            log.warning("round %d: none of %d candidates meets the deadline of %g s",
                        round, len(candidates), deadline)  # fmt: skip
        self.prepare(round, roster, estimates, self._schedule)
        return estimates.clients[self._schedule.chosen]

    def deadline_of(self, estimates: Estimates) -> float:
        """T_round of this round."""
        return float(self.deadline)

    def schedule(self, estimates: Estimates, deadline: float, **balance: Any) -> Schedule:
        """Whom to choose, and how long it will take."""
        return greedy_schedule(
            estimates.training, estimates.uploading, deadline, overhead=self.overhead, **balance
        )

    def prepare(self, round: int, roster: Roster, estimates: Estimates, plan: Schedule) -> None:
        """What else happens before the round."""

    def observe(self, round: Round) -> None:
        assert self._schedule is not None
        round.log(estimate=self._schedule.seconds)


class HybridFL(FedCS):
    """FedCS that also evens out the classes, and trains on rows that clients send (Hybrid-FL).

    The candidate of the smallest T_inc(S, k)·CV(S ∪ k) is added, CV being the coefficient of
    variation of the class totals. Until the first model is uploaded the link is free: clients that
    allow it send rows, class after class, those with the fastest link first. The coordinator trains
    on the rows of this round and enters the average as one more member (Yoshida et al. 2020). For
    targets that are not classes it is :class:`FedCS`.

    Parameters
    ----------
    deadline, overhead: T_round and T_cs + T_agg in seconds.
    term: CV as ``"variance"`` over mean, as published, or as standard ``"deviation"`` over mean.
    upload: whether rows may be asked for.
    resend: ask for the same first rows of a client in every round, as the thesis's program does.

    ``sent_`` is how many rows of each class clients were asked for, so that none is sent twice.
    """

    _coordinator_rows: Engine | None = None
    sent_: dict[int, IntArray] | None = None

    def __init__(
        self,
        *,
        term: Literal["variance", "deviation"] = "variance",
        upload: bool = True,
        resend: bool = False,
        **fedcs: Any,
    ) -> None:
        super().__init__(**fedcs)
        self.term = term
        self.upload = upload
        self.resend = resend

    def schedule(self, estimates: Estimates, deadline: float, **balance: Any) -> Schedule:
        counts = estimates.counts.astype(float) if estimates.counts.shape[1] else None
        return super().schedule(estimates, deadline, counts=counts, term=self.term, **balance)

    def prepare(self, round: int, roster: Roster, estimates: Estimates, plan: Schedule) -> None:
        self._coordinator_rows = None
        outside = np.ones(len(estimates.clients), dtype=bool)
        outside[plan.chosen] = False
        allowing = np.flatnonzero(outside & estimates.upload)
        if not (self.upload and len(plan.chosen) and len(allowing)):
            return
        who = estimates.clients[allowing].tolist()
        nothing = np.zeros(estimates.counts.shape[1], dtype=np.int64)
        already = {} if self.resend else self.sent_ or {}
        sent = np.array([already.get(client, nothing) for client in who])
        left = np.maximum(estimates.counts[allowing] - sent, 0)
        takes = plan_upload(
            estimates.link[allowing], estimates.row_bits[allowing], left, plan.first_upload
        )
        asks = {c: (i, n) for c, i, n in zip(who, sent, takes, strict=True) if n.any()}
        self._coordinator_rows = fetch_rows(roster, asks, round)
        now = {client: first + take for client, (first, take) in asks.items()}
        self.sent_ = dict(sorted({**already, **now}.items()))

    def coordinator_rows(self) -> Engine | None:
        return self._coordinator_rows

    def observe(self, round: Round) -> None:
        super().observe(round)
        source = getattr(self._coordinator_rows, "source", None)
        round.log(uploaded=0 if source is None else int(source.sizes("train").sum()))


class DynHybridFL(HybridFL):
    """HybridFL whose deadline follows what the candidates can do.

    With φ_t = mean t_UD + mean t_UL over the candidates of round t the deadline is
    T(t) = T(t−1)·φ_t/φ_{t−1}, which is T(0)·φ_t/φ_0: the first round sets the level for ever.

    Parameters
    ----------
    deadline: T(0) in seconds; the others up to ``resend`` as in :class:`HybridFL`.
    reference: ``"previous"`` as published, or ``"running_mean"``: φ_t is compared with the mean of
        all earlier rounds, T(t) = T(0)·φ_t / mean(φ_0 … φ_{t−1}).
    lower, upper: the deadline never leaves these bounds, in seconds.

    ``first_load_`` is φ_0, ``sum_of_loads_`` the sum over ``rounds_`` rounds and ``deadline_`` the
    current T.
    """

    first_load_: float | None = None
    sum_of_loads_: float = 0.0
    rounds_: int = 0
    deadline_: float = 0.0

    def __init__(
        self,
        *,
        reference: Literal["previous", "running_mean"] = "previous",
        lower: NonNegative = 0.0,
        upper: float = float("inf"),
        **hybrid: Any,
    ) -> None:
        super().__init__(**hybrid)
        self.reference = reference
        self.lower = lower
        self.upper = upper

    def deadline_of(self, estimates: Estimates) -> float:
        load = estimates.load
        self.first_load_ = load if self.first_load_ is None else self.first_load_
        against = self.first_load_
        if self.reference == "running_mean" and self.rounds_:
            against = self.sum_of_loads_ / self.rounds_
        self.sum_of_loads_ += load
        self.rounds_ += 1
        self.deadline_ = float(np.clip(self.deadline * load / against, self.lower, self.upper))
        return self.deadline_

    def observe(self, round: Round) -> None:
        super().observe(round)
        round.log(deadline=self.deadline_)

    def check_params(self) -> None:
        super().check_params()
        if not self.lower <= self.upper:
            raise UsageError.of(self, "lower", self.lower, f"must be between 0 and {self.upper}")

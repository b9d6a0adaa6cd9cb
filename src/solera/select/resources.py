"""Selectors that look at what clients can do before a deadline: FedCS, HybridFL, DynHybridFL."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from solera.core.clients import IntArray
from solera.core.engine import Engine
from solera.core.errors import UsageError
from solera.core.rounds import Round
from solera.core.selection import Roster, Selector
from solera.select.draw import uniformly
from solera.select.reports import resources
from solera.select.schedule import Schedule, greedy_schedule
from solera.select.upload import fetch_rows, plan_upload

log = logging.getLogger("solera")
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimates:
    """What candidates would take: seconds to train and to upload, and what they told besides."""

    clients: IntArray
    training: Floats
    uploading: Floats
    link: Floats
    counts: IntArray
    row_bits: Floats
    upload: NDArray[np.bool_]

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
    told = np.array([[r["speed"], r["link"], r["rows"], r["row_bits"]] for r in sound], dtype=float)
    counts = np.array([r["counts"] for r in sound], dtype=np.int64)
    silent = len(candidates) - len(sound)
    if silent:
        guess = [told[:, 0].min(), told[:, 1].min(), told[:, 2].max(), told[:, 3].max()]
        told = np.concatenate([told, np.tile(guess, (silent, 1))])
        usual = np.tile(np.round(counts.mean(axis=0)).astype(np.int64), (silent, 1))
        counts = np.concatenate([counts, usual])
    known = np.array([r.client for r in sound], dtype=np.int64)
    bits, epochs = learner.workload()
    speed, link, rows, row_bits = told.T
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

    _schedule: Schedule | None = None

    def __init__(self, *, deadline: float = 180.0, overhead: float = 0.0) -> None:
        self.deadline = deadline
        self.overhead = overhead

    def choose(self, round: int, roster: Roster, rng: np.random.Generator) -> IntArray:
        self._check()
        candidates = np.sort(uniformly(roster.ids, roster.budget, rng))
        found = ask_resources(roster, candidates, round)
        if found is None:
            log.warning("round %d: none of %d candidates reported what it can do; clients report "
                        "with so.simulate(clock=…) or a SOLERA_RESOURCES file", round,
                        len(candidates))  # fmt: skip
            return candidates[:0]
        deadline = self.deadline_of(found)
        self._schedule = self.schedule(found, deadline)
        if not len(self._schedule.chosen):
            log.warning("round %d: none of %d candidates meets the deadline of %g s",
                        round, len(candidates), deadline)  # fmt: skip
        self.prepare(round, roster, found, self._schedule)
        return found.clients[self._schedule.chosen]

    def deadline_of(self, found: Estimates) -> float:
        """T_round of this round."""
        return float(self.deadline)

    def schedule(self, found: Estimates, deadline: float) -> Schedule:
        """Whom to choose, and how long it will take."""
        return greedy_schedule(found.training, found.uploading, deadline, overhead=self.overhead)

    def prepare(self, round: int, roster: Roster, found: Estimates, plan: Schedule) -> None:
        """What else happens before the round."""

    def observe(self, round: Round) -> None:
        assert self._schedule is not None
        round.log(estimate=self._schedule.seconds)

    def _check(self) -> None:
        if not self.deadline > 0:
            raise UsageError.of(self, "deadline", self.deadline, "must be > 0 seconds")
        if not self.overhead >= 0:
            raise UsageError.of(self, "overhead", self.overhead, "must not be negative")


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
    """

    _coordinator_rows: Engine | None = None
    _sent_rows: dict[int, IntArray] | None = None

    def __init__(
        self,
        *,
        deadline: float = 180.0,
        overhead: float = 0.0,
        term: str = "variance",
        upload: bool = True,
    ) -> None:
        self.deadline = deadline
        self.overhead = overhead
        self.term = term
        self.upload = upload

    def schedule(self, found: Estimates, deadline: float) -> Schedule:
        counts = found.counts.astype(float) if found.counts.shape[1] else None
        return greedy_schedule(
            found.training,
            found.uploading,
            deadline,
            overhead=self.overhead,
            counts=counts,
            term=self.term,
        )

    def prepare(self, round: int, roster: Roster, found: Estimates, plan: Schedule) -> None:
        self._coordinator_rows = None
        outside = np.ones(len(found.clients), dtype=bool)
        outside[plan.chosen] = False
        allowing = np.flatnonzero(outside & found.upload)
        if not (self.upload and len(plan.chosen) and len(allowing)):
            return
        who = found.clients[allowing].tolist()
        nothing = np.zeros(found.counts.shape[1], dtype=np.int64)
        sent = np.array([self._sent.get(client, nothing) for client in who])
        left = np.maximum(found.counts[allowing] - sent, 0)
        takes = plan_upload(found.link[allowing], found.row_bits[allowing], left, plan.first_upload)
        asks = {c: (i, n) for c, i, n in zip(who, sent, takes, strict=True) if n.any()}
        self._coordinator_rows = fetch_rows(roster, asks, round)
        self._sent.update({client: first + take for client, (first, take) in asks.items()})

    @property
    def _sent(self) -> dict[int, IntArray]:
        """How many rows of each class clients have been asked for in this run."""
        if self._sent_rows is None:
            self._sent_rows = {}
        return self._sent_rows

    def coordinator_rows(self) -> Engine | None:
        return self._coordinator_rows

    def get_state(self) -> Any:
        """What was asked for already, so that no row is sent twice."""
        return {"sent": [[client, sent] for client, sent in sorted(self._sent.items())]}

    def set_state(self, state: Any) -> None:
        self._sent_rows = {int(client): np.array(sent) for client, sent in state["sent"]}

    def observe(self, round: Round) -> None:
        super().observe(round)
        source = getattr(self._coordinator_rows, "source", None)
        round.log(uploaded=0 if source is None else int(source.sizes("train").sum()))

    def _check(self) -> None:
        super()._check()
        if self.term not in ("variance", "deviation"):
            raise UsageError.of(self, "term", self.term, "must be 'variance' or 'deviation'")


class DynHybridFL(HybridFL):
    """HybridFL whose deadline follows what the candidates can do.

    With φ_t = mean t_UD + mean t_UL over the candidates of round t the deadline is
    T(t) = T(t−1)·φ_t/φ_{t−1}, which is T(0)·φ_t/φ_0: the first round sets the level for ever.

    Parameters
    ----------
    deadline: T(0) in seconds; ``overhead``, ``term``, ``upload`` as in :class:`HybridFL`.
    reference: ``"previous"`` as published, or ``"running_mean"``: φ_t is compared with the mean of
        all earlier rounds, T(t) = T(0)·φ_t / mean(φ_0 … φ_{t−1}).
    lower, upper: the deadline never leaves these bounds, in seconds.
    """

    _first: float | None = None
    _sum: float = 0.0
    _rounds: int = 0
    _now: float = 0.0

    def __init__(
        self,
        *,
        deadline: float = 180.0,
        overhead: float = 0.0,
        term: str = "variance",
        upload: bool = True,
        reference: Literal["previous", "running_mean"] = "previous",
        lower: float = 0.0,
        upper: float = float("inf"),
    ) -> None:
        self.deadline = deadline
        self.overhead = overhead
        self.term = term
        self.upload = upload
        self.reference = reference
        self.lower = lower
        self.upper = upper

    def deadline_of(self, found: Estimates) -> float:
        load = found.load
        self._first = load if self._first is None else self._first
        against = self._first
        if self.reference == "running_mean" and self._rounds:
            against = self._sum / self._rounds
        self._sum, self._rounds = self._sum + load, self._rounds + 1
        self._now = float(np.clip(self.deadline * load / against, self.lower, self.upper))
        return self._now

    def observe(self, round: Round) -> None:
        super().observe(round)
        round.log(deadline=self._now)

    def get_state(self) -> Any:
        """The first load, and the sum and the number of all."""
        mine = {"first": self._first, "sum": self._sum, "rounds": self._rounds}
        return {**super().get_state(), **mine}

    def set_state(self, state: Any) -> None:
        super().set_state(state)
        self._first, self._sum = state["first"], float(state["sum"])
        self._rounds = int(state["rounds"])

    def _check(self) -> None:
        super()._check()
        if self.reference not in ("previous", "running_mean"):
            rule = "must be 'previous' or 'running_mean'"
            raise UsageError.of(self, "reference", self.reference, rule)
        if not 0 <= self.lower <= self.upper:
            raise UsageError.of(self, "lower", self.lower, f"must be between 0 and {self.upper}")

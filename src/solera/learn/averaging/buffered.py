"""FedBuff: the coordinator does not wait for slow clients (Nguyen et al. 2022).

``concurrency`` clients train at any time, each from the model that was current when it started.
After every ``buffer`` replies, whoever they come from, the model moves:

    w ← w + η_s / b · Σ_i s(τ_i) Δ_i,      s(τ) = 1/√(1 + τ)

τ is the number of moves the model made while the client was training. When replies arrive does not
depend on what they hold, so all clients that start from the same model are asked at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from solera.core.clients import Array
from solera.core.constraints import Count
from solera.core.errors import UsageError
from solera.core.federation import Federation
from solera.core.rng import generator
from solera.core.rounds import Round
from solera.learn.averaging.base import Entries
from solera.learn.averaging.learner import FedAvg
from solera.robust.buckets import Buckets
from solera.robust.collect import CollectUpdates, Robust
from solera.simulate.durations import Durations

Job = dict[str, Any]
"""A client, the model it started from, when its reply arrives, and the reply."""


class FedBuff(FedAvg):
    """Asynchronous averaging with a buffer; a round is one move of the model.

    Parameters
    ----------
    buffer: replies per move, at most one of each client.
    concurrency: clients that train at the same time.
    arrivals: when replies arrive, for example ``so.simulation.Durations(1.0, slowest=30.0)``.

    ``per_round`` and ``select`` are not used: a client that finishes is replaced by another that
    is idle, and is not asked again before the model has moved by its reply. With ``buffer`` =
    ``concurrency`` = all clients nothing is ever stale. Rounds log
    ``time``, in simulated seconds, and the mean ``staleness``.
    """

    closed_job = "updates count as they arrive, which is no sum over all owners; so.FedAvg(…)"

    def __init__(
        self,
        model: Any,
        *,
        buffer: Count = 10,
        concurrency: Count = 20,
        arrivals: Any = None,
        weight: Any = None,
        **averaging: Any,
    ) -> None:
        super().__init__(model, weight=weight, **averaging)
        self.buffer = buffer
        self.concurrency = concurrency
        self.arrivals = arrivals

    def train(self, federation: Federation) -> None:
        for name in ("concurrency", "buffer"):
            if len(federation) < getattr(self, name):
                problem = f"must be at most {len(federation)} clients"
                raise UsageError.of(self, name, getattr(self, name), problem)
        self.begin(federation)
        self.jobs_: list[Job] = []
        self.started_ = 0
        for r in self.each_round(federation, rounds=self.rounds):
            if not self.jobs_:
                draw = generator(federation.seed, "buffer", r.index)
                chosen = draw.choice(federation.clients, self.concurrency, replace=False)
                self._begin(federation, chosen, np.zeros(self.concurrency), r.index)
            arrived = self._wait(federation, r.index)
            self._ask(r, [*arrived, *self.jobs_])
            self._move(r, arrived)
        del self.jobs_, self.started_

    def _begin(self, federation: Federation, clients: Array, when: Array, version: int) -> None:
        """Let clients start; their replies are filled in by :meth:`_ask`."""
        clock = Durations() if self.arrivals is None else self.arrivals
        took = clock.durations(federation.seed, self.started_, clients)
        self.started_ += 1
        self.jobs_ = [
            *self.jobs_,
            *(
                {"client": int(c), "arrives": float(t), "version": version, "reply": None}
                for c, t in zip(clients, when + took, strict=True)
            ),
        ]

    def _wait(self, federation: Federation, version: int) -> list[Job]:
        """The next ``buffer`` jobs to arrive; clients that finish are replaced by others.

        Where nobody else is idle, the replacement waits until the model has moved.
        """
        draw = generator(federation.seed, "buffer/next", version)
        everyone = federation.clients
        arrived: list[Job] = []
        while len(arrived) < self.buffer:
            first = min(self.jobs_, key=lambda job: (job["arrives"], job["client"]))
            self.jobs_ = [job for job in self.jobs_ if job is not first]
            arrived.append(first)
            unavailable = [job["client"] for job in (*self.jobs_, *arrived)]
            idle = np.setdiff1d(everyone, unavailable)
            if len(idle) and len(arrived) < self.buffer:
                when = np.array([first["arrives"]])
                self._begin(federation, draw.choice(idle, 1), when, version)
        busy = [job["client"] for job in self.jobs_]
        missing = self.concurrency - len(busy)
        chosen = draw.choice(np.setdiff1d(everyone, busy), missing, replace=False)
        self._begin(federation, chosen, np.full(missing, first["arrives"]), version + 1)
        return arrived

    def _ask(self, r: Round, jobs: list[Job]) -> None:
        """Train everybody who starts from the current model."""
        new = [job for job in jobs if job["version"] == r.index and job["reply"] is None]
        if not new:
            return
        clients = sorted({job["client"] for job in new})
        folding = CollectUpdates(self.round_aggregation())
        replies = r.ask(self.update, self.round_ask(r.index), to=clients).fold(folding)
        for job in new:
            job["reply"] = replies.get(job["client"], False)

    def _move(self, r: Round, arrived: list[Job]) -> None:
        """Average what arrived and move the model."""
        replied = [job for job in arrived if job["reply"]]
        if replied and self.aggregate is not None:
            scaled = [[job["client"], {"values": self._stale(r, job)}] for job in replied]
            mean = Robust(self.round_aggregation(), self.aggregate).finish(scaled)
            self.apply_update(mean)
            r.log(loss=mean["loss"])
            if mean["judged"]:
                r.log(down_weighted=mean["judged"])
        elif replied:
            total = np.zeros(self._shared_size, self.dtype)
            for job in replied:
                total += self._stale(r, job)["update"]
            self.apply_update({"update": total / len(replied)})
            r.log(loss=float(np.mean([job["reply"]["values"]["loss"] for job in replied])))
        r.log(
            clients=len(arrived),
            time=max(job["arrives"] for job in arrived),
            staleness=float(np.mean([r.index - job["version"] for job in arrived])),
        )

    def rows_of_loss(self, round: Round) -> dict[str, Any]:
        arrived = round.metrics["clients"]
        return {"part": "train", "rows": None, "clients": arrived, "asked": arrived}

    def _stale(self, r: Round, job: Job) -> Entries:
        """The reply of a job, its update shortened by the age of the model it began with."""
        values = job["reply"]["values"]
        stale = (1 + r.index - job["version"]) ** -0.5
        return {**values, "update": (stale * values["update"]).astype(self.dtype)}

    def check_params(self) -> None:
        super().check_params()
        if isinstance(self.aggregate, Buckets):
            raise UsageError("FedBuff asks clients when they are idle, not in buckets")
        if self.dp is not None:
            raise UsageError.of(self, "dp", self.dp, "must be None: its updates come at any time")
        if self.weight is not None:
            raise UsageError.of(self, "weight", self.weight, "must be None: staleness weighs")
        if self.send != "difference":
            raise UsageError("FedBuff sends differences", hint="use send='difference'")

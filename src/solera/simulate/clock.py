"""Virtual time: how long a round would take, without waiting for it.

A round takes T = T_d(S) + Θ(S) plus a fixed overhead (Yoshida et al. 2020). The model is
distributed at the pace of the slowest link, T_d = bits / min θ. All clients of S train at once,
t_UD = E·n_k / γ_k. Uploads, t_UL = bits / θ_k, come one after the other, in the order in which
clients are ready, or all at once.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from msgspec import Meta

from solera.core import rng
from solera.core.clients import FloatArray, IntArray
from solera.core.component import Component
from solera.core.constraints import Fraction, NonNegative, Positive
from solera.core.engine import Ask
from solera.core.errors import UsageError
from solera.core.replies import Failure
from solera.core.selection import Timing, Work
from solera.simulate.failures import Failures
from solera.simulate.resources import Resources

DAY = 86400.0
Hours = Annotated[float, Meta(gt=0, le=24)]


class Availability(Component):
    """Clients that can be reached for some ``hours`` of every day, each from an hour of its own.

    With ``together`` = 1 all begin at the same hour, with 0 at any hour.
    """

    def __init__(self, hours: Hours = 8.0, *, together: Fraction = 0.0) -> None:
        self.hours = hours
        self.together = together

    def left(self, seed: int, time: float, clients: IntArray) -> FloatArray:
        """Seconds until each client goes; 0 or less where it is not there."""
        if self.hours == 24:
            return np.full(len(clients), np.inf)
        keys = rng.stream_keys(seed, "availability", 0, clients)
        begins = rng.uniform(keys, 0) * DAY
        since = (time - begins * (1 - self.together)) % DAY
        return np.asarray(self.hours * 3600 - since)


class VirtualClock(Component):
    """How long rounds take, and who does not come back in time.

    Parameters
    ----------
    resources: what clients can do; :class:`Resources` by default.
    uploads: ``"sequential"``, one client after the other, or ``"parallel"``.
    deadline: seconds after which a round is over; later clients are lost. None: everyone is
        waited for.
    overhead: seconds for selection and aggregation, T_cs + T_agg.
    failures: clients that drop out, crash or straggle during a round.
    availability: who can be reached at what time of the day.
    idle: seconds until the next round when nobody takes part in this one or all have left it.
    """

    def __init__(
        self,
        resources: Resources | None = None,
        *,
        uploads: Literal["sequential", "parallel"] = "sequential",
        deadline: Positive | None = None,
        overhead: NonNegative = 0.0,
        failures: Failures | None = None,
        availability: Availability | None = None,
        idle: Positive = 60.0,
    ) -> None:
        self.resources = resources
        self.uploads = uploads
        self.deadline = deadline
        self.overhead = overhead
        self.failures = failures
        self.availability = availability
        self.idle = idle

    def check_params(self) -> None:
        super().check_params()
        if self.failures is not None and self.failures.corrupt:
            hint = "damaged replies belong to so.simulate(failures=…)"
            raise UsageError("VirtualClock: failures.corrupt has no meaning here", hint=hint)

    def model(self) -> Resources:
        """The resources of the clients."""
        return Resources() if self.resources is None else self.resources

    def available(self, seed: int, time: float, clients: int) -> IntArray | None:
        if self.availability is None:
            return None
        return np.flatnonzero(self.availability.left(seed, time, np.arange(clients)) > 0)

    def wait(self) -> float:
        return float(self.idle)

    def time_round(
        self, seed: int, round: int, time: float, clients: IntArray, work: Work
    ) -> Timing:
        state = self.model().now(seed, round, clients)
        training = work.epochs * work.rows / state.speed
        uploading = work.bits / state.link
        gone = np.zeros(len(clients), dtype=bool)
        if self.failures is not None:
            ask = Ask("clock", 1, None, clients, seed, round)
            faults = self.failures.faults(ask, clients)
            training, gone = training + faults.delay, faults.dropped | faults.crashed
        ends = work.bits / state.link.min() + finishing_times(
            np.where(gone, np.inf, training), uploading, self.uploads
        )
        if self.availability is not None:
            gone |= ends > self.availability.left(seed, time, clients)
        limit = np.inf if self.deadline is None else self.deadline - self.overhead
        late = ~gone & (ends > limit)
        missed = [
            Failure(client, "dropped", "the client left during the round")
            for client in clients[gone].tolist()
        ] + [
            Failure(client, "late", f"no reply within {self.deadline} s")
            for client in clients[late].tolist()
        ]
        if missed and self.deadline is not None:
            return Timing(self.deadline, missed)
        if gone.all():
            return Timing(self.wait(), missed)
        return Timing(float(ends[~gone].max()) + self.overhead, missed)


def finishing_times(training: FloatArray, uploading: FloatArray, uploads: str) -> FloatArray:
    """When the upload of each client ends, counted from when it got the model.

    Sequential: with clients in the order in which they are ready, e_1 = a_1 + u_1 and
    e_i = max(a_i, e_{i−1}) + u_i. Solved at once: e_i = U_i + max_{j ≤ i} (a_j − U_{j−1}), where
    U is the running sum of u.
    """
    if uploads == "parallel":
        return training + uploading
    order = np.argsort(training, kind="stable")
    ready, sums = training[order], np.cumsum(uploading[order])
    ends = np.empty_like(training)
    ends[order] = sums + np.maximum.accumulate(ready - (sums - uploading[order]))
    return ends

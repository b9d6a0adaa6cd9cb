"""How much energy a piece of work takes, and which tasks, clients and rounds take it.

    with so.energy.track_energy(federation, country="ESP") as tracked:
        model.fit(federation)
    print(tracked.use)

One curve of energy over time is kept for the whole span. Every ask has a beginning and an end in
the federation's meter, so each moment belongs to the innermost ask under way or, between asks, to
the coordinator: the parts add up to the whole. An ask is shared among the clients that were asked,
in proportion to their rows.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import count, zip_longest
from typing import Any, Literal

import numpy as np

from solera.core.clients import FloatArray
from solera.core.component import Component
from solera.core.constraints import NonNegative, Positive, check_values, declared_types
from solera.core.federation import Federation
from solera.core.meter import Record
from solera.core.rounds import Callback, Round
from solera.green import carbon
from solera.green.power import JOULES_PER_KWH, PowerModel, Sampler

COORDINATOR = "coordinator"
PREDICTION = "prediction"
BETWEEN = "between trainings"
"""Starting a process and storing results, counted by a shared sampler."""
APART = (BETWEEN, "reading data", "warming up", "scoring", "storing")
"""Tasks of a study that are neither training nor prediction."""
Source = Literal["auto", "codecarbon", "model"]
_names = count()


@dataclass(frozen=True)
class EnergyOptions:
    """How energy is measured, and where the electricity comes from.

    ``source`` "codecarbon" asks CodeCarbon (extra ``green``), "model" the power model of
    :mod:`solera.green.power`; "auto" asks CodeCarbon where it is installed and finds counters, and
    the model otherwise. ``country`` is an ISO code of three letters; ``intensity`` (g CO₂e per kWh)
    overrides what is known about it.
    """

    source: Source = "auto"
    country: str = carbon.WORLD
    intensity: float | None = None
    core_watts: NonNegative = PowerModel.core_watts
    memory_watts: NonNegative = PowerModel.memory_watts
    pue: NonNegative = 1.0

    def __post_init__(self) -> None:
        check_values(self, declared_types(EnergyOptions), vars(self))

    def resolved(self) -> Literal["codecarbon", "model"]:
        """Who measures on this machine."""
        if self.source == "auto":
            return "codecarbon" if carbon.installed() and carbon.counters() else "model"
        return self.source

    def grams_per_kwh(self) -> float:
        return carbon.intensity(self.country) if self.intensity is None else self.intensity

    def power(self) -> PowerModel:
        return PowerModel(self.core_watts, self.memory_watts, self.pue)


@dataclass(frozen=True)
class EnergyUse:
    """What some work took: kWh in all, and of each task, round and client.

    ``tasks`` add up to ``kwh``; ``coordinator`` among them is what happened between asks.
    ``clients`` holds the clients' shares of the asks; ``rounds`` those of each round that asked,
    in order, where work after an ask belongs to the round of that ask.
    """

    kwh: float
    co2e: float
    """kg CO₂ equivalent."""
    seconds: float
    source: str
    tasks: dict[str, float] = field(default_factory=dict)
    rounds: list[float] = field(default_factory=list)
    clients: list[float] = field(default_factory=list)
    elsewhere: bool = False
    """Whether clients worked on other machines, which are not metered: this is of the driver."""

    @property
    def wh(self) -> float:
        return 1000 * self.kwh

    def per_wh(self, score: float) -> float:
        """A score divided by the watt-hours it took, for example accuracy per Wh."""
        return score / self.wh if self.wh else float("inf")

    def of_work(self) -> EnergyUse:
        """Without the tasks that are :data:`APART`: what training and prediction took."""
        tasks = {name: kwh for name, kwh in self.tasks.items() if name not in APART}
        kwh = sum(tasks.values())
        co2e = self.co2e * kwh / self.kwh if self.kwh else 0.0
        return replace(self, kwh=kwh, co2e=co2e, tasks=tasks)

    def __add__(self, other: EnergyUse) -> EnergyUse:
        """Both, one after the other."""
        tasks = defaultdict(float, self.tasks)
        for name, kwh in other.tasks.items():
            tasks[name] += kwh
        return EnergyUse(
            self.kwh + other.kwh,
            self.co2e + other.co2e,
            self.seconds + other.seconds,
            self.source if self.source == other.source else "mixed",
            dict(tasks),
            _added(self.rounds, other.rounds),
            _added(self.clients, other.clients),
            self.elsewhere or other.elsewhere,
        )

    def __str__(self) -> str:
        whose = ", of the driver alone: clients elsewhere are not metered" * self.elsewhere
        return (
            f"{self.wh:.4g} Wh, {1000 * self.co2e:.4g} g CO₂e in {self.seconds:.1f} s "
            f"({self.source}{whose})"
        )


class Tracked:
    """A span under measurement; ``use`` is there when it has ended."""

    use: EnergyUse

    def __init__(self, sampler: Sampler, *, shared: bool) -> None:
        self._sampler = sampler
        self._began = sampler.mark
        self._before = float(sampler.at(self._began))
        self._federations: list[tuple[Federation, int]] = []
        self._stages = [(self._began, BETWEEN if shared else COORDINATOR)]
        if shared:
            self.stage(COORDINATOR)

    def attach(self, federation: Federation) -> None:
        """Count the asks of a federation, from now on, as its tasks."""
        self._federations.append((federation, len(federation.meter.records)))

    def stage(self, name: str) -> None:
        """What happens between asks from now on; the coordinator's work by default."""
        self._sampler.read()
        self._stages.append((time.perf_counter(), name))

    @property
    def wh(self) -> float:
        """Watt-hours until now, by the power model."""
        return (self._sampler.read() - self._before) / JOULES_PER_KWH * 1000

    def _finish(self, kwh: float | None, options: EnergyOptions, source: str) -> None:
        model = (self._sampler.read() - self._before) / JOULES_PER_KWH
        total = model if kwh is None else kwh
        ended = self._sampler.mark = self._sampler.times[-1]
        grams = options.grams_per_kwh()
        tasks, rounds, clients = self._parts(ended, total / model if model else 0.0)
        elsewhere = not all(getattr(fed.engine, "simulated", False) for fed, _ in self._federations)
        clients = [] if elsewhere else clients
        co2e, seconds = total * grams / 1000, ended - self._began
        self.use = EnergyUse(total, co2e, seconds, source, tasks, rounds, clients, elsewhere)

    def _parts(
        self, ended: float, scale: float
    ) -> tuple[dict[str, float], list[float], list[float]]:
        """kWh of tasks, rounds and clients."""
        asks = [
            (record, federation)
            for federation, first in self._federations
            for record in federation.meter.records[first:]
        ]
        marks = [at for at, _ in self._stages]
        edges = [edge for r, _ in asks for edge in (r.began, r.began + r.wall)]
        moments = np.unique(np.array([*marks, *edges, ended]))
        spent = np.diff(self._sampler.at(moments)) / JOULES_PER_KWH * scale
        owners = _owners(moments, [record for record, _ in asks])
        stages = np.searchsorted(marks, moments[:-1], side="right") - 1

        tasks: defaultdict[str, float] = defaultdict(float)
        rounds: defaultdict[int, float] = defaultdict(float)
        each = np.zeros(len(asks))
        round = 0
        for kwh, owner, stage in zip(spent.tolist(), owners, stages.tolist(), strict=True):
            if owner >= 0:
                record = asks[owner][0]
                name, round = record.task, record.round
                each[owner] += kwh
            else:
                name = self._stages[stage][1]
            if kwh:
                tasks[name] += kwh
            rounds[round] += kwh
        per_round = [rounds[r] for r in sorted(rounds)]  # numbers of predictions begin far above
        return dict(tasks), per_round, _shares(asks, each)


@contextmanager
def track_energy(
    *federations: Federation,
    options: EnergyOptions | None = None,
    sampler: Sampler | None = None,
    **settings: Any,
) -> Iterator[Tracked]:
    """Measure the energy of a ``with`` block; its asks to ``federations`` count as their tasks.

    ``settings`` are those of :class:`EnergyOptions`: ``track_energy(fed, country="ESP")``. Of
    several blocks that share a ``sampler`` each begins where the last one ended; what happens in
    between is a task of the next.
    """
    options = EnergyOptions(**settings) if options is None else options
    source = options.resolved()
    options.grams_per_kwh()  # an unknown country is an error before the work, not after it
    counted = carbon.tracker(options.country) if source == "codecarbon" else None
    name = f"solera-{next(_names)}"
    if counted is not None:
        counted.start_task(name)
    kwh = None
    with Sampler(options.power()) if sampler is None else nullcontext(sampler) as running:
        tracked = Tracked(running, shared=sampler is not None)
        for federation in federations:
            tracked.attach(federation)
        try:
            yield tracked
        finally:
            if counted is not None:
                kwh = float(counted.stop_task(name).energy_consumed) * options.pue
        tracked._finish(kwh, options, source)


class EnergyBudget(Callback, Component):
    """Stop training when it has taken ``wh`` watt-hours; the last round is finished.

    What earlier starts of an interrupted run took is counted; ``spent_`` is the sum.
    """

    spent_: float = 0.0

    def __init__(self, wh: Positive, options: EnergyOptions | None = None) -> None:
        self.wh = wh
        self.options = options
        self._sampler = Sampler((options or EnergyOptions()).power())

    def on_start(self, learner: Any, rounds: int, start: int) -> None:
        self._before = self.spent_
        self._sampler.__enter__()

    def on_round(self, learner: Any, round: Round) -> None:
        self.spent_ = self._before + self._sampler.read() / JOULES_PER_KWH * 1000
        round.log(wh=self.spent_)
        if self.spent_ >= self.wh:
            round.stop(f"the budget of {self.wh:g} Wh is spent")

    def on_end(self, learner: Any) -> None:
        self._sampler.__exit__()


def _owners(moments: FloatArray, records: Sequence[Record]) -> list[int]:
    """For each piece between two moments, the innermost ask under way, or −1."""
    starts = np.searchsorted(moments, [r.began for r in records])
    ends = np.searchsorted(moments, [r.began + r.wall for r in records])
    owners = np.full(len(moments) - 1, -1)
    for ask in np.argsort(starts, kind="stable").tolist():  # later asks lie inside earlier ones
        owners[starts[ask] : ends[ask]] = ask
    found: list[int] = owners.tolist()
    return found


def _shares(asks: Sequence[tuple[Record, Federation]], each: FloatArray) -> list[float]:
    """kWh of every client, where an ask is shared in proportion to rows."""
    if not asks:
        return []
    clients = np.zeros(max(federation.engine.clients for _, federation in asks))
    weights: dict[int, Any] = {}
    for (record, federation), kwh in zip(asks, each.tolist(), strict=True):
        if id(federation) not in weights:
            sizes = federation.engine.sizes("train")
            weights[id(federation)] = np.ones(len(clients)) if sizes is None else sizes + 1e-9
        share = weights[id(federation)][record.clients]
        clients[record.clients] += kwh / share.sum() * share
    shares: list[float] = clients.tolist()
    return shares


def _added(a: Sequence[float], b: Sequence[float]) -> list[float]:
    return [x + y for x, y in zip_longest(a, b, fillvalue=0.0)]

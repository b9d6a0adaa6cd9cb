"""Client selection thesis, Table 6.2: 400 virtual minutes with clients of limited means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from solera.core.federation import Federation
from solera.core.rounds import StopAt
from solera.core.selection import Selector, Uniform
from solera.learn.base import Learner
from solera.published.rows import Rows, quiet, row
from solera.published.selection_protocol import (
    COMPLEX,
    MLP,
    NEARLY_IID,
    NORMALISED,
    PARTITIONS,
    Images,
    learner,
    mean,
    partition,
    read,
    spread,
)
from solera.select.resources import DynHybridFL, HybridFL
from solera.simulate.clock import VirtualClock
from solera.simulate.simulation import simulate
from solera.study.run.progress import SILENT, Progress

TITLE = "Client selection under limited resources: 400 virtual minutes (Table 6.2)"
SCALE_DOWN = (
    "Rounds, selections, clients and seconds per round: the original 400 minutes, K = 1000, "
    "C = 0.1, T_round = 180 s, rows per client and model sizes, five seeds; they follow from the "
    "clients' resources alone, so nothing is trained for them. Accuracies: trained for the first "
    "20 (MNIST) and 30 (CIFAR-10) of the 400 minutes, five seeds (--full: all 400). CIFAR-10 is "
    "the 10,000 rows at hand instead of 50,000."
)
ERRATA = (
    NEARLY_IID,
    NORMALISED,
    "ToA in the thesis is the duration of one round. Here it is the time of arrival.",
    "Here uploads are taken in the order in which clients are ready, so a round is never longer "
    "than estimated; the thesis's rounds of HybridFL take 190 s for a deadline of 180 s.",
    "T(t) = T(t-1) φ_t/φ_(t-1) is T(0) φ_t/φ_0: the first round sets the level for ever. The "
    "running mean of the future work is run as well.",
)
SEEDS = range(5)
CLIENTS, CANDIDATES, DEADLINE, MINUTES = 1000, 100, 180.0, 400


@dataclass(frozen=True)
class Setting:
    """A data set: its model and rows in the thesis, and rounds, selections, accuracy published."""

    data: str
    model: Any
    parameters: int
    rows: int
    short: int
    published: dict[str, tuple[int, int, float]]


SETTINGS = (
    Setting("mnist", MLP, 101_770, 60_000, 20, {
        "scheduled uniform": (96, 9600, 0.937),
        "HybridFL": (126, 9352, 0.946),
        "DynHybridFL": (137, 9532, 0.945),
    }),
    Setting("cifar10", COMPLEX, 1_342_122, 50_000, 30, {
        "scheduled uniform": (8, 800, 0.203),
        "HybridFL": (138, 607, 0.458),
        "DynHybridFL": (138, 602, 0.398),
    }),
)  # fmt: skip


def selectors(upload: bool) -> dict[str, Selector]:
    """The published three, and the thesis's future work."""
    both: dict[str, Any] = {"deadline": DEADLINE, "upload": upload}
    return {
        "scheduled uniform": Uniform(),
        "HybridFL": HybridFL(**both),
        "DynHybridFL": DynHybridFL(**both),
        "DynHybridFL, running mean": DynHybridFL(reference="running_mean", **both),
        "DynHybridFL, running mean, at least 170 s, at most 190 s": DynHybridFL(
            reference="running_mean", lower=170.0, upper=190.0, **both
        ),
    }


@quiet()
def run(full: bool = False, progress: Progress = SILENT) -> Rows:
    """Rounds, selections, clients and seconds per round, and accuracies."""
    lines: Rows = []
    for setting in SETTINGS:
        for name, selector in selectors(upload=False).items():
            progress.stage(f"{setting.data}, {name}: time alone")
            lines += _time_rows(setting, name, selector)
        images = read(setting.data, setting.model, 0)
        minutes = MINUTES if full else setting.short
        for kind in PARTITIONS:
            for name in setting.published:
                values = []
                for seed in SEEDS:
                    progress.stage(f"{setting.data}, {kind}, {name}, seed {seed}: training")
                    values.append(_accuracy(setting, images, kind, name, seed, minutes))
                thesis = setting.published[name][2] if kind == "nearly IID" else None
                note = spread(values)
                if thesis is not None and not full:
                    note += "; the thesis's after 400 minutes"
                cell = f"{setting.data}, {kind}, {name}, accuracy after {minutes} minutes"
                lines.append(row(cell, thesis, mean(values), form=".3f", note=note))
    return lines


# --- time alone ---


class _Rehearsal(Learner):
    """Goes through the rounds of a learner with a model of that size, without training."""

    def __init__(self, size: int, *, select: Selector) -> None:
        self.size = size
        self.select = select

    def train(self, federation: Federation) -> None:
        for _ in self.each_round(
            federation, rounds=10**6, per_round=CANDIDATES, select=self.select
        ):
            pass

    def workload(self) -> tuple[int, float]:
        return 32 * self.size, 5.0


def rehearse(setting: Setting, selector: Selector, seed: int) -> Rows:
    """The history of 400 virtual minutes with the rows per client of the thesis."""
    y = np.arange(setting.rows) % 10
    fed = simulate(
        np.zeros((setting.rows, 1), dtype=np.float32), y, clients=CLIENTS,
        partition=partition("nearly IID", CLIENTS, seed), seed=seed, clock=VirtualClock(),
    )  # fmt: skip
    rehearsal = _Rehearsal(setting.parameters, select=selector)
    return rehearsal.fit(fed, callbacks=[StopAt(time=60 * MINUTES)]).history_


def _time_rows(setting: Setting, name: str, selector: Selector) -> Rows:
    histories = [rehearse(setting, selector, seed) for seed in SEEDS]
    rounds, selections, _ = setting.published.get(name, (None, None, None))
    each = None if rounds is None or selections is None else selections / rounds
    length = None if rounds is None else 60 * MINUTES / rounds
    measured = {
        "rounds in 400 minutes": (rounds, [len(h) for h in histories], ".1f"),
        "selections": (selections, [sum(e["clients"] for e in h) for h in histories], ".0f"),
        "clients per round": (each, [_average(h, "clients") for h in histories], ".2f"),
        "virtual s/round": (length, [_average(h, "seconds") for h in histories], ".1f"),
    }
    return [
        row(
            f"{setting.data}, {name}, {words}", thesis, mean(values), form=form, note=spread(values)
        )
        for words, (thesis, values, form) in measured.items()
    ]


def _average(history: Rows, metric: str) -> float:
    return float(np.mean([entry[metric] for entry in history]))


# --- with training ---


def _accuracy(
    setting: Setting, images: Images, kind: str, name: str, seed: int, minutes: int
) -> float:
    fed = simulate(
        images.X, images.y, clients=CLIENTS, partition=partition(kind, CLIENTS, seed), seed=seed,
        clock=VirtualClock(),
    )  # fmt: skip
    model = learner(
        images.model, rounds=10**6, per_round=CANDIDATES, select=selectors(upload=True)[name]
    )
    model.fit(fed, callbacks=[StopAt(time=60 * minutes)])
    return float(model.score(images.X_test, images.y_test))

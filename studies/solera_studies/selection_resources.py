"""Client selection thesis, Table 6.2: 400 virtual minutes with clients of limited means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from solera.core.federation import Federation
from solera.core.selection import Selector, Uniform
from solera.evaluation.stopping import StopAt
from solera.learn.base import Learner
from solera.select.resources import DynHybridFL, HybridFL
from solera.simulate.clock import VirtualClock
from solera.simulate.simulation import simulate
from solera.study.run.progress import SILENT, Progress
from solera_studies.rows import AS_PUBLISHED, ORIGINAL, OURS, Rows, quiet, row
from solera_studies.selection_protocol import (
    COMPLEX,
    MLP,
    NEARLY_IID,
    NORMALISED,
    UNSHUFFLED,
    Images,
    as_published,
    dealt,
    learner,
    mean,
    partition,
    read,
    spread,
)
from solera_studies.theses import Cell, table

TITLE = "Client selection under limited resources: 400 virtual minutes (Table 6.2)"
TABLE = table("001", "Table 6.2")
TABLES = (TABLE,)
SCALE_DOWN = (
    "Rounds, selections, clients and seconds per round: the original 400 minutes, K = 1000, "
    "C = 0.1, T_round = 180 s, rows per client and model sizes, five seeds; they follow from the "
    "clients' resources alone, so nothing is trained for them. Accuracies: --full trains for all "
    "400 minutes, one seed, with the 10,000 rows of CIFAR-10 at hand instead of 50,000; by default "
    "MNIST for 20 minutes."
)
DIFFERS = (
    "as published: rows never shuffled, pixels scaled to ±1, CIFAR-10 tested with MNIST's "
    "scaling, and HybridFL asks for the same rows in every round; ours: the set's own mean and "
    "deviation, each row sent once, and the deadline follows the running mean"
)
ERRATA = (
    NEARLY_IID,
    NORMALISED,
    UNSHUFFLED,
    "Rows as published lie in the order of the file: class after class, as FLEX of today lays "
    "them, the curve of the program's own file is missed (see the errata).",
    "ToA in the thesis is the duration of one round. Here it is the time of arrival.",
    "Here uploads are taken in the order in which clients are ready, so a round is never longer "
    "than estimated; the thesis's rounds of HybridFL take 190 s for a deadline of 180 s.",
    "T(t) = T(t-1) φ_t/φ_(t-1) is T(0) φ_t/φ_0: the first round sets the level for ever. The "
    "running mean of the future work is run as well.",
    "In the programs a round's time is the clock's: clients sleep for what their resources say.",
)
SIZES = {False: ORIGINAL, True: ORIGINAL}
LEFT_OUT = {
    "Table 6.2; *; ToA ?": "the duration of one round, not a time of arrival (see the errata)",
}
SEEDS = range(5)
CLIENTS, CANDIDATES, DEADLINE, MINUTES = 1000, 100, 180.0, 400
METHODS = {
    "RandomSampling": "scheduled uniform",
    "HybridFL": "HybridFL",
    "Dyn-HybridFL": "DynHybridFL",
}
"""The thesis's names, and ours."""


@dataclass(frozen=True)
class Setting:
    """A data set: its model and rows in the thesis, and for how long it is trained by default."""

    data: str
    name: str
    model: Any
    parameters: int
    rows: int
    short: int

    def cell(self, method: str, column: str) -> Cell:
        return TABLE.cell(f"{self.name}, {method}", column)


SETTINGS = (
    Setting("mnist", "MNIST", MLP, 101_770, 60_000, 20),
    Setting("cifar10", "CIFAR10", COMPLEX, 1_342_122, 50_000, 0),
)
_TIMES = ("rounds", "selections", "s/round", "± s/round")


def planned(full: bool) -> list[Cell]:
    """Times of both sets, and accuracies of those that are trained."""
    trained = {setting.name for setting in SETTINGS if full or setting.short}
    return [
        cell
        for cell in TABLE.cells()
        if cell.column in _TIMES
        or (cell.column == "accuracy" and cell.row.partition(",")[0] in trained)
    ]


def selectors(protocol: str, upload: bool) -> dict[str, Selector]:
    """The published three by their names, and for us the thesis's future work."""
    both: dict[str, Any] = {
        "deadline": DEADLINE, "upload": upload, "resend": protocol == AS_PUBLISHED
    }  # fmt: skip
    published: dict[str, Selector] = {
        "RandomSampling": Uniform(),
        "HybridFL": HybridFL(**both),
        "Dyn-HybridFL": DynHybridFL(**both),
    }
    if protocol == AS_PUBLISHED:
        return published
    bounded = DynHybridFL(reference="running_mean", lower=170.0, upper=190.0, **both)
    return {
        "DynHybridFL, running mean": DynHybridFL(reference="running_mean", **both),
        "DynHybridFL, running mean, at least 170 s, at most 190 s": bounded,
    }


@quiet()
def run(full: bool = False, progress: Progress = SILENT) -> Rows:
    """Rounds, selections, clients and seconds per round, and accuracies."""
    lines: Rows = []
    for setting in SETTINGS:
        for protocol in (AS_PUBLISHED, OURS):
            for name, selector in selectors(protocol, upload=False).items():
                progress.stage(f"{setting.data}, {name}: time alone")
                lines += _time_rows(setting, protocol, name, selector)
        minutes = MINUTES if full else setting.short
        if minutes:
            lines += _accuracies(setting, minutes, progress)
    return lines


def _accuracies(setting: Setting, minutes: int, progress: Progress) -> Rows:
    """The published three as published, and with our scaling and partition of the text."""
    lines = []
    theirs = as_published(setting.data, setting.model, train_as_mnist=False, validation=0.0)
    ours = read(setting.data, setting.model, 0.0)
    runs = (
        (AS_PUBLISHED, "nearly IID", theirs),
        (OURS, "nearly IID", ours),
        (OURS, "two classes", ours),
    )
    for protocol, kind, images in runs:
        for method in METHODS:
            progress.stage(f"{setting.data}, {protocol}, {kind}, {method}: training")
            selector = selectors(AS_PUBLISHED, upload=True)[method]
            if protocol == OURS and isinstance(selector, HybridFL):
                selector = selector.clone().set_params(resend=False)
            value = _accuracy(images, kind, protocol, selector, 0, minutes)
            cell = setting.cell(method, "accuracy") if kind == "nearly IID" else None
            size = "" if minutes == MINUTES else f"{minutes} of {MINUTES} minutes"
            if setting.data == "cifar10":
                size = "10,000 of 50,000 rows"
            label = f"{setting.data}, {kind}, {METHODS[method]}, accuracy after {minutes} minutes"
            lines.append(row(label, cell, value, protocol=protocol, form=".3f", size=size))
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
        partition=partition("nearly IID", AS_PUBLISHED, CLIENTS, seed), seed=seed,
        clock=VirtualClock(),
    )  # fmt: skip
    rehearsal = _Rehearsal(setting.parameters, select=selector)
    return rehearsal.fit(fed, callbacks=[StopAt(time=60 * MINUTES)]).history_


def _time_rows(setting: Setting, protocol: str, name: str, selector: Selector) -> Rows:
    histories = [rehearse(setting, selector, seed) for seed in SEEDS]
    measured = {
        "rounds": ("rounds in 400 minutes", [len(h) for h in histories], ".1f"),
        "selections": ("selections", [sum(e["clients"] for e in h) for h in histories], ".0f"),
        "clients": ("clients per round", [_average(h, "clients") for h in histories], ".2f"),
        "s/round": ("virtual s/round", [_average(h, "seconds") for h in histories], ".1f"),
        "± s/round": (
            "deviation of virtual s/round",
            [float(np.std([e["seconds"] for e in h])) for h in histories],
            ".1f",
        ),
    }
    lines = []
    for column, (words, values, form) in measured.items():
        cell = setting.cell(name, column) if name in METHODS and column in _TIMES else None
        label = f"{setting.data}, {METHODS.get(name, name)}, {words}"
        note = spread(values)
        lines.append(row(label, cell, mean(values), protocol=protocol, form=form, note=note))
    return lines


def _average(history: Rows, metric: str) -> float:
    return float(np.mean([entry[metric] for entry in history]))


# --- with training ---


def _accuracy(
    images: Images, kind: str, protocol: str, selector: Selector, seed: int, minutes: int
) -> float:
    data = dealt(images, kind, protocol, CLIENTS, seed, "file")
    fed = simulate(data, seed=seed, clock=VirtualClock())
    model = learner(
        images.model, protocol=protocol, rounds=10**6, per_round=CANDIDATES, select=selector
    )
    model.fit(fed, callbacks=[StopAt(time=60 * minutes)])
    return float(model.score(images.X_test, images.y_test))

"""Client selection thesis, Table 6.1: Uniform, AFL and GreedyFed on MNIST and CIFAR-10."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from solera.core.selection import Selector, Uniform
from solera.learn.evaluation import Evaluate
from solera.published.rows import Row, Rows, quiet, row
from solera.published.selection_protocol import (
    MLP,
    NEARLY_IID,
    NORMALISED,
    PARTITIONS,
    SIMPLE,
    Images,
    learner,
    mean,
    partition,
    read,
    spread,
)
from solera.select.active import ActiveSampling
from solera.select.metrics import Selections, area_under, coverage, gini, rounds_to
from solera.select.valued import GreedyShapley
from solera.simulate.simulation import simulate
from solera.study.run.progress import SILENT, Progress

TITLE = "Client selection: Uniform, AFL and GreedyFed on MNIST and CIFAR-10 (Table 6.1)"
SCALE_DOWN = (
    "MNIST: 58,000 rows, K = 300, M = 3, 25 rounds instead of 150 (--full: 150). CIFAR-10: the "
    "10,000 rows at hand instead of 50,000, K = 100, M = 6, 8 rounds instead of 100 (--full: 100). "
    "2,000 and 1,000 training rows validate GreedyFed. Five seeds. In so few rounds GreedyFed is "
    "still going round its clients."
)
ERRATA = (
    NEARLY_IID,
    NORMALISED,
    "The thesis's AFL takes the highest valuations without drawing, so α1 and α2 had no effect. "
    "Here it draws.",
    "Seconds per round are of two machines and compare only in their ratios.",
)
SEEDS = range(5)


@dataclass(frozen=True)
class Setting:
    """A data set with its part of the table: RoA at two accuracies, final accuracy, s/round."""

    data: str
    model: Any
    clients: int
    per_round: int
    rounds: int
    short: int
    validation: int
    targets: tuple[float, float]
    published: dict[str, tuple[float | None, float | None, float, float]]


SETTINGS = (
    Setting("mnist", MLP, 300, 3, 150, 25, 2000, (0.85, 0.9), {
        "Uniform": (5, 22, 0.941, 2.6),
        "AFL": (5, 17, 0.947, 3.1),
        "GreedyFed": (2, 13, 0.946, 205.9),
    }),
    Setting("cifar10", SIMPLE, 100, 6, 100, 8, 1000, (0.3, 0.5), {
        "Uniform": (2, None, 0.345, 7.0),
        "AFL": (5, 33, 0.554, 7.2),
        "GreedyFed": (3, None, 0.334, 710.7),
    }),
)  # fmt: skip


@quiet()
def run(full: bool = False, progress: Progress = SILENT) -> Rows:
    """RoA, accuracy, seconds, area under the loss curve, coverage and Gini index."""
    rows: Rows = []
    for setting in SETTINGS:
        images = read(setting.data, setting.model, setting.validation)
        rounds = setting.rounds if full else setting.short
        for kind in PARTITIONS:
            for name in setting.published:
                by_seed = []
                for seed in SEEDS:
                    progress.stage(f"{setting.data}, {kind}, {name}, seed {seed}")
                    by_seed.append(_one(setting, images, rounds, kind, name, seed))
                rows += _rows(setting, rounds, kind, name, by_seed)
    return rows


def _one(setting: Setting, images: Images, rounds: int, kind: str, name: str, seed: int) -> Row:
    selectors: dict[str, Selector] = {
        "Uniform": Uniform(),
        "AFL": ActiveSampling(),
        "GreedyFed": GreedyShapley(images.X_validation, images.y_validation),
    }
    fed = simulate(
        images.X, images.y, partition=partition(kind, setting.clients, seed),
        clients=setting.clients, seed=seed,
    )  # fmt: skip
    model = learner(
        images.model, rounds=rounds, per_round=setting.per_round, select=selectors[name]
    )
    chosen = Selections()
    evaluation = _TimedEvaluation(images.X_test, images.y_test)
    began = time.perf_counter()
    model.fit(fed, callbacks=[evaluation, chosen])
    seconds = time.perf_counter() - began - evaluation.seconds
    history = model.history_
    return {
        "first": rounds_to(history, setting.targets[0]),
        "second": rounds_to(history, setting.targets[1]),
        "accuracy": history[-1]["score"],
        "seconds": seconds / rounds,
        "area": area_under(history),
        "coverage": coverage(chosen.took_part_),
        "gini": gini(chosen.took_part_),
    }


class _TimedEvaluation(Evaluate):
    """Scores every round, and keeps apart how long that takes."""

    seconds = 0.0

    def on_round(self, learner: Any, round: Any) -> None:
        began = time.perf_counter()
        super().on_round(learner, round)
        self.seconds += time.perf_counter() - began


def _rows(setting: Setting, rounds: int, kind: str, name: str, by_seed: Rows) -> Rows:
    title = f"{setting.data}, {kind}, {name}"
    known = setting.published[name] if kind == "nearly IID" else (None,) * 4
    cells = {
        "first": (f"RoA@{setting.targets[0]:g}", known[0], ".1f"),
        "second": (f"RoA@{setting.targets[1]:g}", known[1], ".1f"),
        "accuracy": (f"accuracy after {rounds} rounds", known[2], ".3f"),
        "seconds": ("s/round", known[3], ".2f"),
        "area": ("area under the loss curve", None, ".3f"),
        "coverage": ("coverage", None, ".2f"),
        "gini": ("Gini index of participation", None, ".2f"),
    }
    lines = []
    for key, (words, thesis, form) in cells.items():
        values = [entry[key] for entry in by_seed]
        note = spread(values)
        if key == "accuracy" and thesis is not None and rounds < setting.rounds:
            note += f"; the thesis's after {setting.rounds} rounds"
        lines.append(row(f"{title}, {words}", thesis, mean(values), form=form, note=note))
    return lines

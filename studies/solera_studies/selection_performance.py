"""Client selection thesis, Table 6.1: Uniform, AFL and GreedyFed on MNIST and CIFAR-10."""

from __future__ import annotations

import time
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np

from solera.core.selection import Selector, Uniform
from solera.learn.evaluation import Evaluate
from solera.select.active import ActiveSampling
from solera.select.metrics import Selections, area_under, coverage, gini, rounds_to
from solera.select.valued import GreedyShapley
from solera.simulate.simulation import simulate
from solera.study.run.progress import SILENT, Progress
from solera_studies.rows import AS_PUBLISHED, ORIGINAL, OURS, Row, Rows, quiet, row
from solera_studies.selection_protocol import (
    MLP,
    NEARLY_IID,
    NORMALISED,
    SIMPLE,
    SORTED,
    UNSHUFFLED,
    Images,
    as_published,
    dealt,
    learner,
    mean,
    read,
    spread,
)
from solera_studies.theses import Cell, table

TITLE = "Client selection: Uniform, AFL and GreedyFed on MNIST and CIFAR-10 (Table 6.1)"
TABLE = table("001", "Table 6.1")
TABLES = (TABLE,)
SCALE_DOWN = (
    "The thesis: MNIST K = 300, M = 3, 150 rounds; CIFAR-10 K = 100, M = 6, 100 rounds; once. "
    "--full: that, three seeds, with the 10,000 rows of CIFAR-10 at hand instead of 50,000. By "
    "default 30 clients and 14 rounds of MNIST (6,000 rows), 18 clients and 4 rounds of CIFAR-10 "
    "(1,800 rows), one seed: few enough clients that GreedyFed's turns end."
)
DIFFERS = (
    "as published: rows class after class, pixels scaled to ±1, CIFAR-10 tested with MNIST's "
    "scaling (and trained with it by AFL alone), AFL takes the highest valuations without drawing, "
    "a tenth of the rows validates GreedyFed; ours: the set's own mean and deviation throughout, "
    "AFL draws"
)
ERRATA = (
    NEARLY_IID,
    NORMALISED,
    UNSHUFFLED,
    SORTED,
    "The thesis's AFL takes the highest valuations without drawing, so α1 and α2 had no effect.",
    "Its valuation is the training loss of the last epoch, over √n; here it is the loss of the "
    "model that the client received.",
    "RoA of the thesis counts rounds from 0; rows as published do so, ours count from 1.",
    "Seconds per round are of two machines and compare only in their ratios.",
)
LEFT_OUT = {
    "Table 6.1; *; ? s/round": "the spread of seconds of another machine",
}
METHODS = {"RandomSampling": "Uniform", "AFL": "AFL", "GreedyFed": "GreedyFed"}
"""The thesis's names, and ours."""


@dataclass(frozen=True)
class Setting:
    """A data set with its part of the table, and its small version."""

    data: str
    name: str
    model: Any
    clients: int
    per_round: int
    rounds: int
    targets: tuple[float, float]
    alphas: tuple[float, float, float]
    small: tuple[int, int, int]
    """Clients, rounds and rows by default."""

    def cell(self, method: str, column: str) -> Cell:
        return TABLE.cell(f"{self.name}, {method}", column)

    def size(self, full: bool) -> str:
        """How its runs differ in size from the thesis's."""
        if full:
            return ORIGINAL if self.data == "mnist" else "10,000 of 50,000 rows"
        clients, rounds, rows = self.small
        given = 60_000 if self.data == "mnist" else 50_000
        return (
            f"{clients} of {self.clients} clients, {rounds} of {self.rounds} rounds, "
            f"{rows:,} of {given:,} rows"
        )


SETTINGS = (
    Setting("mnist", "MNIST", MLP, 300, 3, 150, (0.85, 0.9), (0.5, 0.03, 0.3), (30, 14, 6000)),
    Setting(
        "cifar10", "CIFAR10", SIMPLE, 100, 6, 100, (0.3, 0.5), (0.75, 0.03, 0.3), (18, 4, 1800)
    ),
)
COLUMNS = ("RoA 1", "RoA 2", "accuracy", "s/round")
KINDS = ("nearly IID", "two classes")


def planned(full: bool) -> list[Cell]:
    """All cells but the spread of seconds."""
    return [setting.cell(method, column) for setting in SETTINGS for method in METHODS
            for column in COLUMNS]  # fmt: skip


@quiet()
def run(full: bool = False, progress: Progress = SILENT) -> Rows:
    """RoA, accuracy, seconds, area under the loss curve, coverage and Gini index."""
    rows: Rows = []
    for setting in SETTINGS:
        for kind in KINDS:
            for protocol in (AS_PUBLISHED, OURS) if kind == "nearly IID" else (OURS,):
                for method in METHODS:
                    by_seed = []
                    for seed in range(3 if full else 1):
                        progress.stage(f"{setting.data}, {kind}, {protocol}, {method}, {seed}")
                        by_seed.append(_one(setting, kind, protocol, method, seed, full))
                    rows += _rows(setting, kind, protocol, method, by_seed, full)
    return rows


def _images(setting: Setting, method: str, protocol: str, full: bool) -> Images:
    """Rows as the protocol scales them; a tenth of them validates."""
    images = (
        as_published(setting.data, setting.model, train_as_mnist=method == "AFL")
        if protocol == AS_PUBLISHED
        else read(setting.data, setting.model, 0.1)
    )
    return images if full else images.first(setting.small[2])


def _selector(setting: Setting, method: str, protocol: str, images: Images) -> Selector:
    if method == "GreedyFed":
        return GreedyShapley(images.X_validation, images.y_validation)
    if method == "RandomSampling":
        return Uniform()
    alpha1, alpha2, alpha3 = setting.alphas
    if protocol == AS_PUBLISHED:  # the highest, without a draw
        return ActiveSampling(alpha1=alpha1, alpha2=np.inf, alpha3=alpha3, mean=True)
    return ActiveSampling(alpha1=alpha1, alpha2=alpha2, alpha3=alpha3)


def _one(setting: Setting, kind: str, protocol: str, method: str, seed: int, full: bool) -> Row:
    images = _images(setting, method, protocol, full)
    clients, rounds = (setting.clients, setting.rounds) if full else setting.small[:2]
    data = dealt(images, kind, protocol, clients, seed, "class after class")
    fed = simulate(data, seed=seed)
    model = learner(
        images.model, protocol=protocol, rounds=rounds, per_round=setting.per_round,
        select=_selector(setting, method, protocol, images),
    )  # fmt: skip
    chosen = Selections()
    evaluation = _TimedEvaluation(images.X_test, images.y_test)
    began = time.perf_counter()
    model.fit(fed, callbacks=[evaluation, chosen])
    seconds = time.perf_counter() - began - evaluation.seconds
    history = model.history_
    first = 1 if protocol == AS_PUBLISHED else 0  # the thesis counts rounds from 0
    arrivals = [rounds_to(history, target) for target in setting.targets]
    return {
        "RoA 1": None if arrivals[0] is None else arrivals[0] - first,
        "RoA 2": None if arrivals[1] is None else arrivals[1] - first,
        "accuracy": history[-1]["score"],
        "s/round": seconds / rounds,
        "area": area_under(history, "loss"),
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


def _rows(
    setting: Setting, kind: str, protocol: str, method: str, by_seed: Rows, full: bool
) -> Rows:
    clients, rounds = (setting.clients, setting.rounds) if full else setting.small[:2]
    printed = kind == "nearly IID"
    words = {
        "RoA 1": (f"RoA@{setting.targets[0]:g}", ".1f"),
        "RoA 2": (f"RoA@{setting.targets[1]:g}", ".1f"),
        "accuracy": (f"accuracy after {rounds} rounds", ".3f"),
        "s/round": ("s/round", ".2f"),
        "area": ("area under the loss curve", ".3f"),
        "coverage": ("coverage", ".2f"),
        "gini": ("Gini index of participation", ".2f"),
    }
    size = setting.size(full)
    turns_note = ""
    if method == "GreedyFed":
        turns = ceil(clients / setting.per_round)
        turns_note = f"; in turn for {turns} rounds, greedy for {max(0, rounds - turns)}"
    lines = []
    for key, (what, form) in words.items():
        values = [entry[key] for entry in by_seed]
        cell = setting.cell(method, key) if printed and key in COLUMNS else None
        label = f"{setting.data}, {kind}, {METHODS[method]}, {what}"
        lines.append(
            row(
                label, cell, mean(values), protocol=protocol, form=form,
                note=spread(values) + (turns_note if key == "accuracy" else ""), size=size,
                compare=key != "s/round",
            )
        )  # fmt: skip
    return lines

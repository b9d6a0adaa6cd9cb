"""Differential privacy on MNIST (trees thesis, use case 3, Figure 1.6).

Use case 1 with a noise multiplier: ten clients, a dense network of 32, ten rounds of TFF's
``dp_aggregator`` (adaptive clipping from 0.1 to the median, Andrew et al. 2021), Adam at the
clients (0.001) and at the server (0.01), equal weights; ten repeats, IID and not. The thesis draws
accuracy and loss against the multiplier and prints no number; it says that 0.1 keeps the accuracy
and more does not. Beside them here is what the thesis does not say: the ε that it buys.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import solera as so
from solera.core.pictures import new_figure
from solera.study.run.progress import SILENT, Progress
from solera_studies.rows import ORIGINAL, Rows, row
from solera_studies.theses import Cell, Table

TITLE = (
    "Differential privacy: accuracy, loss and ε against the noise multiplier (Figure 1.6 of 003)"
)
TABLES: tuple[Table, ...] = ()
SCALE_DOWN = (
    "60,000 images, 10 rounds, 10 repeats of 7 multipliers. By default 4,000 images, 4 rounds, 2 "
    "repeats of 4 multipliers."
)
DIFFERS = "noise is added in shares by the clients, not by the server; its sum is the same"
ERRATA = (
    "Figure 1.6 has no ε. With ten clients who all take part in ten rounds a multiplier of 0.1 is "
    "ε = 600 at δ = 0.001, which protects nobody; multipliers that do cost the accuracy, because "
    "noise for one client is divided by ten.",
)
SIZES = {False: "4,000 of 60,000 images, 4 of 10 rounds, 2 of 10 repeats", True: ORIGINAL}
LEFT_OUT: dict[str, str] = {}
DELTA = 1e-3
NOISES = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
PARTITIONS: dict[str, Any] = {"IID": None, "two classes each": so.partitions.LabelsPerClient(2)}


def planned(full: bool) -> list[Cell]:
    """None: the thesis prints no number."""
    return []


def run(full: bool = False, progress: Progress = SILENT) -> Rows:
    """Accuracy, loss and ε by partition and multiplier."""
    X, y, X_test, y_test = so.datasets.mnist()
    rounds, repeats, noises = 10, 10, list(NOISES)
    if not full:
        X, y = X[:4000], y[:4000]
        rounds, repeats, noises = 4, 2, [0.1, 0.5, 2.0]
    rows: Rows = []
    for name in PARTITIONS:
        for noise in (0.0, *noises):
            progress.stage(f"{name}, noise multiplier {noise:g}")
            data = (X, y, X_test, y_test)
            found = [one_fit(data, name, noise, seed, rounds) for seed in range(repeats)]
            accuracy, loss, epsilon = np.mean(found, axis=0)
            spreads = np.std([fit[:2] for fit in found], axis=0)
            label = f"{name}, σ = {noise:g}"
            bare = "" if noise else "; neither noise nor clipping"
            for what, value, spread in zip(
                ("accuracy", "loss"), (accuracy, loss), spreads, strict=True
            ):
                note = f"± {spread:.4f}{bare}"
                rows.append(row(f"{label}, {what}", None, float(value), form=".4f", note=note))
            note = f"at δ = {DELTA:g}"
            rows.append(row(f"{label}, ε", None, float(epsilon), form=".4g", note=note))
    return rows


def one_fit(
    data: tuple[Any, Any, Any, Any], name: str, noise: float, seed: int, rounds: int
) -> tuple[float, float, float]:
    """Accuracy, loss and ε of one repeat."""
    X, y, X_test, y_test = data
    fed = so.simulate(X, y, clients=10, partition=PARTITIONS[name], seed=seed)
    model = _learner(noise, rounds).fit(fed)
    loss = float(model.losses(X_test, y_test).mean())
    return model.score(X_test, y_test), loss, _epsilon(model)


def _learner(noise: float, rounds: int) -> Any:
    dp = None
    if noise:
        dp = so.DP(noise_multiplier=noise, delta=DELTA, clip=0.1, adaptive=0.5)
    return so.FedAdam(
        so.nn.mlp(784, 32, 10),
        rounds=rounds,
        lr=1e-3,
        optimiser="adam",
        server_lr=0.01,
        weight=None,
        dp=dp,
    )


def _epsilon(model: Any) -> float:
    return float(model.history_[-1].get("epsilon", np.inf))


def figures(rows: Rows) -> list[tuple[str, Any]]:
    """Accuracy and loss against ε, which falls to the right as noise grows."""
    figure = new_figure(figsize=(10, 4))
    axes = figure.subplots(1, 2)
    by_label = {r["label"]: r["measured"] for r in rows}
    for name in PARTITIONS:
        levels = [label.removesuffix(", ε") for label in by_label if label.startswith(name)
                  and label.endswith(", ε") and np.isfinite(by_label[label])]  # fmt: skip
        epsilons = [by_label[f"{level}, ε"] for level in levels]
        for ax, what in zip(axes, ("accuracy", "loss"), strict=True):
            ax.plot(epsilons, [by_label[f"{level}, {what}"] for level in levels], "o-", label=name)
            ax.axhline(by_label[f"{name}, σ = 0, {what}"], ls=":", lw=0.8)
            ax.set(xlabel=f"ε at δ = {DELTA:g}", ylabel=what, xscale="log")
            ax.invert_xaxis()
    axes[0].legend()
    return [("Accuracy and loss against ε; dotted without noise", figure)]

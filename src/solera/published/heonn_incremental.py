"""FedHEONN thesis, Table 3.9: all clients at once, and group after group."""

from __future__ import annotations

from typing import Any

import numpy as np

import solera as so
from solera.published.heonn_protocol import AS_THESIS, DERIVATIVE, score_of, split
from solera.published.rows import Rows, quiet, row
from solera.study.run.progress import SILENT, Progress

TITLE = "FedHEONN: all clients at once, and group after group (Table 3.9)"
SCALE_DOWN = (
    "None: same rows, same numbers of clients and groups; --full changes nothing. The thesis "
    "shuffles with seeds it does not print, which moves dry bean by 0.2 points."
)
ERRATA = (DERIVATIVE, "MNIST-test of the thesis is scikit-learn's digits (1,797 rows), λ = 10.")
LINEAR = {"activation": "linear", "lam": 0.01}
CASES: list[tuple[str, dict[str, Any], int, int, int | None, float, float]] = [
    # data, options, clients P, groups of, clients of the random groups P', global, incremental
    ("drybean", {"lam": 0.01}, 1000, 100, None, 90.30, 90.30),
    ("drybean", {"lam": 0.01}, 1000, 100, 50, 90.40, 90.45),
    ("carbon_nanotubes", LINEAR, 1000, 100, None, 5.750e-5, 5.750e-5),
    ("carbon_nanotubes", LINEAR, 1000, 100, 50, 5.750e-5, 5.749e-5),
    ("digits", {"lam": 10.0}, 10, 2, None, 90.74, 90.74),
]


@quiet()
def run(full: bool = False, progress: Progress = SILENT) -> Rows:
    """Accuracy in per cent, or MSE, of both ways."""
    rows = []
    for name, options, clients, group, others, at_once, grouped in CASES:
        progress.stage(f"{name}, {clients} clients")
        X, y, X_test, y_test = split(name)
        form = ".4e" if options is LINEAR else ".2f"
        fed = so.simulate(X, y, clients=clients, seed=0)
        whole = so.FedHEONN(**options, **AS_THESIS).fit(fed)
        if others is None:
            starts = np.arange(0, clients, group)
        else:  # other clients, in groups of random sizes
            fed = so.simulate(X, y, clients=others, seed=1)
            draw = np.random.default_rng(0)
            cuts = draw.choice(np.arange(1, others), size=others // 10, replace=False)
            starts = np.sort(np.append(cuts, 0))
        parts = so.FedHEONN(**options, **AS_THESIS)
        for start, end in zip(starts, [*starts[1:], len(fed)], strict=True):
            parts.partial_fit(fed, clients=range(int(start), int(end)))
        size = f"groups of {group}" if others is None else f"{others} in random groups"
        for model, thesis, how in (
            (whole, at_once, "at once"),
            (parts, grouped, size),
        ):
            ours = score_of(model, X_test, y_test)
            rows.append(row(f"{name}, {clients} clients, {how}", thesis, ours, form=form))
    return rows

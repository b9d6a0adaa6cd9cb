"""CIFAR-10: rounds against local epochs with R·E = 60 (learning analytics thesis, section 3.3).

Clients per round and clients 2/2, 2/7 and 5/7. The data set at hand may be a subset; the rows say
how many images were used.
"""

from __future__ import annotations

import solera as so
from solera.published.rows import Rows, row
from solera.study.run.progress import SILENT, Progress

TITLE = "CIFAR-10: rounds against local epochs with R·E = 60"
SCALE_DOWN = "Default: R·E = 4 on 2,000 images. --full: R·E = 60 on all images at hand."
ERRATA = ("The thesis shows curves and prints no numbers.",)


NET = so.nn.conv_net((32, 32, 3), channels=(32, 64, 64), dense=64)


def run(full: bool = False, progress: Progress = SILENT) -> Rows:
    """The table. Without ``full``, R·E = 4 on 2,000 images."""
    X, y, X_test, y_test = so.datasets.cifar10()
    product, splits = (60, (1, 5, 10)) if full else (4, (1, 2))
    if not full:
        X, y = X[:2000], y[:2000]
    rows = []
    for per_round, clients in ((2, 2), (2, 7), (5, 7)):
        fed = so.simulate(X, y, clients=clients, seed=0)
        for epochs in splits:
            learner = so.FedAvg(
                NET,
                rounds=product // epochs,
                per_round=per_round,
                epochs=epochs,
                lr=1e-3,
                optimiser="adam",
            )
            accuracy = learner.fit(fed).score(X_test, y_test)
            case = f"{per_round} of {clients} clients, {product // epochs} rounds × {epochs}"
            rows.append(row(case, None, accuracy, note=f"{len(y):,} images"))
            progress.stage(case)
    return rows

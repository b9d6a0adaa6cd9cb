"""CIFAR-10: rounds against local epochs with R·E = 60 (learning analytics thesis, section 3.3).

``x/y clients``: x of the y clients are drawn in every round. The thesis says of its network that
it has more convolutions than that of MNIST and a larger dense layer, and no more.
"""

from __future__ import annotations

from typing import NamedTuple

import solera as so
from solera.study.run.progress import SILENT, Progress
from solera_studies.rows import Row, Rows, row
from solera_studies.theses import Cell, table

TITLE = "CIFAR-10: rounds against local epochs with R·E = 60 (Table 3.1)"
TABLE, CENTRALISED = table("002", "Table 3.1"), table("002", "Section 3.3")
TABLES = (TABLE, CENTRALISED)
SCALE_DOWN = (
    "The plans of the table, 15 rounds of 4 epochs and 30 of 2, on the 10,000 of 50,000 training "
    "images and 1,000 of 10,000 test images at hand. By default R·E = 4 on 2,000 images: 1 round "
    "of 4 and 2 of 2, which stand beside no figure of the thesis."
)
DIFFERS = (
    "nothing: every row follows the thesis's plans, and the network that it does not print is ours "
    "in all of them"
)
ERRATA = (
    "The network is not printed: channels of 32, 64 and 64 and a dense layer of 64 stand for it.",
)
SIZES = {
    False: "2,000 of 50,000 images, R·E = 4 instead of 60: little more than a guess, .1",
    True: "10,000 of 50,000 images",
}
LEFT_OUT = {
    "*; seconds": "seconds of another machine",
}
WHOLE = 60
NET = so.nn.conv_net((32, 32, 3), channels=(32, 64, 64), dense=64)


class Plan(NamedTuple):
    """A row of the table."""

    per_round: int
    clients: int
    rounds: int
    epochs: int

    @property
    def name(self) -> str:
        rounds = f"{self.rounds} round{'s' if self.rounds > 1 else ''}"
        return f"{self.per_round}/{self.clients} clients, {rounds} × {self.epochs} epochs"

    @property
    def cell(self) -> Cell:
        return TABLE.cell(self.name, "accuracy")


PLANS = [
    Plan(*clients, WHOLE // epochs, epochs)
    for clients in ((2, 2), (2, 7), (5, 7))
    for epochs in (4, 2)
]
ONE_PLACE = CENTRALISED.cell("centralised, 60 epochs", "accuracy")


def planned(full: bool) -> list[Cell]:
    """All accuracies, where the thesis's plans are run."""
    return [ONE_PLACE, *(plan.cell for plan in PLANS)] if full else []


def run(full: bool = False, progress: Progress = SILENT) -> Rows:
    """The table. Without ``full``, R·E = 4 on 2,000 images."""
    X, y, X_test, y_test = so.datasets.cifar10()
    if not full:
        X, y = X[:2000], y[:2000]
    whole = WHOLE if full else 4

    def measured(label: str, cell: Cell, plan: Plan) -> Row:
        progress.stage(label)
        fed = so.simulate(X, y, clients=plan.clients, seed=0)
        learner = so.FedAvg(
            NET,
            rounds=plan.rounds,
            per_round=plan.per_round,
            epochs=plan.epochs,
            lr=1e-3,
            optimiser="adam",
        )
        score = float(learner.fit(fed).score(X_test, y_test))
        return row(label, cell if full else None, score, form=".2f")

    one = Plan(1, 1, whole, 1)
    rows = [measured(f"centralised, {whole} epochs", ONE_PLACE, one)]
    for plan in PLANS:
        run_plan = plan._replace(rounds=whole // plan.epochs)
        rows.append(measured(run_plan.name, plan.cell, run_plan))
    return rows

"""FedHEONN thesis, Table 3.9: all clients at once, and group after group."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

import solera as so
from solera.core.federation import Federation
from solera.study.run.progress import SILENT, Progress
from solera_studies import heonn_protocol
from solera_studies.heonn_protocol import DATA, DERIVATIVE, PROTOCOLS, score_of, split
from solera_studies.rows import ORIGINAL, Rows, quiet, row
from solera_studies.theses import Cell, table

TITLE = "FedHEONN: all clients at once, and group after group (Table 3.9)"
TABLE = table("000", "Table 3.9")
TABLES = (TABLE,)
SCALE_DOWN = (
    "None: same rows, same numbers of clients and groups; --full changes nothing. The thesis "
    "shuffles with seeds it does not print, which moves dry bean by 0.2 points."
)
DIFFERS = heonn_protocol.DIFFERS
ERRATA = (DERIVATIVE, "MNIST-test of the thesis is scikit-learn's digits (1,797 rows), λ = 10.")
SIZES = {False: ORIGINAL, True: ORIGINAL}
LEFT_OUT: dict[str, str] = {}


class Case(NamedTuple):
    """A row of the table; ``others`` are the clients P′ that come in random groups."""

    row: str
    data: str
    clients: int
    group: int
    others: int | None
    options: dict[str, Any]


_LINEAR = {"activation": "linear", "lam": 0.01}
CASES = (
    Case("Dry Bean, P = 1000, groups of 100", "Dry Bean", 1000, 100, None, {"lam": 0.01}),
    Case("Dry Bean, P = 1000, P' = 50", "Dry Bean", 1000, 100, 50, {"lam": 0.01}),
    Case("Carbon Nanotubes, P = 1000, groups of 100", "Carbon Nanotubes", 1000, 100, None, _LINEAR),
    Case("Carbon Nanotubes, P = 1000, P' = 50", "Carbon Nanotubes", 1000, 100, 50, _LINEAR),
    Case("MNIST-test, P = 10, groups of 2", "MNIST-test", 10, 2, None, {"lam": 10.0}),
)


def planned(full: bool) -> list[Cell]:
    """All cells."""
    return TABLE.cells()


@quiet()
def run(full: bool = False, progress: Progress = SILENT) -> Rows:
    """Accuracy in per cent, or MSE, of both ways."""
    rows = []
    for case in CASES:
        progress.stage(case.row)
        X, y, X_test, y_test = split(DATA[case.data])
        form = ".4e" if case.options is _LINEAR else ".2f"
        together = so.simulate(X, y, clients=case.clients, seed=0)
        apart = together if case.others is None else so.simulate(X, y, clients=case.others, seed=1)
        for protocol, derivative in PROTOCOLS.items():
            whole = so.FedHEONN(**case.options, **derivative).fit(together)
            parts = so.FedHEONN(**case.options, **derivative)
            for group in _groups(case, apart):
                parts.partial_fit(apart, clients=group)
            for column, model in (("global", whole), ("incremental", parts)):
                score = score_of(model, X_test, y_test)
                cell = TABLE.cell(case.row, column)
                rows.append(row(f"{case.row}: {column}", cell, score, protocol=protocol, form=form))
    return rows


def _groups(case: Case, federation: Federation) -> Iterable[range]:
    """Groups of equal size, or of random sizes for the clients P′."""
    if case.others is None:
        starts = np.arange(0, case.clients, case.group)
    else:
        draw = np.random.default_rng(0)
        cuts = draw.choice(np.arange(1, case.others), size=case.others // 10, replace=False)
        starts = np.sort(np.append(cuts, 0))
    ends = [*starts[1:].tolist(), len(federation)]
    return [range(int(start), end) for start, end in zip(starts, ends, strict=True)]

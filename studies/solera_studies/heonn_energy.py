"""FedHEONN thesis, Tables 3.13, 3.14 and 3.16: energy by task, plain, ensemble, encrypted, MLP.

The meter runs until the weights can be used: decryption and solving are inside it, wherever they
happen. As published, the coordinator multiplies under encryption (``finish="compat"``, the two
products of the thesis); ours returns the encrypted sum to the key holders (``finish="client"``).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

import solera as so
from solera.core.aggregation import Collect
from solera.data.agreement import agree
from solera.green.energy import EnergyUse, Tracked
from solera.study.run.progress import SILENT, Progress
from solera_studies import heonn_protocol
from solera_studies.heonn_protocol import (
    DATA,
    DERIVATIVE,
    DRAWS,
    THESIS,
    AsDrawn,
    score_of,
    split,
)
from solera_studies.rows import AS_PUBLISHED, ORIGINAL, OURS, Row, Rows, quiet, row
from solera_studies.theses import Cell, Table, table

TITLE = "FedHEONN: energy by task, plain, ensemble, encrypted, MLP (Tables 3.13, 3.14, 3.16)"
INCREMENTAL, ENCRYPTED, WHOLE = (table("000", f"Table {n}") for n in ("3.13", "3.14", "3.16"))
TABLES = (INCREMENTAL, ENCRYPTED, WHOLE)
SCALE_DOWN = (
    "Original rows, clients and hyperparameters. With --full only: MNIST encrypted and its MLP, "
    "ensembles encrypted as published, and all MLPs but that of Table 3.13. Energy with "
    "CodeCarbon where this machine has counters and with the power model otherwise."
)
DIFFERS = (
    f"{heonn_protocol.DIFFERS}; as published the coordinator multiplies encrypted moments "
    "(compat), ours lets key holders decrypt the sum and solve (client)"
)
ERRATA = (
    DERIVATIVE,
    DRAWS,
    "Energies of two machines compare only in their ratios, so no differences are shown; the notes "
    "have each model's energy over that of plain FedHEONN in the same table. The thesis measured a "
    "desktop with CodeCarbon and Intel Power Gadget, where each tracked task took 2.3 s more.",
    "With the thesis's derivative encryption hides nothing (each class's Gram matrix tells its "
    "moments), and Solera refuses it; encrypted rows of both protocols have the true one, and "
    "their accuracies differ from the thesis's for that reason.",
    "Section 3.7.5 speaks of 1.6e-6 kWh and a growth of 112 % for encryption on MNIST; Table 3.16 "
    "has 1.6e-3 kWh, which fits its 132 s.",
    "The MLP of Tables 3.13 and 3.14 is the same training, measured as 1.7e-4 and 3.2e-4 kWh: the "
    "thesis's own figures vary by a factor of 1.8.",
    "MNIST-orig is said to be split 70/30; the program takes Keras's 60,000 and 10,000 rows, with "
    "which 81.30 % comes out exactly (79.98 with 70/30).",
)
SIZES = {False: ORIGINAL, True: ORIGINAL}
LEFT_OUT: dict[str, str] = {}
ALT = so.RandomPatches(25, rows=0.2, features=1.0)
BEST = so.RandomPatches(75, rows=0.2, features=0.8)
COLUMNS = {"kWh": ".3e", "kg CO2e": ".3e", "seconds": ".3g", "accuracy": ".2f"}
_KEYS = {"compat": so.keys.COMPAT, "client": so.keys.CLIENT}
_FINISH = {AS_PUBLISHED: "compat", OURS: "client"}


class Case(NamedTuple):
    """A model of a table; ``lam`` None is the MLP."""

    table: Table
    row: str
    data: str
    clients: int
    lam: float | None
    ensemble: Any = None
    encrypted: bool = False

    def protocols(self, full: bool) -> dict[str, dict[str, Any]]:
        """The options of FedHEONN under each protocol that is run at this size."""
        if self.lam is None:
            return {AS_PUBLISHED: {}}
        large = self.data == "MNIST-orig" and self.encrypted
        slow = self.encrypted and (self.ensemble is not None or large)
        known = {AS_PUBLISHED: {} if self.encrypted else THESIS, OURS: {}}
        if slow and not full:
            known.pop(AS_PUBLISHED)
        return {} if self.encrypted and not can_encrypt() else known


def _cases(full: bool) -> list[Case]:
    cases = [
        Case(found, name, "MNIST-simp", 2, lam, ensemble, found is ENCRYPTED)
        for found in (INCREMENTAL, ENCRYPTED)
        for name, lam, ensemble in (
            ("FedHEONN", 10.0, None), ("FedHEONN_ensemble", 0.1, ALT), ("MLPC", None, None),
        )
    ]  # fmt: skip
    for data in ("MNIST-test", "MNIST-simp", "MNIST-orig"):
        models: list[tuple[str, float | None, Any]] = [
            ("FedHEONN", 10.0, None),
            ("FedHEONN_enc", 10.0, None),
            ("MLPC", None, None),
        ]
        if data != "MNIST-orig":
            models[2:2] = [("FedHEONN_ensemble", 0.01, BEST), ("FedHEONN_ensemble_alt", 0.1, ALT)]
        for name, lam, ensemble in models:
            case = Case(WHOLE, f"{data}, {name}", data, 1, lam, ensemble, name.endswith("_enc"))
            if full or (lam is not None and (data != "MNIST-orig" or name == "FedHEONN")):
                cases.append(case)
    return cases if full else [case for case in cases if case.row != "MLPC" or _first(case)]


def _first(case: Case) -> bool:
    """The MLP of Tables 3.13 and 3.14 is the same training."""
    return case.table is INCREMENTAL


def planned(full: bool) -> list[Cell]:
    """The cells of every case that is run at this size, with its tasks."""
    wanted = []
    for case in _cases(full):
        if case.protocols(full):
            rows = [r for r in case.table.numbers if r == case.row or r.startswith(f"{case.row}: ")]
            wanted += [cell for cell in case.table.cells() if cell.row in rows]
    return wanted


def can_encrypt() -> bool:
    return find_spec("tenseal") is not None


@contextmanager
def key_pairs() -> Iterator[None]:
    """Key pairs for the encrypted rows, in a folder of their own."""
    if not can_encrypt():
        yield
        return
    before = os.environ.get("SOLERA_KEYS")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SOLERA_KEYS"] = folder
        try:
            for name, parameters in _KEYS.items():
                so.keys.create(so.keys.default_folder(), name, parameters)
            yield
        finally:
            if before is None:
                del os.environ["SOLERA_KEYS"]
            else:
                os.environ["SOLERA_KEYS"] = before


@quiet()
@key_pairs()
def run(full: bool = False, progress: Progress = SILENT) -> Rows:
    """kWh, kg CO₂e, seconds and accuracy in per cent, of every model and of its tasks."""
    rows = []
    plain: dict[tuple[str, str, str], float] = {}
    for case in _cases(full):
        X, y, X_test, y_test = split(DATA[case.data])
        for protocol, options in case.protocols(full).items():
            progress.stage(f"{case.table.name}: {case.row}, {protocol}")
            if case.lam is None:
                spans = _perceptron(case, X, y, X_test, y_test)
            else:
                spans = _network(case, options, _FINISH[protocol], X, y, X_test, y_test)
                if protocol == AS_PUBLISHED and case.ensemble is not None and not case.encrypted:
                    spans = _scored_as_drawn(case, options, spans, X, y, X_test, y_test)
            whole = _sum(spans)
            base = (case.table.name, case.data, protocol)
            plain.setdefault(base, whole[0].kwh)
            note = _ratio(case, whole[0].kwh / plain[base]) + f" ({whole[0].source})"
            rows += _lines(case.table, case.row, *whole, protocol, note)
            if case.clients > 1:  # Table 3.16 has no tasks
                for task, (use, score) in spans.items():
                    rows += _lines(case.table, f"{case.row}: {task}", use, score, protocol, "")
    return rows


Spans = dict[str, tuple[EnergyUse, float | None]]


def _network(
    case: Case, options: Mapping[str, Any], finish: str, X: Any, y: Any, X_test: Any, y_test: Any
) -> Spans:
    """FedHEONN client after client; the weights are there when each last task ends."""
    fed = so.simulate(X, y, partition=_blocks(case, len(X)), seed=0)
    encrypt = so.Encryption(finish, finish=finish) if case.encrypted else None  # type: ignore[arg-type]
    assert case.lam is not None
    model = so.FedHEONN(lam=case.lam, ensemble=case.ensemble, encrypt=encrypt, **options)
    model.schema_, model.history_ = agree(fed), []
    spans: Spans = {}
    total = None
    for group in range(1, case.clients + 1):
        with _meter() as tracked:
            if group == 1:
                model.prepare(fed)
            task, ask = model.question()
            replies = fed.ask(task, ask, to=[group - 1]).fold(Collect())
        spans[f"fit_group_{group}"] = tracked.use, None
        with _meter() as tracked:
            aggregation = model.aggregation()
            for client, payload in replies.items():
                part = aggregation.lift(so.messages.Reply(client, payload))
                total = part if total is None else aggregation.merge(total, part)
        spans[f"aggregate_partial_group_{group}"] = tracked.use, None
        with _meter() as tracked:
            model.conclude(aggregation.finish(total))
            model.weights_  # noqa: B018 - decrypted and solved, ready to predict with
        spans[f"calc_optim_weights_group_{group}"] = tracked.use, score_of(model, X_test, y_test)
    return spans


def _blocks(case: Case, rows: int) -> so.partitions.Partition:
    """Equal parts of the rows, one after the other, as the program deals them."""
    size = rows // case.clients
    return so.partitions.Explicit([range(k * size, (k + 1) * size) for k in range(case.clients)])


def _scored_as_drawn(
    case: Case, options: Mapping[str, Any], spans: Spans, X: Any, y: Any, X_test: Any, y_test: Any
) -> Spans:
    """The same energies, with the accuracies of the program's own draws."""
    size = len(X) // case.clients
    parts = [(X[k * size : (k + 1) * size], y[k * size : (k + 1) * size])
             for k in range(case.clients)]  # fmt: skip
    assert case.lam is not None
    scored = dict(spans)
    for group in range(1, case.clients + 1):
        drawn = AsDrawn(so.FedHEONN(lam=case.lam, **options), case.ensemble).fit(parts[:group])
        task = f"calc_optim_weights_group_{group}"
        scored[task] = spans[task][0], drawn.score(X_test, y_test)
    return scored


def _perceptron(case: Case, X: Any, y: Any, X_test: Any, y_test: Any) -> Spans:
    """The thesis's network, trained anew with the rows of one more client each time."""
    from sklearn.neural_network import MLPClassifier

    model = MLPClassifier(
        (128, 64), solver="sgd", alpha=1e-4, max_iter=500, tol=1e-4, random_state=42
    )
    spans: Spans = {}
    ends = np.linspace(0, len(X), case.clients + 1).astype(int)[1:]
    for group, end in enumerate(ends.tolist(), start=1):
        with _meter() as tracked:
            model.fit(X[:end], y[:end])
        spans[f"fit_group_{group}"] = tracked.use, 100.0 * float(model.score(X_test, y_test))
    return spans


@contextmanager
def _meter() -> Iterator[Tracked]:
    with so.energy.track_energy(country="ESP") as tracked:
        yield tracked


def _sum(spans: Spans) -> tuple[EnergyUse, float | None]:
    """All tasks one after the other, and the last accuracy."""
    uses = [use for use, _ in spans.values()]
    total = uses[0]
    for use in uses[1:]:
        total += use
    return total, list(spans.values())[-1][1]


def _ratio(case: Case, measured: float) -> str:
    """The energy over that of plain FedHEONN of the same table, there and here."""
    name = "FedHEONN" if case.clients > 1 else f"{case.data}, FedHEONN"
    theirs = case.table.cell(case.row, "kWh").value or 0.0
    base = case.table.cell(name, "kWh").value or 1.0
    return f"× plain of this table: thesis {theirs / base:.3g}, here {measured:.3g}"


def _lines(
    found: Table, name: str, use: EnergyUse, score: float | None, protocol: str, note: str
) -> list[Row]:
    measured = {"kWh": use.kwh, "kg CO2e": use.co2e, "seconds": use.seconds, "accuracy": score}
    lines = []
    for column, form in COLUMNS.items():
        cell = found.cell(name, column)
        if cell.value is None:
            continue
        lines.append(
            row(
                f"{name}, {column}", cell, measured[column], protocol=protocol, form=form,
                note=note if column == "kWh" else "", compare=column == "accuracy",
            )
        )  # fmt: skip
    return lines

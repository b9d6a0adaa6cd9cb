"""FedHEONN thesis, Table 3.11: the tasks of an encrypted ensemble, in series and in parallel.

Four clients, groups of two, T = 50 members of all rows and all features,
encrypted as in the thesis (``finish="compat"``) and as we recommend (``finish="client"``). Parallel
is the engine ``processes`` with two workers for the clients' part; the coordinator's part does not
change, since ours has no Python loop over members to share out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import solera as so
from solera.core.aggregation import Collect
from solera.data.agreement import agree
from solera.study.run.progress import SILENT, Progress
from solera_studies.heonn_energy import can_encrypt, key_pairs
from solera_studies.heonn_protocol import split
from solera_studies.rows import AS_PUBLISHED, ORIGINAL, OURS, Rows, quiet, row
from solera_studies.theses import Cell, table

TITLE = "FedHEONN: serial against parallel (Table 3.11)"
TABLE = table("000", "Table 3.11")
TABLES = (TABLE,)
SCALE_DOWN = "T = 50 members; by default, as published, T = 2: its products take minutes."
DIFFERS = (
    "as published the coordinator multiplies encrypted moments (compat), ours lets key holders "
    "decrypt the sum and solve (client)"
)
ERRATA = (
    "Seconds are of two machines; compare the columns, and the shares of the tasks.",
    "Members of all rows and features, drawn without replacement, are 50 times one network.",
)
SIZES = {False: ORIGINAL, True: ORIGINAL}
LEFT_OUT = {
    "Table 3.11; *: preprocessing; *": "nothing is written out again before the parallel part here",
    "Table 3.11; *; parallel": "only the clients work in parallel here: see 'clients: sum'",
}
FIT = "clients: sum"
_CLIENTS, _GROUP = 4, 2


def planned(full: bool) -> list[Cell]:
    """All tasks in series, and the clients' sum in parallel, where encryption is installed."""
    if not can_encrypt():
        return []
    serial = [TABLE.cell(name, "serial") for name in TABLE.numbers if "preprocessing" not in name]
    return [*serial, TABLE.cell(FIT, "parallel")]


@quiet()
@key_pairs()
def run(full: bool = False, progress: Progress = SILENT) -> Rows:
    """Seconds of every task."""
    if not can_encrypt():
        return [row("encrypted ensemble", None, None, note="left out: needs the extra he")]
    X, y, _, _ = split("digits")
    rows = []
    for protocol, finish in ((AS_PUBLISHED, "compat"), (OURS, "client")):
        members = 50 if full or protocol == OURS else 2
        progress.stage(f"{protocol}, T = {members}")
        seconds = _tasks(X, y, finish, members)
        for name, took in seconds.items():
            cell = TABLE.cell(name, "serial")
            label, size = f"{name}, serial", f"T = {members}" + ("" if members == 50 else " of 50")
            rows.append(
                row(label, cell, took, protocol=protocol, form=".3g", size=size, compare=False)
            )
        progress.stage(f"{protocol}, parallel")
        fed = so.simulate(X, y, clients=_CLIENTS, seed=0, engine="processes", workers=2)
        with fed:
            took = _fit(_network(fed, finish, members), fed, range(_CLIENTS))[0]
        cell = TABLE.cell(FIT, "parallel")
        rows.append(
            row(f"{FIT}, parallel", cell, took, protocol=protocol, form=".3g", size=size,
                compare=False)
        )  # fmt: skip
    return rows


def _network(fed: Any, finish: Any, members: int) -> so.FedHEONN:
    ensemble = so.RandomPatches(members, rows=1.0, row_replacement=False, features=1.0)
    encrypt = so.Encryption(finish, finish=finish)
    model = so.FedHEONN(lam=0.01, ensemble=ensemble, encrypt=encrypt)
    model.schema_, model.history_ = agree(fed), []
    model.prepare(fed)
    return model


def _fit(model: so.FedHEONN, fed: Any, clients: range) -> tuple[float, dict[int, Any]]:
    """Seconds until these clients have replied, and what they replied."""
    task, ask = model.question()
    return _timed(lambda: fed.ask(task, ask, to=list(clients)).fold(Collect()))


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def _tasks(X: Any, y: Any, finish: str, members: int) -> dict[str, float]:
    """Seconds of the tasks of both ways of aggregation, by the names of the table."""
    fed = so.simulate(X, y, clients=_CLIENTS, seed=0)
    model = _network(fed, finish, members)
    seconds: dict[str, float] = {}
    parts = []
    for client in range(_CLIENTS):
        took, replies = _fit(model, fed, range(client, client + 1))
        seconds[f"client {client + 1}: fit"] = took
        parts += [so.messages.Reply(who, payload) for who, payload in replies.items()]
    seconds[FIT] = sum(seconds.values())
    aggregation = model.aggregation()

    def aggregate(replies: list[Any], total: Any = None) -> Any:
        for reply in replies:
            part = aggregation.lift(reply)
            total = part if total is None else aggregation.merge(total, part)
        return total

    def solve(total: Any) -> Any:
        model.conclude(aggregation.finish(total))
        return model.weights_

    seconds["global: aggregate"], _ = _timed(lambda: solve(aggregate(parts)))
    seconds["global: sum"] = seconds["global: aggregate"]
    total = None
    for group in range(_CLIENTS // _GROUP):
        these = parts[_GROUP * group : _GROUP * (group + 1)]
        name = f"incremental: aggregate_partial {group + 1}"
        seconds[name], total = _timed(lambda these=these, total=total: aggregate(these, total))  # type: ignore[misc]
    seconds["incremental: calculate_weights"], _ = _timed(lambda: solve(total))
    incremental = [took for name, took in seconds.items() if name.startswith("incremental")]
    seconds["incremental: sum"] = sum(incremental)
    return seconds

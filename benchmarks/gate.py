"""What the owner's gate costs: accuracy of every learner behind it, and time inside it.

Accuracy is that of a fit whose asks and replies all pass the gate under the policy the learner
belongs to, beside the same fit without it, on Adult, digits and wine with 5 and 50 clients. A
refusal is an outcome, too: a model with more parameters than a third of a client's rows does not
leave. Time inside the gate is measured in the same process as the work around it. Claims: under 2 %
of a gated W1, under 5 % of a no-op round with 10 real agents (``agents``).

    gate.py [--only accuracy,time,agents] [--data adult,digits,wine] [--clients 5,50] [--learners …]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

import solera as so
from sizes import sized
from solera.core.errors import SoleraError
from solera.engines.gates import Gates
from solera.trust.gate import POLICIES, ReleaseLimits
from solera.trust.release import Facts

ROUNDS = sized(20, tiny=2)
DELTA = 1e-5


def _budget(epsilon: float) -> ReleaseLimits:
    return replace(POLICIES["training"], budget=(epsilon, DELTA))


def _columns() -> list[Any]:
    return [so.FedImputer(), so.FedEncoder(), so.FedScaler()]


def _boosting() -> Any:
    return so.FedHistGBDT(rounds=ROUNDS, bins=32)


def _noised(epsilon: float) -> Any:
    """Few asks share ε, and every client adds all of the noise: its owner trusts nobody."""
    dp = so.DP(epsilon=epsilon, delta=DELTA, level="record", where="local")
    return so.FedHistGBDT(rounds=ROUNDS // 2, max_depth=2, bins=16, lr=0.5, l2=1.0, dp=dp)


LEARNERS: dict[str, tuple[str | ReleaseLimits, Callable[[], Any]]] = {
    "FedHEONN": ("training", lambda: so.Pipeline(*_columns(), so.FedHEONN())),
    "FedLinear": ("training", lambda: so.Pipeline(*_columns(), so.FedLinear(rounds=ROUNDS))),
    "FedID3": (
        "training",
        lambda: so.Pipeline(so.FedImputer(), so.FedBins(8), so.FedID3(max_depth=4)),
    ),
    "FederatedTree by counts": (
        "training",
        lambda: so.Pipeline(so.FedImputer(), so.FedBins(8), so.FederatedTree(by_counts=True)),
    ),
    "FedHistGBDT": ("training", _boosting),
    "FedHistGBDT ε=8": (_budget(8.0), lambda: _noised(8.0)),
    "FedHistGBDT ε=1": (_budget(1.0), lambda: _noised(1.0)),
}
"""Learners with the policy they are judged under. Those of whole trees and of networks need
"trusted", where replies are those without a gate."""


def accuracy(data: list[str], clients: list[int], names: list[str]) -> None:
    print(f"{'learner':<25}{'data':<9}{'clients':>8}{'ungated':>10}{'gated':>10}  seconds")
    for name in names:
        policy, make = LEARNERS[name]
        for set_name in data:
            rows = getattr(so.datasets, set_name)()
            for count in clients:
                without = _boosting if name.startswith("FedHistGBDT") else make
                plain, seconds, _ = fitted(without(), rows, count, None)
                gated, slower, why = fitted(make(), rows, count, policy)
                shown = "refused" if gated is None else f"{gated:.4f}"
                first = "-" if plain is None else f"{plain:.4f}"
                print(
                    f"{name:<25}{set_name:<9}{count:>8}{first:>10}{shown:>10}  "
                    f"{seconds:.1f} → {slower:.1f}{why}",
                    flush=True,
                )


def fitted(
    learner: Any, rows: Any, clients: int, policy: str | ReleaseLimits | None
) -> tuple[float | None, float, str]:
    """The accuracy on the test rows, the seconds, and why there is none."""
    began = time.perf_counter()
    try:
        with so.simulate(
            rows.X, rows.y, clients=clients, seed=0, policy=policy, schema=rows.schema
        ) as fed:
            learner.fit(fed)
            score = learner.score(rows.X_test, rows.y_test)
    except SoleraError as error:
        return None, time.perf_counter() - began, f"; {error.message[:160]}"
    return score, time.perf_counter() - began, ""


# --- time ---


@contextmanager
def timed(spent: list[float]) -> Any:
    """Add up the seconds that engines spend in the gate."""
    admit, release = Gates.admit, Gates.release

    def clocked(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*args)
            finally:
                spent.append(time.perf_counter() - began)

        return run

    Gates.admit, Gates.release = clocked(admit), clocked(release)  # type: ignore
    try:
        yield
    finally:
        Gates.admit, Gates.release = admit, release  # type: ignore


def time_inside() -> None:
    from simulation import WORKLOADS, rows_of, solera

    work = WORKLOADS["W1"]
    rows = rows_of(work)
    spent: list[float] = []
    with timed(spent):
        (clock, _), score = solera(work, rows, policy="trusted")
    share = sum(spent) / clock
    print(f"W1 behind the gate: {clock:.2f} s, {sum(spent) * 1e3:.1f} ms in it, {share:.2%}, "
          f"accuracy {score:.4f}")  # fmt: skip

    @so.task("benchmark.gated-noop", ask=None, release=[Facts("one")])
    def noop(client: Any, ask: Any) -> dict[str, Any]:
        return {"one": 1}

    X, y = np.zeros((200, 3)), np.arange(200) % 2
    repeats = sized(200, tiny=5)
    with so.simulate(X, y, clients=10, policy="training") as fed:
        fed.ask(noop).collect()
        spent.clear()
        began = time.perf_counter()
        with timed(spent):
            for _ in range(repeats):
                fed.ask(noop).collect()
        clock = time.perf_counter() - began
    print(f"no-op, 10 clients in this process: {clock / repeats * 1e3:.2f} ms a round, "
          f"{sum(spent) / clock:.1%} in the gate")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="accuracy,time,agents")
    parser.add_argument("--data", default=sized("adult,digits,wine", tiny="wine"))
    parser.add_argument("--clients", default=sized("5,50", tiny="2"))
    parser.add_argument("--learners", default=",".join(LEARNERS))
    chosen = parser.parse_args()
    if "time" in chosen.only:
        time_inside()
    if "agents" in chosen.only:
        import gated_round  # agents import it too, and its task once

        gated_round.show()
    if "accuracy" in chosen.only:
        counts = [int(count) for count in chosen.clients.split(",")]
        accuracy(chosen.data.split(","), counts, chosen.learners.split(","))


if __name__ == "__main__":
    main()

"""What choosing clients costs, and what their Shapley values cost.

    python benchmarks/selection.py

First: seconds of one choice of 100 of K clients for every selector, everything reported already
(a report is a task of its own). For FedCS, HybridFL and DynHybridFL also with K/10 candidates.
Then: one round of six clients with an MLP on MNIST, valued by every subset once, and by the
textbook loop of GTG-Shapley: permutation after permutation, each prefix averaged and judged anew.
"""

from __future__ import annotations

import time

import numpy as np

import solera as so
from sizes import sized
from solera.core.rounds import Round
from solera.core.selection import Roster
from solera.select.resources import Estimates
from solera.select.shapley import CONVERGED, EPSILON, LAST, PERMUTATIONS, exact_shapley
from solera.select.valuing import RoundUtility

BUDGET = sized(100, tiny=5)
TURNS = sized(PERMUTATIONS, tiny=1)
SIZES = sized([10**3, 10**4, 10**5, 10**6], tiny=[100, 200])
DATA, CLIENTS, HIDDEN = sized(("mnist", 300, 128), tiny=("digits", 20, 8))
BITS, EPOCHS = 101_770 * 32, 5


def main() -> None:
    choices()
    shapley()


def choices() -> None:
    print(f"{'seconds of one choice':28}" + "".join(f"{f'K = {k:,}':>16}" for k in SIZES))
    rows: dict[str, list[float]] = {}
    for clients in SIZES:
        for name, choose in _choosers(clients).items():
            choose(0)
            rows.setdefault(name, []).append(min(_seconds(choose, i + 1) for i in range(3)))
    for name, seconds in rows.items():
        print(f"{name:28}" + "".join(f"{s:16.4f}" for s in seconds))


def _choosers(clients):
    """For every selector a function of the round that chooses with everything known."""
    draw = np.random.default_rng(0)
    sizes = draw.integers(10, 100, clients)
    roster = Roster(clients, BUDGET, sizes, seed=1)
    losses = draw.exponential(size=clients)
    found = {
        type(s).__name__: lambda i, s=s: s.choose(i, roster, np.random.default_rng(i))
        for s in (so.selectors.Uniform(), so.selectors.RoundRobin())
    }
    active = so.ActiveSampling()
    found["ActiveSampling"] = lambda i: active.draw(losses, BUDGET, np.random.default_rng(i))
    power = so.selectors.PowerOfChoice()

    def by_power(i):
        rng = np.random.default_rng(i)
        candidates = power.draw(roster, 2 * BUDGET, i, rng)
        return candidates[np.argsort(-losses[candidates])[:BUDGET]]

    found["PowerOfChoice"] = by_power
    for s in (
        so.selectors.GreedyShapley(),
        so.selectors.ShapleyUCB(),
        so.selectors.ShapleySoftmax(),
    ):
        s.choose(0, roster, draw)
        s.set_state({**s.get_state(), "sums_": losses, "counts_": sizes})
        # GreedyShapley has gone round after K rounds
        found[type(s).__name__] = lambda i, s=s: s.choose(
            clients + i, roster, np.random.default_rng(i)
        )
    for s in (so.selectors.FedCS(), so.selectors.HybridFL(), so.selectors.DynHybridFL()):
        few, many = _estimates(BUDGET), _estimates(clients // 10)
        name = type(s).__name__
        found[name] = lambda i, s=s, few=few: _schedule(s, few, clients, i)
        found[f"{name}, K/10 candidates"] = lambda i, s=s, many=many: _schedule(s, many, clients, i)
    return found


def _schedule(selector, found, clients, i):
    np.random.default_rng(i).choice(clients, len(found.clients), replace=False, shuffle=False)
    return selector.schedule(found, selector.deadline_of(found))


def _estimates(candidates: int) -> Estimates:
    ids = np.arange(candidates)
    state = so.simulation.Resources().now(1, 0, ids)
    counts = np.random.default_rng(2).multinomial(60, np.full(10, 0.1), size=candidates)
    return Estimates(
        ids, EPOCHS * 60 / state.speed, BITS / state.link, state.link, counts,
        np.full(candidates, 784 * 32.0), so.simulation.Resources().allows_upload(1, ids),
    )  # fmt: skip


def shapley() -> None:
    data = so.datasets.load(DATA)
    fed = so.simulate(data.X, data.y, clients=CLIENTS, partition=so.Dirichlet(0.3), seed=7)
    keep, width = _Keep(), data.X.shape[1]
    learner = so.FedAvg(
        so.nn.mlp(width, HIDDEN, 10), rounds=1, per_round=6, lr=1e-3, optimiser="adam", epochs=5,
        batch_size=20, weight=None, select=so.selectors.GreedyShapley(data.X_test, data.y_test),
    )  # fmt: skip
    learner.fit(fed, callbacks=[keep])
    utility = RoundUtility(keep.round, data.X_test, data.y_test, "validation")
    began = time.perf_counter()
    ours = exact_shapley(utility, 6)
    fast, evaluations = time.perf_counter() - began, utility.evaluations
    utility.evaluations = 0
    began = time.perf_counter()
    theirs = textbook(lambda subset: float(utility(subset[None])[0]), 6, np.random.default_rng(0))
    slow = time.perf_counter() - began
    print(
        f"\none round of 6 clients, MLP {width}-{HIDDEN}-10, {len(data.y_test):,} validation rows"
    )
    print(f"ours      {evaluations:6} evaluations {fast:9.2f} s   (exact)")
    print(f"textbook  {utility.evaluations:6} evaluations {slow:9.2f} s   (estimate)")
    print(f"ratio     {utility.evaluations / evaluations:6.1f} x           {slow / fast:9.1f} x")
    print(f"largest difference of a value {np.abs(ours - theirs).max():.2e}, "
          f"largest value {np.abs(ours).max():.2e}")  # fmt: skip


class _Keep(so.callbacks.Callback):
    """Keeps the last round with its updates."""

    round: Round

    def on_round(self, learner, round):
        self.round = round


def textbook(utility, clients, rng):
    """GTG-Shapley as its pseudocode reads (Liu et al. 2022): no memory of subsets."""
    nothing, whole = (utility(np.full(clients, full)) for full in (False, True))
    if abs(whole - nothing) < EPSILON:
        return np.zeros(clients)
    running, total = [], np.zeros(clients)
    while len(running) < TURNS * clients:
        for leader in range(clients):
            order = np.append(leader, rng.permutation(np.delete(np.arange(clients), leader)))
            inside, before = np.zeros(clients, dtype=bool), nothing
            gains = np.zeros(clients)
            for client in order:
                if abs(whole - before) < EPSILON:
                    break
                inside[client] = True
                now = utility(inside)
                gains[client], before = now - before, now
            total = total + gains
            running.append(total / (len(running) + 1))
        recent = np.abs(np.array(running[-LAST - 1 : -1]) - running[-1])
        if len(running) > LAST and (recent / (np.abs(running[-1]) + 1e-12)).mean() < CONVERGED:
            break
    return running[-1]


def _seconds(function, *arguments) -> float:
    began = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()

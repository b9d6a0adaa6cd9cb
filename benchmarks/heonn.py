"""FedHEONN against the thesis's algorithms 2 to 9, on one core.

For digits, dry bean and MNIST, T = 1 and T = 50, 10 clients, and for digits also T = 50 with one
client as in the thesis: fit at the clients, aggregation, weights and bytes, in the clear and
encrypted. Each line is the reference, ours and the ratio, from this one run. The encrypted weights
of the reference are timed for one system and multiplied by their number.

    python benchmarks/heonn.py [digits drybean mnist] [--tiny]
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {0})

import numpy as np
from threadpoolctl import threadpool_limits

import solera as so
from heonn_reference import aggregate, context, encrypted_weights, fit, fit_ensemble, weights
from sizes import sized
from solera.core.payload import encoded_size
from solera.core.replies import Batch
from solera.privacy.he import keys

LAM = 0.01
PATCHES = so.RandomPatches(sized(50, tiny=2), rows=0.2, features=0.8)
NAMES = sized(["digits", "drybean", "mnist"], tiny=["wine"])
REPEATS = sized(3, tiny=1)


def timed(run: Callable[[], Any], repeats: int = 3) -> tuple[float, Any]:
    times, result = [], None
    for _ in range(repeats):
        began = time.perf_counter()
        result = run()
        times.append(time.perf_counter() - began)
    return statistics.median(times), result


def line(what: str, reference: float | None, ours: float, unit: str = "s") -> None:
    left = f"{reference:12.5g}" if reference is not None else f"{'–':>12}"
    ratio = f"{reference / ours:12,.1f}×" if reference is not None else ""
    print(f"  {what:<38}{left}{ours:12.5g} {unit:<3}{ratio}")


def rows(name: str) -> tuple[Any, Any]:
    X, y = so.datasets.load(name).all
    X = np.asarray(X, dtype=np.float64)
    spread = X.std(axis=0)
    return (X - X.mean(axis=0)) / np.where(spread > 0, spread, 1), y


def ours(fed: so.Federation, model: so.FedHEONN, repeats: int) -> dict[str, Any]:
    """Time the three steps of a fit apart."""
    model.fit(fed)
    (task, payload), aggregation = model.question(), model.aggregation()
    fit_time, replies = timed(lambda: fed.ask(task, payload).collect(), repeats)
    batch = Batch(np.array([r.client for r in replies]), [r.payload for r in replies])
    fold_time, total = timed(lambda: aggregation.result(aggregation.fold(batch)), repeats)
    solve_time, _ = timed(lambda: model.conclude(total), repeats)
    bytes_up = int(np.mean([encoded_size(r.payload) for r in replies]))
    return {"fit": fit_time, "fold": fold_time, "solve": solve_time, "bytes": bytes_up}


def plain(name: str, ensemble: so.RandomPatches | None, clients: int = 10) -> None:
    X, y = rows(name)
    d = np.where(np.eye(y.max() + 1)[y] == 1, 0.95, 0.05)
    fed = so.simulate(X, y, clients=clients, seed=0)
    parts = np.split(np.arange(len(y)), fed.data.offsets[1:-1])
    Xs = [fed.data.X[p] for p in parts]
    ds = [np.where(np.eye(d.shape[1])[fed.data.y[p]] == 1, 0.95, 0.05) for p in parts]
    T = 1 if ensemble is None else ensemble.estimators
    big = len(y) > 20_000
    size = f"{len(y):,} rows × {X.shape[1]}, {d.shape[1]} outputs"
    print(f"\n{name}: {size}, {clients} clients, T = {T}")
    model = so.FedHEONN(lam=LAM, ensemble=ensemble, representation="gram")
    mine = ours(fed, model, REPEATS)
    draw = np.random.default_rng(0)
    count = 1 if big else len(Xs)

    def reference_fit() -> list[Any]:
        if ensemble is None:
            return [[fit(a, b)] for a, b in zip(Xs[:count], ds[:count], strict=True)]
        return [
            fit_ensemble(a, b, model.patches_, ensemble.rows, draw)
            for a, b in zip(Xs[:count], ds[:count], strict=True)
        ]

    print(f"  {'':<38}{'thesis':>12}{'ours':>12}{'ratio':>17}")
    fit_time, told = timed(reference_fit, 1)
    told = told if len(told) == len(Xs) else told * len(Xs)
    what = "fit, all clients" + (" (one × 10)" if count < len(Xs) else "")
    line(what, fit_time * len(Xs) / count, mine["fit"])
    fold_time, folded = timed(
        lambda: [aggregate([client[t] for client in told]) for t in range(T)], 1
    )
    line("aggregation", fold_time, mine["fold"])
    solve_time, _ = timed(lambda: [weights(m, US, LAM) for m, US in folded], REPEATS)
    line("weights", solve_time, mine["solve"])
    up = sum(m.nbytes + US.nbytes for t in told[0] for m, US in zip(*t, strict=True))
    line("bytes up per client", up, mine["bytes"], "B")
    encrypted(fed, ensemble, folded, mine, T * d.shape[1])


def encrypted(
    fed: so.Federation, ensemble: Any, folded: Any, mine: dict[str, Any], systems: int
) -> None:
    import tenseal as ts

    m, decomposed = folded[0]
    U, S = decomposed[0]
    one = None
    if U.shape[0] < 200:
        vector = ts.ckks_vector(context(), m[0].tolist())
        one, _ = timed(lambda: encrypted_weights(vector, U, S, LAM), 1)
    whole = sum(mine[step] for step in ("fit", "fold", "solve"))
    for finish in ("client", "coordinator"):
        secret = so.Encryption(finish, finish=finish)
        model = so.FedHEONN(lam=LAM, ensemble=ensemble, encrypt=secret, representation="gram")
        theirs = ours(fed, model, REPEATS)
        vars(model).pop("_unsealed", None)
        open_time, _ = timed(lambda model=model: model.weights_, 1)
        done = theirs["solve"] + open_time if finish == "client" else theirs["solve"]
        reference = None if one is None else one * systems
        line(f"encrypted weights, finish={finish}", reference, done)
        line("  bytes up per client", None, theirs["bytes"], "B")
        total = theirs["fit"] + theirs["fold"] + theirs["solve"] + open_time
        print(f"  {'  end to end, times the plain one':<38}{whole:12.5g}{total:12.5g} s  "
              f"{total / whole:12.2f}×")  # fmt: skip


def main(names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as home, threadpool_limits(1):
        os.environ["SOLERA_KEYS"] = os.path.join(home, "keys")
        keys.create(keys.default_folder(), "client", keys.CLIENT)
        keys.create(keys.default_folder(), "coordinator", keys.COORDINATOR)
        for name in names:
            plain(name, None)
            if name != "mnist":
                plain(name, PATCHES)
            if name in ("digits", "wine"):
                plain(name, PATCHES, clients=1)


if __name__ == "__main__":
    import logging

    logging.getLogger("solera").setLevel(logging.ERROR)
    main(sys.argv[1:] or NAMES)

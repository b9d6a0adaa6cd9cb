"""A million registered clients, 100 per round: rows made when needed, and rows of arrays.

Claims: starts in under 5 s and stays under 1 GiB with 20 rows each made when needed. The floor
beside it is the same training without a federation: a loop that generates the rows of 100 clients
and calls the same batched step. From arrays, two rows each: the first round ends within 2 s, then
each takes under 10 ms.
"""

from __future__ import annotations

import time

started = time.perf_counter()

import resource  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402

import solera as so  # noqa: E402
from sizes import sized  # noqa: E402
from solera.core.clients import ClientGroup, Draws  # noqa: E402
from solera.core.rng import generator  # noqa: E402
from solera.core.task import find_task  # noqa: E402

CLIENTS, PER_ROUND, ROUNDS = sized((1_000_000, 100, 20), tiny=(1000, 10, 2))


def generate(client: int, rng: np.random.Generator) -> tuple[Any, Any]:
    X = rng.normal(size=(20, 10))
    return X, (X[:, 0] + X[:, client % 10] > 0).astype(int)


def main() -> None:
    data = so.data.LazyData(generate, clients=CLIENTS)
    fed = so.simulate(data, seed=1)
    start_up = time.perf_counter() - started
    began = time.perf_counter()
    model = so.FedLinear(rounds=ROUNDS, per_round=PER_ROUND).fit(fed)
    ours = (time.perf_counter() - began) / ROUNDS

    update = find_task("linear.train").many
    assert update is not None
    order = {**model.round_config(0), **model.first_model(1)}
    began = time.perf_counter()
    for round in range(ROUNDS):
        ids = generator(1, "select", round).choice(CLIENTS, PER_ROUND, replace=False)
        draws = Draws(1, "linear.train", round)
        replies: Any = update(ClientGroup(ids, data, draws, [{}] * PER_ROUND), order)
        weights = replies.fields["rows"] / replies.fields["rows"].sum()
        for name in ("coef", "intercept"):
            order[name] = order[name] + np.tensordot(weights, replies.fields["change"][name], 1)
    floor = (time.perf_counter() - began) / ROUNDS

    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{CLIENTS:,} clients, {PER_ROUND} per round, {ROUNDS} rounds")
    print(f"start-up (with imports)  {start_up:8.3f} s")
    print(f"round, Solera            {ours * 1e3:8.2f} ms")
    print(f"round, bare loop         {floor * 1e3:8.2f} ms   ratio {ours / floor:.2f}×")
    print(f"peak memory              {memory:8.0f} MB")
    from_arrays()


def from_arrays() -> None:
    """Seconds of clock and processor to the end of the first round, and of those that follow."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2 * CLIENTS, 10))
    y = (X[:, 0] > 0).astype(int)
    marks = [now()]

    class Clock(so.callbacks.Callback):
        def on_round(self, learner: Any, round: Any) -> None:
            marks.append(now())

    fed = so.simulate(X, y, clients=CLIENTS, seed=1)
    learner = so.FedLinear(rounds=ROUNDS + 1, per_round=PER_ROUND)
    learner.fit(fed, callbacks=[Clock()])
    first = marks[1] - marks[0]
    later = np.median(np.diff(marks[1:], axis=0), axis=0) * 1e3
    print("from arrays, two rows each (clock, processor)")
    print(f"to the end of the first  {first[0]:8.2f} s  {first[1]:8.2f} s")
    print(f"round after it           {later[0]:8.1f} ms {later[1]:8.1f} ms")


def now() -> Any:
    return np.array([time.perf_counter(), time.process_time()])


if __name__ == "__main__":
    main()

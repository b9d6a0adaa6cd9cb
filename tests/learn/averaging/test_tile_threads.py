"""Tiles of clients are trained in threads: their number is a limit, and changes no bit."""

from __future__ import annotations

import threading
from itertools import pairwise

import numpy as np
import pytest
import threadpoolctl

torch = pytest.importorskip("torch")

import solera as so  # noqa: E402
from solera.core.aggregation import blocks  # noqa: E402
from solera.core.payload import encode  # noqa: E402
from solera.core.replies import Batch  # noqa: E402
from solera.core.rng import stream_keys  # noqa: E402
from solera.engines.threads import limited_threads  # noqa: E402
from solera.learn.averaging import update_mean as folding  # noqa: E402
from solera.learn.averaging.training import (  # noqa: E402
    batched,
    batched_models,
    dense_steps,
    lazy_updates,
    low_rank,
    tile_threads,
)
from solera.learn.averaging.training.batches import TrainingConfig, deal_batches  # noqa: E402
from solera.learn.averaging.update_mean import UpdateMean  # noqa: E402

RNG = np.random.default_rng(0)
X = RNG.normal(size=(360, 40)).astype(np.float32)
Y = (X[:, 0] + X[:, 1] * X[:, 2] > 0).astype(int)
LEARNERS = {
    "low rank": lambda: so.FedAvg(so.nn.mlp(40, 64, 2), rounds=2, batch_size=10),
    "batched": lambda: so.FedProx(so.nn.mlp(40, 64, 2), rounds=2, batch_size=5),
    "alike": lambda: so.FedAvg(so.nn.linear(40, 2), rounds=2, batch_size=7),
    "uneven": lambda: so.FedAvg(so.nn.linear(40, 2), rounds=2, batch_size=7),
}
UNEVEN = so.partitions.Explicit([range(i * 15, i * 15 + 15 - i % 3) for i in range(24)])


def federation(name, workers):
    """24 clients, of equally many rows unless the name says otherwise."""
    deal = {"partition": UNEVEN} if name == "uneven" else {"clients": 24}
    return so.simulate(X, Y, **deal, seed=1, workers=workers)


HERE = threading.current_thread().name


class Seen(list):
    """Threads that were at work; each waits until this one and ``others`` have joined in."""

    def __init__(self):
        super().__init__()
        self.others = 0
        self._joined = threading.Condition()

    def add(self, *what):
        name = threading.current_thread().name
        assert name == HERE or name.startswith("solera-tile")
        with self._joined:
            self.append((name, *what))
            self._joined.notify_all()
            assert self._joined.wait_for(lambda: len(self.threads()) > self.others, 60)

    def threads(self):
        return {name for name, *_ in self}


@pytest.fixture
def at_work(monkeypatch):
    """Small tiles, and the threads that train them."""
    seen = Seen()
    real = batched.train_tile

    def watched(*args):
        seen.add(torch.get_num_threads())
        return real(*args)

    for module in (batched, low_rank):
        monkeypatch.setattr(module, "train_tile", watched)
    in_one_call = batched.alike_tiles

    def watched_calls(*args):
        train = in_one_call(*args)

        def watched(tile):
            seen.add(torch.get_num_threads())
            return train(tile)

        return watched

    monkeypatch.setattr(batched, "alike_tiles", watched_calls)
    monkeypatch.setattr(batched, "TILE", 10_000)
    monkeypatch.setattr(low_rank, "_ROWS", 20_000)
    return seen


def threadpool_info(api):
    return [library for library in threadpoolctl.threadpool_info() if library["user_api"] == api]


@pytest.mark.parametrize("name", LEARNERS)
def test_threads_change_no_bit(name, at_work):
    make = LEARNERS[name]
    learned = {}
    for workers in (1, 3):
        at_work.clear()
        at_work.others = workers - 1
        learned[workers] = make().fit(federation(name, workers)).weights_
        assert len(at_work.threads()) == workers
        assert all(own == 1 for _, own in at_work)  # a tile is one thread's alone
    assert learned[1].tobytes() == learned[3].tobytes()


@pytest.mark.parametrize(
    ("name", "updates"),
    [("low rank", low_rank.LowRankUpdates), ("uneven", lazy_updates.StackedUpdates)],
)
@pytest.mark.parametrize("others", [0, 2], ids=["small", "large"])
def test_large_blocks_are_folded_side_by_side(name, updates, others, monkeypatch):
    """Each by one thread, also of NumPy's library: a worker process gets the same bytes."""
    seen = Seen()
    seen.others = others
    together = name == "uneven" and not others
    method = "summed_blocks" if together else "weighted_sum"
    real = getattr(updates, method)

    def watched(self, *args):
        blas = {library["num_threads"] for library in threadpool_info("blas")}
        seen.add(torch.get_num_threads(), blas)
        return real(self, *args)

    monkeypatch.setattr(updates, method, watched)
    if others:
        monkeypatch.setattr(folding, "_MANY", 0)
    before = torch.get_num_threads(), threadpool_info("blas")
    LEARNERS[name]().fit(federation(name, workers=3))
    assert len(seen) == 2 * (1 if together else len(list(blocks(24))))
    assert len(seen.threads()) == 1 + others
    for _, own, blas in seen:
        assert own == 1
        assert blas <= {1}
    assert (torch.get_num_threads(), threadpool_info("blas")) == before


def test_pytorch_leaves_the_cores_to_tiles(monkeypatch):
    """Its own threads would spin on them while tiles are trained."""
    seen = []
    real = low_rank.deal_batches

    def watched(*args):
        seen.append(torch.get_num_threads())
        return real(*args)

    monkeypatch.setattr(low_rank, "deal_batches", watched)
    LEARNERS["low rank"]().fit(so.simulate(X, Y, clients=24, seed=1, workers=3))
    assert seen == [1, 1]


def test_a_tile_that_fails_is_an_error_here(at_work, monkeypatch):
    def broken(*args):
        raise ValueError("out of order")

    monkeypatch.setattr(low_rank, "train_tile", broken)
    monkeypatch.setattr(batched, "train_tile", broken)
    fed = so.simulate(X, Y, clients=24, seed=1, workers=2)
    with pytest.raises(so.errors.SoleraError, match="out of order"):
        LEARNERS["low rank"]().fit(fed)


def test_nobody_waits_for_a_thread_that_has_not_begun():
    pool, free = tile_threads._pool(1), threading.Event()
    blocked = pool.submit(free.wait, 60)
    try:
        with limited_threads(2):
            names = tile_threads.in_threads(lambda _: threading.current_thread().name, range(5))
        assert names == [HERE] * 5
        assert not blocked.done()
    finally:
        free.set()


@pytest.mark.parametrize("fails", [True, False], ids=["here", "elsewhere"])
def test_an_error_in_any_thread_ends_the_work(fails):
    """All others have ended theirs when it arrives."""
    joined, running = threading.Barrier(2), []

    def work(i):
        running.append(i)
        if i < 2:
            joined.wait(60)
        here = threading.current_thread().name == HERE
        running.remove(i)
        if here is fails:
            raise ValueError("out of order")
        return i

    with limited_threads(2), pytest.raises(ValueError, match="out of order"):
        tile_threads.in_threads(work, range(1000))
    assert running == []


def test_results_keep_their_order():
    with limited_threads(3):
        assert tile_threads.in_threads(lambda i: i * i, range(50)) == [i * i for i in range(50)]


@pytest.mark.parametrize("loss", ["softmax", "sigmoid", "binary", "squared"])
@pytest.mark.parametrize("activation", ["relu", "tanh", "sigmoid"])
def test_scripted_steps_are_the_plain_ones_to_the_bit(loss, activation):
    draw = torch.Generator().manual_seed(0)
    x = torch.rand(3, 18, 9, generator=draw)
    target = torch.rand(3, 18, 4, generator=draw).round()
    if loss == "softmax":
        target = torch.randint(0, 4, (3, 18), generator=draw)
    shapes = [((3, 9, 40), (3, 1, 40), True, activation), ((3, 4, 40), (3, 1, 4), False, "")]
    layers = [(torch.rand(W, generator=draw), torch.rand(b, generator=draw), *rest)
              for W, b, *rest in shapes]  # fmt: skip
    found = []
    for train in (dense_steps.train, dense_steps.train_scripted):
        own = [(W.clone(), b.clone(), *rest) for W, b, *rest in layers]
        total = torch.zeros(3, dtype=torch.float64)
        for _ in range(3):  # the second run is the optimised one
            train(total, x, target, own, loss, [7, 7, 4], 7, 0.1)
        assert not any(
            torch.equal(W, before[0]) for (W, *_), before in zip(own, layers, strict=True)
        )
        found.append([total, *(part for W, b, *_ in own for part in (W, b))])
    for plain, scripted in zip(*found, strict=True):
        assert torch.equal(plain, scripted)


def test_without_torchscript_steps_run_as_they_stand(monkeypatch):
    def gone(steps):
        raise RuntimeError("not in this version")

    assert dense_steps.train_scripted is not dense_steps.train
    monkeypatch.setattr(torch.jit, "script", gone)
    assert dense_steps._scripted(dense_steps.train) is dense_steps.train


@pytest.mark.parametrize("hidden", [20, 64], ids=["narrow", "low rank"])
def test_many_steps_are_one_call_where_clients_are_alike(hidden, monkeypatch):
    """And the model is that of one step after the other."""
    dense, calls = batched_models.BatchedDense, []
    real = dense.step
    monkeypatch.setattr(dense, "step", lambda *args: calls.append(1) or real(*args))

    def fit():
        fed = so.simulate(X, Y, clients=24, seed=1)
        learner = so.FedAvg(so.nn.mlp(40, hidden, 2), rounds=2, batch_size=7, epochs=2).fit(fed)
        return learner.weights_.tobytes(), str(learner.history_)

    together = fit()
    assert not calls
    for name in ("train", "train_tile", "train_low_rank"):  # as they stand, without TorchScript
        monkeypatch.setattr(dense_steps, f"{name}_scripted", getattr(dense_steps, name))
    assert fit() == together
    monkeypatch.setattr(dense, "train_alike", lambda *_: False)
    monkeypatch.setattr(batched, "is_plain", lambda *_: False)
    assert fit() == together
    assert calls


@pytest.mark.parametrize("steps", [{"epochs": 3}, {"steps": 7}, {"shuffle": False}], ids=str)
def test_equal_clients_are_dealt_what_others_are(steps):
    """A client more that has fewer rows makes all of them go the other way."""
    keys = stream_keys(0, "test", 1, np.arange(6))
    sizes = np.full(6, 11)
    plan = TrainingConfig("softmax", 0.1, batch_size=4, **steps)
    alike = deal_batches(keys, sizes, plan)
    others = deal_batches(keys, np.append(sizes[:5], 10), plan)
    assert alike.alike == others.counts[0].tolist()
    assert others.alike is None
    assert np.array_equal(alike.counts[:5], others.counts[:5])
    assert np.array_equal(alike.index[:5], others.index[:5])


def test_the_blocks_of_an_ask_fold_to_the_same_bits_as_one_by_one():
    draw = np.random.default_rng(3)
    values = torch.from_numpy(draw.normal(size=(100, 37)).astype(np.float32))
    rest = {"loss": draw.normal(size=100), "rows": draw.random(100)}
    batch = Batch(np.arange(100), lazy_updates.StackedUpdates(values, rest=rest))
    bounds = [*range(0, 100, 13), 100]
    mean = UpdateMean(37)
    apart = mean.merge_all(mean.fold(batch.between(a, b)) for a, b in pairwise(bounds))
    for together in (
        mean.fold_together(batch, bounds),
        mean.merge_all(mean.fold_blocks(batch, bounds)),
    ):
        assert encode(together) == encode(apart)


def test_blocks_come_as_one_only_where_nothing_was_folded_before():
    """So that an ask that needs several calls is folded as ever."""
    make = LEARNERS["alike"]
    at_once = make().fit(so.simulate(X, Y, clients=24, seed=1))
    in_turns = make().fit(so.simulate(X, Y, clients=24, seed=1, memory=60_000))
    assert in_turns.weights_.tobytes() == at_once.weights_.tobytes()
    assert str(in_turns.history_) == str(at_once.history_)


def test_the_limit_ends_with_the_ask():
    before = torch.get_num_threads()
    with limited_threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
    with limited_threads(None):
        assert torch.get_num_threads() == before

"""Tiles of clients are trained in threads: their number is a limit, and changes no bit."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import threadpoolctl

torch = pytest.importorskip("torch")

import solera as so  # noqa: E402
from solera.core.aggregation import blocks  # noqa: E402
from solera.engines.threads import limited_threads  # noqa: E402
from solera.learn.averaging.training import batched, lazy_updates, low_rank  # noqa: E402

RNG = np.random.default_rng(0)
X = RNG.normal(size=(360, 40)).astype(np.float32)
Y = (X[:, 0] + X[:, 1] * X[:, 2] > 0).astype(int)
LEARNERS = {
    "low rank": lambda: so.FedAvg(so.nn.mlp(40, 64, 2), rounds=2, batch_size=10),
    "batched": lambda: so.FedProx(so.nn.mlp(40, 64, 2), rounds=2, batch_size=5),
    "uneven": lambda: so.FedAvg(so.nn.linear(40, 2), rounds=2, batch_size=7),
}


@pytest.fixture
def at_work(monkeypatch):
    """Small tiles, and the threads that train them."""
    seen = []
    real = batched.train_tile

    def watched(*args):
        seen.append((threading.current_thread().name, torch.get_num_threads()))
        return real(*args)

    for module in (batched, low_rank):
        monkeypatch.setattr(module, "train_tile", watched)
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
        fed = so.simulate(X, Y, clients=24, seed=1, workers=workers)
        learned[workers] = make().fit(fed).weights_
        threads = {thread for thread, _ in at_work}
        if workers == 1:
            assert threads == {threading.current_thread().name}
        else:
            assert all(thread.startswith("solera-tile") for thread in threads)
            assert all(own == 1 for _, own in at_work)  # a tile is one thread's alone
    assert learned[1].tobytes() == learned[3].tobytes()


@pytest.mark.parametrize(
    ("name", "updates"),
    [("low rank", low_rank.LowRankUpdates), ("uneven", lazy_updates.StackedUpdates)],
)
def test_blocks_are_folded_side_by_side(name, updates, monkeypatch):
    """Each by one thread, also of NumPy's library: a worker process gets the same bytes."""
    seen = []
    real = updates.weighted_sum

    def watched(self, weights):
        blas = {library["num_threads"] for library in threadpool_info("blas")}
        seen.append((threading.current_thread().name, torch.get_num_threads(), blas))
        return real(self, weights)

    monkeypatch.setattr(updates, "weighted_sum", watched)
    before = torch.get_num_threads(), threadpool_info("blas")
    LEARNERS[name]().fit(so.simulate(X, Y, clients=24, seed=1, workers=3))
    assert len(seen) == 2 * len(list(blocks(24)))
    for thread, own, blas in seen:
        assert thread.startswith("solera-tile")
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


def test_the_limit_ends_with_the_ask():
    before = torch.get_num_threads()
    with limited_threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
    with limited_threads(None):
        assert torch.get_num_threads() == before

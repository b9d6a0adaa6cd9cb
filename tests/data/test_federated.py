"""Data of many clients in one array: parts, groups, lazy rows, and what is wrong with rows."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

import solera as so
from solera.core.errors import DataError, UsageError

X = np.arange(300.0).reshape(100, 3)
Y = np.arange(100) % 4


@given(st.lists(st.integers(0, 30), min_size=1, max_size=8), st.floats(0, 0.45), st.floats(0, 0.45))
@settings(max_examples=60, deadline=None)
def test_parts_of_a_client_are_its_rows(sizes, validation, test):
    rows = sum(sizes)
    X = np.arange(rows, dtype=float)[:, None]
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    data = so.data.FederatedData(X, np.zeros(rows, int), offsets).split(
        validation=validation, test=test, seed=3
    )
    for k, size in enumerate(sizes):
        parts = [data.segments(np.array([k]), p)[0] for p in ("train", "validation", "test")]
        mine = np.concatenate([p.X[:, 0] for p in parts])
        assert sorted(mine) == list(range(offsets[k], offsets[k] + size))
        assert len(parts[1]) == int(size * validation)
        assert len(parts[2]) == int(size * test)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=10, unique=True))
def test_groups_join_in_order(clients):
    data = so.simulate(X, Y, clients=10, seed=1).data
    ids = np.array(sorted(clients))
    segments = data.segments(ids, "train")
    joined = segments.joined()
    assert np.array_equal(joined.X, np.concatenate([segments[i].X for i in range(len(ids))]))
    assert np.array_equal(joined.y, np.concatenate([segments[i].y for i in range(len(ids))]))
    assert np.array_equal(np.bincount(segments.owners, minlength=len(ids)), segments.sizes)


def test_neighbours_are_joined_without_a_copy():
    data = so.simulate(X, Y, clients=10, seed=1).data
    assert np.shares_memory(data.segments(np.arange(3, 8), "train").joined().X, data.X)


def test_partition_travels_with_summary_and_plot():
    fed = so.simulate(X, Y, clients=10, partition=so.Dirichlet(0.5), seed=1)
    assert fed.data.class_counts().sum() == 100
    assert fed.data.summary().clients == 10
    assert fed.data.plot().axes
    assert so.simulate(X, Y.astype(float), clients=5).data.plot().axes


def test_sparse_rows():
    data = so.simulate(scipy.sparse.csr_matrix(X), Y, clients=10, seed=1, test=0.2).data
    dense = so.simulate(X, Y, clients=10, seed=1, test=0.2).data
    ids = np.array([1, 5, 6])
    assert np.array_equal(
        data.segments(ids, "test").joined().X.toarray(), dense.segments(ids, "test").joined().X
    )


def test_lazy_rows_are_the_same_every_time():
    calls = []

    def generate(client, rng):
        calls.append(client)
        return rng.normal(size=(3 + client % 2, 2)), np.arange(3 + client % 2) % 2

    data = so.data.LazyData(generate, clients=1000, seed=5)
    assert len(calls) < 20
    group = data.segments(np.array([7, 900]), "train")
    assert np.array_equal(group[1].X, data.segments(np.array([900]), "train")[0].X)
    assert group.sizes.tolist() == [4, 3]
    assert len(data.segments(np.array([1]), "test")[0]) == 0


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        (X, Y[:50], "100 rows, y has 50"),
        (X[:, 0], Y, "1 dimension"),
        (np.array([["a", "b"]] * 4), None, "not numbers"),
    ],
)
def test_bad_rows(X, y, message):
    with pytest.raises(DataError, match=message):
        so.simulate(X, y, clients=2)


def test_bad_options():
    with pytest.raises(so.errors.SoleraError, match="clients"):
        so.simulate(X, Y, clients=101)
    with pytest.raises(UsageError, match=r"Dirichlet\(alpha=-1\): alpha must be a number in"):
        so.simulate(X, Y, clients=5, partition=so.Dirichlet(-1))
    with pytest.raises(DataError, match="without rows: 1"):
        so.simulate(X, Y, partition=so.partitions.Explicit([[0, 1], [], [2]]))
    with pytest.raises(UsageError, match="nothing to train"):
        so.simulate(X, Y, clients=5, test=0.6, validation=0.5)
    with pytest.raises(UsageError, match="test"):
        so.simulate(X, Y, clients=5, test=1.5)
    with pytest.raises(UsageError, match="takes no partition"):
        so.simulate(so.simulate(X, Y, clients=5).data, clients=3)
    with pytest.raises(UsageError, match="lazily"):
        so.simulate(so.data.LazyData(lambda c, r: (X, Y), clients=3), test=0.5)
    with pytest.raises(DataError, match="2 features are named"):
        so.simulate(X, Y, clients=5, features=["a", "b"])


MILLION = """
import time
start = time.process_time()
import solera as so

def generate(client, rng):
    X = rng.normal(size=(20, 10))
    return X, (X[:, 0] + X[:, client % 10] > 0).astype(int)

fed = so.simulate(so.data.LazyData(generate, clients=1_000_000), seed=1)
started = time.process_time() - start
model = so.FedLinear(rounds=20, per_round=100).fit(fed)
status = open("/proc/self/status").read()  # what getrusage says begins with the parent's
print(started, int(status.partition("VmHWM:")[2].split()[0]) / 1024, len(model.history_))
"""


def test_a_million_clients():
    run = subprocess.run(
        [sys.executable, "-c", MILLION], capture_output=True, text=True, check=True, timeout=600
    )
    started, megabytes, rounds = map(float, run.stdout.split())
    assert rounds == 20
    assert started < 5
    assert megabytes < 1024


def test_rows_are_held_out_by_class_before_dealing():
    train, _, rest, _, test, y_test = so.data.holdout(X, Y, validation=0.2, test=0.25, seed=3)
    assert [len(train), len(rest), len(test)] == [55, 20, 25]
    assert sorted(np.concatenate([train, rest, test])[:, 0]) == sorted(X[:, 0])
    assert np.bincount(y_test).tolist() in ([7, 6, 6, 6], [6, 7, 6, 6], [6, 6, 7, 6], [6, 6, 6, 7])
    assert len(so.data.holdout(X, test=0.1)) == 4
    with pytest.raises(UsageError, match="validation"):
        so.data.holdout(X, Y, validation=0.8)


def _folds(data: so.data.FederatedData, k: int, seed: int = 0) -> list[so.data.FederatedData]:
    return [data.fold(index, k, seed=seed) for index in range(k)]


@pytest.mark.parametrize("test", [0.0, 0.3])
@pytest.mark.parametrize("k", [2, 3, 5])
def test_folds_validate_every_row_of_a_client_once(test: float, k: int) -> None:
    rows = np.arange(57.0)[:, None]
    sizes = np.array([1, 4, 20, 32])
    whole = so.data.FederatedData(rows, np.arange(57) % 2, np.concatenate([[0], np.cumsum(sizes)]))
    data = whole.split(test=test, seed=3) if test else whole
    for client in range(4):
        mine = np.array([client])
        train = data.segments(mine, "train").joined().X[:, 0]
        kept = data.segments(mine, "test").joined().X[:, 0]
        validated = []
        for fold in _folds(data, k):
            parts = [fold.segments(mine, p).joined().X[:, 0] for p in ("train", "validation")]
            assert sorted(np.concatenate(parts)) == sorted(train)
            assert sorted(fold.segments(mine, "test").joined().X[:, 0]) == sorted(kept)
            assert len(parts[1]) in (len(train) // k, -(-len(train) // k))
            validated += parts[1].tolist()
        assert sorted(validated) == sorted(train)


def test_folds_follow_the_seed_and_refuse_nonsense() -> None:
    data = so.data.FederatedData(np.arange(40.0)[:, None], None, np.array([0, 10, 40]))
    same, other = _folds(data, 2), _folds(data, 2, seed=1)
    assert np.array_equal(same[0].X, data.fold(0, 2).X)
    assert not np.array_equal(same[0].X, other[0].X)
    for index, folds in ((0, 1), (2, 2), (-1, 3)):
        with pytest.raises(UsageError, match="fold"):
            data.fold(index, folds)
    with pytest.raises(UsageError, match="validation rows already"):
        same[0].fold(0, 2)

"""Every registered partition loses and duplicates nothing unless asked, and is seeded."""

from __future__ import annotations

import numpy as np
import pytest
from cases import CLIENTS, DUPLICATES, IGNORES_SEED, LABELS, PARTITIONS, ROWS, example, registered
from hypothesis import given, settings
from hypothesis import strategies as st

import solera as so
from solera.core.component import build, describe
from solera.core.errors import SoleraError
from solera.core.payload import PayloadError, decode, encode

X = np.random.default_rng(1).normal(size=(ROWS, 3))
ALL = registered(so.partitions.Partition)


def assign(partition, seed, clients=CLIENTS):
    return partition.assign(ROWS, LABELS, X=X, clients=clients, seed=seed)


@pytest.mark.parametrize("cls", ALL, ids=lambda c: c.__name__)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=25, deadline=None)
def test_loses_and_duplicates_nothing(cls, seed):
    result = assign(example(cls, PARTITIONS), seed)
    assert result.clients == CLIENTS
    assert result.offsets[0] == 0
    assert result.offsets[-1] == len(result.index)
    assert (result.sizes >= 0).all()
    assert ((result.index >= 0) & (result.index < ROWS)).all()
    assert len(np.unique(result.index)) + result.left_over == ROWS
    if cls not in DUPLICATES:
        assert len(np.unique(result.index)) == len(result.index)
    for client in range(CLIENTS):
        mine = result.rows_of(client)
        assert len(np.unique(mine)) == len(mine)


@pytest.mark.parametrize("cls", ALL, ids=lambda c: c.__name__)
def test_the_seed_decides(cls):
    one, same, other = (assign(example(cls, PARTITIONS), seed) for seed in (1, 1, 2))
    assert np.array_equal(one.index, same.index)
    assert np.array_equal(one.offsets, same.offsets)
    if cls not in IGNORES_SEED:
        assert not np.array_equal(one.index, other.index)


@pytest.mark.parametrize("cls", ALL, ids=lambda c: c.__name__)
def test_is_a_component(cls):
    partition = example(cls, PARTITIONS)
    assert partition.clone() == partition
    try:
        travelled = build(decode(encode(describe(partition))))
    except PayloadError:
        return  # a partition by a function cannot travel, and says so
    assert np.array_equal(assign(travelled, 5).index, assign(partition, 5).index)


@pytest.mark.parametrize("cls", ALL, ids=lambda c: c.__name__)
@pytest.mark.parametrize("clients", [0, -1, ROWS + 1])
def test_impossible_numbers_of_clients_are_named_errors(cls, clients):
    with pytest.raises(SoleraError):
        assign(example(cls, PARTITIONS), 0, clients=clients)

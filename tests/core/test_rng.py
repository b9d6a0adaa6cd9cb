from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from solera.core.rng import generator, random_bits, stream_keys


@given(st.integers(0, 2**40), st.text(max_size=10), st.integers(0, 1000), st.integers(0, 10**6))
def test_the_same_four_give_the_same_draws(seed, purpose, round, client):
    a, b = (generator(seed, purpose, round, client).random(3) for _ in range(2))
    assert (a == b).all()


def test_each_of_the_four_matters():
    base = (1, "train", 2, 3)
    variants = [(2, "train", 2, 3), (1, "test", 2, 3), (1, "train", 3, 3), (1, "train", 2, 4)]
    first = generator(*base).random(4)
    assert all((generator(*v).random(4) != first).all() for v in variants)
    assert (generator(1, "train", 2).random(4) != generator(1, "train", 2, 0).random(4)).all()


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=20, unique=True))
def test_keys_do_not_depend_on_the_company(clients):
    together = stream_keys(7, "x", 1, clients)
    alone = np.concatenate([stream_keys(7, "x", 1, [c]) for c in clients])
    assert (together == alone).all()


def test_bits_look_random():
    keys = stream_keys(0, "x", 0, np.arange(2000))
    assert len(np.unique(keys)) == 2000
    bits = random_bits(keys[:, None], np.arange(50))
    assert len(np.unique(bits)) == bits.size
    uniform = (bits >> np.uint64(11)) * 2.0**-53
    assert abs(uniform.mean() - 0.5) < 0.005
    assert abs(np.corrcoef(uniform[:, 0], uniform[:, 1])[0, 1]) < 0.08
    assert abs(np.corrcoef(uniform[:-1, 0], uniform[1:, 0])[0, 1]) < 0.08
    counts = np.bincount((uniform.ravel() * 64).astype(int), minlength=64)
    assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 120

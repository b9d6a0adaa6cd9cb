"""What secure sums are made of: shares, masks, the graph of neighbours, words."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.extra import numpy as hnp

from solera.core.errors import DataError, PayloadError, UsageError

pytest.importorskip("cryptography", reason="the extra 'secure' is not installed")

from solera.privacy.secure_sum import keys
from solera.privacy.secure_sum.graph import degree, neighbours, threshold
from solera.privacy.secure_sum.shares import _tables, combine, split
from solera.trust.encoding import Encoding, form_of, size_of
from solera.trust.masks import add_masks, keystream

SHARE = 2 / 3


def slow_product(a: int, b: int) -> int:
    """Multiplication of polynomials modulo x⁸ + x⁴ + x³ + x + 1, bit by bit."""
    product = 0
    for bit in range(8):
        if b >> bit & 1:
            product ^= a << bit
    for bit in range(15, 7, -1):
        if product >> bit & 1:
            product ^= 0x11B << (bit - 8)
    return product


def test_products_are_those_of_the_field():
    product = _tables()[2]
    slow = [[slow_product(a, b) for b in range(256)] for a in range(256)]
    assert np.array_equal(product, slow)


@settings(max_examples=50, deadline=None)
@given(st.binary(min_size=1, max_size=64), st.data())
def test_any_enough_shares_give_the_secret(secret, data):
    holders = data.draw(st.integers(1, 255))
    needed = data.draw(st.integers(1, holders))
    shares = split(secret, holders, needed)
    chosen = data.draw(st.permutations(range(holders)))[:needed]
    assert combine(chosen, shares[chosen]) == secret


def test_one_share_too_few_says_nothing():
    """For every value of the secret the shares of t − 1 holders have the same distribution."""
    draws = np.stack([split(b"\x07" * 4000, 5, 3)[:2] for _ in range(4)]).reshape(-1)
    counts = np.bincount(draws, minlength=256)
    assert chi_square(counts) < 400  # 255 degrees of freedom: beyond 400 once in 10⁷
    assert combine([0, 1], split(b"\x07" * 40, 5, 3)[:2]) != b"\x07" * 40


def chi_square(counts):
    expected = counts.sum() / len(counts)
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize(
    ("holders", "shares"),
    [
        ([0, 0], np.zeros((2, 4), np.uint8)),
        ([0], np.zeros((2, 4), np.uint8)),
        ([], np.zeros((0, 4))),
    ],
)
def test_shares_that_do_not_fit_are_an_error(holders, shares):
    with pytest.raises(PayloadError):
        combine(holders, shares)
    with pytest.raises(UsageError, match="at most 255 holders"):
        split(b"secret", 300, 5)


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_masks_of_a_pair_cancel_and_are_those_of_aes(dtype):
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    key, size = bytes(range(16)), 100_001
    values = np.arange(size, dtype=dtype)
    add_masks(values, [key], [])
    aes = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    plain = aes.update(bytes(size * values.itemsize))
    assert np.array_equal(values - np.arange(size, dtype=dtype), np.frombuffer(plain, dtype))
    add_masks(values, [], [key])
    assert np.array_equal(values, np.arange(size, dtype=dtype))
    assert np.array_equal(keystream(key, 10), np.frombuffer(plain[:80], np.uint64))


def test_a_key_in_common_is_of_two_clients_and_one_sum():
    a, b, c = (keys.new_private() for _ in range(3))
    key = keys.common_key(keys.load(a), keys.public_of(b), "seal", b"sum 1")
    assert key == keys.common_key(keys.load(b), keys.public_of(a), "seal", b"sum 1")
    others = [(a, c, "seal", b"sum 1"), (a, b, "mask", b"sum 1"), (a, b, "seal", b"sum 2")]
    for private, other, purpose, context in others:
        assert key != keys.common_key(keys.load(private), keys.public_of(other), purpose, context)
    sealed = keys.seal(key, b"share", 3, 5)
    assert keys.open_sealed(key, sealed, 3, 5) == b"share"
    for sender, recipient in [(5, 3), (3, 4)]:
        with pytest.raises(PayloadError, match="was changed"):
            keys.open_sealed(key, sealed, sender, recipient)
    with pytest.raises(PayloadError, match="none that a client makes"):
        keys.common_key(keys.load(a), bytes(32), "seal", b"")


# --- who is next to whom ---


@pytest.mark.parametrize("clients", [2, 5, 101, 300])
def test_the_graph_is_regular_symmetric_and_connected(clients):
    k = degree(clients, SHARE)
    around = [neighbours(i, clients, SHARE, b"seed of the graph") for i in range(clients)]
    edges = {(i, int(j)) for i, near in enumerate(around) for j in near}
    assert {len(near) for near in around} == {k}
    assert all((j, i) in edges and i != j for i, j in edges)
    reached, front = {0}, {0}
    while front:
        front = {int(j) for i in front for j in around[i]} - reached
        reached |= front
    assert len(reached) == clients


def test_neighbours_grow_with_the_logarithm_and_follow_from_the_seed():
    assert degree(100, SHARE) == 99
    ks = [degree(n, SHARE) for n in (10**3, 10**4, 10**5)]
    assert ks == sorted(ks)
    assert ks[-1] < 160
    assert ks[2] - ks[1] < 25
    one, two = (neighbours(7, 1000, SHARE, seed) for seed in (b"a" * 32, b"b" * 32))
    assert not np.array_equal(one, two)
    with pytest.raises(UsageError, match="tells that client's numbers"):
        degree(1, SHARE)


def test_two_sets_of_enough_holders_have_one_in_common():
    for holders in range(2, 200):
        for share in (0.51, SHARE, 0.99):
            needed = threshold(holders, share)
            assert needed <= holders < 2 * needed


# --- words ---

floats = hnp.arrays(np.float64, st.integers(0, 5), elements=st.floats(-1000, 1000))
trees = st.recursive(
    floats | st.integers(-(2**30), 2**30) | st.floats(-1000, 1000) | st.booleans(),
    lambda inner: (
        st.dictionaries(st.text(max_size=2), inner, max_size=3) | st.lists(inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(trees, st.sampled_from([(None, None), (1000.0, None), (1000.0, 1e-4)]), st.integers(1, 50))
def test_words_add_up_to_the_sum_of_the_numbers(tree, options, clients):
    encoding = Encoding(clients, *options)
    if encoding.bits == 32:
        tree = {"floats": [leaf for leaf in [1.5, np.ones(3), tree] if isinstance(leaf, float)]}
    form = form_of(tree)
    words = encoding.words(tree)
    assert words.dtype == encoding.dtype
    assert len(words) == size_of(form, encoding.bits)
    total = np.zeros_like(words)
    for _ in range(clients):
        total += words
    check(encoding.numbers(total, form), tree, clients, clients * encoding.step)


def check(found, tree, times, tolerance):
    if isinstance(tree, dict):
        assert set(found) == set(tree)
        for key in tree:
            check(found[key], tree[key], times, tolerance)
    elif isinstance(tree, list):
        for one, other in zip(found, tree, strict=True):
            check(one, other, times, tolerance)
    elif isinstance(tree, int):
        assert found == times * tree
    else:
        assert np.shape(found) == np.shape(tree)
        np.testing.assert_allclose(found, times * np.asarray(tree), rtol=1e-12, atol=tolerance)


@pytest.mark.parametrize(
    ("tree", "wrong"),
    [
        ({"a": [0.0, np.array([1.0, np.nan])]}, "entry 1 at 'a.1' is nan"),
        ({"w": np.array([[np.inf, 1.0]])}, "entry 0 at 'w' is inf"),
        (np.float64("nan"), "entry 0 is nan"),
        ({"b": {"c": np.array([0.0, 65.0, -70.0])}}, "entry 1 at 'b.c' is 65, .* up to 64"),
        ({"n": np.array([1, -(2**63)])}, r"entry 1 at 'n' is -9.22337e\+18"),
        ({"n": 2**62}, r"entry 0 at 'n' is 4.6"),
        ({"n": np.array([2**63], np.uint64)}, r"entry 0 at 'n' is 9.2"),
    ],
)
def test_what_cannot_be_added_is_named_before_anything_leaves(tree, wrong):
    with pytest.raises(DataError, match=wrong):
        Encoding(10, 64.0).words(tree)


def test_words_are_as_small_as_range_and_precision_allow():
    assert Encoding(100, 16.0, 1e-5).bits == 32
    assert Encoding(100, 16.0, 1e-8).bits == 64
    assert Encoding(100, 16.0).bits == 64
    with pytest.raises(UsageError, match=r"does not fit into 64 bits .*the best precision is"):
        _ = Encoding(100, 1e12, 1e-12).bits
    with pytest.raises(PayloadError, match="complex128 at 'z' cannot be added"):
        Encoding(2).words({"z": np.ones(2, complex)})
    with pytest.raises(PayloadError, match="str cannot be added in secret"):
        form_of({"name": "text"})


@settings(max_examples=100, deadline=None)
@given(st.floats(-64, 64), st.integers(2, 1000))
def test_the_largest_numbers_of_all_clients_fit(value, clients):
    for encoding in (Encoding(clients, 64.0), Encoding(clients, 64.0, 1e-3)):
        total = encoding.words([value]) * np.array(clients).astype(encoding.dtype)
        assert encoding.numbers(total, form_of([value]))[0] == pytest.approx(
            clients * value, abs=clients * encoding.step
        )

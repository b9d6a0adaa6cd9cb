"""Agreement of clusterings: all pairs, scikit-learn, and the corners."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score

import solera as so
from solera.core.errors import DataError

pairs = st.integers(2, 14).flatmap(
    lambda n: st.tuples(*[st.lists(st.integers(0, 5), min_size=n, max_size=n)] * 2)
)


@given(pairs)
def test_jaccard_by_all_pairs_and_rand_by_scikit_learn(labels):
    a, b = labels
    together = [(a[i] == a[j], b[i] == b[j]) for i, j in itertools.combinations(range(len(a)), 2)]
    both, either = sum(x and y for x, y in together), sum(x or y for x, y in together)
    assert so.metrics.jaccard(a, b) == (both / either if either else 1.0)
    assert so.metrics.jaccard(b, a) == so.metrics.jaccard(a, b)
    assert so.metrics.adjusted_rand(a, b) == pytest.approx(adjusted_rand_score(a, b), abs=1e-12)


@given(pairs, st.permutations(range(6)))
def test_names_of_clusters_do_not_matter(labels, names):
    a, b = labels
    renamed = np.array([f"cluster {names[label]}" for label in a])
    assert so.metrics.jaccard(renamed, b) == so.metrics.jaccard(a, b)
    assert so.metrics.adjusted_rand(np.array(a) - 1000.5, b) == so.metrics.adjusted_rand(a, b)


def test_every_row_its_own_cluster():
    n = 100_000
    assert so.metrics.jaccard(np.arange(n), np.arange(n)[::-1]) == 1.0
    assert so.metrics.jaccard(np.arange(n), np.zeros(n, dtype=int)) == 0.0
    assert so.metrics.adjusted_rand(np.arange(n), np.arange(n)) == 1.0
    rng = np.random.default_rng(0)  # a contingency table of 10^10 cells is not laid out
    assert 0 <= so.metrics.jaccard(rng.integers(0, n, n), rng.integers(0, n, n)) < 1e-3


def test_two_hundred_thousand_points():
    rng = np.random.default_rng(0)
    a = rng.integers(0, 3, 200_000)
    b = np.where(rng.random(200_000) < 0.02, rng.integers(0, 3, 200_000), a)
    began = time.process_time()
    value = so.metrics.jaccard(a, b)
    assert time.process_time() - began < 1.0
    assert 0.9 < value < 1


@pytest.mark.parametrize(
    ("a", "b", "says"),
    [
        ([0, 1], [0, 1, 2], "2 and 3 rows"),
        ([0], [0], "two rows"),
        ([[0, 1]], [0, 1], "shape"),
        ([0.0, np.nan], [0, 1], "not a number"),
    ],
)
def test_bad_input(a, b, says):
    with pytest.raises(DataError, match=says):
        so.metrics.jaccard(a, b)

"""Every rule equals a slow one that reads like its definition, and holds what it promises."""

from __future__ import annotations

import tracemalloc

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.extra import numpy as hnp

import solera as so
from solera.robust import distances, rules

R = so.robust


@st.composite
def matrices(draw, least=7):
    shape = draw(st.tuples(st.integers(least, least + 8), st.integers(1, 12)))
    numbers = st.floats(-100, 100, allow_nan=False, width=32)
    return draw(hnp.arrays(np.float64, shape, elements=numbers))


def far(a, b):
    return float(np.sum((a - b) ** 2))


def krum_order(X, f):
    """Clients by their Krum scores, in words: the sum of the n − f − 2 smallest distances."""
    scores = []
    for i, x in enumerate(X):
        others = sorted(far(x, other) for k, other in enumerate(X) if k != i)
        scores.append(sum(others[: max(1, len(X) - f - 2)]))
    return np.array(scores)


def median(X):
    return np.array([np.median(column) for column in X.T])


def trimmed(X, f):
    return np.array([np.mean(sorted(column)[f : len(column) - f]) for column in X.T])


def geometric(X):
    """Weiszfeld's steps on the vectors themselves."""
    z = X.mean(axis=0)
    nu = 1e-6 * np.median(np.linalg.norm(X - z, axis=1))
    for _ in range(200):
        beta = [1 / max(nu, np.linalg.norm(z - x)) for x in X]
        before, z = z, sum(b * x for b, x in zip(beta, X, strict=True)) / sum(beta)
        if np.linalg.norm(z - before) <= nu:
            break
    return z


def clipped(X, radius, steps):
    v = np.zeros(X.shape[1])
    for _ in range(steps):
        lengths = [np.linalg.norm(x - v) for x in X]
        tau = np.median(lengths) if radius is None else radius
        moves = [(x - v) * (1 if n <= tau else tau / n) for x, n in zip(X, lengths, strict=True)]
        v = v + np.mean(moves, axis=0)
    return v


def close(a, b, scale):
    np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6 * (1 + scale))


@settings(max_examples=60, deadline=None)
@given(matrices(), st.integers(0, 3))
def test_rules_by_coordinate_equal_their_definitions(X, f):
    np.testing.assert_allclose(R.Median().judge(X).value, median(X), atol=1e-12)
    np.testing.assert_allclose(R.TrimmedMean(f).judge(X).value, trimmed(X, f), atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(matrices(), st.integers(0, 2))
def test_krum_and_multi_krum_choose_the_smallest_scores(X, f):
    scores = krum_order(X, f)
    slack = 1e-7 * (1 + np.abs(X).max() ** 2 * X.shape[1])  # distances that are equal but for it
    one = R.Krum(f).judge(X)
    assert scores[np.flatnonzero(one.trust)[0]] <= scores.min() + slack
    close(one.value, X[np.flatnonzero(one.trust)[0]], np.abs(X).max())
    several = R.MultiKrum(f).judge(X)
    chosen = several.trust == 1
    assert chosen.sum() == len(X) - f
    assert scores[chosen].max() <= scores[~chosen].min(initial=np.inf) + slack
    close(several.value, X[chosen].mean(axis=0), np.abs(X).max())


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 2), st.integers(1, 9))
def test_bulyan_equals_its_definition(seed, f, width):
    X = np.random.default_rng(seed).normal(size=(4 * f + 5, width))
    left, chosen = list(range(len(X))), []
    while len(chosen) < len(X) - 2 * f:
        best = left[int(np.argmin(krum_order(X[left], f)))]
        chosen.append(best)
        left.remove(best)
    kept = len(chosen) - 2 * f
    wanted = []
    for column in X[sorted(chosen)].T:
        middle = np.median(column)
        wanted.append(np.mean(sorted(column, key=lambda v: abs(v - middle))[:kept]))
    verdict = R.Bulyan(f).judge(X)
    assert set(np.flatnonzero(verdict.trust)) <= set(chosen)
    np.testing.assert_allclose(verdict.value, wanted, atol=1e-9)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(3, 12), st.integers(2, 9))
def test_the_geometric_median_has_the_least_sum_of_distances(seed, clients, width):
    X = np.random.default_rng(seed).normal(size=(clients, width))
    ours = R.GeometricMedian().judge(X).value
    np.testing.assert_allclose(ours, geometric(X), atol=2e-5)
    cost = np.linalg.norm(X - ours, axis=1).sum()
    for other in (X.mean(axis=0), median(X), *X):
        assert cost <= np.linalg.norm(X - other, axis=1).sum() + 1e-3


@settings(max_examples=40, deadline=None)
@given(matrices(3), st.sampled_from([None, 0.5, 20.0]), st.integers(1, 4))
def test_clipping_equals_its_definition(X, radius, steps):
    scale = np.abs(X).max()
    close(R.CentredClipping(radius, steps=steps).judge(X).value, clipped(X, radius, steps), scale)
    bound = np.median(np.linalg.norm(X, axis=1)) if radius is None else radius
    shortened = [x * min(1, bound / max(np.linalg.norm(x), 1e-150)) for x in X]
    close(R.NormBound(radius).judge(X).value, np.mean(shortened, axis=0), scale)


ALL = [
    R.Median(),
    R.TrimmedMean(2),
    R.Krum(2),
    R.MultiKrum(2),
    R.Bulyan(2),
    R.GeometricMedian(),
    R.CentredClipping(),
    R.NormBound(),
]


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: type(rule).__name__)
def test_two_liars_of_eleven_move_it_little_and_are_named(rule):
    draw = np.random.default_rng(4)
    X = 1 + 0.1 * draw.normal(size=(11, 50))
    honest = rule.judge(X).value
    X[[3, 7]] = -500.0
    verdict = rule.judge(X)
    assert np.linalg.norm(verdict.value - honest) < 0.5 * np.linalg.norm(honest)
    assert np.linalg.norm(X.mean(axis=0) - honest) > 10 * np.linalg.norm(honest)
    assert verdict.suspects[[3, 7]].all()
    assert (verdict.trust[[3, 7]] < 0.1).all()
    assert all(verdict.reasons[i] for i in (3, 7))


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: type(rule).__name__)
def test_column_blocks_change_nothing_and_bound_the_memory(rule, monkeypatch):
    X = np.random.default_rng(0).normal(size=(12, 40_000)).astype(np.float32)
    whole = rule.judge(X)
    monkeypatch.setattr(rules, "_AT_ONCE", 12 * 1000)
    tracemalloc.start()
    parts = rule.judge(X)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    np.testing.assert_allclose(parts.value, whole.value, rtol=1e-5, atol=1e-7)
    assert parts.value.dtype == np.float32
    assert parts.suspects.tolist() == whole.suspects.tolist()
    assert peak < X.nbytes / 2, "a copy of the matrix was made"
    assert np.array_equal(rule.judge(list(X)).value, parts.value), "a list of vectors will do"


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: type(rule).__name__)
def test_updates_that_are_all_the_same_or_nothing(rule):
    for number in (0.0, 3.0):
        value = rule.judge(np.full((11, 4), number)).value
        if not isinstance(rule, R.CentredClipping):
            np.testing.assert_allclose(value, number)
        assert np.isfinite(value).all()


@pytest.mark.parametrize(
    ("rule", "least"),
    [(R.Krum(2), 7), (R.MultiKrum(1), 5), (R.Bulyan(1), 7), (R.TrimmedMean(2), 5)],
)
def test_too_few_updates_for_the_promise_are_an_error(rule, least):
    rule.judge(np.eye(least))
    with pytest.raises(so.errors.NotEnoughReplies, match=f"at least {least}"):
        rule.judge(np.eye(least - 1))


def test_a_share_of_attackers_is_rounded_up():
    assert R.TrimmedMean(0.2).cut(10) == 2
    assert R.TrimmedMean(0.2).cut(11) == 3
    assert R.TrimmedMean(0.3).cut(10) == 3
    with pytest.raises(so.errors.UsageError, match="f"):
        R.Krum(f=-1).check_params()


def test_distances_come_from_products():
    X = np.random.default_rng(1).normal(size=(5, 9))
    squares = distances.squared_distances(distances.products(X))
    np.testing.assert_allclose(squares, [[far(a, b) for b in X] for a in X], atol=1e-9)

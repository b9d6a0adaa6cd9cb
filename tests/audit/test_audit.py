"""The attacks find what is there, nothing where nothing is, and their bounds on ε hold."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

import solera as so

A = so.audit


# --- bounds on ε ---


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 200), st.data(), st.sampled_from([0.9, 0.95, 0.99]))
def test_intervals_are_those_of_clopper_and_pearson(trials, data, confidence):
    from solera.audit.epsilon import interval

    hits = data.draw(st.integers(0, trials))
    low, high = interval(hits, trials, confidence)
    exact = binomtest(hits, trials).proportion_ci(confidence, method="exact")
    assert (low, high) == pytest.approx((exact.low, exact.high), abs=1e-9)


def test_a_perfect_test_bounds_epsilon_by_the_number_of_trials():
    few = A.epsilon_of_test(100, 100, 0, 100)
    many = A.epsilon_of_test(1000, 1000, 0, 1000)
    assert 3.2 < few < 3.4
    assert many - few == pytest.approx(math.log(10), abs=0.05)
    assert A.epsilon_of_test(50, 100, 50, 100) == 0.0
    assert A.epsilon_of_test(0, 100, 100, 100) == 0.0
    assert A.epsilon_of_test(100, 100, 0, 100, delta=0.5) < few


def test_randomised_response_is_never_refuted_and_nearly_reached():
    """A coin that tells the truth with e^ε/(1 + e^ε) is ε-private, and no more."""
    epsilon = 1.5
    p = math.exp(epsilon) / (1 + math.exp(epsilon))
    bounds = []
    for seed in range(20):
        draw = np.random.default_rng(seed)
        told_in = (draw.random(4000) < p).astype(float)
        told_out = (draw.random(4000) >= p).astype(float)
        bounds.append(A.epsilon_of_scores(told_in, told_out, confidence=0.99))
    assert max(bounds) <= epsilon
    assert np.mean(bounds) > epsilon - 0.35


def test_guesses_of_one_run_bound_epsilon():
    epsilon = 1.0
    p = math.exp(epsilon) / (1 + math.exp(epsilon))
    right = np.random.default_rng(0).binomial(1000, p, 50)
    bounds = [A.epsilon_of_guesses(int(k), 1000, 1000, confidence=0.99) for k in right]
    assert max(bounds) <= epsilon + 0.05
    assert np.mean(bounds) > 0.7
    assert A.epsilon_of_guesses(500, 1000, 1000) == 0.0
    assert A.epsilon_of_guesses(1000, 1000, 1000) > 5
    plain = A.epsilon_of_guesses(800, 1000, 1000)
    assert 0 < A.epsilon_of_guesses(800, 1000, 1000, delta=1e-4) < plain
    with pytest.raises(so.errors.UsageError, match="11 right of 10"):
        A.epsilon_of_guesses(11, 10, 10)


# --- the mechanism ---


def gaussian(deviation, seed):
    """A sum of clipped rows with noise: the mechanism of central DP."""
    draw = np.random.default_rng(seed)

    def release(rows):
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        clipped = rows / np.maximum(norms, 1)
        return clipped.sum(axis=0) + draw.normal(0, deviation, rows.shape[1])

    return release


def test_the_gaussian_mechanism_holds_its_epsilon_and_a_tenth_of_its_noise_does_not():
    epsilon, delta = 1.0, 1e-5
    deviation = 3.7303  # analytic calibration (Balle & Wang 2018) of sensitivity 1
    rows = np.random.default_rng(9).normal(size=(30, 5)) / 10
    canary = np.concatenate([rows, [[100.0, 0, 0, 0, 0]]])
    more = {"trials": 400, "delta": delta, "claimed": epsilon, "confidence": 0.99}
    for seed in range(20):
        honest = A.mechanism(gaussian(deviation, seed), canary, rows, **more)
        assert honest.holds, str(honest)
        weak = A.mechanism(gaussian(deviation / 10, seed), canary, rows, **more)
        assert not weak.holds, str(weak)
    assert "REFUTED" in str(weak)
    assert "not refuted" in str(honest)


# --- membership ---


def half(seed=0, rows=300):
    """Rows whose classes a model can only learn by heart, in two halves."""
    draw = np.random.default_rng(seed)
    X = draw.normal(size=(rows, 130))
    y = np.where(draw.random(rows) < 0.5, draw.integers(0, 2, rows), X[:, 0] > 0).astype(int)
    cut = rows // 2
    return (X[:cut], y[:cut]), (X[cut:], y[cut:])


@pytest.mark.parametrize("attack", ["loss", "lira"])
def test_members_of_a_model_that_learns_by_heart_are_found(attack):
    members, others = half()
    model = so.FedHEONN("linear", lam=1e-6).fit(*members)
    found = A.membership(model, members, others, attack=attack)
    assert found.auc > 0.62
    assert found.epsilon > 0.5
    assert found.advantage > 0.35
    text = str(found)
    assert "Membership inference" in text
    assert "at least" in text
    assert found._repr_html_().startswith("<")


@pytest.mark.parametrize("attack", ["loss", "lira"])
def test_rows_that_were_not_used_are_not_found(attack):
    members, others = half(rows=400)
    unrelated, _ = half(seed=5, rows=800)
    model = so.FedHEONN("linear", lam=1.0).fit(*unrelated)
    found = A.membership(model, members, others, attack=attack)
    assert abs(found.auc - 0.5) < 0.08
    assert found.epsilon < 0.4


def test_shadow_models_find_more_than_losses():
    """Rows differ in how hard they are, which a likelihood ratio takes into account."""
    members, others = half()
    model = so.FedHEONN("linear", lam=1e-6).fit(*members)
    found = [A.membership(model, members, others, attack=a) for a in ("loss", "lira")]
    assert found[1].auc > found[0].auc + 0.05
    assert found[1].tpr[0.1] > found[0].tpr[0.1] + 0.1
    with pytest.raises(so.errors.UsageError, match="at least 4"):
        A.membership(model, members, others, attack="lira", shadows=2)


# --- inversion ---


def test_the_gradient_of_one_row_is_the_row():
    X, y, _, _ = so.datasets.digits()
    X = X / 16
    for model in (
        so.FedLinear(rounds=1).fit(so.simulate(X, y, clients=2), progress=False),
        so.FedAvg(so.nn.mlp(64, 20, 10), rounds=1).fit(
            so.simulate(X, y, clients=2), progress=False
        ),
    ):
        found = A.inversion(model, X[:1], y[:1])
        np.testing.assert_allclose(found.rows[0], X[0], atol=1e-6)
        assert found.recovered == 1
    batch = A.inversion(model, X[:64], y[:64], decoys=X[64:200])
    assert batch.recovered < 32
    assert batch.epsilon is not None


def test_optimisation_finds_rows_of_a_small_batch_and_noise_hides_them():
    draw = np.random.default_rng(0)
    X = draw.normal(size=(60, 12))
    y = (X @ draw.normal(size=(12, 3))).argmax(axis=1)
    fed = so.simulate(X, y, clients=2)
    model = so.FedAvg(so.nn.mlp(12, 40, 3), rounds=1, dtype="float64").fit(fed, progress=False)
    found = A.inversion(model, X[:3], y[:3], attack="optimise")
    assert found.recovered == 3, str(found)
    assert found.similarity.min() > 0.99

    def noisy(gradient):
        return [g + draw.normal(0, np.abs(g).max(), g.shape) for g in gradient]

    hidden = A.inversion(model, X[:3], y[:3], attack="optimise", protect=noisy)
    assert hidden.recovered == 0
    assert "not measured" in str(hidden)


def test_what_sends_no_gradient_is_named():
    X, y, _, _ = so.datasets.digits()
    model = so.FedHEONN().fit(so.simulate(X, y, clients=2))
    with pytest.raises(so.errors.UsageError, match="reconstruction"):
        A.inversion(model, X[:1], y[:1])


# --- Gram sums ---


def gram(X):
    Z = np.concatenate([np.ones((len(X), 1)), X], axis=1)
    return Z.T @ Z


def test_one_row_and_differences_of_one_row_are_read():
    X = np.random.default_rng(1).normal(size=(50, 6))
    alone = A.reconstruction(gram(X[:1]))
    np.testing.assert_allclose(alone.exact[0], X[0], atol=1e-9)
    differed = A.reconstruction(gram(X), without=gram(X[1:]))
    np.testing.assert_allclose(differed.exact[-1], X[0], atol=1e-6)
    nothing = A.reconstruction(gram(X), rows=X, decoys=X)
    assert len(nothing.exact) == 0
    assert nothing.epsilon == 0.0


def test_few_rows_are_known_up_to_a_rotation():
    draw = np.random.default_rng(2)
    X, decoys = draw.normal(size=(40, 100)), draw.normal(size=(40, 100))
    found = A.reconstruction(gram(X), rows=X, decoys=decoys)
    assert found.ranks == [40]
    assert (found.residual < 1e-6).all()
    assert found.epsilon > 1.2
    assert "40 of 40" in str(found)


def test_a_client_with_one_row_of_a_class_gives_it_away():
    X, y, _, _ = so.datasets.digits()
    rows = np.concatenate([X[y == 0][:100], X[y == 1][:1]]) / 16
    target = np.repeat([0, 1], [100, 1])
    thesis = so.FedHEONN(derivative="thesis").fit(so.simulate(rows, target, clients=1))
    assert A.reconstruction(thesis).columns == 65
    with pytest.raises(so.errors.UsageError, match="square"):
        A.reconstruction(np.zeros((3, 4)))

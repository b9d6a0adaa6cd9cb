"""Counts and sums with noise: what a row changes is within what the noise is made for."""

from __future__ import annotations

import math

import numpy as np
import pytest

import solera as so
from solera.core.accounting import Event, epsilon_of
from solera.core.clients import Client, Draws
from solera.core.component import build_fitted
from solera.core.errors import GateRefusal, UsageError
from solera.core.task import find_task
from solera.learn.describe import Describe
from solera.trust.contributions import Contribution, entries_of
from solera.trust.noise import SPENT
from solera.trust.open_asks import numbers_of
from solera.trust.policy import Policy

pytest.importorskip("dp_accounting")
rng = np.random.default_rng(0)
X = rng.normal(size=(300, 4)) * [1.0, 2.0, 0.5, 3.0]
Y = (X[:, 0] + 0.3 * rng.normal(size=300) > 0).astype(np.int64)
DP = so.DP(epsilon=2.0, delta=1e-4, level="record", clip=2.0)


def clients(**options):
    return so.simulate(X, Y, clients=3, seed=0, **options)


LEARNERS = {
    "FedKMeans": lambda dp: so.FedKMeans(3, init=np.eye(3, 4), rounds=2, dp=dp),
    "FedID3": lambda dp: so.Pipeline(so.FedBins(3), so.FedID3(max_depth=1, dp=dp)),
    "FedHEONN": lambda dp: so.FedHEONN(dp=dp),
    "FedHEONN softplus": lambda dp: so.FedHEONN("softplus", dp=dp),
    "FedHEONN hidden": lambda dp: so.FedHEONN(features="fourier", hidden=6, dp=dp),
    "FedGLM": lambda dp: so.FedGLM("binomial", rounds=2, dp=dp),
    **{
        f"FedGLM {family}": lambda dp, family=family: so.FedGLM(
            family, rounds=2, dp=dp, clip_residuals=0.5
        )
        for family in ("gaussian", "poisson", "gamma")
    },
    "FedLinear": lambda dp: so.FedLinear(rounds=2, lr=1.0, dp=dp),
    "FedBins": lambda dp: so.FedBins(3, dp=dp),
    "FedHistGBDT": lambda dp: so.FedHistGBDT(rounds=1, max_depth=1, bins=4, dp=dp),
    "FedHistGBDT classes": lambda dp: so.FedHistGBDT(rounds=1, max_depth=1, bins=4, dp=dp),
    "FedHistGBDT numbers": lambda dp: so.FedHistGBDT(rounds=1, max_depth=1, bins=4, dp=dp),
    "describe": lambda dp: Describe(5, dp),
}
TARGETS = {
    "FedHistGBDT classes": np.digitize(X[:, 0], [-0.5, 0.5]),
    "FedHistGBDT numbers": X[:, 0] * 3,
    "FedGLM gaussian": X[:, 0] * 3,
    "FedGLM poisson": np.rint(np.abs(X[:, 0]) * 5),
    "FedGLM gamma": np.abs(X[:, 0]) + 0.01,
}


def noised_asks(name, dp=DP):
    """Every ask of a learner that carries noise, as clients get it."""
    fed, found = so.simulate(X, TARGETS.get(name, Y), clients=3, seed=0), []
    make = LEARNERS.get(name, name)
    run = fed.engine.run

    def watched(ask, aggregation):
        if isinstance(ask.payload, dict) and "privacy" in ask.payload:
            found.append(ask)
        return run(ask, aggregation)

    fed.engine.run = watched
    learner = make(dp)
    learner.fit(fed) if hasattr(learner, "fit") else learner.look(fed)
    return found


def asked(ask, rows, targets, secret, noise):
    """The numbers about rows by entry, with so much noise."""
    source = so.simulate(rows, targets, clients=1, seed=0).engine.source
    source = source.prepared([build_fitted(step.description) for step in ask.prepare])
    client = Client(0, source, Draws(0, ask.task, 0, secret), {})
    privacy = {**ask.payload["privacy"], "noise": noise, "share": 1}
    payload, task = {**ask.payload, "privacy": privacy}, find_task(ask.task)
    reply = task.one(client, payload)
    about_rows = {
        entry
        for entry, leaf in entries_of(reply)
        if isinstance(leaf, Contribution) and leaf.about_rows
    }
    numbers = numbers_of(task, client, payload, reply)
    return {
        f"{entry}{place}": np.ravel(np.asarray(value, dtype=float))
        for entry in about_rows
        for place, value in enumerate(_arrays(_at(numbers, entry)))
    }


def _at(tree, entry):
    for key in entry.split(".") if entry else ():
        tree = tree[key]
    return tree


def _arrays(value):
    if isinstance(value, dict):
        return [*value.values()]
    return value if isinstance(value, list) else [value]


@pytest.mark.parametrize("name", LEARNERS)
def test_one_row_less_is_within_the_noise(name):
    """Σ ‖Δ_e‖² / s_e² ≤ 1/σ²: what a Gaussian mechanism of that σ needs, with s_e measured."""
    sigma = 60.0
    asks = {(ask.task, repr(ask.payload.get("start"))): ask for ask in noised_asks(name)}
    assert asks
    rows, targets = X[:40], TARGETS.get(name, Y)[:40]
    for ask in asks.values():
        draws = [asked(ask, rows, targets, bytes([i]) * 32, sigma) for i in range(60)]
        whole = asked(ask, rows, targets, b"s" * 32, 1e-9)
        spread = {e: np.std([d[e] - whole[e] for d in draws]) for e in whole}
        assert all(s > 0 for s in spread.values()), spread
        distances = []
        for out in range(8):
            kept = np.arange(40) != out
            less = asked(ask, rows[kept], targets[kept], b"s" * 32, 1e-9)
            moved = {e: np.linalg.norm(whole[e] - less[e]) for e in whole}
            distances.append(math.sqrt(sum((moved[e] / spread[e]) ** 2 for e in moved)))
        assert max(distances) <= 1.12 / sigma, (ask.task, max(distances) * sigma)
        assert max(distances) >= 0.02 / sigma, "far more noise than is needed"


@pytest.mark.parametrize(
    "name", ["FedKMeans", "FedGLM", "FedHistGBDT", "FedHistGBDT classes", "FedLinear"]
)
def test_every_round_says_what_is_spent(name):
    model = LEARNERS[name](DP).fit(so.simulate(X, TARGETS.get(name, Y), clients=3, seed=0))
    spent = [entry["epsilon"] for entry in model.history_]
    assert spent == sorted(spent)
    assert 1.98 < spent[-1] <= 2.0
    assert {entry["noise"] for entry in model.history_} == {"simulated"}


def test_one_message_of_heonn_is_calibrated_exactly():
    from dp_accounting.gaussian_mechanism import get_sigma_gaussian

    model = so.FedHEONN(dp=DP).fit(clients())
    assert model.accounts_["noise"] == pytest.approx(get_sigma_gaussian(2.0, 1e-4), rel=1e-3)
    spent = [Event.from_payload(event) for event in model.accounts_["events"]]
    assert epsilon_of(spent, 1e-4, "analytic") == pytest.approx(2.0, rel=1e-3)
    assert "ε = 2 at δ = 0.0001 for one record, by FedHEONN" in model.card()


def test_much_noise_still_learns_and_little_is_hardly_seen():
    few = so.simulate(X, Y, clients=3, seed=0)
    plain = so.FedHEONN().fit(few).score(X, Y)
    assert (
        so.FedHEONN(dp=so.DP(epsilon=50.0, delta=1e-4, level="record", clip=8.0))
        .fit(few)
        .score(X, Y)
        > plain - 0.1
    )


def test_the_noise_of_an_id3_is_laplace_where_there_is_no_delta():
    (ask, *_) = noised_asks(
        lambda dp: so.Pipeline(so.FedBins(3), so.FedID3(epsilon=3.0, max_depth=2))
    )
    privacy = ask.payload["privacy"]
    assert (privacy["mechanism"], privacy["share"]) == ("laplace", 1)
    assert privacy["noise"] == pytest.approx(3 / 3.0, rel=1e-3)  # three levels share ε = 3


def test_tasks_that_take_noise_draw_it_from_secrets():
    """The same seed and another secret: another reply; another seed and the same secret: none."""
    asks = {ask.task: (ask, name) for name in LEARNERS for ask in noised_asks(name)}
    for ask, name in asks.values():
        targets = TARGETS.get(name, Y)[:40]
        one = asked(ask, X[:40], targets, b"a" * 32, 60.0)
        other = asked(ask, X[:40], targets, b"b" * 32, 60.0)
        again = asked(ask, X[:40], targets, b"a" * 32, 60.0)
        for name in one:
            assert np.array_equal(one[name], again[name])
            assert not np.array_equal(one[name], other[name]), (ask.task, name)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: so.FedKMeans(3, dp=DP), "would tell rows"),
        (lambda: so.FedKMeans(3, init=np.eye(3, 4), epochs=2, dp=DP), "one step over all rows"),
        (lambda: so.FedKMeans(3, init=np.eye(3, 4), dp=so.DP(epsilon=1, delta=0.1)), "clip is"),
        (lambda: so.FedGLM("poisson", dp=DP), "clip_residuals= bounds"),
        (lambda: so.FedGLM("binomial", dp=DP, clip_residuals=1.0), "where it is bounded"),
        (lambda: so.FedGLM("binomial", dp=DP, weights="w"), "let a row count for many"),
        (lambda: so.FedHEONN(lam=[0.1, 1.0], dp=DP), "one lam"),
        (lambda: so.FedHEONN(dp=so.DP(epsilon=1, delta=0.1, level="record")), "clip is missing"),
        (lambda: so.FedID3(epsilon=1.0, dp=DP), "epsilon= or dp="),
    ],
)
def test_what_nothing_bounds_is_named(make, said):
    with pytest.raises(UsageError, match=said):
        make()


def test_sums_hide_rows_and_not_clients():
    with pytest.raises(UsageError, match="hide one row"):
        so.FedHEONN(dp=so.DP(epsilon=1.0, delta=1e-4, clip=1.0)).fit(clients())


@pytest.mark.parametrize("family", ["gaussian", "poisson", "gamma"])
def test_models_with_clipped_residuals_are_those_without_noise(family):
    draw = np.random.default_rng(1)
    Z = draw.normal(size=(3000, 2))
    eta = 0.3 + Z @ [0.5, -0.4]
    y = {
        "gaussian": eta + 0.3 * draw.normal(size=3000),
        "poisson": draw.poisson(np.exp(eta)).astype(float),
        "gamma": draw.gamma(4.0, np.exp(eta) / 4.0),
    }[family]
    fed = so.simulate(Z, y, clients=3, seed=0)
    dp = so.DP(epsilon=10.0, delta=1e-5, level="record", clip=4.0)
    model = so.FedGLM(family, rounds=6, dp=dp, clip_residuals=4.0).fit(fed)
    np.testing.assert_allclose(model.params_, so.FedGLM(family).fit(fed).params_, atol=0.15)
    assert 9.9 < model.history_[-1]["epsilon"] <= 10.0
    for judged in ("standard_errors", "aic"):
        with pytest.raises(UsageError, match="would cost privacy"):
            getattr(model, judged)
    with pytest.raises(UsageError, match="would cost privacy"):
        model.summary()
    assert "FedGLM" in model._repr_html_()


def test_a_row_that_no_model_fits_is_no_error_with_noise():
    """An error would tell of one row; it counts as much as a bounded one, or not at all."""
    far = np.append(np.abs(X[:, 0]), 1e300)
    rows = np.vstack([X, np.full(4, 1e200)])
    model = so.FedGLM("gaussian", rounds=2, dp=DP, clip_residuals=1.0)
    assert np.isfinite(model.fit(so.simulate(rows, far, clients=1, seed=0)).params_).all()


# --- bins and quantiles ---


@pytest.mark.parametrize("delta", [1e-5, 0.0])
def test_bins_with_noise_lie_near_the_quantiles(delta):
    dp = so.DP(epsilon=4.0, delta=delta, level="record")
    columns = [rng.normal(size=4000) * 5 + 40, rng.exponential(size=4000), np.arange(4000) % 2]
    fed = so.simulate(np.column_stack(columns), np.arange(4000) % 2, clients=4, seed=0)
    bins = so.FedBins(8, dp=dp).fit(fed)
    for values, edges in zip(columns[:2], bins.edges_, strict=False):
        below = (values[:, None] <= edges).mean(axis=0)
        assert np.abs(np.arange(1, 8) / 8 - below).max() < 0.05
    assert ((bins.edges_[2] >= 0) & (bins.edges_[2] < 1)).any(), "two values are told apart"
    assert bins.accounts_["events"][0]["mechanism"] == ("gaussian" if delta else "laplace")
    assert "by FedBins" in bins.card()


def test_descriptions_tell_of_every_client_with_all_of_the_noise():
    """They are read one by one: a share of the noise would not be what ε says."""
    (*_, cells) = noised_asks("describe")
    assert {ask.payload["privacy"]["share"] for ask in noised_asks("describe")} == {1, 3}
    assert cells.task == "describe.counts"
    assert cells.payload["privacy"]["share"] == 1
    found = so.describe(clients(), dp=DP)
    assert 1.98 < found.epsilon <= 2.0
    failures = so.simulation.Failures(dropout=0.3)
    gone = so.describe(so.simulate(X, Y, clients=12, failures=failures, seed=1), dp=DP)
    assert gone.epsilon > 2.0


# --- under the policy "noise" ---


def test_noise_without_a_budget_is_refused_whatever_would_leave_without():
    """Rows are clipped for it, and a tiny clip singles one out; nothing counts the noise."""
    fed = clients(policy="noise")
    with pytest.raises(GateRefusal, match="no budget"):
        so.FedHEONN(dp=DP).fit(fed)
    so.FedHEONN(dp=DP).fit(clients(policy="trusted"))


def test_a_share_of_the_noise_is_counted_as_a_share_where_replies_are_read():
    """Whoever knows the shares of the others can take them away."""
    (ask,) = noised_asks("FedHEONN")
    for budget, left in ((2.5, 0), (50.0, 1)):
        fed = clients(policy=Policy("noise", budget=(budget, 1e-4)))
        failed = sum(len(block.failures) for block in fed.engine.run(ask, None))
        assert failed == (0 if left else 3)
    noise = ask.payload["privacy"]["noise"]
    for client in range(3):
        (event,) = fed.engine.states(ask.fit)[client][SPENT]
        assert event["noise"] == pytest.approx(noise / math.sqrt(3))

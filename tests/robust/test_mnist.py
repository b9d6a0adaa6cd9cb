"""The issue's figures on MNIST; by hand, some minutes."""

from __future__ import annotations

import pytest

import solera as so

R = so.robust
RULES = [R.MultiKrum(0.2), R.GeometricMedian(), R.TrimmedMean(0.2), R.Median()]


@pytest.mark.slow
@pytest.mark.data("mnist")
@pytest.mark.parametrize(
    ("attack", "partition"),
    [
        (R.SignFlip(0.2, factor=5), so.partitions.IID()),
        (R.ALittleIsEnough(0.2, z=4.0), so.Dirichlet(1.0)),
        (R.ALittleIsEnough(0.2, z=10.0), so.Dirichlet(1.0)),
    ],
)
def test_two_rules_stay_within_two_points_where_the_mean_does_not(attack, partition):
    X, y, X_test, y_test = so.datasets.mnist()

    def score(rule, attack):
        fed = so.simulate(
            X[:10_000], y[:10_000], clients=20, partition=partition, seed=1, attack=attack
        )
        model = so.FedLinear(rounds=12, lr=0.2, aggregate=rule).fit(fed, progress=False)
        return model.score(X_test[:3000], y_test[:3000])

    clean = score(None, None)
    assert score(None, attack) < clean - 0.02
    held = [rule for rule in RULES if score(rule, attack) > clean - 0.02]
    assert len(held) >= 2, held

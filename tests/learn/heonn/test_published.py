"""Figures of the thesis that are right, reproduced to the last digit; and what goes beyond them."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.model_selection import KFold, train_test_split

import solera as so

AS_THESIS = {"derivative": "thesis", "rule": "nearest"}


@pytest.fixture(scope="module")
def digits():
    """70/30 split with z-scores of the training part, as in the thesis."""
    X, y = load_digits(return_X_y=True)
    A, B, a, b = train_test_split(X, y, test_size=0.3, random_state=42)
    mean, spread = A.mean(axis=0), A.std(axis=0)
    spread[spread == 0] = 1
    return (A - mean) / spread, a, (B - mean) / spread, b


def percent(x):
    return round(100 * x, 2)


def folds(digits, seed=0, **options):
    A, a, _, _ = digits
    scores = []
    for train, test in KFold(10, shuffle=True, random_state=1).split(A):
        fed = so.simulate(A[train], a[train], clients=1, seed=seed)
        scores.append(so.FedHEONN(lam=0.01, **options).fit(fed).score(A[test], a[test]))
    return percent(np.mean(scores)), percent(np.std(scores))


def test_table_3_9_digits_at_once_and_in_groups(digits):
    A, a, B, b = digits
    fed = so.simulate(A, a, clients=10, seed=0)
    assert percent(so.FedHEONN(lam=10, **AS_THESIS).fit(fed).score(B, b)) == 90.74
    groups = so.FedHEONN(lam=10, **AS_THESIS)
    for start in range(0, 10, 2):
        groups.partial_fit(fed, clients=[start, start + 1])
    assert percent(groups.score(B, b)) == 90.74


def test_table_3_10_digits_plain(digits):
    assert folds(digits, **AS_THESIS) == (88.15, 3.14)


def test_table_3_10_digits_ensemble(digits):
    patches = so.RandomPatches(75, rows=0.2, features=0.8)
    found = [folds(digits, seed, ensemble=patches, **AS_THESIS)[0] for seed in (3, 6)]
    assert max(found) >= 95.94
    assert min(found) > 95.0
    assert folds(digits, 0, ensemble=patches)[0] == pytest.approx(93.72, abs=0.5)


@pytest.mark.data("carbon_nanotubes")
def test_carbon_nanotubes():
    X, y = so.datasets.carbon_nanotubes(test=0).all
    A, B, a, b = train_test_split(X, y, test_size=0.3, random_state=42)
    mean, spread = A.mean(axis=0), A.std(axis=0)
    fed = so.simulate((A - mean) / spread, a, clients=1000)
    model = so.FedHEONN("linear", lam=0.01).fit(fed)
    assert ((model.predict((B - mean) / spread) - b) ** 2).mean() == pytest.approx(
        5.75e-5, rel=1e-3
    )


@pytest.mark.parametrize("kind", ["fourier", "random_layer"])
def test_hidden_features_beat_the_mlp_of_the_thesis_in_one_round(digits, kind):
    A, a, B, b = digits
    fed = so.simulate(A, a, clients=10, seed=0)
    lams = [1e-4, 1e-3, 1e-2, 1e-1]
    model = so.FedHEONN(lam=lams, features=kind, hidden=700).fit(fed)
    assert model.score(B, b) >= 0.97
    assert fed.meter.total(task="heonn.statistics").asks == 1

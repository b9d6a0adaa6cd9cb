"""Intervals hold as often as they say; benchmarks/interval_coverage.py draws many more."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

import solera as so
from solera.core.errors import UsageError
from solera.evaluation.intervals import area_variance, intervals_of, of_area, of_share

DRAWS = 200
rng = np.random.default_rng(3)


@pytest.fixture(scope="module")
def benchmark() -> Any:
    path = Path(__file__).resolve().parents[2] / "benchmarks" / "interval_coverage.py"
    spec = importlib.util.spec_from_file_location("coverage_of_intervals", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("metric", ["accuracy", "AUROC", "R²"])
def test_intervals_hold(benchmark, metric):
    shares = {
        (name, true, rows): benchmark.coverage(draw, true, DRAWS, seed)
        for seed, (name, true, rows, draw) in enumerate(benchmark.points())
        if name.startswith(metric) and rows in (20, 100)
    }
    given = {point: share for point, share in shares.items() if not np.isnan(share)}
    assert 0.93 < np.mean([*given.values()]) < 0.98
    noise = 3 * np.sqrt(0.9 * 0.1 / DRAWS)
    assert min(given.values()) > 0.9 - noise, min(given, key=given.get)
    assert all(rows * 0.2 < 10 and "20%" in name for name, _, rows in shares.keys() - given.keys())


def test_the_log_rank_test_is_right_about_equal_groups(benchmark):
    assert 0.03 < benchmark.false_alarms((30, 40), 500) < 0.07


def test_shares_with_a_rare_side_have_exact_intervals():
    for hits, rows in ((0, 20), (20, 20), (17, 20), (3, 400)):
        exact = binomtest(hits, rows).proportion_ci(0.9, "exact")
        assert of_share(hits, rows, 0.9) == pytest.approx((exact.low, exact.high))
    wilson = binomtest(70, 100).proportion_ci(0.95, "wilson")
    assert of_share(70, 100) == pytest.approx((wilson.low, wilson.high))
    with pytest.raises(UsageError, match="level"):
        of_share(70, 100, 95)


def test_the_variance_of_an_area_is_that_of_placements():
    negatives, positives = rng.integers(0, 8, 30), rng.integers(2, 12, 25)
    right = (positives[:, None] > negatives) + (positives[:, None] == negatives) / 2
    expected = right.mean(axis=1).var(ddof=1) / 25 + right.mean(axis=0).var(ddof=1) / 30
    counted = [np.bincount(rows, minlength=12) for rows in (negatives, positives)]
    assert area_variance(*counted) == pytest.approx(expected)


def test_an_area_of_one_has_an_interval_and_few_rows_have_none():
    low, high = of_area((1.0, 1.0), 0.0, 20, 30)
    assert 0.85 < low < 0.95
    assert high == pytest.approx(1.0)
    assert of_area((0.9, 0.9), 0.01, 9, 500) is None
    narrow, wide = of_area((0.9, 0.9), 0.001, 50, 50), of_area((0.85, 0.95), 0.001, 50, 50)
    assert wide[0] < narrow[0] < 0.9 < narrow[1] < wide[1]


def test_evaluate_gives_them():
    X = rng.normal(size=(400, 3))
    y = 1e6 + X @ [1.0, 2.0, 0.0] + rng.normal(size=400)
    fed = so.simulate(X, y, clients=4, test=0.5, seed=0)
    model = so.FedGLM(family="gaussian").fit(fed)
    found = model.evaluate(fed)
    low, high = found.intervals()["r2"]
    assert 0.7 < low < found["r2"] < high < 0.95
    rows = fed.data.segments(fed.clients, "test").joined()
    at_hand = model.evaluate(rows.X, y=rows.y).intervals()["r2"]
    assert (low, high) == pytest.approx(at_hand)
    assert found.intervals(0.8)["r2"][0] > low
    classes = (y > y.mean()).astype(int)
    fed = so.simulate(X, classes, clients=4, test=0.5, seed=0)
    model = so.FedLinear(rounds=5).fit(fed)
    found = model.evaluate(fed)
    intervals = found.intervals()
    assert set(intervals) == {"accuracy", "sensitivity", "specificity", "false_positive_rate"}
    assert all(low < found[name] < high for name, (low, high) in intervals.items())
    assert set(model.evaluate(fed, scores=True).intervals()) == {*intervals, "auroc"}


def test_without_fourth_powers_there_is_no_interval():
    sums = {"rows": 40, "y": 3.0, "y2": 50.0, "error2": 10.0, "moments": np.ones(5)}
    assert "r2" in intervals_of(sums)
    assert not intervals_of({name: value for name, value in sums.items() if name != "moments"})

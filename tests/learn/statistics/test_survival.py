"""Curves and tests are those of statsmodels on the pooled rows, with times on the grid."""

from __future__ import annotations

import numpy as np
import pytest
import statsmodels.api as sm

import solera as so
from solera.core.errors import DataError, UsageError
from solera.core.schema import Feature, Schema

GRID = np.arange(0.25, 5.01, 0.25)
SCHEMA = Schema(
    (Feature("age"), Feature("arm", "categorical", ("a", "b", "c"))), "numbers", outputs=2
)


def trial(rows=600, seed=0):
    draw = np.random.default_rng(seed)
    X = np.column_stack([draw.normal(size=rows), draw.integers(0, 3, rows)])
    event, censored = draw.exponential(2 - 0.4 * X[:, 1]), draw.exponential(3, rows)
    return X, np.column_stack([np.minimum(event, censored), event <= censored]).astype(float)


def on_grid(y):
    """Times rounded up to the grid, censored at its end."""
    place = np.searchsorted(GRID, y[:, 0], side="left")
    late = place == len(GRID)
    time = GRID[np.minimum(place, len(GRID) - 1)]
    return time + 1e-9 * late, np.where(late, 0.0, y[:, 1])


def simulated(X, y, **options):
    data = so.data.FederatedData.of(
        X, y, so.partitions.QuantitySkew(5.0).assign(len(X), y, clients=5, seed=1), schema=SCHEMA
    )
    return so.simulate(data, **options)


@pytest.mark.parametrize("seed", [0, 1])
def test_equals_statsmodels_on_the_pooled_rows(seed):
    X, y = trial(seed=seed)
    curves = so.learn.kaplan_meier(simulated(X, y), GRID, by="arm")
    time, event = on_grid(y)
    for g, curve in enumerate(curves.curves):
        mine = X[:, 1] == g
        truth = sm.SurvfuncRight(time[mine], event[mine])
        at = np.searchsorted(truth.surv_times, GRID + 1e-10, side="right") - 1
        known = at >= 0
        np.testing.assert_allclose(curve.survival[known], truth.surv_prob[at[known]], rtol=1e-12)
        some = known & (curve.survival > 0)
        np.testing.assert_allclose(
            curve.standard_error[some], truth.surv_prob_se[at[some]], rtol=1e-9
        )
        assert curve.name == "abc"[g]
        below = GRID[curve.survival <= 0.5]
        assert curve.median == below[0]
    statistic, p = sm.duration.survdiff(time, event, X[:, 1])
    found, df, p_found = curves.log_rank()
    assert found == pytest.approx(statistic, rel=1e-9)
    assert (p_found, df) == (pytest.approx(p, rel=1e-7), 2)
    S = curves.curves[0].survival
    low, high = curves.curves[0].interval.T
    assert ((low <= S) & (high >= S))[S > 0].all()
    assert "log-rank" in str(curves)
    assert "<table>" in curves._repr_html_()
    assert len(curves.plot().axes[0].lines) == 3


def test_it_says_that_rows_set_aside_are_not_in_it():
    X, y = trial()
    fed = simulated(X, y, test=0.3)
    rows = int(fed.data.sizes("train").sum())
    curves = so.learn.kaplan_meier(fed, GRID)
    assert rows == curves.curves[0].at_risk[0] < 600
    assert "training rows" in str(curves)
    assert "grid: 20 times, 0.25 to 5" in str(curves)
    assert "training rows" in curves._repr_html_()
    assert curves.plot().axes[0].get_title() == f"{rows} training rows"
    assert curves.plot().get_supxlabel() == "grid: 20 times, 0.25 to 5"


def test_what_is_wrong_is_named():
    X, y = trial(60)
    with pytest.raises(UsageError, match="rising"):
        so.learn.kaplan_meier(simulated(X, y), [2.0, 1.0])
    with pytest.raises(UsageError, match="'age' is not a column of categories"):
        so.learn.kaplan_meier(simulated(X, y), GRID, by="age")
    with pytest.raises(DataError, match="two columns"):
        so.learn.kaplan_meier(so.simulate(X, y[:, 0], clients=2), GRID)
    with pytest.raises(so.errors.SoleraError, match="neither 0 nor 1"):
        so.learn.kaplan_meier(simulated(X, y + 0.5), GRID)
    with pytest.raises(UsageError, match="two groups"):
        so.learn.kaplan_meier(simulated(X, y), GRID).log_rank()

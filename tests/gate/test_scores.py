"""Counts of scores: what a driver can find out by choosing models and grids."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.gate.measure import REFUSED, Owner, table

import solera as so
from solera.core.component import describe_fitted
from solera.trust.gate import find_limits

RNG = np.random.default_rng(5)
ROWS = 60
X = RNG.normal(size=(ROWS, 3))
Y = (X[:, 0] + RNG.normal(size=ROWS) > 0).astype(np.int64)


def model(weights: Any = (1.0, 0.5, 0.0), shift: float = 0.0) -> so.FedLinear:
    fitted = so.FedLinear(rounds=1).fit(so.simulate(X, Y, clients=1), progress=False)
    coef = np.zeros_like(fitted.coef_)
    coef[:, -1] = weights
    fitted.coef_ = coef
    intercept = np.zeros_like(fitted.intercept_)
    intercept[-1] = shift
    fitted.intercept_ = intercept
    return fitted


def payload(judged: Any, **grid: Any) -> dict[str, Any]:
    described = describe_fitted(judged.for_prediction())
    asked = {"bins": 200, "threshold": 0.5, "quantiles": np.array([0.5]), **grid}
    return {"model": described, "part": "train", **asked}


def test_honest_counts_leave_in_bins_of_five():
    one = Owner(table(X, Y), find_limits("training"))
    reply = one.ask("learner.score_counts", payload(model()))
    counts = reply["counts"][0]
    assert reply["merged"]
    assert counts.sum(axis=1).tolist() == np.bincount(Y).tolist()
    assert counts[counts > 0].min() >= 5
    assert (counts > 0).sum() > 6
    assert reply["loss"] > 0


def told(one: Owner, judged: Any, **grid: Any) -> list[Any]:
    """The rows behind every cumulative count that leaves, and behind every bin."""
    reply = one.ask("learner.score_counts", payload(judged, **grid))
    p = judged.predict_proba(X)[:, 1]
    sets = []
    for c, counts in enumerate(reply["counts"][0]):
        scores = np.sort(p[c == Y])
        before = np.zeros(ROWS, dtype=bool)
        for rows in np.cumsum(counts[counts > 0]):
            up_to = (c == Y) & (p <= scores[rows - 1])
            sets += [up_to, up_to & ~before]
            before = up_to
    return sets


def test_no_two_counts_that_leave_differ_in_a_few_rows():
    """Whatever thresholds, bins and models are asked, also compared with a confusion matrix."""
    one = Owner(table(X, Y), find_limits("training"))
    p = np.sort(model().predict_proba(X)[:, 1])
    sets = [np.zeros(ROWS, dtype=bool), np.ones(ROWS, dtype=bool)]
    judged = {"model": describe_fitted(model(shift=0.05).for_prediction()), "part": "train"}
    confusion = one.ask("learner.evaluate", judged)["confusion"]
    guessed = model(shift=0.05).predict(X)
    sets += [(c == Y) & (guessed == g) for c in (0, 1) for g in (0, 1) if confusion[c, g]]
    for threshold in (0.5, p[12] - 1e-9, p[12] + 1e-9):
        sets += told(one, model(), threshold=threshold)
    for bins in (10, 1990):
        sets += told(one, model(), bins=bins)
    for shift in (1e-3, 0.02, 1.0):
        sets += told(one, model(shift=shift))
    assert len(sets) > 50
    assert fewest_apart(sets) >= 5


def fewest_apart(sets: list[Any]) -> int:
    apart = np.array([(a != b).sum() for a in sets for b in sets])
    return int(apart[apart > 0].min())


@pytest.mark.parametrize(
    ("first", "second"), [((-1.4, -0.8, 10), (2.8, 1.0, 30)), ((0.4, 1.3, 50), (0.9, -0.7, 200))]
)
def test_no_two_bins_of_two_models_differ_in_a_few_rows(first, second):
    """Bins between cumulative counts far apart may still hold nearly the same rows."""
    one = Owner(table(X, Y), find_limits("training"))
    sets = [
        own
        for *weights, bins in (first, second)
        for own in told(one, model((1, *weights)), bins=bins)
    ]
    assert fewest_apart(sets) >= 5


def test_a_histogram_does_not_tell_the_largest_score():
    rows = X.copy()
    rows[0] = [40.0, 0, 0]  # one row far above all others
    with_one, without = (
        Owner(table(rows[i:], Y[i:]), find_limits("training")).ask(
            "learner.score_counts", payload(model())
        )["counts"]
        for i in (0, 1)
    )
    highest = [np.flatnonzero(c.sum(axis=(0, 1)))[-1] for c in (with_one, without)]
    assert highest[0] == highest[1]


@pytest.mark.parametrize(
    "grid", [{"bins": 3000}, {"bins": 15}, {"threshold": 1.5}, {"edges": np.array([0.5])}]
)
def test_a_grid_that_is_none_is_refused(grid):
    one = Owner(table(X, Y), find_limits("training"))
    assert one.ask("learner.score_counts", payload(model(), **grid)) is REFUSED


def test_a_class_of_few_rows_is_not_counted():
    y = np.zeros(ROWS, dtype=np.int64)
    y[:3] = 1
    one = Owner(table(X, y), find_limits("training"))
    reply = one.ask("learner.score_counts", payload(model()))
    assert not reply["counts"].any()


def test_persons_and_not_rows_fill_a_bin():
    from solera.core.disclosure.evidence import Persons
    from solera.core.disclosure.histograms import _rows_apart

    none, some = np.zeros((6, 1), dtype=bool), np.ones((6, 1), dtype=bool)
    assert _rows_apart(none, some, Persons())[0] == 6
    assert _rows_apart(none, some, Persons(np.array([0, 0, 0, 1, 1, 1])))[0] == 2


@so.metrics.row_metric("tests_whether_first")
def whether_first(y: Any, predicted: Any) -> Any:
    return np.arange(len(y)) == 0


def test_a_metric_that_singles_out_a_row_does_not_leave():
    one = Owner(table(X, Y), find_limits("training"))
    described = describe_fitted(model().for_prediction())
    reply = one.ask("metric.tests_whether_first", {"model": described, "part": "train"})
    assert reply == {"total": 0, "rows": 0}
    assert one.ask("learner.score_counts", payload(model()))["rows"] == ROWS


def test_a_client_that_withholds_its_sum_does_not_count_as_zero():
    fed = so.simulate(X, Y, clients=2, seed=0, policy="training")
    found = model().evaluate(fed, "train", metrics=["tests_whether_first"])
    assert "tests_whether_first" not in found.metrics
    assert all("tests_whether_first" not in each for each in found.clients.values())
    folded = model().evaluate(fed, "train", metrics=["tests_whether_first"], per_client=False)
    assert "tests_whether_first" not in folded.metrics


def test_an_evaluation_says_how_many_rows_its_metrics_leave_out():
    rng = np.random.default_rng(2)
    Z = rng.normal(size=(400, 3))
    y = (Z[:, 0] > 0).astype(int)
    plain = so.simulate(Z, y, clients=8, test=0.2)
    model = so.FedHEONN().fit(plain)
    assert model.evaluate(plain)["accuracy"].is_whole
    gated = so.simulate(Z, y, clients=8, test=0.2, policy="training")
    for per_client in (True, False):
        found = model.evaluate(gated, per_client=per_client)
        accuracy = found["accuracy"]
        assert accuracy.rows == found.counts["confusion"].sum() < 80
        assert accuracy.withheld >= 80 - accuracy.rows
        said = f"{accuracy.withheld} rows withheld by their owners"
        assert said in repr(found)
        assert said in found._repr_html_()
        assert said in model.card(found)


def test_an_evaluation_of_numbers_says_whose_sums_are_missing():
    rng = np.random.default_rng(2)
    Z = rng.normal(size=(80, 2))
    model = so.FedHEONN(activation="linear").fit(so.simulate(Z, Z[:, 0], clients=1))
    far = np.where(np.arange(80) % 27 == 0, 1e6, Z[:, 0])  # three rows outweigh all others
    gated = so.simulate(Z, far, clients=1, test=0.5, policy="training")
    found = model.evaluate(gated)
    assert found.metrics == {}
    assert "owners withheld the sums of all 40 test rows" in repr(found)
    with pytest.raises(so.errors.DataError, match="owners withheld the sums"):
        found["mse"]
    assert model.evaluate(so.simulate(Z, far, clients=1, test=0.5))["mse"].is_whole


def test_errors_are_means_over_the_rows_whose_sums_arrived():
    rng = np.random.default_rng(2)
    Z = rng.normal(size=(120, 2))
    y = Z[:, 0] + 0.1 * rng.normal(size=120)
    model = so.FedHEONN(activation="linear").fit(so.simulate(Z, y, clients=1))
    far = np.where(np.arange(120) == 7, 1e6, y)  # outweighs all others of its client
    thirds = so.partitions.Explicit([np.arange(k, 120, 3).tolist() for k in range(3)])
    gated = so.simulate(Z, far, clients=3, partition=thirds, policy="training")
    found = model.evaluate(gated, "train")
    plain = model.evaluate(so.simulate(Z, far, clients=3, partition=thirds), "train")
    others = [each["mse"] for client, each in plain.clients.items() if client != 7 % 3]
    assert (found["mse"].rows, found["mse"].withheld) == (80, 40)
    assert model.evaluate(gated, "train", per_client=False)["mse"] == pytest.approx(found["mse"])
    assert found["mse"] == pytest.approx(np.mean(others), rel=1e-6)


def test_a_sum_that_is_a_count_is_not_compared_with_counts():
    """What docs/explanation/gate.md says remains: errors of a model that is sure of every row.

    It is wrong of 22 rows of one class and of 2 of the other, whose count is withheld.
    """
    order = np.argsort(X[:, 0])
    y = (X[:, 0] > X[order[41], 0]).astype(np.int64)
    y[order[:2]] = 1
    sure = model((1e7, 0, 0), -1e7 * X[order[19:21], 0].mean())
    one = Owner(table(X, y), find_limits("training"))
    reply = one.ask("learner.score_counts", payload(sure))
    of_class = reply["counts"][0]
    assert of_class[of_class > 0].min() >= 5
    assert reply["brier"] - of_class[0, -1] == 2

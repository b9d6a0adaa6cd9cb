"""AUROC, AUPRC, calibration and more from counts: what scikit-learn says of all rows together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.calibration import calibration_curve
from sklearn.datasets import make_classification
from sklearn.metrics import (
    average_precision_score,
    brier_score_loss,
    log_loss,
    mean_pinball_loss,
    recall_score,
    roc_auc_score,
)

import solera as so
from solera.core.errors import SoleraError, UsageError

CLIENTS = 6


def pooled(fed: Any, part: str = "test") -> tuple[Any, Any]:
    rows = [fed.data.segments(np.array([i]), part)[0] for i in range(len(fed))]
    return np.concatenate([r.X for r in rows]), np.concatenate([r.y for r in rows])


def table(name: str) -> tuple[Any, Any]:
    if name.startswith("made"):
        seed = int(name[-1])
        return make_classification(900, 12, flip_y=0.1 * seed, weights=[0.8], random_state=seed)
    X, y, *_ = getattr(so.datasets, name)()
    return X[:1500], y[:1500]


PARTITIONS = {
    "iid": so.partitions.IID(),
    "dirichlet": so.Dirichlet(1.0),
    "sizes": so.partitions.QuantitySkew(),
}


def ece(y: Any, p: Any) -> float:
    share, score = calibration_curve(y, p, n_bins=10)
    index = np.searchsorted(np.linspace(0, 1, 11)[1:-1], p)
    rows = np.bincount(index, minlength=10)
    return float((rows[rows > 0] * np.abs(share - score)).sum() / len(y))


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("name", ["digits", "wine", "cancer", "made1", "made3"])
def test_metrics_equal_those_of_scikit_learn_on_all_rows_within_the_bound(name, partition):
    if name == "cancer":
        from sklearn.datasets import load_breast_cancer

        X, y = load_breast_cancer(return_X_y=True)
    else:
        X, y = table(name)
    rule = PARTITIONS[partition]
    fed = so.simulate(X, y, clients=CLIENTS, partition=rule, test=0.4, seed=2)
    model = so.Pipeline(so.FedScaler(), so.FedHEONN()).fit(fed, progress=False)
    found = model.evaluate(fed, scores=True)
    X_all, y_all = pooled(fed)
    p = model.predict_proba(X_all)
    truth = y_all[:, None] == model.classes_
    lines = range(1, 2) if p.shape[1] == 2 else range(p.shape[1])
    expected = {
        "auroc": np.mean([roc_auc_score(truth[:, i], p[:, i]) for i in lines]),
        "auprc": np.mean([average_precision_score(truth[:, i], p[:, i]) for i in lines]),
        "ece": np.mean([ece(truth[:, i], p[:, i]) for i in lines]),
        "log_loss": log_loss(y_all, p, labels=model.classes_),
        "brier": brier_score_loss(y_all, p, labels=model.classes_)
        if p.shape[1] > 2
        else brier_score_loss(truth[:, 1], p[:, 1]),
    }
    for metric, value in expected.items():
        assert abs(found[metric] - value) <= found.bounds[metric] + 1e-9, metric
    average = "binary" if p.shape[1] == 2 else "macro"
    sensitivity = recall_score(y_all, model.predict(X_all), average=average)
    assert found["sensitivity"] == pytest.approx(sensitivity)
    assert found.bounds["auroc"] < 0.01
    assert found.bounds["ece"] <= 0.0025 + 1e-12
    assert found.bounds["log_loss"] == 0
    client = min(found.clients)
    rows = fed.data.segments(np.array([client]), "test")[0]
    if len(model.classes_) == 2 and len(np.unique(rows.y)) == 2:
        own = roc_auc_score(rows.y, model.predict_proba(rows.X)[:, 1])
        of_client = found.client_scores[client]
        assert abs(found.clients[client]["auroc"] - own) <= of_client.bounds()["auroc"] + 1e-12
    curve = found.scores.calibration(0)
    share, score = calibration_curve(truth[:, lines[0]], p[:, lines[0]], n_bins=10)
    np.testing.assert_allclose(curve["share"], share, atol=1e-12)
    np.testing.assert_allclose(curve["score"], score, atol=0.0025 + 1e-12)


@pytest.fixture(scope="module")
def made() -> tuple[Any, Any, Any]:
    X, y = table("made3")
    fed = so.simulate(X, y, clients=3, test=0.5, seed=0)
    return X, y, so.Pipeline(so.FedScaler(), so.FedLinear(rounds=5)).fit(fed, progress=False)


def test_nothing_more_is_asked_than_wanted(made):
    X, y, model = made
    fed = so.simulate(X, y, clients=3, test=0.5, seed=0)
    plain = model.evaluate(fed)
    assert plain.scores is None
    assert "auroc" not in plain.metrics
    more = model.evaluate(fed, scores=True)
    assert {name: more[name] for name in plain.metrics} == pytest.approx(plain.metrics, abs=1e-12)
    folded = model.evaluate(fed, scores=True, per_client=False)
    assert folded.metrics == pytest.approx(more.metrics, abs=1e-12)
    assert not folded.clients
    at_hand = model.evaluate(pooled(fed)[0], y=pooled(fed)[1], scores=True)
    assert at_hand.metrics == pytest.approx(more.metrics, abs=1e-12)


def test_a_threshold_is_an_edge_of_the_grid(made):
    X, y, model = made
    fed = so.simulate(X, y, clients=3, test=0.5, seed=0)
    X_all, y_all = pooled(fed)
    p = model.predict_proba(X_all)[:, 1]
    found = model.evaluate(fed, scores=so.metrics.ScoreGrid(bins=20, threshold=0.137))
    assert found["sensitivity"] == pytest.approx(recall_score(y_all, p > 0.137))
    assert found["specificity"] == pytest.approx(recall_score(y_all == 0, p <= 0.137))
    assert found["false_positive_rate"] == pytest.approx(1 - found["specificity"])
    assert found.bounds["sensitivity"] == found.bounds["specificity"] == 0
    finer = model.evaluate(fed, scores=so.metrics.ScoreGrid(bins=1000))
    assert finer.bounds["auroc"] < found.bounds["auroc"]
    for wrong in ({"bins": 15}, {"threshold": 2.0}, {"quantiles": (0.0,)}):
        with pytest.raises(SoleraError):
            so.metrics.ScoreGrid(**wrong)


def test_intervals_come_from_counts(made):
    X, y, model = made
    found = model.evaluate(so.simulate(X, y, clients=3, test=0.5, seed=0), scores=True)
    intervals = found.intervals()
    for metric in ("accuracy", "auroc", "sensitivity", "specificity"):
        low, high = intervals[metric]
        assert low < found[metric] < high
    wider = found.intervals(0.99)["auroc"]
    assert wider[0] < intervals["auroc"][0]
    assert wider[1] > intervals["auroc"][1]


def test_numbers_have_quantile_losses():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    y = X @ [1.0, 2.0, 0.0] + rng.normal(size=300)
    fed = so.simulate(X, y, clients=3, test=0.5, seed=0)
    model = so.FedHEONN(activation="linear").fit(fed, progress=False)
    found = model.evaluate(fed, scores=True)
    X_all, y_all = pooled(fed)
    for q in (0.1, 0.5, 0.9):
        loss = mean_pinball_loss(y_all, model.predict(X_all), alpha=q)
        assert found[f"quantile_loss_{q:g}"] == pytest.approx(loss)
    assert found["mae"] == pytest.approx(2 * found["quantile_loss_0.5"])


def test_labels_have_scores_of_their_own():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4))
    y = (X[:, :3] + rng.normal(size=(300, 3)) > 0).astype(np.uint8)
    fed = so.simulate(X, y, clients=3, test=0.5, seed=0)
    model = so.FedHEONN().fit(fed, progress=False)
    found = model.evaluate(fed, scores=True)
    X_all, y_all = pooled(fed)
    auroc = roc_auc_score(y_all, model.predict_proba(X_all))
    assert abs(found["auroc"] - auroc) <= found.bounds["auroc"]
    assert len(found.scores.names) == 3


def test_a_learner_without_probabilities_says_so():
    X, y = table("wine")
    fed = so.simulate(X, y, clients=3, test=0.3, seed=0)

    class Silent(so.FedLinear):
        @property
        def predict_proba(self) -> Any:  # type: ignore[override]
            raise AttributeError

        def predict(self, X: Any) -> Any:
            return self.classes_[self.decision_function(X).argmax(axis=1)]

    model = so.Pipeline(so.FedScaler(), Silent(rounds=1)).fit(fed, progress=False)
    with pytest.raises(UsageError, match="no probabilities"):
        model.evaluate(fed, scores=True)


@so.metrics.row_metric("tests_cost")
def cost(y: Any, predicted: Any) -> Any:
    """A missed positive costs five."""
    return 5.0 * (y > predicted) + (y < predicted)


@so.metrics.row_metric("tests_odd")
def odd(y: Any, predicted: Any) -> Any:
    return np.zeros(len(y) + 1)


@pytest.mark.parametrize("policy", [None, "trusted"])
def test_a_metric_of_ones_own_is_a_mean_over_rows(made, policy):
    X, y, model = made
    fed = so.simulate(X, y, clients=3, test=0.5, seed=0, policy=policy)
    found = model.evaluate(fed, metrics=["tests_cost"])
    X_all, y_all = pooled(fed)
    assert found["tests_cost"] == pytest.approx(cost(y_all, model.predict(X_all)).mean())
    assert set(found.clients[0]) >= {"accuracy", "tests_cost"}
    folded = model.evaluate(fed, metrics=["tests_cost"], per_client=False)
    assert folded["tests_cost"] == pytest.approx(found["tests_cost"])
    with pytest.raises(SoleraError, match="tests_costs"):
        model.evaluate(fed, metrics=["tests_costs"])


def test_a_metric_of_ones_own_gives_a_number_per_row(made):
    X, y, model = made
    with pytest.raises(SoleraError, match="tests_odd"):
        model.evaluate(so.simulate(X, y, clients=3, test=0.5), metrics=["tests_odd"])


def test_curves_are_drawn(made):
    X, y, model = made
    found = model.evaluate(so.simulate(X, y, clients=3, test=0.5, seed=0), scores=True)
    figure = found.scores.plot(found.client_scores)
    assert [ax.get_xlabel() for ax in figure.axes] == ["false positive rate", "recall", "score"]
    false, true = found.scores.roc()
    assert (false[0], true[0], false[-1], true[-1]) == (0, 0, 1, 1)
    area = np.trapezoid(true, false)
    assert area == pytest.approx(found["auroc"])

"""The table of metrics decides which way is better, wherever something is compared."""

from __future__ import annotations

import numpy as np
import pytest

import solera as so
from solera.core.errors import UsageError
from solera.evaluation.metrics import EVALUATED, METRICS, headline_metric, metric_label, sign
from solera.learn.evaluation import Evaluation
from solera.select.search import grid_search
from solera.study.fairness import ThreeSchemes

rng = np.random.default_rng(0)
X = rng.normal(size=(300, 4))
W = rng.normal(size=(4, 3))
NOISE = rng.normal(size=(300, 3))
TARGETS = {
    "two classes": (X @ W[:, 0] + NOISE[:, 0] > 0).astype(int),
    "classes": (X @ W + NOISE).argmax(axis=1),
    "labels": (X @ W + NOISE > 0).astype(np.uint8),
    "numbers": X @ W + NOISE,
}


@pytest.mark.parametrize("target", TARGETS)
def test_every_metric_that_evaluate_gives_is_in_the_table(target):
    fed = so.simulate(X, TARGETS[target], clients=4, test=0.4, seed=0)
    model = so.FedLinear(rounds=2).fit(fed)
    given = model.evaluate(fed, scores=True).metrics
    assert {name.partition("_0.")[0] for name in given} <= set(EVALUATED)
    assert all(sign(name) in (-1, 1) for name in given)
    kind = "classes" if "classes" in target else target
    assert all(kind in METRICS[name.partition("_0.")[0]].targets for name in given)
    assert headline_metric(given) == {"labels": "subset_accuracy", "numbers": "r2"}.get(
        kind, "accuracy"
    )


def test_errors_fall_and_shares_rise():
    falling = {name for name in EVALUATED if sign(name) < 0}
    assert falling >= {"mse", "rmse", "mae", "hamming_loss", "log_loss", "brier", "ece"}
    assert {"accuracy", "r2", "auroc", "sensitivity", "specificity"}.isdisjoint(falling)
    assert "false_positive_rate" in falling
    assert sign("validation_loss") == sign("quantile_loss_0.9") == -1
    assert sign("validation_subset_accuracy") == 1
    assert sign("epsilon", "min") == -1
    with pytest.raises(UsageError, match="'epsilon'") as error:
        sign("epsilon")
    assert "known" in str(error.value.hint) or "mean" in str(error.value.hint)


def test_labels_are_what_people_read():
    assert metric_label("macro_f1") == "macro-F1"
    assert metric_label("validation_mse") == "validation MSE"
    assert metric_label("some_cost") == "some cost"


class Fake(so.callbacks.Callback):
    def __init__(self, name, values):
        self.name = name
        self.values = values

    def on_round(self, learner, round):
        round.log(**{self.name: self.values[round.index]})


class Kept(so.callbacks.Callback):
    """The weights after every round."""

    def __init__(self):
        self.weights = []

    def on_round(self, learner, round):
        self.weights.append(np.array(learner.coef_))


def fitted(name, values, stop, rounds=4):
    fed = so.simulate(X, TARGETS["classes"], clients=3, seed=0)
    kept = Kept()
    model = so.FedLinear(rounds=rounds).fit(fed, callbacks=[Fake(name, values), kept, stop])
    return model, kept.weights


@pytest.mark.parametrize("name", ["accuracy", "macro_f1", "r2", "auroc", "score"])
def test_early_stopping_keeps_the_best_round_of_what_should_rise(name):
    stop = so.callbacks.EarlyStopping(name)
    model, weights = fitted(name, [0.2, 0.9, 0.3, 0.1], stop)
    assert stop.best_ == 0.9
    np.testing.assert_array_equal(model.coef_, weights[1])


@pytest.mark.parametrize("name", ["loss", "validation_loss", "mse", "hamming_loss", "log_loss"])
def test_early_stopping_keeps_the_best_round_of_what_should_fall(name):
    stop = so.callbacks.EarlyStopping(name)
    model, weights = fitted(name, [0.9, 0.1, 0.3, 0.4], stop)
    assert stop.best_ == 0.1
    np.testing.assert_array_equal(model.coef_, weights[1])


def test_an_unknown_number_needs_its_direction():
    with pytest.raises(UsageError, match="'epsilon'") as error:
        so.callbacks.EarlyStopping("epsilon")
    assert "EarlyStopping(metric='epsilon', …, mode=\"min\")" in error.value.hint
    with pytest.raises(UsageError, match="'epsilon'") as error:
        so.callbacks.StopAt(metric="epsilon", target=3)
    assert "StopAt(" in error.value.hint
    assert so.callbacks.EarlyStopping("epsilon", mode="max").mode == "max"


@pytest.mark.parametrize(
    ("name", "values", "target", "rounds"),
    [("loss", [0.9, 0.6, 0.4, 0.1], 0.5, 3), ("accuracy", [0.1, 0.6, 0.7, 0.9], 0.5, 2)],
)
def test_stop_at_falls_or_rises_to_its_target(name, values, target, rounds):
    model, _ = fitted(name, values, so.callbacks.StopAt(metric=name, target=target))
    assert len(model.history_) == rounds
    assert so.selectors.rounds_to(model.history_, target, name) == rounds


def test_fairness_knows_that_an_error_falls():
    def of(scheme, a, b):
        clients = {0: {"mse": a, "r2": 1 - a}, 1: {"mse": b, "r2": 1 - b}}
        return Evaluation({"mse": (a + b) / 2, "r2": 1 - (a + b) / 2}, clients, {})

    schemes = {"alone": of("alone", 0.2, 0.5), "federated": of("federated", 0.3, 0.1)}
    found = ThreeSchemes(schemes | {"centralised": of("centralised", 0.1, 0.1)}, {0: 10, 1: 10})
    alone = found.table("mse")[0]
    assert (alone["worst"], alone["best"]) == (0.5, 0.2)
    gains = [line["gain"] for line in found.by_client("mse")]
    assert gains == pytest.approx([-0.1, 0.4])
    assert found.by_group(["a", "a"], "mse")[0]["worst"] == 0.3
    assert "r2" in found.table()[0]


def test_the_search_over_a_selector_puts_the_best_first():
    y = TARGETS["classes"]
    areas = iter([0.2, 0.8])

    class Flat(so.callbacks.Callback):
        def on_start(self, learner, rounds, start):
            self.value = next(areas)

        def on_round(self, learner, round):
            round.log(macro_f1=self.value)

    found = grid_search(
        so.FedLinear(rounds=2, per_round=2, select=so.ActiveSampling()),
        lambda seed: so.simulate(X, y, clients=4, seed=seed),
        {"alpha2": [0.01, 0.1]},
        metric="macro_f1",
        callbacks=lambda: [Flat()],
    )
    assert [entry["area"] for entry in found] == [0.8, 0.2]
    with pytest.raises(UsageError, match="'moved'"):
        grid_search(
            so.FedLinear(select=so.ActiveSampling()), None, {"alpha2": [1.0]}, metric="moved"
        )

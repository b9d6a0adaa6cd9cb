"""Evaluations and descriptions: what a row changes, and what is said where numbers are withheld."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score
from tests.trust.withholding import Withholding

import solera as so
from solera.core.absent import split_gaps, with_gaps
from solera.core.clients import Client, Draws
from solera.core.component import describe_fitted
from solera.core.replies import Reply
from solera.core.schema import Feature, Schema
from solera.core.sealing import SEALED, each_message
from solera.core.task import find_task
from solera.trust.cells import Behind
from solera.trust.contributions import entries_of
from solera.trust.policy import Policy

RNG = np.random.default_rng(5)
ROWS = 60
X = RNG.normal(size=(ROWS, 3))
Y = (X[:, 0] + RNG.normal(size=ROWS) > 0).astype(np.int64)
LEAST = 5
TARGETS: dict[str, Any] = {
    "classes": Y,
    "labels": (X[:, :2] + RNG.normal(size=(ROWS, 2)) > 0).astype(np.uint8),
    "numbers": X[:, 0] + RNG.normal(size=ROWS),
}


def fitted(y: Any) -> Any:
    learner = so.FedHEONN(activation="linear") if y.dtype.kind == "f" else so.FedLinear(rounds=2)
    return learner.fit(so.simulate(X, y, clients=1), progress=False)


def payload(model: Any, **more: Any) -> dict[str, Any]:
    return {"model": describe_fitted(model.for_prediction()), "part": "train", **more}


GRID = {"bins": 200, "threshold": 0.5, "quantiles": np.array([0.5])}
TOWNS = ("Lugo", "Ourense", "Vigo")
PLACES = Schema(
    (Feature("a"), Feature("b"), Feature("town", "categorical", TOWNS)), "classes", np.arange(2), 2
)
PEOPLE = np.column_stack([X[:, :2], np.repeat([1, 0, 2], [3, 27, 30])])
PEOPLE[5:8, 0] = np.nan


def cells(*towns: str) -> dict[str, Any]:
    edges = np.array([-1.0, 0.0, 1.0])
    columns = [{"categories": [], "edges": edges}] * 2
    columns = [*columns, {"categories": list(towns), "edges": np.empty(0)}]
    return {"columns": columns, "classes": np.array([0, 1])}


def asks() -> dict[str, tuple[str, Any, Any, Any, Any]]:
    """Task, payload, rows, target and schema of every task here whose reply rows give."""
    made = {}
    for kind, y in TARGETS.items():
        model = fitted(y)
        made[f"evaluate {kind}"] = ("learner.evaluate", payload(model), X, y, None)
        made[f"scores {kind}"] = ("learner.score_counts", payload(model, **GRID), X, y, None)
    made["describe"] = ("describe.counts", cells(*TOWNS), PEOPLE, Y, PLACES)
    return made


ASKS = asks()


def contributions(task: str, ask: Any, rows: Any, y: Any, schema: Any) -> dict[str, Any]:
    fed = so.simulate(rows, y, clients=1, schema=schema)
    client = Client(0, fed.engine.source, Draws(0, task, 0), {})
    return dict(entries_of(find_task(task)(client, ask)))


@pytest.mark.parametrize("name", ASKS)
def test_a_row_changes_no_more_than_is_derived(name):
    """Each row taken out in turn, with noise's bounds on rows; counts and sums, in both norms."""
    task, ask, rows, y, schema = ASKS[name]
    clip = 0.7

    def numbers(kept: Any) -> dict[str, Any]:
        leaves = contributions(task, ask, rows[kept], y[kept], schema)
        behind = Behind(len(kept))
        return {
            entry: np.asarray(leaf.bounded(clip).numbers(behind), float)
            for entry, leaf in leaves.items()
        }

    everyone = np.arange(ROWS)
    whole = numbers(everyone)
    others = [numbers(np.delete(everyone, i)) for i in everyone]
    derived = contributions(task, ask, rows, y, schema)
    for entry, leaf in derived.items():
        changes = [(whole[entry] - fewer[entry]).ravel() for fewer in others]
        for norm, order in (("l1", 1), ("l2", 2)):
            most = max(np.linalg.norm(change, order) for change in changes)
            assert most <= 1.000 * leaf.sensitivity(norm, clip) + 1e-9, (entry, norm)
        if entry == "rows":
            assert most == 1


# --- withheld on purpose ---

FEW_WITHHELD = Withholding()


def gated(y: Any, *sizes: int, policy: Any = FEW_WITHHELD, test: bool = False) -> Any:
    """Clients of these sizes, whose owners have a policy."""
    ends = np.concatenate([[0], np.cumsum(sizes)])
    data = so.data.FederatedData(X[: ends[-1]], y[: ends[-1]], ends)
    return so.simulate(data, policy=policy)


def test_cells_of_a_confusion_matrix_are_withheld_and_the_accuracy_is_of_the_others():
    model = fitted(Y)
    fed = gated(Y, 30, 30)
    replies = fed.ask("learner.evaluate", payload(model))
    told = replies.collect()
    counted, accurate, hidden = 0, 0, 0
    for reply, (start, end) in zip(told, ((0, 30), (30, 60)), strict=True):
        true = np.zeros((2, 2), dtype=int)
        np.add.at(true, (Y[start:end], model.predict(X[start:end])), 1)
        absent = reply.absent.get("confusion", np.zeros((2, 2), dtype=bool))
        np.testing.assert_array_equal(reply["confusion"], np.where(absent, 0, true))
        assert absent[(true > 0) & (true < LEAST)].all()
        assert true[absent].sum() >= LEAST or not absent.any()
        counted += true[~absent].sum()
        accurate += np.trace(np.where(absent, 0, true))
        hidden += true[absent].sum()
    assert hidden
    for per_client in (True, False):
        accuracy = model.evaluate(fed, "train", per_client=per_client)["accuracy"]
        assert accuracy == accurate / counted
        assert (accuracy.rows, accuracy.withheld) == (counted, hidden)
        assert not accuracy.is_whole


def test_a_figure_that_lacks_rows_says_so_wherever_it_is_shown():
    model = fitted(Y)
    found = model.evaluate(gated(Y, 30, 30), "train")
    lacking = found["accuracy"].withheld
    said = f"{lacking} rows withheld by their owners"
    assert lacking >= LEAST
    assert said in repr(found)
    assert said in found._repr_html_()
    assert said in model.card(found)
    fed = so.simulate(X, Y, clients=1, validation=0.3, policy=Withholding(), seed=0)
    watched = so.FedLinear(rounds=1).fit(fed, callbacks=[so.callbacks.Evaluate()], progress=False)
    assert watched.history_[0]["accuracy"].withheld > 0


def test_a_label_of_which_a_count_is_withheld_counts_for_nothing():
    draw = np.random.default_rng(2)
    rows = draw.normal(size=(120, 3))
    y = (rows[:, :2] + [1.5, 0.7] * draw.normal(size=(120, 2)) > 0).astype(np.uint8)
    model = so.FedLinear(rounds=2).fit(so.simulate(rows, y, clients=1), progress=False)
    data = so.data.FederatedData(rows, y, np.array([0, 60, 120]))
    fed = so.simulate(data, policy=Withholding())
    hits = missed = pairs = 0
    for reply in fed.ask("learner.evaluate", payload(model)):
        own = slice(60 * reply.client, 60 * reply.client + 60)
        truth, guess = y[own], model.predict(rows[own])
        gone = np.zeros(2, dtype=bool)
        for name in ("true_positive", "false_positive", "false_negative", "unknown"):
            gone = gone | reply.absent.get(name, False)
        hits += 2 * (truth & guess)[:, ~gone].sum()
        missed += (truth != guess)[:, ~gone].sum()
        pairs += 60 * (~gone).sum()
    assert 0 < pairs < 240, "some are withheld, and some are not"
    for per_client in (True, False):
        found = model.evaluate(fed, "train", per_client=per_client)
        assert found["micro_f1"] == pytest.approx(hits / (hits + missed))
        assert found["hamming_loss"] == pytest.approx(missed / pairs)
        assert found["micro_f1"].rows is None
        assert "rows missing" in found["hamming_loss"].marked
        assert "owners withhold small counts of labels" in repr(found)


@pytest.mark.parametrize("kind", TARGETS)
def test_a_client_of_few_rows_withholds_how_many_and_is_marked(kind):
    y = TARGETS[kind]
    model = fitted(y)
    limits = Withholding()
    fed = gated(y, 56, 4, policy=limits)
    plain = gated(y, 56, policy=limits)
    for per_client in (True, False):
        found = model.evaluate(fed, "train", per_client=per_client, scores=True)
        right = model.evaluate(plain, "train", per_client=per_client, scores=True)
        assert found.metrics == pytest.approx(right.metrics)
        assert not any(figure.is_whole for figure in found.metrics.values())
        assert all(figure.withheld for figure in found.metrics.values())
    assert 1 not in model.evaluate(fed, "train").clients


def test_where_everything_is_withheld_there_is_no_figure():
    numbers = TARGETS["numbers"]
    model = fitted(numbers)
    found = model.evaluate(gated(numbers, 4, policy=Withholding()), "train")
    assert found.metrics == {}
    with pytest.raises(so.errors.DataError, match="owners withheld the sums of all train rows"):
        found["mse"]


def test_areas_are_bounded_wherever_withheld_rows_are():
    """And of a class that a client has too few rows of, the client counts for nothing."""
    model = fitted(Y)
    fed = gated(Y, 30, 30)
    for per_client in (True, False):
        found = model.evaluate(fed, "train", scores=True, per_client=per_client)
        area = roc_auc_score(Y, model.predict_proba(X)[:, 1])
        low, high = found.scores.ranges()["auroc"]
        assert low < area < high
        assert found["auroc"].bound > 0.05
        assert low <= found["auroc"] <= high
        assert found.scores.high.sum() == found.scores.low.sum() == ROWS
        assert found.scores.spread.sum() == pytest.approx(ROWS)
    rare = np.concatenate([Y[:30], np.arange(30) < 3]).astype(np.int64)
    few = model.evaluate(gated(rare, 30, 30), "train", scores=True)
    alone = model.evaluate(gated(rare, 30), "train", scores=True)
    assert few.scores.rows == 30
    assert few["auroc"] == alone["auroc"]
    assert few["auroc"].withheld == 30
    assert few["log_loss"].rows == 60, "the losses of all rows are told"


def test_a_metric_of_ones_own_is_not_of_zeros():
    fed = gated(Y, 56, 4, policy=Withholding())
    for per_client in (True, False):
        found = fitted(Y).evaluate(fed, "train", metrics=["tests_ones"], per_client=per_client)
        figure = found["tests_ones"]
        assert (figure, figure.rows, figure.withheld) == (1.0, 56, 1)


@so.metrics.row_metric("tests_ones")
def ones(y: Any, predicted: Any) -> Any:
    return np.ones(len(y))


# --- descriptions ---


def test_noise_on_counts_is_charged_and_worth_what_it_says():
    fed = so.simulate(PEOPLE, Y, clients=1, schema=PLACES)
    privacy = {"mechanism": "gaussian", "noise": 3.0, "share": 1}
    noisy = [
        fed.ask("describe.counts", cells(*TOWNS) | {"privacy": privacy}, round=i).collect()[0]
        for i in range(200)
    ]
    right = fed.ask("describe.counts", cells(*TOWNS)).collect()[0]
    off = np.array([reply["columns"]["2"] - right["columns"]["2"] for reply in noisy])
    entries = 5  # rows, three columns and classes, each of which a row changes by one
    assert off.std() == pytest.approx(3.0 * np.sqrt(entries), rel=0.1)
    limited = Policy("noise", budget=(0.5, 1e-5))
    policed = so.simulate(PEOPLE, Y, clients=3, schema=PLACES, policy=limited)
    with pytest.raises(so.errors.NotEnoughReplies, match="the privacy budget is"):
        policed.ask("describe.counts", cells(*TOWNS) | {"privacy": privacy}).collect()


# --- sealed messages ---


def test_messages_are_sealed_where_numbers_of_the_reply_are_absent():
    reply = with_gaps({"rows": 0, SEALED: [{"content": "open"}]}, {"rows": np.array(True)})
    value, gaps = split_gaps(each_message(reply, lambda message: {"content": "closed"}))
    assert value == {"rows": 0, SEALED: [{"content": "closed"}]}
    assert gaps == {"rows": True}
    assert Reply.of(0, reply).absent

"""A closed job over a board ends with the bytes of its simulation; sums alone change nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from board_owners import EXACT, Job

import solera as so
from solera.core.errors import DataError, GateRefusal, UsageError
from solera.core.federation import Configuration
from solera.core.payload import decode
from solera.learn.base import Learner
from solera.simulate.simulation import Simulation
from solera.trust.board.engine import NotClosed
from solera.trust.policy import Policy

draw = np.random.default_rng(0)
X = draw.normal(size=(320, 6)) * [1, 2, 3, 1, 1, 5] + [0, 1, 0, 0, 9, 0]
SCORE = (X - X.mean(axis=0)) @ [1, 0.5, -0.3, 0, 0, 0.1]
CLASSES = (SCORE + draw.normal(size=len(X)) > 0).astype(int)
NUMBERS = SCORE + draw.normal(size=len(X))
LABELS = np.column_stack([CLASSES, SCORE > 1, draw.random(len(X)) < 0.3]).astype(np.int8)
NAMED = pd.DataFrame(X, columns=list("abcdef")).assign(
    ward=np.repeat(["east", "west", "north", "far"], [150, 100, 67, 3]), died=CLASSES
)
GAPPED = np.where(draw.random(X.shape) < 0.1, np.nan, X)
MLP = so.nn.mlp(6, 8, 2)
GLM = so.Pipeline(so.FedScaler(), so.FedGLM("binomial"))

AVERAGING = [
    *(kind(MLP, rounds=3) for kind in (so.FedAvg, so.FedAdam, so.learn.FedProx, so.learn.FedAvgM)),
    *(kind(MLP, rounds=3) for kind in (so.learn.FedYogi, so.learn.FedAdagrad, so.learn.FedSGD)),
    *(kind(MLP, rounds=3) for kind in (so.learn.Scaffold, so.learn.FedNova, so.learn.Ditto)),
    *(kind(MLP, rounds=3) for kind in (so.learn.FedPer, so.learn.FedRep)),
    so.FedAvg(MLP, rounds=3, send="weights"),
    so.FedAvg(MLP, rounds=3, update_steps=[so.updates.TopK(0.5)]),
    so.FedAvg(MLP, rounds=2, weight=None),
]
CASES: list[tuple[Any, Any, Any]] = [
    *((learner, X, CLASSES) for learner in AVERAGING),
    (so.FedLinear(rounds=4), X / 5, CLASSES),
    (so.FedLinear(rounds=4), X / 5, LABELS),
    (so.FedLinear(rounds=4, lr=0.01), X / 5, NUMBERS),
    (so.FedGLM("binomial"), X, CLASSES),
    (so.FedGLM(), X, NUMBERS),
    (so.FedHEONN(), X / 5, CLASSES),
    (so.FedHEONN(), X / 5, LABELS),
    (so.FedHEONN("linear"), X / 5, NUMBERS),
    (so.FedHEONN(features="fourier", hidden=20), X / 5, CLASSES),
    (so.FedHEONN(ensemble=so.RandomPatches(4, features=0.5)), X / 5, CLASSES),
    (so.MLFedAvg(so.nn.mlp(6, 8, 4), rounds=3, stop=None), X, LABELS),
    (
        so.MLFedAvg(so.nn.mlp(6, 8, 4), rounds=2, stop=None, fine_tune=1, thresholds=True),
        X,
        LABELS,
    ),
    (so.FedScaler(), GAPPED, CLASSES),
    (so.FedImputer(), GAPPED, CLASSES),
    (so.FedImputer("median"), GAPPED, CLASSES),
    (so.FedEncoder(), NAMED, None),
    (so.FedKMeans(3), X, None),
    (so.Pipeline(so.FedScaler(), so.FedKMeans(2, init="atoms")), X, None),
    (GLM, X, CLASSES),
    (so.Pipeline(so.FedImputer(), so.FedScaler(), so.FedLinear(rounds=3)), GAPPED, CLASSES),
    (so.Pipeline(so.FedScaler(), so.FedAvg(MLP, rounds=3)), X, CLASSES),
]
EXACTLY_SOLVED = [
    (so.FedLinear(rounds=10, batch_size=None), X / 5, CLASSES),
    (so.FedGLM("binomial"), X, CLASSES),
    (so.FedGLM(), X, NUMBERS),
    (so.FedHEONN(), X / 5, CLASSES),
    (so.FedScaler(), GAPPED, CLASSES),
    (GLM, X, CLASSES),
    (so.Pipeline(so.FedImputer(), so.FedScaler(), so.FedGLM("binomial")), GAPPED, CLASSES),
]


def owners(X: Any, y: Any, **options: Any) -> Any:
    options = {"clients": 4, "seed": 3, "policy": EXACT, **options}
    return so.simulate(X, y, **options)


def without_epoch(X: Any, y: Any) -> Any:
    """Owners that have signed nothing: an epoch would not take such rows."""
    data = so.simulate(X, y, clients=4, seed=3).data
    return Simulation(data, Configuration(engine="local", policy=Policy.of(EXACT)))


@pytest.mark.parametrize(("learner", "X", "y"), CASES, ids=lambda case: type(case).__name__)
def test_a_board_gives_the_bytes_of_the_simulation(learner: Any, X: Any, y: Any) -> None:
    job = Job(learner, owners(X, y, validation=0.2))
    expected = job.simulated()
    assert "model" in decode(expected), decode(expected)
    ends = job.run()
    assert [end.why for end in ends] == [""] * 4
    for end in ends:
        assert end.closed is not None
        assert end.closed.result == expected
        assert job.opened(end.closed) == expected
    assert len({end.closed.digest for end in ends if end.closed}) == 1


@pytest.mark.parametrize(("learner", "X", "y"), EXACTLY_SOLVED, ids=lambda c: type(c).__name__)
def test_sums_alone_change_nothing_beyond_rounding(learner: Any, X: Any, y: Any) -> None:
    closed = learner.clone().fit(owners(X, y))
    plain = learner.clone().fit(owners(X, y, policy=None))
    for name, value in numbers_of(plain).items():
        np.testing.assert_allclose(numbers_of(closed)[name], value, rtol=1e-9, atol=1e-9)


def numbers_of(learner: Any) -> dict[str, Any]:
    """What was learned, by name; of every step of a pipeline."""
    found: dict[str, Any] = {}
    for i, step in enumerate(getattr(learner, "steps_", [learner])):
        for name, value in vars(step).items():
            if name.endswith("_") and isinstance(value, float | int | np.ndarray):
                found[f"{i}.{name}"] = value
    return {name: value for name, value in found.items() if np.asarray(value).dtype.kind in "fi"}


@pytest.mark.parametrize("clients", [3, 7])
def test_other_numbers_of_owners(clients: int) -> None:
    job = Job(so.FedLinear(rounds=2), owners(X / 5, CLASSES, clients=clients))
    expected = job.simulated()
    assert [end.closed.result for end in job.run() if end.closed] == [expected] * clients


@pytest.mark.parametrize("metric", ["loss", "validation_loss"])
def test_early_stopping_is_part_of_a_job(metric: str) -> None:
    def stop() -> dict[str, Any]:
        early = so.callbacks.EarlyStopping(metric, patience=1, min_delta=0.05)
        return {"callbacks": [early]}

    fed = owners(X / 5, CLASSES, validation=0.2)
    job = Job(so.Pipeline(so.FedScaler(), so.FedLinear(rounds=40)), fed, stop)
    expected = job.simulated()
    history = decode(expected)["history"]
    assert len(history) < 40
    assert metric in history[-1]
    assert {end.closed.result for end in job.run() if end.closed} == {expected}


def test_a_refusal_that_follows_from_totals_is_a_result() -> None:
    """All owners come to it, and the researcher reads it, signed."""
    apart = np.where(X[:, 0] > 0, 1, 0)
    few = Job(so.FedGLM("binomial"), owners(X[:36], apart[:36]))
    ends = few.run()
    refused = decode(ends[0].closed.result)["refused"]
    assert "7 parameters of one output need 42 persons of all owners, there are 36" in refused
    assert {end.closed.result for end in ends} == {few.simulated()}
    assert ends[0].sums == 2


@pytest.mark.parametrize("kind", ["complete", "quasi"])
def test_a_model_that_separates_is_refused_by_name(kind: str) -> None:
    """A column that tells the classes apart, for all rows or for those of one value."""
    told = X.copy()
    told[:, 3] = CLASSES * 2.0 - 1 + 0.1 * X[:, 3]
    if kind == "quasi":
        told[:, 3] = (CLASSES == 1) & (np.arange(len(X)) % 5 == 0)
    job = Job(GLM if kind == "complete" else so.FedGLM("binomial"), owners(told, CLASSES))
    ends = job.run()
    assert [end.why for end in ends] == [""] * 4
    refused = decode(ends[0].closed.result)["refused"]
    by = {"complete": "all columns together", "quasi": "x3"}[kind]
    assert f"the classes are told apart without error, by {by}" in refused
    assert {end.closed.result for end in ends} == {job.simulated()}


def test_draws_of_rows_follow_from_secrets() -> None:
    """Nobody who knows the seed can tell the batches of another owner."""
    fed = owners(X / 5, CLASSES)
    first = so.FedLinear(rounds=2).fit(fed)
    again = so.FedLinear(rounds=2).fit(owners(X / 5, CLASSES))
    plain = so.FedLinear(rounds=2).fit(owners(X / 5, CLASSES, policy=None))
    fed.closed_job("FedLinear").engine.exchange.workers[0].secret = bytes(32)
    other = so.FedLinear(rounds=2).fit(fed)
    assert np.array_equal(first.coef_, again.coef_)
    assert not np.array_equal(first.coef_, plain.coef_)
    assert not np.array_equal(first.coef_, other.coef_)


def test_evaluation_over_the_whole_test_part() -> None:
    fed = owners(X, NUMBERS, test=0.2)
    model = so.FedGLM().fit(fed)
    rows = fed.data.segments(np.arange(4), "test").joined()
    found = model.evaluate(fed)
    error = model.predict(rows.X) - rows.y
    assert found["mse"] == pytest.approx((error**2).mean(), rel=1e-9)
    assert found["mae"] == pytest.approx(np.abs(error).mean(), rel=1e-9)
    assert found["r2"] == pytest.approx(1 - (error**2).mean() / rows.y.var(), rel=1e-9)
    assert found["mse"].rows == len(rows)
    assert not found.clients
    classes = owners(X, CLASSES, test=0.2)
    loss = so.FedGLM("binomial").fit(classes).evaluate(classes, scores=True)["log_loss"]
    rows = classes.data.segments(np.arange(4), "test").joined()
    expected = so.FedGLM("binomial").fit(classes).losses(rows.X, rows.y).mean()
    assert loss == pytest.approx(expected, rel=1e-12)


def test_personal_parts_stay_with_their_owners() -> None:
    """The result holds what all share; a model is judged with the part that its owner keeps."""
    fed = owners(X, CLASSES, test=0.2)
    model = so.learn.FedRep(MLP, rounds=4).fit(fed)
    assert model.evaluate(fed, scores=True)["log_loss"] > 0
    with pytest.raises(UsageError, match="is with their owners"):
        model.at(0)
    with pytest.raises(UsageError, match="keep nothing of this FedRep"):
        model.evaluate(owners(X, CLASSES, test=0.2))


def test_what_is_described() -> None:
    found = so.describe(owners(GAPPED, CLASSES))
    assert found.rows == len(X)
    assert list(found.gaps) == np.isnan(GAPPED).sum(axis=0).tolist()
    np.testing.assert_allclose(found.mean, np.nanmean(GAPPED, axis=0))
    np.testing.assert_allclose(found.deviation, np.nanstd(GAPPED, axis=0))
    assert "gaps, mean" in str(found)


def test_few_gaps_are_not_told() -> None:
    few = X.copy()
    few[:3, 1] = np.nan
    found = so.describe(without_epoch(few, CLASSES))
    assert found.gaps[1] is None
    assert found.mean[1] == pytest.approx(np.nanmean(few[:, 1]))


def test_a_column_of_few_values_is_absent_and_never_zero() -> None:
    """A column that three persons have: nothing of it is told, not even that there are three."""
    rare = X.copy()
    rare[3:, 2] = np.nan
    with pytest.raises(DataError, match="nothing is told of x2"):
        so.FedScaler().fit(without_epoch(rare, CLASSES))


def test_names_of_a_third_party() -> None:
    """A learner of another package whose contributions are sums needs nothing else."""
    from solera.core.task import task

    @task("board_test.power")
    def power(client: Any, ask: Any) -> dict[str, Any]:
        return {"sum": so.sum_by(None, client.data.X ** ask["power"])}

    @task("board_test.bare")
    def bare(client: Any, ask: Any) -> dict[str, Any]:
        return {"sum": client.data.X.sum(axis=0)}

    class Powers(Learner):
        def __init__(self, asked: str = "board_test.power") -> None:
            self.asked = asked

        def train(self, federation: Any) -> None:
            total = federation.ask(self.asked, {"power": 2}).fold(so.aggregations.Sum())
            self.sums_ = total["sum"]

    fed = owners(X, CLASSES, policy="sums")
    np.testing.assert_allclose(Powers().fit(fed).sums_, (X**2).sum(axis=0), rtol=1e-12)
    with pytest.raises(GateRefusal, match="nothing says which rows gave entry 'sum'") as refused:
        Powers("board_test.bare").fit(fed)
    assert "so.sum_by(None, values)" in str(refused.value)


def test_asks_that_are_no_sums_of_all_are_refused_by_name() -> None:
    fed = owners(X, CLASSES).closed_job("FedLinear")
    with pytest.raises(NotClosed, match="it asks some owners only"):
        fed.ask("board.persons", to=[0, 1]).fold(so.aggregations.Sum())
    with pytest.raises(NotClosed, match="read one by one"):
        fed.ask("board.persons").collect()
    with pytest.raises(NotClosed, match="which is no sum"):
        fed.ask("board.persons").fold(so.aggregations.Collect())


@pytest.mark.parametrize("learner", [so.FedScaler(), so.FedImputer()], ids=["scaler", "imputer"])
def test_the_form_of_a_sum_follows_from_no_owners_rows(learner: Any) -> None:
    """One owner alone has gaps, another has nothing at all of a column; sums are of one form."""
    uneven = X.copy()
    uneven[80:120, 3] = np.nan
    uneven[160:240, 4] = np.nan
    parts = [(uneven[i : i + 80], CLASSES[i : i + 80]) for i in range(0, 320, 80)]
    job = Job(learner, so.simulate(parts, seed=3, policy=EXACT))
    expected = job.simulated()
    assert "model" in decode(expected)
    assert {end.closed.result for end in job.run() if end.closed} == {expected}
    plain = learner.clone().fit(so.simulate(parts, seed=3))
    for name, value in numbers_of(plain).items():
        closed = learner.clone().fit(so.simulate(parts, seed=3, policy=EXACT))
        np.testing.assert_allclose(numbers_of(closed)[name], value, rtol=1e-9)

"""What people try first and what cannot be: the error says what to write instead."""

from __future__ import annotations

import numpy as np
import pytest

import solera as so
from solera.core.errors import DataError, UsageError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 4))
Y = (X[:, 0] > 0).astype(int)


def federation(**options):
    return so.simulate(X, Y, clients=4, seed=0, **options)


@pytest.mark.parametrize("part", ["validation", "test"])
def test_judging_rows_that_nobody_set_aside(part):
    judge = so.callbacks.Evaluate(part=part)
    with pytest.raises(DataError, match=rf"no client has {part} rows.*so\.simulate\({part}=0\.2\)"):
        so.FedLinear(rounds=1).fit(federation(), callbacks=[judge])


def test_writing_into_a_folder_that_is_missing(tmp_path):
    model = so.FedLinear(rounds=1).fit(federation())
    there = tmp_path / "missing"
    writes = [model.save]
    if pytest.importorskip("onnx", reason="the extra 'onnx' is not installed"):
        writes.append(model.export)
    for write in writes:
        with pytest.raises(UsageError) as error:
            write(there / "model")
        assert error.value.message == f"{there / 'model'}: there is no folder {there}"
        assert error.value.hint == f"mkdir -p '{there}'"
        assert not there.exists()


def test_reading_a_model_that_is_missing(tmp_path):
    file = tmp_path / "missing" / "model.sol"
    with pytest.raises(UsageError, match="No such file or directory") as error:
        so.load(file)
    assert str(file) in error.value.message
    assert "model.save(path)" in error.value.hint


def test_an_event_that_is_true_or_false():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=list("abcd"))
    frame["months"], frame["died"] = RNG.exponential(size=120), RNG.random(120) < 0.7

    def fit(table):
        return so.FedCox().fit(so.simulate(table, target=["months", "died"], clients=3, seed=0))

    with pytest.raises(DataError, match="target column 'died'") as error:
        fit(frame)
    assert "df['died'].astype(float)" in error.value.hint
    assert fit(frame.assign(died=frame["died"].astype(float))).events_ == frame["died"].sum()


@pytest.mark.parametrize("init", ["k-means||", "k-means++"])
def test_centroids_that_a_secure_federation_cannot_begin_with(init):
    with pytest.raises(UsageError, match=r"takes 'atoms', 'random' or k centroids"):
        so.FedKMeans(2, init=init).fit(federation(secure=True))
    so.FedKMeans(2, init="random").fit(federation(secure=True))


def table():
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame(X, columns=list("abcd")).assign(y=Y, id=[f"p{i}" for i in range(120)])


def test_several_targets_of_a_vertical_federation():
    with pytest.raises(UsageError, match=r"simulate_vertical\(target=\['y'\]\): target must be"):
        so.simulate_vertical(table(), columns={"A": ["a"], "B": ["b"]}, target=["y"], id="id")


@pytest.mark.parametrize(
    "learner",
    [
        so.FedHEONN(),
        so.FedLinear(rounds=1),
        so.FederatedTree(),
        so.FedScaler(),
        so.Pipeline(so.FedScaler(), so.FedHEONN()),
    ],
    ids=lambda learner: type(learner).__name__,
)
def test_learners_of_rows_over_clients_of_columns(learner):
    halves = {"A": ["a", "b"], "B": ["c", "d"]}
    federation = so.simulate_vertical(table(), columns=halves, target="y", id="id")
    with pytest.raises(DataError, match="different columns of the same people") as error:
        learner.fit(federation)
    assert "so.VerticalLogisticRegression()" in error.value.hint


@pytest.mark.parametrize("rows", [X, X.tolist(), None], ids=["array", "list", "None"])
def test_describing_what_is_no_federation(rows):
    with pytest.raises(UsageError, match=f"not {type(rows).__name__}") as error:
        so.describe(rows)
    assert "so.describe(so.simulate(X, y, clients=1))" in error.value.hint

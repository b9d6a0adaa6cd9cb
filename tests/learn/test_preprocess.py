"""Preprocessing learned from folds equals scikit-learn on the joined rows."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import solera as so
from solera.core.errors import DataError, UsageError
from solera.core.schema import Feature, Schema
from solera.learn.conditions import Condition
from solera.learn.preprocess import quantiles as module
from solera.learn.preprocess.quantiles import quantiles

rng = np.random.default_rng(0)
X = rng.normal(size=(300, 4)) * [1, 1e-3, 1e4, 0] + [0, 5, -1e6, 7]
Y = (X[:, 0] > 0).astype(int)


def skewed(X, y=None, **options):
    sizes = np.array([3, 100, 50, 147])
    schema = options.pop("schema", None)
    data = so.data.FederatedData(X, y, np.concatenate([[0], np.cumsum(sizes)]), schema=schema)
    return so.simulate(data)


def test_scaler():
    ours = so.FedScaler().fit(skewed(X, Y)).transform(X)
    np.testing.assert_allclose(ours, StandardScaler().fit_transform(X), atol=1e-6)
    far = X[:, :1] + 1e9  # sums of squares would lose all digits here
    scaled = so.FedScaler().fit(skewed(far)).transform(far)
    assert scaled.std() == pytest.approx(1, rel=1e-3)


def test_scaler_skips_gaps_and_categories():
    gappy = X.copy()
    gappy[::7, 0] = np.nan
    schema = Schema((Feature("a"), Feature("b"), Feature("c", "categorical", ("x",)), Feature("d")))
    scaler = so.FedScaler().fit(skewed(gappy, schema=schema))
    assert scaler.mean_[0] == pytest.approx(np.nanmean(gappy[:, 0]))
    assert scaler.scale_[0] == pytest.approx(np.nanstd(gappy[:, 0]))
    assert (scaler.transform(gappy)[:, 2] == gappy[:, 2]).all()
    assert np.isnan(scaler.transform(gappy)[0, 0])


def test_scaler_on_sparse_rows():
    dense = np.where(rng.random((300, 3)) < 0.2, 1.0, 0.0)
    scaler = so.FedScaler().fit(skewed(scipy.sparse.csr_matrix(dense)))
    expected = StandardScaler(with_mean=False).fit_transform(dense)
    np.testing.assert_allclose(
        scaler.transform(scipy.sparse.csr_matrix(dense)).toarray(), expected, rtol=1e-9
    )


@pytest.mark.parametrize("strategy", ["mean", "median"])
def test_imputer(strategy):
    gappy = X.copy()
    gappy[rng.random(X.shape) < 0.2] = np.nan
    ours = so.FedImputer(strategy).fit(skewed(gappy)).transform(gappy)
    expected = SimpleImputer(strategy=strategy).fit_transform(gappy)
    spacing = np.ptp(X, axis=0).max() * 0.05 if strategy == "median" else 1e-6
    np.testing.assert_allclose(ours, expected, rtol=1e-3, atol=min(spacing, 2))
    assert np.isfinite(ours).all()


def test_imputer_takes_the_commonest_category():
    column = np.array([0, 1, 1, 2, np.nan] * 60)[:, None]
    schema = Schema((Feature("c", "categorical", ("x", "y", "z")),))
    filled = so.FedImputer().fit(skewed(column, schema=schema)).transform(column)
    assert (filled[4::5] == 1).all()


@given(st.lists(st.floats(-1e6, 1e6, allow_subnormal=False), min_size=3, max_size=60),
       st.lists(st.floats(0, 1), min_size=1, max_size=5))  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_quantiles_from_counts(values, levels):
    column = np.array(values)[:, None]
    column[np.abs(column) < 1e-9] = 0
    fed = so.simulate(column, clients=3)
    found = quantiles(fed, levels, 1)[0]
    expected = np.quantile(column[:, 0], levels, method="inverted_cdf")
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-12)
    assert (found >= expected).all()


def test_of_columns_that_are_not_asked_for_no_quantile_is_counted(monkeypatch):
    asked = []
    real = module._counted

    def watched(federation, edges, *rest):
        asked.append(edges)
        return real(federation, edges, *rest)

    monkeypatch.setattr(module, "_counted", watched)
    fed, levels = skewed(X), [0.1, 0.5, 0.9]
    some = quantiles(fed, levels, 4, only=np.array([True, False, True, False]))
    narrowing = asked[1:]
    assert all((edges[[1, 3]] == 0).all() for edges in narrowing)
    assert all((edges[[0, 2]] != 0).any() for edges in narrowing)
    assert np.array_equal(some[[0, 2]], quantiles(fed, levels, 4)[[0, 2]])


def test_bins_hold_equal_numbers_and_name_their_ends():
    fed = skewed(X, Y)
    bins = so.FedBins(5).fit(fed)
    codes = bins.transform(X)
    assert np.bincount(codes[:, 0].astype(int)).tolist() == [60] * 5
    assert np.unique(codes[:, 3]).tolist() == [0]  # a constant column has nothing to cut
    feature = bins.transform_schema(fed.schema).features[0]
    assert feature.kind == "categorical"
    assert feature.categories[0].startswith("(-∞")
    assert len(feature.categories) == 5
    with pytest.raises(UsageError, match="bins"):
        so.FedBins(1).fit(fed)


def test_onehot():
    column = rng.integers(0, 3, size=(300, 1)).astype(float)
    schema = Schema((Feature("c", "categorical", ("x", "y", "z")),))
    encoder = so.FedEncoder().fit(skewed(column, schema=schema))
    assert np.array_equal(
        encoder.transform(column), OneHotEncoder(sparse_output=False).fit_transform(column)
    )
    assert (encoder.transform(np.array([[np.nan], [7.0]])) == 0).all()
    names = [f.name for f in encoder.transform_schema(schema).features]
    assert names == ["c=x", "c=y", "c=z"]


def test_clients_with_category_lists_of_their_own():
    agreed = Schema((Feature("c", "categorical", ("blue", "green", "red")),))
    mine = Schema((Feature("c", "categorical", ("red", "blue")),))
    encoder = so.FedEncoder("ordinal")
    encoder.set_state({"schema_": {"$schema": agreed.to_payload()}})
    recoded = encoder.transform_rows(np.array([[0.0], [1.0], [np.nan]]), mine)
    assert recoded[:2, 0].tolist() == [2, 0]
    assert np.isnan(recoded[2, 0])


def test_pipeline_prepares_at_the_clients_and_predicts_raw_rows():
    fed = skewed(X, Y)
    pipe = so.Pipeline(so.FedScaler(), so.FedLinear(rounds=20, lr=0.5)).fit(fed)
    assert pipe.score(X, Y) > 0.9
    scaled = so.FedScaler().fit(fed).transform(X)
    by_hand = so.FedLinear(rounds=20, lr=0.5).fit(skewed(scaled, Y))
    np.testing.assert_allclose(pipe.steps_[-1].coef_, by_hand.coef_, rtol=1e-9)
    assert len(pipe.history_) == 20
    np.testing.assert_allclose(pipe.predict_proba(X).sum(axis=1), 1)


def test_pipeline_on_lazy_data_and_workers():
    def generate(client, rng):
        X = 100 + 10 * rng.normal(size=(30, 2))
        return X, (X[:, 0] > 100).astype(int)

    scores = []
    for engine in ({}, {"engine": "processes", "workers": 2}):
        with so.simulate(so.data.LazyData(generate, clients=20), seed=1, **engine) as fed:
            pipe = so.Pipeline(so.FedScaler(), so.FedLinear(rounds=10, lr=0.5)).fit(fed)
        X, y = generate(0, np.random.default_rng(9))
        scores.append(pipe.score(X, y))
    assert scores[0] == scores[1] > 0.9


def test_wrong_pipelines():
    with pytest.raises(UsageError, match="no steps"):
        so.Pipeline().fit(skewed(X, Y))
    with pytest.raises(UsageError, match="must come last"):
        so.Pipeline(so.FedLinear(), so.FedScaler()).fit(skewed(X, Y))
    with pytest.raises(DataError, match="sparse"):
        so.FedImputer().fit(skewed(X)).transform(scipy.sparse.csr_matrix(X))


@pytest.mark.filterwarnings("ignore::solera.simulate.epochs.DraftedDictionary")
def test_rare_categories_share_a_column_in_a_closed_job(tmp_path):
    """The sum of a 0/1 column counts persons exactly, so nobody rare has one alone."""
    pd = pytest.importorskip("pandas")
    draw = np.random.default_rng(0)
    ward = draw.choice(["a", "b", "c", "d"], 400, p=[0.6, 0.36, 0.02, 0.02])
    frame = pd.DataFrame({"ward": ward, "age": draw.normal(50, 9, 400).round(2)})
    fed = so.simulate(frame, clients=4, policy="sums")
    assert (fed.atoms.groups("ward") == [0, 1, 2, 2]).all()
    shared = so.FedEncoder().fit(fed)
    dummy = so.FedEncoder("dummy").fit(fed)
    names = [feature.name for feature in shared.transform_schema(shared.schema_).features]
    assert names == ["ward=a", "ward=b", "ward=c or d", "age"]
    marks = shared.transform(frame)
    expected = [ward == "a", ward == "b", (ward == "c") | (ward == "d"), frame.age]
    np.testing.assert_array_equal(marks, np.stack(expected, axis=1))
    np.testing.assert_array_equal(dummy.transform(frame), marks[:, 1:])
    condition = Condition.on(
        shared.transform_schema(shared.schema_).features[2], 2, 0.5, 1.0, False
    )
    assert shared.condition_before(condition).predicate == "= c or d"
    free = so.FedEncoder().fit(so.simulate(frame, clients=4))
    assert free.transform(frame).shape == (400, 5)
    assert "atoms_" not in vars(free)
    with pytest.raises(so.errors.UsageError, match="rare categories of 'ward' share a column"):
        shared.to_sklearn()
    assert (
        so.load(shared.save(tmp_path / "encoder.sol")).transform(frame).tolist() == marks.tolist()
    )
    onnx = pytest.importorskip("onnxruntime")
    model = so.Pipeline(so.FedEncoder(), so.FedHEONN()).fit(
        so.simulate(frame.assign(old=frame.age > 50), target="old", clients=4, policy="sums")
    )
    session = onnx.InferenceSession(str(model.export(tmp_path / "model.onnx")))
    exported = session.run(None, model.onnx_inputs(frame))
    assert (np.array(exported[0]).ravel() == model.predict(frame)).all()

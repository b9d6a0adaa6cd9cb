"""Learners follow scikit-learn's conventions, and its tools work over a federation."""

from __future__ import annotations

import logging
import warnings

import numpy as np
import pytest
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.utils.estimator_checks import check_estimator

import solera as so
from solera.core.errors import DataError, UsageError

pd = pytest.importorskip("pandas")

CHECKED = [
    so.FedHEONN(),
    so.FedLinear(rounds=5),
    so.FedForest(trees=3),
    so.FedHistGBDT(rounds=2),
    so.FederatedTree(),
    pytest.param(so.FedKMeans(2), marks=pytest.mark.slow),
    so.FedScaler(),
    so.FedImputer(),
    so.FedBins(4),
    so.FedEncoder(),
    so.FedColumns((so.FedScaler(), [0])),
    so.Pipeline(so.FedScaler(), so.FedLinear(rounds=3)),
]
EXCEPTIONS = {
    "check_do_not_raise_errors_in_init_or_set_params": (
        "a parameter that makes no sense is refused when a component is made"
    ),
    "check_dtype_object": "objects that are no numbers are a DataError, not a TypeError",
}
OF_STEPS = {
    "check_no_attributes_set_in_init": "steps are the constructor's *args, as they read best",
    "check_parameters_default_constructible": "without steps there is nothing to do",
    "check_set_params": "steps that are a number are refused at once",
}


@pytest.mark.parametrize("estimator", CHECKED, ids=lambda e: type(e).__name__)
def test_scikit_learn_s_own_checks_pass(estimator):
    several = isinstance(estimator, so.Pipeline | so.FedColumns)
    expected = {**EXCEPTIONS, **(OF_STEPS if several else {})}
    logging.getLogger("solera").disabled = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            checks = check_estimator(
                estimator, expected_failed_checks=expected, on_fail=None, on_skip=None
            )
    finally:
        logging.getLogger("solera").disabled = False
    failed = {c["check_name"]: c["exception"] for c in checks if c["status"] == "failed"}
    assert not failed
    assert sum(check["status"] == "passed" for check in checks) > 30


def federation(clients=6, **options):
    X, y, _, _ = so.datasets.breast_cancer()
    return so.simulate(X, y, clients=clients, seed=1, **options)


def test_what_a_learner_knows_of_its_input():
    frame = pd.DataFrame({"age": [1.0, 2.0], "bmi": [2.0, 3.0], "ill": ["no", "yes"]})
    model = so.FedHEONN(activation="linear")
    for name in ("classes_", "n_features_in_", "feature_names_in_"):
        assert not hasattr(model, name)
    with pytest.raises(NotFittedError):
        model.predict(frame)
    model.fit(so.simulate(frame, target="ill", clients=1))
    assert model.classes_.tolist() == ["no", "yes"]
    assert model.n_features_in_ == 2
    assert model.feature_names_in_.tolist() == ["age", "bmi"]
    model.fit(so.simulate(np.eye(4), [0.5, 1.5, 2.5, 3.5], clients=2))
    assert not hasattr(model, "classes_")
    assert not hasattr(model, "feature_names_in_")


def test_learners_are_classifiers_or_regressors_once_they_are_fitted():
    model = so.FedHEONN(activation="linear")
    assert not is_classifier(model)
    assert is_classifier(model.fit(so.simulate(np.eye(4), [0, 1, 0, 1], clients=2)))
    assert is_regressor(model.fit(so.simulate(np.eye(4), [0.5, 1.5, 2.5, 3.5], clients=2)))
    assert so.FedScaler().__sklearn_tags__().estimator_type == "transformer"


def test_steps_have_names_and_parameters_of_their_own():
    pipe = so.Pipeline(("scale", so.FedScaler()), so.FedHEONN(lam=0.5))
    assert pipe.get_params()["fedheonn__lam"] == 0.5
    assert list(pipe.named_steps) == ["scale", "fedheonn"]
    copy = clone(pipe).set_params(fedheonn=so.FedLinear(rounds=2), fedheonn__lr=0.3)
    assert copy.named_steps["fedheonn"] == so.FedLinear(rounds=2, lr=0.3)
    assert pipe.get_params()["fedheonn__lam"] == 0.5
    with pytest.raises(UsageError, match="no parameter 'model'"):
        pipe.set_params(model__lam=1)
    twice = so.Pipeline(so.FedBins(4), so.FedBins(2), so.FedHEONN())
    assert list(twice.named_steps) == ["fedbins-1", "fedbins-2", "fedheonn"]
    with pytest.raises(UsageError, match="same name"):
        so.Pipeline(("a", so.FedScaler()), ("a", so.FedHEONN()))
    with pytest.raises(UsageError, match="cannot be called 'steps'"):
        so.Pipeline(("steps", so.FedScaler()), so.FedHEONN())
    with pytest.raises(UsageError, match="must be a list, each a Learner or"):
        so.Pipeline(("a", 3), so.FedHEONN())


def test_a_pipeline_with_names_is_saved_with_them(tmp_path):
    pipe = so.Pipeline(("scale", so.FedScaler()), ("model", so.FedHEONN())).fit(federation())
    loaded = so.load(pipe.save(tmp_path / "model.sol"))
    assert loaded == pipe
    assert repr(loaded) == repr(pipe)
    assert loaded.named_steps["scale"].mean_.shape == (30,)


def test_folds_inside_clients_validate_every_row_once_and_keep_all_clients():
    fed = federation(partition=so.Dirichlet(1.0))
    seen = np.zeros(fed.shape[0], dtype=int)
    for train, validated in so.simulation.FoldsInClients(4).split(fed):
        seen[validated] += 1
        part, held = fed[train], fed[validated]
        assert len(part) == len(fed)
        sizes = fed.data.sizes()
        assert np.array_equal(part.data.sizes() + np.diff(held.data.offsets), sizes)
        assert (np.abs(held.data.sizes() - sizes / 4) < 1).all()
    assert (seen == 1).all()


def test_folds_over_clients_keep_every_client_whole():
    fed = federation(partition=so.Dirichlet(1.0))
    owner = np.repeat(np.arange(6), fed.data.sizes())
    held = [set(owner[v]) for _, v in so.simulation.FoldsOverClients(3).split(fed)]
    assert sorted(k for clients in held for k in clients) == list(range(6))
    train, validated = next(iter(so.simulation.FoldsOverClients(3).split(fed)))
    assert not set(owner[train]) & set(owner[validated])
    assert len(fed[validated]) == 2
    with pytest.raises(UsageError, match="at least as many clients, there are 6"):
        next(so.simulation.FoldsOverClients(7).split(fed))
    with pytest.raises(UsageError, match="rows of a simulated federation, not ndarray"):
        next(so.simulation.FoldsInClients(3).split(np.eye(9)))


def test_some_rows_of_a_federation_stay_with_their_clients():
    frame = pd.DataFrame({"town": ["Vigo", "Lugo", "Noia"] * 4, "x": range(12), "y": [0, 1] * 6})
    fed = so.simulate(frame, target="y", group="town", test=0.25)
    assert fed.shape == (9, 1)
    some = fed[np.array([0, 1, 8])]
    assert some.names == fed.names == ("Lugo", "Noia", "Vigo")
    assert some.clients.tolist() == [0, 2]
    assert some.data.sizes().tolist() == [2, 0, 1]
    assert some.data.sizes("test").tolist() == [1, 0, 1]
    rows = [fed.data.segments(np.array([k]), "train")[0].X for k in range(3)]
    assert np.array_equal(some.data.X[:2], rows[0][:2])
    assert np.array_equal(some.data.segments(np.array([2]), "train")[0].X, rows[2][-1:])
    with pytest.raises(DataError, match="no row is chosen"):
        fed[np.zeros(0, dtype=int)]


@pytest.mark.parametrize("cv", [so.simulation.FoldsInClients(3), so.simulation.FoldsOverClients(3)])
def test_cross_validation_over_a_federation(cv):
    fed = federation()
    learner = so.Pipeline(so.FedScaler(), so.FedHEONN())
    scores = cross_val_score(learner, fed, cv=cv)
    by_hand = [learner.clone().fit(fed[train]).score(fed[held]) for train, held in cv.split(fed)]
    assert scores.tolist() == by_hand
    assert scores.min() > 0.9
    data, held = fed.data, next(iter(cv.split(fed)))[1]
    model = learner.clone().fit(fed[next(iter(cv.split(fed)))[0]])
    assert scores[0] == pytest.approx(model.score(data.X[held], data.y[held]))


def test_grid_search_over_a_federation():
    _, _, X_test, y_test = so.datasets.breast_cancer()
    search = GridSearchCV(
        so.Pipeline(so.FedScaler(), ("model", so.FedHEONN())),
        {"model__lam": [1e-2, 1e4]},
        cv=so.simulation.FoldsInClients(3),
        scoring=lambda model, fed: model.evaluate(fed, "train")["macro_f1"],
    ).fit(federation())
    assert search.best_params_ == {"model__lam": 1e-2}
    assert search.best_estimator_.score(X_test, y_test) > 0.9
    assert search.predict(X_test[:3]).shape == (3,)


def test_other_transformers_for_other_columns():
    frame = pd.DataFrame(
        {
            "age": [20.0, 40.0, 60.0, 80.0],
            "bmi": [20.0, np.nan, 30.0, 25.0],
            "smokes": ["no", "yes", "no", None],
            "y": [0, 1, 0, 1],
        }
    )
    columns = so.FedColumns(
        ("years", so.FedScaler(), ["age"]), ("texts", so.FedEncoder(), "categorical")
    )
    fed = so.simulate(frame, target="y", clients=2)
    fitted = columns.clone().fit(fed)
    age = frame["age"].to_numpy()
    expected = np.column_stack(
        [(age - 50) / age.std(), [1, 0, 1, 0], [0, 1, 0, 0], frame["bmi"].to_numpy()]
    )
    assert np.allclose(fitted.transform(frame), expected, equal_nan=True)
    names = [f.name for f in fitted.transform_schema(fitted.schema_).features]
    assert names == ["age", "smokes=no", "smokes=yes", "bmi"]
    dropped = so.FedColumns((so.FedScaler(), [0]), remainder="drop").fit(fed)
    assert dropped.transform(frame).shape == (4, 1)
    model = so.Pipeline(columns, so.FedImputer(), so.FedHEONN()).fit(fed)
    assert model.predict(frame).shape == (4,)
    assert columns.get_params()["years"] == so.FedScaler()
    assert columns.clone().set_params(years=so.FedImputer()).parts[0][1] == so.FedImputer()
    with pytest.raises(UsageError, match="is not a part"):
        so.FedColumns((so.FedLinear(), ["age"]))
    with pytest.raises(DataError, match=r"no column 'agee'.*'age'"):
        so.FedColumns((so.FedScaler(), ["agee"])).fit(fed)


def test_columns_are_transformed_at_the_clients_as_here(tmp_path):
    frame = pd.DataFrame({"a": range(12), "b": list("xyz") * 4, "y": [0.5 * i for i in range(12)]})
    fed = so.simulate(frame, target="y", clients=3)
    columns = so.FedColumns((so.FedScaler(), "numeric"), (so.FedEncoder(), ["b"]))
    model = so.Pipeline(columns, so.FedHEONN(activation="linear", lam=1e-9)).fit(fed)
    assert model.score(frame) == pytest.approx(1.0)
    loaded = so.load(model.save(tmp_path / "model.sol"))
    assert np.array_equal(loaded.predict(frame), model.predict(frame))
    assert loaded.evaluate(fed, "train")["r2"] == pytest.approx(1.0)

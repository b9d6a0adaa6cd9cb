"""Fitted learners as the estimators of scikit-learn that predict the same.

Estimators are fitted by scikit-learn itself, on rows made so that it learns what was learned here,
and then given the exact numbers.
"""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import numpy as np

from solera.core.errors import UsageError
from solera.learn.base import Learner
from solera.learn.cluster.kmeans import FedKMeans
from solera.learn.linear import FedLinear
from solera.learn.preprocess.columns import FedEncoder, FedImputer, FedScaler
from solera.learn.preprocess.pipeline import Pipeline


def to_sklearn(learner: Learner) -> Any:
    """The fitted estimator of scikit-learn that is this model; it takes rows as numbers."""
    learner.check_fitted()
    return _counterpart(learner)


@singledispatch
def _counterpart(learner: Any) -> Any:
    raise UsageError(
        f"{type(learner).__name__} has no exact counterpart in scikit-learn",
        hint='model.export("model.onnx") writes it for any runtime of ONNX',
    )


@_counterpart.register
def _linear(learner: FedLinear) -> Any:
    from sklearn.linear_model import LinearRegression, LogisticRegression

    schema = learner.schema_
    coef, intercept = learner.coef_.T, learner.intercept_
    if schema.target == "labels":
        raise UsageError(
            "FedLinear of labels has no exact counterpart in scikit-learn",
            hint='model.export("model.onnx") writes it for any runtime of ONNX',
        )
    model: Any
    if schema.target == "numbers":
        model = LinearRegression()
        single = schema.outputs == 1
        model.coef_ = coef[0] if single else coef
        model.intercept_ = float(intercept[0]) if single else intercept
    else:
        model = LogisticRegression()
        if len(schema.classes) == 2:  # one score, the difference of the two
            coef, intercept = coef[1:] - coef[:1], intercept[1:] - intercept[:1]
        model.coef_, model.intercept_ = coef, intercept
        model.classes_ = schema.classes
        model.n_iter_ = np.array([len(learner.history_)])
    model.n_features_in_ = schema.width
    return model


@_counterpart.register
def _scaler(learner: FedScaler) -> Any:
    from sklearn.preprocessing import StandardScaler

    mean, scale = learner.mean_, learner.scale_
    model = StandardScaler().fit(np.stack([mean - scale, mean + scale]))
    model.mean_, model.scale_, model.var_ = mean, scale, scale**2
    return model


@_counterpart.register
def _imputer(learner: FedImputer) -> Any:
    from sklearn.impute import SimpleImputer

    return SimpleImputer().fit(learner.fill_[None])  # the mean of one row is that row


@_counterpart.register
def _encoder(learner: FedEncoder) -> Any:
    from sklearn.compose import ColumnTransformer
    from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder

    features = learner.schema_.features
    parts: list[tuple[str, Any, list[int]]] = []
    for j, feature in enumerate(features):
        codes = [np.arange(len(feature.categories), dtype=np.float64)]
        step: Any = "passthrough"
        if (marked := learner.marked(j)) is not None:
            if any(len(some) > 1 for some in marked):
                raise UsageError(
                    f"rare categories of {feature.name!r} share a column, which the encoder of "
                    "scikit-learn does not know",
                    hint="make them one category in the dictionary, or model.export(…) writes ONNX",
                )
            drop = "first" if learner.kind == "dummy" else None
            step = OneHotEncoder(
                categories=codes, drop=drop, handle_unknown="ignore", sparse_output=False
            )
        elif feature.kind == "categorical":
            rule: dict[str, Any] = {"handle_unknown": "use_encoded_value", "unknown_value": np.nan}
            step = OrdinalEncoder(categories=codes, **rule)
        parts.append((feature.name, step, [j]))
    return ColumnTransformer(parts).fit(np.zeros((1, len(features))))


@_counterpart.register
def _k_means(learner: FedKMeans) -> Any:
    from solera.learn.export.sklearn_kmeans import KMeans

    centroids = learner.centroids_
    model = KMeans(len(centroids), init=centroids, n_init=1, max_iter=1).fit(centroids)
    model.cluster_centers_, model.inertia_ = centroids, learner.inertia_
    return model


@_counterpart.register
def _pipeline(learner: Pipeline) -> Any:
    from sklearn.pipeline import Pipeline as Steps

    return Steps([(name, _counterpart(step)) for name, step in learner.named_steps.items()])

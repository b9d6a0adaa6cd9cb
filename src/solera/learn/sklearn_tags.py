"""Learners as scikit-learn's tools see them."""

from __future__ import annotations

from typing import Any


def tags_of(learner: Any) -> Any:
    """The tags of a learner.

    Many predict classes as well as numbers, and are classifiers or regressors once they are fitted.
    """
    from sklearn.utils import (
        ClassifierTags,
        InputTags,
        RegressorTags,
        Tags,
        TargetTags,
        TransformerTags,
    )

    schema = vars(learner).get("schema_")
    target = "" if schema is None else schema.target
    transforms = hasattr(learner, "transform")
    if learner.predicts:
        kinds = {"classes": "classifier", "labels": "classifier", "numbers": "regressor"}
        kind = kinds.get(target)
    else:
        kind = "transformer" if transforms else "clusterer"
    return Tags(
        estimator_type=kind,
        target_tags=TargetTags(required=learner.predicts, multi_output=target == "labels"),
        classifier_tags=ClassifierTags() if hasattr(learner, "predict_proba") else None,
        regressor_tags=RegressorTags() if kind == "regressor" else None,
        transformer_tags=TransformerTags() if transforms else None,
        input_tags=InputTags(sparse=learner.allows_sparse, allow_nan=learner.allows_missing),
        requires_fit=True,
        non_deterministic=False,
    )

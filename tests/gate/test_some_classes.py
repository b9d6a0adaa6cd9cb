"""A client that holds only some of the agreed classes takes part; invented ones do not pass."""

from __future__ import annotations

import numpy as np
import pytest

import solera as so
from solera.core.component import describe_fitted
from solera.core.errors import Refusal
from solera.core.schema import infer
from solera.core.task import find_task
from solera.trust.declared import build_checked, check_payload

rng = np.random.default_rng(0)
X = rng.normal(size=(300, 3))
SOME = infer(X, (X[:, 0] > 0).astype(int))


def ask(outputs, classes):
    weights = {"coef": np.zeros((3, outputs)), "intercept": np.zeros(outputs)}
    steps = {"loss": "softmax", "lr": 0.1, "epochs": 1, "batch_size": None, "l2": 0.0}
    return {**weights, "classes": np.asarray(classes), **steps}


def test_a_client_with_some_of_the_classes_is_asked_with_all():
    check_payload(find_task("linear.train"), ask(3, [0, 1, 2]), SOME)


@pytest.mark.parametrize(
    ("outputs", "classes"), [(3, [0, 2, 5]), (3, [0, 1, 2, 3]), (3, [0, 1]), (2000, range(2000))]
)
def test_other_outputs_than_the_agreed_classes_are_refused(outputs, classes):
    with pytest.raises(Refusal, match="outputs are"):
        check_payload(find_task("linear.train"), ask(outputs, classes), SOME)


def test_a_model_of_all_classes_is_judged_on_rows_of_some():
    y = rng.integers(0, 3, len(X))
    model = so.FedLinear(rounds=1).fit(so.simulate(X, y, clients=2, seed=0))
    build_checked(describe_fitted(model), SOME)
    model.coef_ = np.zeros((3, 300))
    with pytest.raises(Refusal, match="outputs are 3"):
        build_checked(describe_fitted(model), SOME)

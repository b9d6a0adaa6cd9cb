"""What an honest-but-curious party learns of the others: attacks on what protocols let it read.

Each party follows the protocol and computes on what it is sent anyway. ``docs/how-to/vertical.md``
and the learners' documentation print these figures.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import cross_val_predict

import solera as so
from solera.learn.vertical import split_tasks
from solera.learn.vertical.boosting import label_owner
from solera.learn.vertical.boosting.candidates import Candidates
from solera.learn.vertical.regression.design import Design

pytest.importorskip("tenseal", reason="the extra 'he' is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::solera.privacy.additive.WeakCipher")
"""All ciphers decrypt to the same numbers, to the bit; these tests take the fast one."""


def cancer(rows=None):
    """Breast cancer in a random order, of which nothing is set aside."""
    data = so.datasets.breast_cancer()
    X, y = data.all
    order = np.random.default_rng(0).permutation(len(y))[:rows]
    return replace(data, X=X[order], y=y[order], X_test=X[:0], y_test=y[:0])


def columns_of(data):
    names = [feature.name for feature in data.schema.features]
    return {"clinic": names[:10], "laboratory": names[10:]}


@pytest.mark.parametrize(
    ("rounds", "rebuilt"), [(50, 0.987), pytest.param(100, 0.999, marks=pytest.mark.slow)]
)
def test_the_label_owner_of_secure_boost_rebuilds_the_others_binned_rows(
    monkeypatch, rounds, rebuilt
):
    """Every sum of gradients of a node is an equation of who is left of a candidate."""
    data = cancer()
    equations, answers = [], []
    read_sums = label_owner._all_sums

    def record(client, ask, state, tree, received):
        sums = read_sums(client, ask, state, tree, received)
        own, others = state["layout"][0][1], state["layout"][1][1]
        by_row = np.stack(tree.units.unpacked(state["carried"].T.astype(np.int64)))
        by_candidate = np.stack(tree.units.unpacked(sums.transpose(2, 0, 1)))
        for i, node in enumerate(tree.wanted):
            terms = np.where(state["at"] == node, by_row, 0).astype(float)
            scale = np.abs(terms).max(axis=1, keepdims=True)
            equations.append(terms / scale)
            answers.append(by_candidate[:, i, own : own + others] / scale)
        return sums

    monkeypatch.setattr(label_owner, "_all_sums", record)
    columns = columns_of(data)
    columns["laboratory"] = columns["laboratory"][:10]
    fed = so.simulate_vertical(data, columns=columns, labels="clinic")
    drawn = []
    of = Candidates.of
    monkeypatch.setattr(Candidates, "of", lambda *given: drawn.append(of(*given)) or drawn[-1])
    so.SecureBoost(rounds=rounds, align="order", cipher="plain").fit(fed)

    sides = np.linalg.lstsq(np.concatenate(equations), np.concatenate(answers), rcond=1e-13)[0]
    laboratory = drawn[1]
    actual = laboratory.matrix(laboratory.cells(data.X[:, 10:20])).astype(bool)
    guessed = np.maximum(actual.mean(axis=0), 1 - actual.mean(axis=0)).mean()
    assert guessed < 0.75
    assert ((sides > 0.5) == actual).mean() == pytest.approx(rebuilt, abs=0.004)


@pytest.mark.parametrize(("columns", "rows"), [(5, 40), (10, 80), (20, 400)])
def test_the_first_gradient_of_a_logistic_regression_tells_all_labels_of_its_batch(columns, rows):
    """At coefficients of 0 the gradient is Xᵀ(½ − y), in whole numbers, with y of 0 and 1."""
    data = cancer(rows)
    own = columns_of(data)["laboratory"][:columns]
    parties = {"clinic": columns_of(data)["clinic"][:2], "laboratory": own}
    fed = so.simulate_vertical(data, columns=parties, labels="clinic")
    lr = 0.1
    options = {"epochs": 1, "batch_size": rows, "align": "order", "cipher": "plain"}
    model = so.VerticalLogisticRegression(lr=lr, **options).fit(fed)
    part = model.part(fed, "laboratory")

    design = Design.from_payload(part["design"])
    X = design.whole(design.matrix(data.X[:, 10 : 10 + columns]))
    gradient = -part["coef"] / lr * rows * design.unit
    sums = np.rint(X.sum(axis=0) / 2 - gradient)
    found = milp(
        np.zeros(rows),
        constraints=LinearConstraint(X.T, sums, sums),
        integrality=np.ones(rows),
        bounds=Bounds(0, 1),
    )
    labels = np.array(data.class_names)[data.y] == model.schema_.classes[1]
    assert (np.rint(found.x).astype(bool) == labels).all()


def test_the_noise_of_a_split_network_averages_out_over_epochs(monkeypatch):
    """The label owner takes the mean of what the shop sent of each row in all epochs."""
    torch = pytest.importorskip("torch", reason="the extra 'torch' is not installed")
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    people = pd.DataFrame(rng.normal(size=(240, 6)), columns=list("abcdef"))
    people["y"] = (people.a + people.d + 0.3 * rng.normal(size=240) > 0).astype(int)
    parties = {"bank": ["a", "b", "c"], "shop": ["d", "e", "f"]}
    fed = so.simulate_vertical(people, columns=parties, target="y", labels="bank")
    received, places = [], []
    read_inputs, read_rows = split_tasks.inputs_of, split_tasks.batch_rows

    def record_rows(*given):
        places.append(np.array(read_rows(*given)))
        return places[-1]

    def record_inputs(*given):
        inputs = read_inputs(*given)
        received.append(inputs[1].detach().numpy()[np.argsort(places[-1])])
        return inputs

    monkeypatch.setattr(split_tasks, "batch_rows", record_rows)
    monkeypatch.setattr(split_tasks, "inputs_of", record_inputs)
    options = {"batch_size": None, "optimiser": "adam", "lr": 0.01, "align": "order"}
    so.SplitNN(4, epochs=200, noise=2.0, **options).fit(fed)

    def explained(sent):
        """The share of the variance of the shop's columns that is read out of what it sent."""
        X = people[["d", "e", "f"]].to_numpy()
        guess = cross_val_predict(RidgeCV(np.logspace(-3, 3, 7)), sent, X, cv=5)
        return 1 - ((X - guess) ** 2).sum() / ((X - X.mean(axis=0)) ** 2).sum()

    assert explained(received[-1]) == pytest.approx(0.39, abs=0.05)
    assert explained(np.mean(received, axis=0)) == pytest.approx(0.72, abs=0.05)

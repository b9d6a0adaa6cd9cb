"""Gram matrices as contributions: numbers, persons, what a row changes, samples of rows."""

from __future__ import annotations

import numpy as np
import pytest

import solera as so
from solera.core.clients import Client, Draws
from solera.core.errors import UsageError
from solera.core.task import find_task
from solera.trust.cells import Behind
from solera.trust.constructors import gram
from solera.trust.contributions import Contribution, entries_of
from solera.trust.members import Members, symmetric

draw = np.random.default_rng(0)
X = np.column_stack([np.ones(40), draw.normal(size=(40, 3)), np.arange(40) < 12])
Y = draw.normal(size=(40, 2))
W = draw.uniform(0, 2, (40, 3))
CODE = draw.integers(0, 3, 40)


def slow(X, Y, w):
    return sum(w[i] * np.outer(X[i], Y[i]) for i in range(len(X)))


def test_numbers_are_sums_over_rows():
    whole = Behind(40)
    np.testing.assert_allclose(symmetric(gram(X).numbers(whole)), slow(X, X, np.ones(40)))
    several = symmetric(gram(X, weights=W).numbers(whole))
    np.testing.assert_allclose(several, [slow(X, X, w) for w in W.T])
    signed = gram(X, weights=W[:, 0] - 1)
    np.testing.assert_allclose(symmetric(signed.numbers(whole)), slow(X, X, W[:, 0] - 1))
    for marks in (CODE[:, None] == np.arange(3), (CODE[:, None] == np.arange(3)) * 1.0):
        of_classes = [slow(X, X, mark) for mark in np.asarray(marks, dtype=float).T]
        np.testing.assert_allclose(symmetric(gram(X, weights=marks).numbers(whole)), of_classes)
    by_cell = symmetric(gram(X, cell=CODE, cells=3).numbers(whole))
    np.testing.assert_allclose(by_cell, of_classes)
    alike = symmetric(gram(X, weights=np.array([[0.5]])).numbers(whole))
    np.testing.assert_allclose(alike, [slow(X, X, np.full(40, 0.5))])
    np.testing.assert_allclose(gram(X, Y).numbers(whole), slow(X, Y, np.ones(40)))


def test_several_clients_at_once_are_each_by_itself():
    owners = np.repeat([0, 1, 2], [10, 25, 5])
    for options in ({}, {"weights": W}, {"cell": CODE, "cells": 3}):
        together = gram(X, **options).numbers(Behind(40, owners, 3))
        for k in range(3):
            mine = owners == k
            own = {name: v if name == "cells" else v[mine] for name, v in options.items()}
            alone = gram(X[mine], **own).numbers(Behind(int(mine.sum())))
            np.testing.assert_array_equal(together[k], alone)


@pytest.mark.parametrize("options", [{}, {"weights": W}, {"cell": CODE, "cells": 3}])
@pytest.mark.parametrize("chunk", [1 << 24, 30])
def test_members_are_matrices_of_their_rows_and_columns(options, chunk, monkeypatch):
    monkeypatch.setattr("solera.trust.members._CHUNK", chunk)
    rows, columns = draw.integers(0, 40, (6, 15)), draw.integers(0, 5, (6, 3))
    members = Members(X, rows, columns)
    grams, moments = gram(members, **options), gram(members, Y)
    matrices = grams.numbers(Behind(40))
    for t in range(6):
        own = {name: v if name == "cells" else v[rows[t]] for name, v in options.items()}
        A = X[np.ix_(rows[t], columns[t])]
        np.testing.assert_allclose(matrices[t], gram(A, **own).numbers(Behind(15)))
        np.testing.assert_allclose(moments.numbers(Behind(40))[t], A.T @ Y[rows[t]])
    one = Members(X)
    every = gram(one, **options).numbers(Behind(40))
    np.testing.assert_allclose(every[0], gram(X, **options).numbers(Behind(40)))


def test_what_is_sampled_together_is_made_once():
    made = []

    def features(rows):
        made.append(len(rows))
        return rows

    members = Members(X, features=features)
    pair = gram(members), gram(members, Y)
    assert [one.numbers(Behind(40)).shape for one in pair] == [(1, 15), (1, 5, 2)]
    assert made == [40]


def test_samples_that_share_rows_take_no_noise():
    from solera.trust.noise import with_noise

    members = Members(X, np.array([[0, 1], [1, 2]]), np.array([[0], [0]]))
    client = Client(0, so.simulate(X, CODE, clients=1).engine.source, Draws(0, "t", 0), {})
    privacy = {"mechanism": "gaussian", "noise": 1.0, "share": 1, "clip": 1.0}
    with pytest.raises(UsageError, match="more than once"):
        with_noise(client, {"grams": gram(members)}, {"grams": Behind(40)}, privacy)


def of_rows(n):
    """Contributions of n equal rows in two of three cells each, and an update of theirs."""
    code, ones = CODE[:n], np.ones((n, 4))
    two = np.column_stack([code, (code + 1) % 3])
    weights, others = np.ones((n, 3)), np.ones((n, 2))
    return {
        "matrices": gram(ones, weights=weights, cell=two, cells=3, bound=(2.0, 3**0.5)),
        "products": gram(ones, others, cell=two, cells=3, bound=(2.0, 2**0.5)),
        "sums": so.sum_by(two, ones, 3, bound=2.0),
        "joint": so.sum_by([code, code], [ones, ones], [3, 3], bound=8**0.5),
        "update": so.update(
            {"w": (2 * n - 79) * np.ones((3, 4)), "b": np.full(2, 2 * n - 79.0)}, bound=3.0
        ),
    }


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("name", of_rows(40))
def test_a_row_changes_no_more_than_is_said_in_the_norm_of_the_noise(name, norm):
    """Lengths are Euclidean, Laplace noise is made for sums of absolute changes."""
    whole, less = (of_rows(n)[name].bounded(None).numbers(Behind(n)) for n in (40, 39))
    if name == "update":
        change = np.concatenate([np.ravel(whole[leaf] - less[leaf]) for leaf in whole])
    else:
        change = np.ravel(np.array(whole) - np.array(less))
    share = np.linalg.norm(change, 1 if norm == "l1" else 2)
    share /= of_rows(40)[name].sensitivity(norm, None)
    assert 0.6 < share <= 1 + 1e-9


# --- what one row changes, in every task of this kind that takes noise ---

ROWS = draw.normal(size=(40, 3)) * [1.0, 5.0, 0.2]
NOISE = {"mechanism": "gaussian", "noise": 1.0, "share": 1, "clip": 2.0}
DP = so.DP(epsilon=8.0, delta=1e-4, level="record", clip=2.0)
TARGETS = {
    "gaussian": ROWS[:, 0] * 3,
    "binomial": (ROWS[:, 0] > 0).astype(int),
    "poisson": np.rint(np.abs(ROWS[:, 0]) * 5),
    "gamma": np.abs(ROWS[:, 0]) + 0.01,
}


def contributions(task, rows, y, ask, schema=None):
    offsets = np.array([0, len(rows)])
    data = so.data.FederatedData(rows, y, offsets, schema=schema)
    client = Client(0, so.simulate(data).engine.source, Draws(0, task, 0), {})
    reply = find_task(task).one(client, ask)
    leaves = dict(entries_of(reply))
    return {e: c for e, c in leaves.items() if isinstance(c, Contribution) and c.about_rows}


def largest_change(task, rows, y, ask):
    """By entry: the most that a row taken out changes, as a share of what is said of it."""
    data = so.data.FederatedData(rows, y, np.array([0, len(rows)]))
    clip = ask["privacy"]["clip"]
    whole = contributions(task, rows, y, ask)
    worst = dict.fromkeys(whole, 0.0)
    numbers = {e: c.bounded(clip).numbers(Behind(len(rows))) for e, c in whole.items()}
    for i in range(len(rows)):
        kept = np.arange(len(rows)) != i
        less = contributions(task, rows[kept], y[kept], ask, data.schema)
        for entry, one in less.items():
            change = numbers[entry] - one.bounded(clip).numbers(Behind(len(rows) - 1))
            share = np.linalg.norm(change) / whole[entry].sensitivity("l2", clip)
            worst[entry] = max(worst[entry], float(share))
    return worst


@pytest.mark.parametrize("start", [True, False])
@pytest.mark.parametrize("family", TARGETS)
def test_a_row_changes_a_step_of_a_glm_by_what_is_said(family, start):
    coef = np.zeros(4) if start else np.array([0.2, 0.5, -0.3, 0.1])
    bound = {} if family == "binomial" else {"clip_residuals": 0.5}
    ask = {"family": family, "offset": None, "weights": None, "coef": coef, "start": start,
           "privacy": NOISE, **bound}  # fmt: skip
    changes = largest_change("glm.step", ROWS, TARGETS[family], ask)
    assert set(changes) == {"gram", "moment", "rows"}
    assert max(changes.values()) <= 1.000 + 1e-9
    assert changes["gram"] > 0.4
    assert changes["moment"] > 0.2


LABELS = (ROWS > [0.3, 0, 0.1]).astype(np.uint8)


@pytest.mark.parametrize(
    ("activation", "derivative", "y"),
    [
        ("logistic", "exact", TARGETS["binomial"]),
        ("logistic", "exact", LABELS),
        ("softplus", "exact", TARGETS["binomial"]),
        ("softplus", "exact", LABELS),
        ("logistic", "thesis", np.arange(40) % 3),
    ],
)
@pytest.mark.parametrize("hidden", [None, "fourier"])
def test_a_row_changes_the_one_message_of_heonn_by_what_is_said(activation, derivative, y, hidden):
    options = {} if hidden is None else {"features": hidden, "hidden": 6}
    model = so.FedHEONN(activation, derivative=derivative, dp=DP, **options)
    model.fit(so.simulate(ROWS, y, clients=1, seed=0))
    ask = {**model._plan(), "privacy": NOISE}
    changes = largest_change("heonn.statistics", ROWS, y, ask)
    assert set(changes) == {"shape.grams", "moments"}
    assert max(changes.values()) <= 1.000 + 1e-9
    assert min(changes.values()) > 0.1

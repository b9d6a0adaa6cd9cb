"""Rows as matrices, and what clients say of rows they cannot train on."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_matrix

import solera as so
from solera.core.clients import Client, Draws
from solera.core.errors import DataError, Refusal
from solera.learn.probabilities import sigmoid, softmax
from solera.learn.rows import check_shape, dense, not_finite


@pytest.mark.parametrize("shape", [(4, 6), (4, 2, 3), (0, 6), (0, 2, 3)])
def test_rows_become_a_matrix(shape):
    X = np.arange(np.prod(shape)).reshape(shape)
    assert dense(X).shape == (shape[0], 6)
    assert np.array_equal(dense(csr_matrix(dense(X))), dense(X))


def test_the_client_that_cannot_train_is_named():
    X = np.zeros((5, 3))
    check_shape(7, 5, X, 3)
    check_shape([7, 8], [2, 3], X, 3)
    with pytest.raises(DataError, match="client 7 has 3 columns, the model 4"):
        check_shape([7, 8], [2, 3], X, 4)
    with pytest.raises(Refusal, match="client 8 has no rows to train on"):
        check_shape([7, 8, 9], [5, 0, 0], X, 3)


def test_columns_that_are_not_finite_are_named():
    X = np.zeros((4, 3))
    X[1, 2], X[3, 0] = np.nan, np.inf
    client = Client(0, so.data.FederatedData(X, None, np.array([0, 4])), Draws(0, "", 0), {})
    assert "client 0 has missing or infinite values in x0, x2" in str(not_finite(client, X))


def test_probabilities_of_large_scores_are_finite():
    scores = np.array([[-1e4, 0.0, 1e4], [1.0, 1.0, 1.0]])
    assert sigmoid(scores)[0].tolist() == [0.0, 0.5, 1.0]
    assert np.allclose(softmax(scores), [[0, 0, 1], [1 / 3, 1 / 3, 1 / 3]])

"""Scores of labels have the one definition that evaluation has."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics as sk

from solera.learn.averaging.label_metrics import SCORES, label_scores

rng = np.random.default_rng(0)
TRUTH = (rng.normal(size=(30, 5)) > 0.6).astype(np.uint8)
TRUTH[:, 4] = 0
Z = rng.normal(size=(30, 5)) + TRUTH
Z[:, 4] = -1  # a label that neither occurs nor is predicted


def test_they_are_those_of_scikit_learn_over_labels_that_occur():
    found, guess, occurs = label_scores(Z, TRUTH), Z > 0, [0, 1, 2, 3]
    assert set(found) == set(SCORES)
    assert found["macro_f1"] == pytest.approx(
        sk.f1_score(TRUTH[:, occurs], guess[:, occurs], average="macro")
    )
    assert found["micro_f1"] == pytest.approx(sk.f1_score(TRUTH, guess, average="micro"))
    assert found["subset_accuracy"] == pytest.approx(sk.accuracy_score(TRUTH, guess))
    assert found["hamming_loss"] == pytest.approx(sk.hamming_loss(TRUTH, guess))
    assert found["ranking_loss"] == pytest.approx(sk.label_ranking_loss(TRUTH, Z))

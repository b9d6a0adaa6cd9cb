"""FedHistGBDT grows scikit-learn's trees: the same splits and leaves, node by node.

Both get the same bins, those of scikit-learn. It adds up gradients and hessians that are rounded to
float32, ours are rounded to whole numbers of small units, so leaves agree to some six digits. Nodes
may differ for these reasons alone, and each is tested where it is met:

- **empty bins**: the threshold differs, but all rows of the node go the same way (no row lies
  between two thresholds, or one column repeats another);
- **missing**: the column has no missing values in the node; where they would go cannot matter to
  the gain. Ours go with more rows, to the left if both sides have as many; scikit-learn's go right
  in that case, and always where the column has missing values elsewhere;
- **no gain**: all rows of the node have the same target, or nearly so, and the gain is zero but for
  rounding: whether such a node is split changes no value;
- **tie**: two splits gain the same to six digits. From there on the models differ.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier

import solera as so
from solera.learn.probabilities import sigmoid
from solera.learn.trees.boosting.histograms import HistBins, Units
from solera.learn.trees.tree import starts_of

DEPTH = 6


def fitted(X, y, schema, rounds, clients, monkeypatch):
    """Theirs and ours, over their bins."""
    peer = HistGradientBoostingClassifier(
        max_iter=rounds,
        max_depth=DEPTH,
        max_leaf_nodes=None,
        max_bins=255,
        min_samples_leaf=20,
        early_stopping=False,
    ).fit(X, y)

    def their_bins(self, federation):
        self.edges_ = [np.array(edges) for edges in peer._bin_mapper.bin_thresholds_]
        self.starts_ = starts_of([len(edges) + 2 for edges in self.edges_])

    monkeypatch.setattr(HistBins, "train", their_bins)
    federation = so.simulate(X, y, clients=clients, seed=0, schema=schema)
    return peer, so.FedHistGBDT(rounds=rounds, max_depth=DEPTH).fit(federation)


class Comparison:
    """Walks through both trees of a round with the rows that reach each node."""

    def __init__(self, X, y):
        self.X, self.y = X, y
        self.unit = 2.0 ** -Units.of(len(X), 1.0, counted=False).hessian
        self.reasons = Counter()

    def rounds(self, peer, ours):
        """How many rounds are the same, up to the first tie that changes the model."""
        np.testing.assert_allclose(ours.initial_, peer._baseline_prediction[0], rtol=1e-12)
        score = np.full(len(self.X), ours.initial_[0])
        for r, ((mine,), (theirs,)) in enumerate(zip(ours.trees_, peer._predictors, strict=True)):
            p = sigmoid(score)
            self.g, self.h = p - self.y, p * (1 - p)
            self.mine, self.theirs = mine, theirs.nodes
            self.nodes(0, 0, np.arange(len(self.X)))
            if self.reasons["tie"]:
                return r
            score += mine.values(self.X)[:, 0]
        return len(ours.trees_)

    def nodes(self, a, b, rows):
        mine, theirs = self.mine, self.theirs
        node = theirs[b]
        assert node["count"] == len(rows)
        left = None if mine.feature[a] < 0 else self.goes_left(rows, *self.our_split(a))
        their_left = None if node["is_leaf"] else self.goes_left(rows, *self.their_split(b))
        if left is None and their_left is None:
            self.reasons["leaf"] += 1
            rounding = len(rows) * self.unit / 2 / self.h[rows].sum()
            rtol = 2e-6 + rounding
            np.testing.assert_allclose(mine.value[a, 0], node["value"], rtol=rtol, atol=1e-7)
        elif left is None or their_left is None:
            split = their_left if left is None else left
            assert self.gain(rows, split) < 1e-9
            self.reasons["no gain"] += 1
            values = {float(v) for v in self.our_leaves(a)} | set(self.their_leaves(b))
            assert max(values) - min(values) < 1e-6
        elif (left == their_left).all():
            self.reasons[self.same_rows(a, b, rows)] += 1
            first, second = mine.branches[mine.start[a] : mine.start[a] + 2].tolist()
            self.nodes(first, int(node["left"]), rows[left])
            self.nodes(second, int(node["right"]), rows[~left])
        else:
            gains = self.gain(rows, left), self.gain(rows, their_left)
            assert gains[0] == pytest.approx(gains[1], rel=1e-6, abs=1e-9)
            self.reasons["no gain" if max(gains) < 1e-9 else "tie"] += 1

    def our_split(self, a):
        return self.mine.feature[a], self.mine.threshold[a], bool(self.mine.missing_left[a])

    def their_split(self, b):
        node = self.theirs[b]
        threshold = min(node["num_threshold"], np.finfo(float).max)
        return node["feature_idx"], threshold, bool(node["missing_go_to_left"])

    def goes_left(self, rows, column, threshold, missing_left):
        values = self.X[rows, column]
        return np.where(np.isnan(values), missing_left, values <= threshold)

    def same_rows(self, a, b, rows):
        """By what a split differs that sends the rows the same way."""
        column, threshold, missing_left = self.our_split(a)
        theirs = self.their_split(b)
        if (column, threshold) != theirs[:2]:
            return "empty bins"
        if missing_left == theirs[2]:
            return "split"
        assert not np.isnan(self.X[rows, column]).any()
        sides = self.theirs[self.theirs[b]["left"]], self.theirs[self.theirs[b]["right"]]
        assert missing_left == (sides[0]["count"] >= sides[1]["count"])
        assert np.isnan(self.X[:, column]).any() or sides[0]["count"] == sides[1]["count"]
        return "missing"

    def gain(self, rows, left):
        """Of a split, as a share of what the node itself weighs."""
        sums = [(self.g[r].sum(), self.h[r].sum()) for r in (rows[left], rows[~left], rows)]
        one, other, whole = (g * g / h for g, h in sums)
        return (one + other - whole) / max(whole, 1.0)

    def our_leaves(self, a):
        if self.mine.feature[a] < 0:
            return [self.mine.value[a, 0]]
        children = self.mine.branches[self.mine.start[a] : self.mine.start[a] + 2].tolist()
        return [value for child in children for value in self.our_leaves(child)]

    def their_leaves(self, b):
        node = self.theirs[b]
        if node["is_leaf"]:
            return [float(node["value"])]
        children = int(node["left"]), int(node["right"])
        return [value for child in children for value in self.their_leaves(child)]


def compare(name, rows, rounds, clients, monkeypatch):
    data = so.datasets.load(name)
    X, y, _, _ = data
    X, y = X[:rows], y[:rows]
    peer, ours = fitted(X, y, data.schema, rounds, clients, monkeypatch)
    comparison = Comparison(X, np.searchsorted(np.unique(y), y))
    assert comparison.rounds(peer, ours) == rounds
    reasons = comparison.reasons
    assert reasons["split"] > 0.95 * (reasons.total() - reasons["leaf"])


@pytest.mark.data("adult", "credit2")
@pytest.mark.parametrize(("name", "clients"), [("adult", 4), ("credit2", 1)])
def test_trees_of_some_rows(name, clients, monkeypatch):
    compare(name, 3000, 6, clients, monkeypatch)


@pytest.mark.slow
@pytest.mark.data("adult", "credit2")
@pytest.mark.parametrize("clients", [1, 10])
@pytest.mark.parametrize("name", ["adult", "credit2"])
def test_trees_of_all_rows(name, clients, monkeypatch):
    compare(name, None, 100, clients, monkeypatch)

"""ICDTA4FL and Federated-ID3 as the program of the trees thesis runs them, slips included.

``flex-trees`` differs from the text in what decides the printed figures, so the rows *as published*
follow it (``docs/explanation/errata.md`` has the evidence):

- clients share 70 or 80 % of a set's rows (of Adult those of ``adult.data``), the rest is never
  used; a client keeps a fifth of its rows for testing, drawn without a seed;
- CART reads Nursery and Adult one column per category, and may split a node of
  ``max(1.0, int(0.02 n))`` rows: with fewer than 100 rows that is scikit-learn's share of 100 %, so
  that only the root is split;
- ID3 counts the root as its first level, so that a depth of five has four splits; where no branch
  fits, it answers with the position of the node's class among the classes that its client has;
- trees stay whose accuracy *and* macro-F1 reach the mean over all clients;
- of merged rules CART halves the sum of the probabilities, ID3 keeps the later rule's conditions;
  pure rules are set aside once there are 2,400, and 3,000 are kept except in the middle of the way;
- Federated-ID3 takes every count from the first client, and is judged on all rows of the clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from sklearn.tree import DecisionTreeClassifier

from solera.core.clients import FloatArray, IntArray
from solera.core.rng import generator
from solera.data import datasets
from solera.data.dataset import Dataset
from solera.data.partition import IID, Partition, QuantitySkew
from solera.evaluation.counts import class_metrics
from solera.learn.trees.explanation import node_bounds
from solera.learn.trees.id3 import category_sizes, entropy, grow_id3
from solera.learn.trees.tree import Tree
from solera_studies.tree_categories import categorised
from solera_studies.tree_rules import PROGRAM, Rules, Way, merged, predicted

TRAINING = {"nursery": 0.8, "adult": 0.7, "car": 0.7, "credit2": 0.8}
"""The part of a set that its clients share."""
TEST = 0.2
CART_DEPTH, ID3_LEVELS = 5, 4
FED_ID3_LEVELS = {"nursery": 3, "adult": 5, "car": 2, "credit2": 11}
"""Half of the columns, the target among them, less the root."""
GRADES = {
    "buying": ("vhigh", "high", "med", "low"),
    "maint": ("vhigh", "high", "med", "low"),
    "lug_boot": ("small", "med", "big"),
    "safety": ("low", "med", "high"),
    "persons": ("2", "4", "more"),
    "doors": ("2", "3", "4", "5more"),
}
"""Car's categories in the program's order."""
Scores = FloatArray
"""Accuracy and macro-F1."""


class Clients(NamedTuple):
    """The rows of a set as CART or ID3 reads them, and whose they are."""

    X: FloatArray
    y: IntArray
    train: list[IntArray]
    test: list[IntArray]
    classes: int
    sizes: IntArray | None


# --- the rows ---


def dealt(data: str, kind: str, clients: int, partition: str, seed: int) -> Clients:
    """The clients' training and test rows of one unseeded run of the program."""
    X, y, sizes, pool, classes = _table(data, kind)
    rng = generator(seed, "study.trees.program")
    rows = rng.permutation(pool)[: int(TRAINING[data] * pool)]
    rule: Partition = IID() if partition == "IID" else QuantitySkew(1.0, min_rows=5)
    parts = rule.assign(len(rows), y[rows], X=X[rows], clients=clients, seed=seed)
    train, test = [], []
    for client in range(clients):
        own = rng.permutation(rows[parts.rows_of(client)])
        kept = int(np.ceil(TEST * len(own)))
        train.append(own[kept:])
        test.append(own[:kept])
    return Clients(X, y, train, test, classes, sizes)


@lru_cache(maxsize=2)
def _table(data: str, kind: str) -> tuple[FloatArray, IntArray, IntArray | None, int, int]:
    """Rows as CART or ID3 reads them, categories, how many rows the program loads, and classes."""
    dataset = datasets.load(data)
    pool = len(dataset.X) if data == "adult" else len(dataset.all[1])
    classes = len(dataset.schema.classes)
    if kind == "cart":
        return _numbers(data, dataset), dataset.all[1], None, pool, classes
    cut = categorised(data)
    return *cut.all, category_sizes(cut.schema), pool, classes


def _numbers(data: str, dataset: Dataset) -> FloatArray:
    """One column per category of Nursery and Adult, Car's grades, Credit2's numbers."""
    X, _ = dataset.all
    columns = []
    for j, feature in enumerate(dataset.schema.features):
        if feature.kind != "categorical":
            columns.append(X[:, [j]])
            continue
        codes = np.where(np.isnan(X[:, j]), len(feature.categories), X[:, j]).astype(int)
        if data == "car":
            grade = [GRADES[feature.name].index(name) for name in feature.categories]
            columns.append(np.array(grade, dtype=float)[codes][:, None])
        elif data == "credit2":
            columns.append(X[:, [j]])
        else:
            columns.append(np.eye(codes.max() + 1)[codes])
    return np.hstack(columns)


# --- the clients' trees ---


class CartTree:
    """scikit-learn's tree with the program's fewest rows of a split."""

    def __init__(self, clients: Clients, rows: IntArray, owned: int) -> None:
        fewest = max(1.0, int(0.02 * owned))
        grower = DecisionTreeClassifier(
            max_depth=CART_DEPTH,
            min_samples_split=fewest if fewest == 1.0 else max(2, int(fewest)),
            random_state=42,
        )
        self.fitted = grower.fit(clients.X[rows], clients.y[rows])
        self.classes = clients.classes

    def predict(self, X: FloatArray) -> IntArray:
        return np.asarray(self.fitted.predict(X))

    def rules(self) -> Rules:
        tree = self.fitted.tree_
        width, ends = tree.n_features, []
        stack = [(0, np.full(width, -np.inf), np.full(width, np.inf))]
        while stack:
            node, lower, upper = stack.pop()
            if tree.children_left[node] < 0:
                ends.append((node, lower, upper))
                continue
            column, cut = tree.feature[node], tree.threshold[node]
            below, above = upper.copy(), lower.copy()
            below[column], above[column] = min(below[column], cut), max(above[column], cut)
            stack += [(tree.children_right[node], above, upper)]
            stack += [(tree.children_left[node], lower, below)]
        nodes = [node for node, _, _ in ends]
        shares = np.zeros((len(ends), self.classes))
        shares[:, self.fitted.classes_] = tree.value[nodes, 0]
        shares /= shares.sum(axis=1, keepdims=True)
        bounds = np.stack([[low for _, low, _ in ends], [up for _, _, up in ends]])
        return Rules(bounds, bounds, shares, tree.n_node_samples[nodes].astype(float))


class Id3Tree:
    """An ID3 tree; without a branch, the position of the class among the client's is the answer."""

    def __init__(self, clients: Clients, rows: IntArray, levels: int = ID3_LEVELS) -> None:
        assert clients.sizes is not None
        X, y = clients.X[rows], clients.y[rows]
        self.grown: Tree = grow_id3(X, y, clients.sizes, clients.classes, levels)
        best = self.grown.value.argmax(axis=1)
        self.answers = np.searchsorted(np.unique(y), best)
        self.answers[self.grown.leaves] = best[self.grown.leaves]

    def predict(self, X: FloatArray) -> IntArray:
        return np.asarray(self.answers[self.grown.apply(X)])

    def rules(self) -> Rules:
        tree = self.grown
        width = int(tree.feature.max()) + 1 if len(tree) > 1 else 1
        _, upper, _ = node_bounds(tree, width)
        codes = np.where(np.isfinite(upper), upper, -1.0)[tree.leaves][None]
        value = tree.value[tree.leaves]
        rows = value.sum(axis=1)
        return Rules(codes, codes, value / rows[:, None], rows)


# --- Federated-ID3 ---


def by_first_client(clients: Clients, owned: list[IntArray], levels: int) -> IntArray:
    """The class of every row by Federated-ID3, whose counts are all the first client's.

    A leaf without rows of it gets the class of the node above, and where that has none either a
    class of its own, which is never right.
    """
    X, y, nobody = clients.X.astype(int), clients.y, clients.classes
    answer = np.full(len(y), nobody)
    owner = np.full(len(y), -1)
    for client, rows in enumerate(owned):
        owner[rows] = client

    def most(rows: IntArray) -> int:
        first = rows[owner[rows] == 0]
        return int(np.bincount(y[first], minlength=nobody).argmax()) if len(first) else nobody

    stack = [(np.concatenate(owned), list(range(X.shape[1])), 0, nobody)]
    while stack:
        rows, free, depth, above = stack.pop()
        if depth == levels or not free or _told_apart(owner[rows], y[rows]):
            answer[rows] = above if most(rows) == nobody else most(rows)
            continue
        first = rows[owner[rows] == 0]
        best = min(free, key=lambda j: _uncertain(X[first, j], y[first], nobody))
        left = [j for j in free if j != best]
        stack += [
            (rows[X[rows, best] == v], left, depth + 1, most(rows))
            for v in np.unique(X[rows, best])
        ]
    return answer


def _told_apart(owner: IntArray, y: IntArray) -> bool:
    """Whether no client has rows of two classes."""
    return len(np.unique(np.stack([owner, y]), axis=1).T) == len(np.unique(owner))


def _uncertain(codes: IntArray, y: IntArray, classes: int) -> float:
    """Rows times the entropy of the classes given the category."""
    if not len(y):
        return 0.0
    counts = np.zeros((codes.max() + 1, classes))
    np.add.at(counts, (codes, y), 1.0)
    return float(np.round((counts.sum(axis=1) * entropy(counts)).sum(), 9))


# --- what is printed ---

Grown = Sequence[CartTree | Id3Tree]


def measured(data: str, kind: str, clients: int, partition: str, seed: int) -> dict[str, Scores]:
    """Accuracy and macro-F1 of the local, the fused and, for ID3, the Federated-ID3 trees."""
    rows = dealt(data, kind, clients, partition, seed)
    trees = grown(rows)
    by_client = judged(rows, trees)
    found = {
        "local": by_client[np.arange(clients), np.arange(clients)].mean(axis=0),
        "fusion": fused(rows, [trees[i] for i in kept(by_client.mean(axis=0))]),
    }
    if kind == "id3":
        whole = [np.concatenate(both) for both in zip(rows.train, rows.test, strict=True)]
        guessed = by_first_client(rows, whole, FED_ID3_LEVELS[data])
        found["Federated-ID3"] = np.mean([scores(rows, own, guessed[own]) for own in whole], axis=0)
    return {who: 100 * value for who, value in found.items()}


def grown(clients: Clients, levels: int = ID3_LEVELS) -> Grown:
    """Every client's tree: CART of numbers, ID3 of categories."""
    if clients.sizes is not None:
        return [Id3Tree(clients, train, levels) for train in clients.train]
    owned = [
        len(train) + len(test) for train, test in zip(clients.train, clients.test, strict=True)
    ]
    return [CartTree(clients, train, n) for train, n in zip(clients.train, owned, strict=True)]


def judged(clients: Clients, trees: Grown) -> FloatArray:
    """The scores of every tree (second axis) on every client's test rows (first axis)."""
    return np.array(
        [
            [scores(clients, test, tree.predict(clients.X[test])) for tree in trees]
            for test in clients.test
        ]
    )


def fused(clients: Clients, trees: Grown, way: Way = PROGRAM) -> Scores:
    """The mean over the clients' test rows of the tree that these trees' rules give."""
    rules = merged([tree.rules() for tree in trees], way)
    answers = np.zeros(len(clients.y), dtype=int)
    tested = np.concatenate(clients.test)
    answers[tested] = predicted(rules, clients.X[tested])
    by_client = np.array([scores(clients, test, answers[test]) for test in clients.test])
    return np.asarray(by_client.mean(axis=0))


def kept(means: FloatArray, percentile: float | None = None) -> IntArray:
    """The trees that reach the mean, or a percentile, of both metrics, or nearly, or the best."""
    level = means.mean(axis=0) if percentile is None else np.percentile(means, percentile, axis=0)
    for share in (1.0, 0.989):
        chosen = np.flatnonzero((means >= share * level - 1e-12).all(axis=1))
        if len(chosen):
            return chosen
    return np.array([means[:, 0].argmax()])


def scores(clients: Clients, rows: IntArray, guessed: IntArray) -> Scores:
    """Accuracy and macro-F1 over the classes that the rows have or the guesses name."""
    counts = np.zeros((1, clients.classes + 1, clients.classes + 1), dtype=np.int64)
    np.add.at(counts[0], (clients.y[rows], guessed), 1)
    metrics = class_metrics(counts)
    return np.array([metrics["accuracy"][0], metrics["macro_f1"][0]])

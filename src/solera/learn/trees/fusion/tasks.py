"""The client's side of ICDTA4FL: grow a tree, judge the others' trees, receive the global one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from solera.core.clients import (
    Client,
    ClientData,
    ClientGroup,
    FloatArray,
    IntArray,
    Part,
)
from solera.core.replies import Stacked
from solera.core.task import task
from solera.learn.trees.c45 import grow_c45
from solera.learn.trees.client_trees import columns_and_codes, rows_and_codes, with_missing
from solera.learn.trees.id3 import grow_id3
from solera.learn.trees.tree import Tree
from solera.trust.cells import Behind, Cells
from solera.trust.constructors import count_by
from solera.trust.joined import JoinedData, stacked

TreeKind = Literal["cart", "id3", "c45"]
PARTS: tuple[Part, ...] = ("train", "test")
LOCAL, GLOBAL = "trees.local", "trees.global"


@task("trees.grow")
def grow_tree(client: Client, ask: Any) -> dict[str, Any]:
    """A tree of this client's rows alone: CART (Gini), ID3 or C4.5, in the ask's depth."""
    rows = client.data.part("train")
    X, labels = rows_and_codes(client, rows, ask)
    classes, depth = len(ask["classes"]), ask["max_depth"]
    if ask["kind"] == "id3":
        tree = grow_id3(X, labels, ask["sizes"], classes, depth)
    elif ask["kind"] == "c45":
        tree = grow_c45(X, labels, ask["sizes"], classes, depth, ask["min_rows"])
    else:
        tree = grow_cart(X, labels, ask, seed=int(client.rng.integers(2**31)))
    client.state[LOCAL] = tree.to_payload()
    return {"tree": tree.to_payload(), "rows": len(rows)}


def grow_cart(X: FloatArray, labels: IntArray, ask: Mapping[str, Any], *, seed: int) -> Tree:
    """A CART tree by scikit-learn; categorical columns are read as numbers."""
    from sklearn.tree import DecisionTreeClassifier

    from solera.learn.trees.sklearn_trees import from_sklearn

    grower = DecisionTreeClassifier(
        max_depth=ask["max_depth"], min_samples_leaf=ask["min_rows"], random_state=seed
    )
    classes = np.arange(len(ask["classes"]))
    return from_sklearn(grower.fit(X, labels), classes=classes, rows=X)


def _confusion_like(ask: Any) -> dict[str, Any]:
    shape = len(ask["trees"]), len(ask["classes"]), len(ask["classes"])
    return {"confusion": np.zeros(shape, dtype=np.int64)}


@task("trees.judge", version=3, many=True, like=_confusion_like)
def judge_trees(client: Client, ask: Any) -> dict[str, Any]:
    """Rows by tree, true class and the class that the tree says."""
    X, labels = columns_and_codes(client.data.part("train"), ask)
    said = np.empty((len(ask["trees"]), len(X)), dtype=np.int64)
    for payload, classes in zip(ask["trees"], said, strict=True):
        classes[:] = _said(payload, X, ask)
    return {"confusion": count_by(Confusions(labels, said, len(ask["classes"])))}


class Confusions(Cells):
    """Rows by tree, true class and the class that the tree says, trees × rows in ``said``."""

    def __init__(self, labels: IntArray, said: IntArray, classes: int) -> None:
        self.labels = labels
        self.said = said
        self.shape = (len(said), classes, classes)
        self.most = len(said)

    def pairs(self, rows: int) -> tuple[IntArray, IntArray]:
        trees, classes = self.shape[:2]
        true = np.arange(trees)[:, None] * classes + self.labels
        return np.tile(np.arange(rows), trees), (true * classes + self.said).ravel()

    def count(self, behind: Behind) -> IntArray:
        """One tree after the other: together they would be rows × trees numbers."""
        classes = self.shape[1]
        owners = 0 if behind.owners is None else behind.owners
        first = (owners * classes + self.labels) * classes
        number = behind.clients * classes * classes
        counts = np.stack([np.bincount(first + said, minlength=number) for said in self.said])
        by_client = counts.reshape(len(counts), behind.clients, classes, classes).swapaxes(0, 1)
        return by_client[0] if behind.owners is None else by_client


def _said(tree: Any, X: FloatArray, ask: Any) -> IntArray:
    """The class that a tree says of every row."""
    tree = Tree.from_payload(tree, ask["width"], len(ask["classes"]))
    return np.asarray(tree.value.argmax(axis=1)[tree.apply(X)])


def _received_like(ask: Any) -> dict[str, Any]:
    nodes, classes = len(ask["tree"]["feature"]), len(ask["classes"])
    counts = {
        "reached": np.zeros((nodes, classes), dtype=np.int64),
        "own": np.zeros((classes, classes), dtype=np.int64),
    }
    return {"train": counts, "test": counts}


def _receive_many(group: ClientGroup, ask: Any) -> Stacked:
    for state in group.states:
        state[GLOBAL] = _kept(ask)
    own: dict[Part, IntArray] = {
        part: np.concatenate([_said_by_own(client, ask, part) for client in group])
        for part in PARTS
    }
    return stacked(_counted(JoinedData(group), ask, own), group)


@task("trees.receive", version=3, many=_receive_many, like=_received_like)
def receive_tree(client: Client, ask: Any) -> dict[str, Any]:
    """Keep the global tree and its rules, and count how it and the own tree do here.

    ``reached``: rows of each part by node where they end, and class. ``own``: the confusion matrix
    of the own tree, on the test rows where some are kept.
    """
    client.state[GLOBAL] = _kept(ask)
    return _counted(client.data, ask, {part: _said_by_own(client, ask, part) for part in PARTS})


def _kept(ask: Any) -> dict[str, Any]:
    return {"tree": ask["tree"], "rules": ask["rules"]}


def _said_by_own(client: Client, ask: Any, part: Part) -> IntArray:
    """The class that the own tree says of every row it is judged by, −1 of others."""
    rows = client.data.part(part)
    judged = part == "test" or not len(client.data.part("test"))
    if not (judged and LOCAL in client.state):
        return np.full(len(rows), -1)
    return _said(client.state[LOCAL], with_missing(rows.X), ask)


def _counted(
    data: ClientData | JoinedData, ask: Any, own: Mapping[Part, IntArray]
) -> dict[str, Any]:
    classes = len(ask["classes"])
    reply: dict[str, Any] = {}
    tree = Tree.from_payload(ask["tree"], ask["width"], classes)
    for part in PARTS:
        X, labels = columns_and_codes(data.part(part), ask)
        reply[part] = {
            "reached": count_by((tree.apply(X), labels), (len(tree), classes), part=part),
            "own": count_by((labels, own[part]), (classes, classes), part=part),
        }
    return reply

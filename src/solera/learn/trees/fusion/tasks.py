"""The client's side of ICDTA4FL: grow a tree, judge the others' trees, receive the global one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypedDict

import numpy as np
from msgspec import Meta

from solera.core.clients import (
    Array,
    BoolArray,
    Client,
    ClientGroup,
    FloatArray,
    IntArray,
    Part,
    Segments,
)
from solera.core.constraints import Count
from solera.core.disclosure.evidence import Sums, cells
from solera.core.disclosure.node_counts import SetCounts
from solera.core.disclosure.trees import Trees
from solera.core.errors import Refusal
from solera.core.release import Cells, Facts
from solera.core.replies import Stacked
from solera.core.schema import class_codes
from solera.core.task import task
from solera.learn.rows import check_shape
from solera.learn.trees.c45 import grow_c45
from solera.learn.trees.client_trees import rows_and_codes, with_missing
from solera.learn.trees.id3 import grow_id3
from solera.learn.trees.tree import ClassTree, Tree
from solera.trust.declared import LONGEST, Classes, Shape

TreeKind = Literal["cart", "id3", "c45"]
LOCAL, GLOBAL = "trees.local", "trees.global"
_MOST = 10_000_000
"""The most cuts of columns, and leaves of merged trees, that a client keeps."""


class Grow(TypedDict):
    """What ``trees.grow`` takes, and with more the other two."""

    kind: TreeKind
    width: Count
    classes: Annotated[Array, Classes()]
    sizes: Annotated[IntArray, Shape("columns", kind="i", least=0, most=LONGEST)] | None
    max_depth: Annotated[int, Meta(ge=1, le=1000)]
    min_rows: Count


class Judge(Grow):
    """What ``trees.judge`` takes."""

    owners: Annotated[IntArray, Shape("trees", kind="i")]
    trees: list[ClassTree]


class MergedRules(TypedDict):
    """The rules of a global tree, for the client to keep; see :class:`.rules.RuleSet`."""

    cuts: Annotated[FloatArray, Shape("cuts", longest=_MOST)]
    offsets: Annotated[IntArray, Shape("offsets", kind="i")]
    lower: Annotated[IntArray, Shape("rules", "columns", kind="i")]
    upper: Annotated[IntArray, Shape("rules", "columns", kind="i")]
    missing: Annotated[BoolArray, Shape("rules", "columns", kind="b")]
    weights: Annotated[FloatArray, Shape("rules", "classes")]
    wide_lower: Annotated[IntArray, Shape("rules", "columns", kind="i")]
    wide_upper: Annotated[IntArray, Shape("rules", "columns", kind="i")]
    trees: Annotated[IntArray, Shape("merged", kind="i")]
    leaf: Annotated[IntArray, Shape("rules", "merged", kind="i")]
    leaf_rows: Annotated[FloatArray, Shape("leaves", longest=_MOST)]
    leaf_starts: Annotated[IntArray, Shape("starts", kind="i")]
    expected_rows: Annotated[FloatArray, Shape("rules")]


class Receive(Grow):
    """What ``trees.receive`` takes."""

    tree: ClassTree
    rules: MergedRules


@task("trees.grow", ask=Grow, release=[Trees("tree", "rows")])
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


def _true_classes(ask: Any) -> IntArray:
    """Of every cell the tree and the true class: how many rows have it is known."""
    k = len(ask["classes"])
    return np.repeat(np.arange(len(ask["trees"]) * k), k)


def _confused(client: Client, ask: Any) -> IntArray:
    """Of every row its cell in the confusion matrix of each tree, −1 for the own one."""
    X, labels = rows_and_codes(client, client.data.part("train"), ask)
    k = len(ask["classes"])
    found = np.full((len(labels), len(ask["trees"])), -1)
    for i in _others_trees(client, ask):
        tree = Tree.from_payload(ask["trees"][i], ask["width"], k)
        found[:, i] = (i * k + labels) * k + tree.values(X).argmax(axis=1)
    return found


def _others_trees(client: Client, ask: Any) -> list[int]:
    if len(ask["owners"]) != len(ask["trees"]):
        raise Refusal(f"{len(ask['trees'])} trees of {len(ask['owners'])} owners")
    return np.flatnonzero(ask["owners"] != client.id).tolist()


def _judge_many(group: ClientGroup, ask: Any) -> Stacked:
    """Every tree is followed once by the rows of all clients."""
    data, classes = group.data, len(ask["classes"])
    X, labels = _rows_and_codes_of_all(group, data, ask)
    true = data.owners * classes + labels
    confusion = np.zeros((len(group), len(ask["trees"]), classes, classes), dtype=np.int64)
    for i, payload in enumerate(ask["trees"]):
        tree = Tree.from_payload(payload, ask["width"], classes)
        predicted = tree.value.argmax(axis=1)[tree.apply(X)]
        counts = _count_pairs(true, predicted, (len(group) * classes, classes))
        confusion[:, i] = counts.reshape(len(group), classes, classes)
    confusion[group.ids[:, None] == ask["owners"]] = 0
    return Stacked({"confusion": confusion})


def _rows_and_codes_of_all(
    group: ClientGroup, data: Segments, ask: Mapping[str, Any]
) -> tuple[FloatArray, IntArray]:
    rows = data.joined()
    check_shape(group.ids, data.sizes, rows.X, ask["width"])
    return with_missing(rows.X), class_codes(rows.y, ask["classes"])


@task(
    "trees.judge",
    version=2,
    many=_judge_many,
    like=_confusion_like,
    ask=Judge,
    release=[SetCounts("confusion", cells=_confused, margins=_true_classes)],
)
def judge_trees(client: Client, ask: Any) -> dict[str, Any]:
    """The confusion matrix of every tree on this client's rows; zeros for its own."""
    X, labels = rows_and_codes(client, client.data.part("train"), ask)
    matrices = _confusion_like(ask)["confusion"]
    for i in _others_trees(client, ask):
        tree = Tree.from_payload(ask["trees"][i], ask["width"], len(ask["classes"]))
        matrices[i] = confusion(tree, X, labels, len(ask["classes"]))
    return {"confusion": matrices}


def confusion(tree: Tree, X: FloatArray, labels: IntArray, classes: int) -> IntArray:
    """Rows by true and predicted class."""
    return _count_pairs(labels, tree.values(X).argmax(axis=1), (classes, classes))


def _received_like(ask: Any) -> dict[str, Any]:
    nodes, classes = len(ask["tree"]["feature"]), len(ask["classes"])
    by_node = np.zeros((nodes, classes), dtype=np.int64)
    local = np.zeros((classes, classes), dtype=np.int64)
    return {"seen": by_node, "judged": by_node, "local": local, "tested": False}


def _receive_many(group: ClientGroup, ask: Any) -> Stacked:
    if group.part("test").sizes.any():  # judged on rows of their own
        return Stacked.of([receive_tree(client, ask) for client in group])
    data, classes, m = group.data, len(ask["classes"]), len(group)
    X, labels = _rows_and_codes_of_all(group, data, ask)
    tree = Tree.from_payload(ask["tree"], ask["width"], classes)
    cells = data.owners * len(tree) + tree.apply(X)
    seen = _count_pairs(cells, labels, (m * len(tree), classes)).reshape(m, len(tree), classes)
    local = np.zeros((m, classes, classes), dtype=np.int64)
    ends = np.cumsum(data.sizes)
    for i, state in enumerate(group.states):
        state[GLOBAL] = {"tree": ask["tree"], "rules": ask["rules"]}
        if LOCAL in state:
            own = Tree.from_payload(state[LOCAL], ask["width"], classes)
            here = slice(ends[i] - data.sizes[i], ends[i])
            local[i] = confusion(own, X[here], labels[here], classes)
    tested = np.zeros(m, dtype=bool)
    return Stacked({"seen": seen, "judged": np.zeros_like(seen), "local": local, "tested": tested})


def _cells_of(client: Client, ask: Any, tree: Tree, part: Part) -> IntArray:
    """Of every row of a part the node where it ends, times the classes, and its class."""
    X, labels = rows_and_codes(client, client.data.part(part), ask)
    return tree.apply(X) * len(ask["classes"]) + labels


def _seen_cells(client: Client, ask: Any) -> IntArray:
    tree = Tree.from_payload(ask["tree"], ask["width"], len(ask["classes"]))
    return _cells_of(client, ask, tree, "train")[:, None]


def _seen_classes(ask: Any) -> IntArray:
    return np.tile(np.arange(len(ask["classes"])), len(ask["tree"]["feature"]))


def _judged_cells(client: Client, ask: Any, tree: Tree) -> IntArray:
    """The same of the test rows; −1 for the training rows where no others are kept."""
    if _judged_part(client) == "test":
        return _cells_of(client, ask, tree, "test")
    return np.full(len(client.data.part("train")), -1)


def _confused_by_own(client: Client, ask: Any) -> IntArray:
    """Of every judged row its cell in the own tree's confusion matrix, −1 where there is none."""
    X, labels = rows_and_codes(client, client.data.part(_judged_part(client)), ask)
    if LOCAL not in client.state:
        return np.full(len(labels), -1)
    own = Tree.from_payload(client.state[LOCAL], ask["width"], len(ask["classes"]))
    return np.asarray(labels * len(ask["classes"]) + own.values(X).argmax(axis=1))


def _received(client: Client, ask: Any, reply: Any) -> dict[str, Sums]:
    """The rows at every node by class, and in every cell of the own tree's confusion matrix."""
    classes = len(ask["classes"])
    tree = Tree.from_payload(ask["tree"], ask["width"], classes)
    number, part = len(tree) * classes, _judged_part(client)
    own = _confused_by_own(client, ask)
    return {
        "judged": cells(_judged_cells(client, ask, tree), number, part=part),
        "local": cells(own, classes * classes, part=part),
    }


def _judged_part(client: Client) -> Part:
    """Rows that the own tree did not see, where some are kept."""
    return "test" if len(client.data.part("test")) else "train"


@task(
    "trees.receive",
    version=2,
    many=_receive_many,
    like=_received_like,
    ask=Receive,
    release=[
        SetCounts("seen", cells=_seen_cells, margins=_seen_classes),
        Cells("judged", behind=_received),
        Cells("local", behind=_received),
        Facts("tested"),
    ],
)
def receive_tree(client: Client, ask: Any) -> dict[str, Any]:
    """Keep the global tree and its rules, and count how it and the own tree do here.

    ``seen``: training rows by node where they end and class. ``judged``: the same of the test rows,
    zeros where none are kept. ``local``: confusion matrix of the own tree, on the test rows where
    some are kept, as ``tested`` says.
    """
    classes = len(ask["classes"])
    tree = Tree.from_payload(ask["tree"], ask["width"], classes)
    client.state[GLOBAL] = {"tree": ask["tree"], "rules": ask["rules"]}

    def counted(cells: IntArray, lines: int) -> IntArray:
        counts = np.bincount(cells[cells >= 0], minlength=lines * classes)
        return counts.reshape(lines, classes)

    return {
        "seen": counted(_cells_of(client, ask, tree, "train"), len(tree)),
        "judged": counted(_judged_cells(client, ask, tree), len(tree)),
        "local": counted(_confused_by_own(client, ask), classes),
        "tested": _judged_part(client) == "test",
    }


def _count_pairs(first: IntArray, second: IntArray, shape: tuple[int, int]) -> IntArray:
    cells = np.ravel_multi_index((first, second), shape)
    return np.bincount(cells, minlength=math.prod(shape)).reshape(shape)

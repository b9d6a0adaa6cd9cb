"""Trees: what one row can change, and what a tree is where clients withhold counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.trust.withholding import Withholding

import solera as so
from solera.core.clients import Client, Draws
from solera.core.errors import DataError
from solera.core.task import find_task
from solera.learn.trees.boosting.histograms import HistBins, Units
from solera.learn.trees.id3 import NodeCounts, entropy
from solera.learn.trees.tree import Tree, TreeBuilder, shares, starts_of
from solera.trust.cells import Behind
from solera.trust.contributions import Contribution, entries_of

RNG = np.random.default_rng(3)
ROWS = 30
X = RNG.normal(size=(ROWS, 3))
TARGETS = {
    "sigmoid": (X[:, 0] > 0).astype(int),
    "softmax": np.digitize(X[:, 0] + X[:, 1], [-0.5, 0.5]),
    "squared": 20 * X[:, 0],
}
CODES = RNG.integers(0, 3, (ROWS, 3)).astype(float)


# --- what one row can change ---


def stump(column: int, cut: float, classes: int) -> dict[str, Any]:
    builder = TreeBuilder(classes)
    builder.add(np.ones(classes), 2.0)
    builder.add(np.eye(classes)[0], 1.0)
    builder.add(np.eye(classes)[-1], 1.0)
    builder.split(0, column, [1, 2], threshold=cut)
    return builder.build().to_payload()


def count_asks(task: str) -> list[dict[str, Any]]:
    """Asks for counts along trees."""
    trees = [stump(0, 0.5, 2), stump(2, 1.5, 2)]
    both = {"width": 3, "classes": np.arange(2)}
    if task == "trees.count":
        return [{**both, "tree": trees[0], "nodes": np.array([1, 2]), "sizes": np.full(3, 3)}]
    grow = {**both, "kind": "cart", "sizes": None, "max_depth": 2, "min_rows": 1}
    if task == "trees.judge":
        return [{**grow, "trees": trees}]
    return [{**grow, "tree": trees[0], "rules": {}}]


def target_asks(loss: str) -> list[dict[str, Any]]:
    noise = {"mechanism": "gaussian", "noise": 1.0, "share": 1, "clip": 2.0}
    return [{"loss": loss, "classes": np.unique(TARGETS["softmax"]), "privacy": noise}]


def bins() -> HistBins:
    made = HistBins(4)
    made.schema_ = so.simulate(X, TARGETS["sigmoid"], clients=1).schema
    made.edges_ = [np.array([-0.5, 0.0, 0.5])] * 3
    made.starts_ = starts_of([5, 5, 5])
    return made


def histogram_asks(loss: str, mechanism: str) -> list[dict[str, Any]]:
    """The root of a round, its children, and the root of the next round after a large step."""
    trees = 3 if loss == "softmax" else 1
    classes = np.arange(3 if loss == "softmax" else 2)
    splits = np.zeros((4, 3), dtype=np.int64)
    splits[0] = -1
    splits[:, 0] = [1, 7, 1, 1]
    noise = {"mechanism": mechanism, "noise": 1.0, "share": 1, "clip": 2.0}
    units = Units(20, 20, 0, packed=False, counted=False)
    asks = []
    for number, level in enumerate([0, 1, 0]):
        wanted = [np.array([1, 2]) if level else np.array([0])] * trees
        ask = {
            "loss": loss,
            "starts": bins().starts_,
            "step": np.array([number, level, *units]),
            "splits": [splits] * trees if number else [],
            "wanted": wanted,
            "privacy": noise,
        }
        if level == 0:
            values = [np.array([0.0, -3.0, 3.0])] * trees if number else []
            ask |= {"classes": classes, "initial": np.zeros(trees), "values": values}
        asks.append(ask)
    return asks


def answers(task: str, asks: Any, rows: Any, y: Any, step: Any = None) -> list[dict[str, Any]]:
    """The bounded numbers of every ask by entry, and how far a row may move them."""
    source = so.simulate(rows, y, clients=1, seed=0).engine.source
    source = source if step is None else source.prepared([step])
    state: dict[str, Any] = {}
    found = []
    for round, ask in enumerate(asks):
        client = Client(0, source, Draws(0, task, round), state)
        reply = find_task(task).one(client, ask)
        norm = "l1" if ask.get("privacy", {}).get("mechanism") == "laplace" else "l2"
        found.append(
            {
                entry: (
                    np.concatenate([np.ravel(one) for one in as_list(bounded(leaf, len(rows)))]),
                    leaf.sensitivity(norm, 2.0),
                    1 if norm == "l1" else 2,
                )
                for entry, leaf in entries_of(reply)
                if isinstance(leaf, Contribution)
            }
        )
    return found


def bounded(leaf: Contribution, rows: int) -> Any:
    return leaf.bounded(2.0).numbers(Behind(rows if leaf.part == "train" else 0))


def as_list(numbers: Any) -> list[Any]:
    return numbers if isinstance(numbers, list) else [numbers]


FORMS: dict[str, tuple[str, Any, Any, Any, Any]] = {
    **{
        task: (task, count_asks(task), CODES, TARGETS["sigmoid"], None)
        for task in ("trees.count", "trees.judge", "trees.receive")
    },
    **{
        f"target {loss}": ("trees.boost_target", target_asks(loss), X, TARGETS[loss], None)
        for loss in ("softmax", "squared")
    },
    **{
        f"{loss} {mechanism}": (
            "trees.histograms", histogram_asks(loss, mechanism), X, TARGETS[loss], bins(),
        )
        for loss in TARGETS
        for mechanism in ("gaussian", "laplace")
    },
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_no_row_changes_more_than_its_sensitivity(form):
    task, asks, rows, y, step = FORMS[form]
    whole = answers(task, asks, rows, y, step)
    most = [0.0] * len(asks)
    for out in range(ROWS):
        kept = np.arange(ROWS) != out
        less = answers(task, asks, rows[kept], y[kept], step)
        for place, (all_rows, others) in enumerate(zip(whole, less, strict=True)):
            for entry, (numbers, sensitivity, order) in all_rows.items():
                moved = np.linalg.norm(numbers - others[entry][0], ord=order) / sensitivity
                most[place] = max(most[place], moved)
    assert max(most) <= 1.000 + 1e-9
    assert min(most) > (0.3 if "laplace" in form else 0.6), "far more noise than is needed"


# --- what a tree is where clients withhold counts ---

LEAST = 6
POLICY = Withholding(min_count=LEAST)
FEATURES = [so.data.Feature(name, "categorical", tuple("pqr")) for name in "abcd"]


def categorical(seed: int, clients: int = 3, rows: int = 900) -> tuple[Any, Any]:
    """Two columns decide; of the last, which tells the class, a category is rare everywhere."""
    draw = np.random.default_rng(seed)
    Z = draw.integers(0, 3, (rows, 4)).astype(float)
    y = ((Z[:, 0] > 0) & (Z[:, 1] != 1)).astype(int)
    y = np.where(draw.random(rows) < 0.15, 1 - y, y)
    Z[:, 3] = y
    Z[:: rows // (4 * clients), 3] = 2
    return Z, y


def federation(Z: Any, y: Any, clients: int, **options: Any) -> Any:
    return so.simulate(Z, y, clients=clients, features=FEATURES, seed=0, **options)


def rows_of(fed: Any) -> list[tuple[Any, Any]]:
    """The training rows of every client."""
    parts = fed.engine.source.segments(np.arange(len(fed)), "train")
    return [(part.X, part.y) for part in parts]


def grow_plainly(clients: Any, depth: int, used: frozenset[int] = frozenset()) -> Any:
    """ID3 by definition, of columns of which every client may tell every cell: nested tuples."""
    together = np.concatenate([y for _, y in clients])
    value = tuple(np.bincount(together, minlength=2).tolist())
    best, chosen = 1e-12, None
    for column in set(range(4)) - used:
        cells = [
            [[((x[:, column] == code) & (y == k)).sum() for k in (0, 1)] for code in range(4)]
            for x, y in clients
        ]
        if any(0 < count < LEAST for count in np.ravel(cells)):
            continue
        total = np.sum(cells, axis=0).astype(float)
        gain = entropy(total.sum(axis=0)[None])[0]
        gain -= (total.sum(axis=1) * entropy(total)).sum() / total.sum()
        if gain > best:
            best, chosen = gain, column
    if chosen is None or depth == 0 or 0 in value:
        return value
    below = []
    for code in range(3):
        there = [(x[x[:, chosen] == code], y[x[:, chosen] == code]) for x, y in clients]
        if sum(len(y) for _, y in there):
            below.append((code, grow_plainly(there, depth - 1, used | {chosen})))
    return value, chosen, tuple(below)


def nested(tree: Tree, node: int = 0) -> Any:
    """A tree as :func:`grow_plainly` makes it."""
    value = tuple(int(count) for count in tree.value[node])
    if tree.feature[node] < 0:
        return value
    below = tuple((code, nested(tree, child)) for code, child in tree.children(node))
    return value, int(tree.feature[node]), below


def warned(model: Any) -> str:
    return " ".join((model._trained_with or {}).get("warnings", ()))


@pytest.mark.parametrize("seed", range(4))
def test_id3_splits_by_columns_of_which_all_is_told(seed):
    Z, y = categorical(seed)
    fed = federation(Z, y, 3, policy=POLICY)
    model = so.FedID3(max_depth=2).fit(fed)
    expected = grow_plainly(rows_of(fed), 2)
    assert nested(model.tree_) == expected
    assert expected[1] != 3, "the last column tells the class, and not all of its counts are told"
    assert any(record.absent["counts"].any() for record in fed.meter.records if record.absent)
    assert "withhold" in warned(model)
    assert so.FedID3(max_depth=2).fit(federation(Z, y, 3)).tree_.feature[0] == 3


def test_id3_that_takes_what_is_withheld_for_zero_chooses_another_column(monkeypatch):
    of = NodeCounts.of
    monkeypatch.setattr(NodeCounts, "of", lambda counts, sizes, absent=None: of(counts, sizes))
    fed = federation(*categorical(0), 3, policy=POLICY)
    assert nested(so.FedID3(max_depth=2).fit(fed).tree_) != grow_plainly(rows_of(fed), 2)


def test_id3_names_columns_and_how_many_clients_withhold_where_nothing_can_be_chosen():
    Z, y = categorical(0)
    Z[::70] = 2 - np.eye(4)[np.arange(len(Z[::70])) % 4]
    rare = Withholding(min_count=80)
    with pytest.raises(DataError, match=r"a \(of 3\), b \(of 3\), c \(of 3\), d \(of 3\)"):
        so.FedID3().fit(federation(Z, y, 3, policy=rare))
    with pytest.raises(DataError, match="every client withholds"):
        so.FederatedTree("id3", by_counts=True).fit(federation(Z, y, 3, policy=rare))


def told_alone(table: Any) -> Any:
    """Marks of what leaves of a table whose rows are in one cell each, in the form of it."""
    flat = np.ravel(table)
    withheld = (flat > 0) & (flat < LEAST)
    if withheld.any():
        for cell in np.argsort(flat, kind="stable"):
            if flat[withheld].sum() >= LEAST:
                break
            withheld[cell] |= flat[cell] > 0
    return ~withheld.reshape(np.shape(table))


def pairs(first: Any, second: Any, shape: tuple[int, int]) -> Any:
    table = np.zeros(shape, dtype=int)
    np.add.at(table, (first, second), 1)
    return table


@pytest.fixture
def merged() -> tuple[Any, Any]:
    """Trees merged where the smaller clients withhold counts, and the federation."""
    draw = np.random.default_rng(5)
    Z, y = categorical(1, clients=6, rows=2000)
    y = np.where(draw.random(len(y)) < 0.3, 1 - y, y)
    offsets = np.array([0, 600, 1100, 1130, 1180, 1300, 2000])
    schema = federation(Z, y, 1).schema
    fed = so.simulate(so.data.FederatedData(Z, y, offsets, schema=schema), policy=POLICY)
    tree = so.FederatedTree("id3", max_depth=1, global_depth=1, by_counts=True)
    return tree.fit(fed), fed


def test_trees_of_counts_split_by_columns_of_which_all_is_told(merged):
    model, fed = merged
    assert len(model.local_trees_) > 3
    every_count = model.clone().fit(so.simulate(fed.engine.source))
    both = zip(model.local_trees_, every_count.local_trees_, strict=True)
    assert any(nested(own) != nested(other) for own, other in both)
    for client, tree in zip(model.clients_, model.local_trees_, strict=True):
        assert nested(tree) == grow_plainly([rows_of(fed)[client]], 1)
    assert "trees.count" in warned(model)


def test_trees_are_judged_by_clients_that_tell_the_whole_matrix(merged):
    model, fed = merged
    scores: list[list[float]] = [[] for _ in model.clients_]
    withheld = 0
    for client, (x, y) in enumerate(rows_of(fed)):
        for i, tree in enumerate(model.local_trees_):
            said = tree.values(x).argmax(axis=1)
            matrix = pairs(y, said, (2, 2))
            few = bool(((matrix > 0) & (matrix < LEAST)).any())
            withheld += few
            if model.clients_[i] != client and not few:
                scores[i].append(float((said == y).mean()))
    assert 0 < withheld < len(scores) ** 2
    expected = [np.mean(each) if each else np.nan for each in scores]
    np.testing.assert_allclose(model.scores_["accuracy"], expected, atol=1e-12)
    known = model.scores_["accuracy"][~np.isnan(expected)]
    kept = np.isnan(expected) | (np.nan_to_num(expected) >= known.mean() - 1e-12)
    assert model.kept_.tolist() == model.clients_[kept].tolist()


def test_leaves_and_metrics_rest_on_clients_that_tell_all_of_them(merged):
    model, fed = merged
    tree = model.tree_
    seen, whole_clients = np.zeros((len(tree), 2)), []
    for client, (x, y) in enumerate(rows_of(fed)):
        reached = pairs(tree.apply(x), y, (len(tree), 2))
        told = told_alone(reached)
        seen += reached * told.all(axis=1, keepdims=True)
        accuracy = float((tree.values(x).argmax(axis=1) == y).mean())
        metrics = model.client_metrics_[client]
        assert ("global_accuracy" in metrics) == told.all()
        if told.all():
            whole_clients.append(client)
            assert metrics["global_accuracy"] == pytest.approx(accuracy)
            assert metrics["rows"] == len(y)
    assert 0 < len(whole_clients) < len(fed)
    below = tree.subtree_sums(seen)
    leaves = tree.leaves[below[tree.leaves].sum(axis=1) > 0]
    share = shares(below)[leaves]
    count = below[leaves].sum(axis=1)
    assert np.all(np.abs(tree.value[leaves] - share).max(axis=1) <= 1 / (count + 1) + 1e-12)


def test_a_tree_that_nobody_may_judge_is_kept_and_said(caplog):
    """Three rows of the second client are not as the first one's tree says."""
    Z = np.random.default_rng(0).integers(0, 3, (800, 4)).astype(float)
    y = (Z[:, 0] > 0).astype(int)
    y[500:503] = 1 - y[500:503]
    schema = federation(Z, y, 1).schema
    data = so.data.FederatedData(Z, y, np.array([0, 400, 800]), schema=schema)
    fed = so.simulate(data, policy=POLICY)
    model = so.FederatedTree("id3", max_depth=1, filter=100.0, by_counts=True).fit(fed)
    assert np.isnan(model.scores_["accuracy"]).tolist() == [True, False]
    assert model.kept_.tolist() == [0, 1]
    assert "1 of 2 trees are kept of whose rows no other client" in caplog.text
    assert model.report_sections()[-1][0] == "Filter"

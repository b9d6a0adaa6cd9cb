"""Trees: what one row can change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import solera as so
from solera.core.clients import Client, Draws
from solera.core.task import find_task
from solera.learn.trees.boosting.histograms import HistBins, Units
from solera.learn.trees.tree import TreeBuilder, starts_of
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

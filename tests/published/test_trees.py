"""The study of trees: its cells, its folds, and that its quick version shows what it must."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import solera as so
from solera.published import trees
from solera.study.run.progress import Progress

folder = Path(os.environ.get("SOLERA_DATA", "nowhere"))
needs_data = pytest.mark.skipif(
    not (folder / "car.csv.gz").exists(), reason="car and nursery are not at hand"
)


def verdict_of(rows: list[dict[str, Any]]) -> dict[str, int]:
    """How many cells reach the published figures, and how many beat the local trees."""

    def count(test: Callable[[dict[str, Any]], bool]) -> int:
        return sum(test(row) for row in rows)

    beats = [row for row in rows if row["thesis_accuracy"] > row["thesis_local_accuracy"]]
    return {
        "cells": len(rows),
        "accuracy": count(lambda r: r["ours_accuracy"] >= r["thesis_accuracy"]),
        "macro_f1": count(lambda r: r["ours_macro_f1"] >= r["thesis_macro_f1"]),
        "both": count(lambda r: all(r[f"ours_{m}"] >= r[f"thesis_{m}"] for m in trees.METRICS)),
        "thesis_above_local": len(beats),
        "above_local_there": sum(r["ours_accuracy"] > r["local_accuracy"] for r in beats),
        "noted": count(lambda r: bool(r["note"])),
    }


def test_all_cells_have_published_figures():
    cells = list(trees.cells(full=True))
    assert len(set(cells)) == 80
    assert all(len(trees.published(cell)) == 4 for cell in cells)
    assert trees.published(trees.Cell("nursery", "id3", 20, "IID")) == {
        "thesis_local_accuracy": 85.19,
        "thesis_local_macro_f1": 63.81,
        "thesis_accuracy": 87.5,
        "thesis_macro_f1": 74.54,
    }
    assert trees.published(trees.Cell("credit2", "cart", 50, "non-IID"))["thesis_accuracy"] == 78.37


@needs_data
def test_folds_test_every_row_once_and_never_train_on_it():
    dataset = so.datasets.car()
    X, y = dataset.all
    assignment = so.partitions.QuantitySkew(1.0, min_rows=5).assign(len(X), y, clients=20, seed=0)
    tested = np.zeros(20, dtype=int)
    for fold in range(trees.FOLDS):
        data = trees.fold_data(dataset, assignment, fold)
        train, test = data.sizes("train"), data.sizes("test")
        assert np.array_equal(train + test, assignment.sizes)
        assert (train > 0).all()
        tested += test
        rows = np.concatenate([data.X, data.y[:, None]], axis=1)
        wanted = np.concatenate([X, y[:, None]], axis=1)
        assert np.array_equal(np.sort(rows, axis=0), np.sort(wanted, axis=0))
    assert np.array_equal(tested, assignment.sizes)


@needs_data
def test_the_quick_study():
    heard = []

    class Listening(Progress):
        def cells(self, finished, total, detail):
            heard.append((finished, total))

    small = [cell for cell in trees.cells(full=False) if cell.data in ("car", "nursery")]
    rows = trees.measure_all(small, folds=2, progress=Listening())
    assert heard == [(i, 8) for i in range(1, 9)]
    verdict = verdict_of(rows)
    assert verdict["accuracy"] >= 4
    assert verdict["above_local_there"] >= 0.8 * verdict["thesis_above_local"]
    for row in rows:
        assert row["ours_accuracy"] >= row["local_accuracy"] - 2 or row["note"]


@needs_data
def test_the_table_of_the_study(monkeypatch):
    few = [trees.Cell("car", "cart", 50, "IID")]
    monkeypatch.setattr(trees, "cells", lambda full: few)
    table = trees.run()
    assert [row["thesis"] for row in table[:2]] == [71.08, 50.78]
    assert all(row["ours"] > row["thesis"] for row in table[:2])
    assert "local" in table[0]["note"]
    assert "centralised" in table[0]["note"]
    figure = table[2:]
    assert len(figure) == 2 * len(trees.PERCENTILES)
    assert figure[0]["note"] == "50 trees kept"
    assert all(row["thesis"] is None and 0 < row["ours"] <= 100 for row in figure)

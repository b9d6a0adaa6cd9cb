"""The measure itself: what it says of rows that are unknown, and that no mechanism is idle."""

from __future__ import annotations

import numpy as np
import pytest
from tests.gate.measure import effective
from tests.gate.test_hostile_driver import attack

from solera.core.disclosure import cumulative, gram, histograms, node_counts
from solera.core.disclosure.memory import Memory
from solera.core.disclosure.row_sets import RowSets
from solera.core.release import Cells, Update


def rows_of(changes, as_told):
    known = np.array(changes, dtype=float)[:, None]
    told = np.where(np.isnan(known), np.array(as_told, dtype=float)[:, None], known)
    rows, unknown = effective(known, told, np.array([10.0]))
    return float(rows[0]), int(unknown[0])


NAN = np.nan


def test_unknown_rows_count_where_nobody_can_tell_them_from_known_ones():
    assert rows_of([2, 2, 2, 2, 0, 0], [0] * 6) == (4, 0)
    assert rows_of([2, 2, 2, 2, NAN, NAN], [0, 0, 0, 0, 2, -2]) == (6, 2)
    assert rows_of([1, NAN, NAN, NAN, NAN, NAN], [0, 1, 1, 1, 1, 1]) == (6, 5)


@pytest.mark.parametrize("seen", [0, 0.4, 2.5, 100, NAN])
def test_unknown_rows_hide_nothing_by_another_change(seen):
    assert rows_of([1, 0, 0, NAN, NAN, NAN, NAN, NAN], [0, 0, 0, *[seen] * 5]) == (1, 5)


def everything(leaving, sums, *_):
    return np.ones(sums.shape[0], dtype=bool)


def no_earlier(self, sums, *_):
    return np.zeros(sums.shape, dtype=bool), np.zeros(sums.shape)


def none_withheld(self, leaving, behind):
    return {entry: np.zeros(sums.shape, dtype=bool) for entry, sums in behind.items()}


def as_they_are(self, now, *_):
    return self._and(now), now.sizes, np.ones(len(now), dtype=bool)


def as_given(self, leaving):
    return leaving.reply


def all_differences(rows, margins, least):
    return rows > 0


MECHANISMS = {
    "cells of few rows": (Cells, "_withheld", none_withheld, "preprocess.count_categories"),
    "sums of few rows": (Cells, "_withheld", none_withheld, "preprocess.moments"),
    "earlier counts": (Memory, "earlier", no_earlier, "learner.evaluate"),
    "earlier sums": (Memory, "earlier", no_earlier, "kmeans.update"),
    "intervals of values": (cumulative.Cumulative, "judge", as_given, "preprocess.count"),
    "histograms far apart": (histograms, "_far_apart", everything, "learner.score_counts"),
    "sets of rows": (RowSets, "with_more", as_they_are, "trees.count"),
    "counts along trees": (node_counts, "_without_remainders", all_differences, "trees.judge"),
    "matrices": (gram.Gram, "judge", as_given, "describe.products"),
    "updates": (Update, "judge", as_given, "linear.train"),
}


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_without_a_mechanism_rows_are_told(monkeypatch, mechanism):
    where, name, instead, task = MECHANISMS[mechanism]
    monkeypatch.setattr(where, name, instead)
    with pytest.raises(AssertionError, match="rows"):
        attack_long(task)


def attack_long(task):
    for seed in range(5):
        attack(task, "classes", ["training"], payloads=12, seed=seed)

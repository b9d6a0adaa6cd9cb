"""Summaries and pictures of partitions."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from solera.core.errors import DataError
from solera.data.summary import class_counts, plot_counts, summarise

tables = st.integers(1, 6).flatmap(
    lambda classes: st.lists(
        st.lists(st.integers(0, 20), min_size=classes, max_size=classes), min_size=1, max_size=12
    )
)


def test_one_class_each_is_as_far_from_iid_as_two_clients_get():
    summary = summarise([10, 10], [[10, 0], [0, 10]], left_over=3)
    assert (summary.clients, summary.rows, summary.left_over) == (2, 20, 3)
    assert summary.entropy == 0
    assert summary.max_entropy == 1
    assert summary.distance == summary.max_distance == 0.5


def test_the_same_mix_everywhere_has_no_distance():
    summary = summarise([4, 8, 0], [[1, 3], [2, 6], [0, 0]])
    assert summary.distance == summary.max_distance == 0
    assert summary.entropy == pytest.approx(0.8113, abs=1e-4)
    assert summary.empty == 1
    assert (summary.smallest, summary.median, summary.mean, summary.largest) == (0, 4, 4, 8)


def test_the_mean_distance_is_weighted_by_rows():
    counts = np.array([[90, 0], [0, 10]])
    summary = summarise(counts.sum(axis=1), counts)
    assert summary.distance == pytest.approx(0.9 * 0.1 + 0.1 * 0.9)
    assert summary.max_distance == pytest.approx(0.9)


@settings(deadline=None)
@given(tables)
def test_numbers_stay_within_their_bounds(counts):
    counts = np.array(counts)
    summary = summarise(counts.sum(axis=1), counts)
    assert 0 <= summary.distance <= summary.max_distance + 1e-12 <= 1 + 1e-12
    assert -1e-12 <= summary.entropy <= summary.max_entropy + 1e-12
    assert summary.smallest <= summary.median <= summary.largest
    assert sum(summary.class_rows.values()) == summary.rows
    assert json.loads(json.dumps(summary.to_dict())) == summary.to_dict()


def test_a_summary_reads_well():
    text = str(summarise([1200, 800], [[1200, 0], [0, 800]], 5, class_names=["<no>", "yes"]))
    assert text.splitlines() == [
        "clients:           2",
        "rows:              2,000 (5 left over)",
        "rows per client:   800 min, 1,000 median, 1,000.0 mean, 1,200 max",
        "rows per class:    <no>: 1,200, yes: 800",
        "label entropy:     0.00 of 1.00 bits",
        "distance from IID: 0.480 mean, 0.600 max",
    ]
    html = summarise([1], [[1]], class_names=["<no>"])._repr_html_()
    assert "&lt;no&gt;" in html
    assert html.startswith("<table>")


def test_without_labels_only_sizes_are_told():
    summary = summarise([3, 0])
    assert summary.entropy is None
    assert str(summary).splitlines()[0] == "clients:           2 (1 empty)"
    assert "entropy" not in str(summary)


def test_many_classes_are_cut_short():
    assert "9: 1 and 20 more" in str(summarise([30], np.ones((1, 30), dtype=int)))


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 5), st.data())
def test_class_counts_equal_counting_by_hand(labels, clients, data):
    y = np.array(["a", "b", "c", "d"])[labels]
    owners = np.sort(data.draw(st.lists(st.integers(0, clients - 1), max_size=60)))
    index = np.array([i % len(y) for i in range(len(owners))], dtype=np.int64)
    offsets = np.searchsorted(owners, np.arange(clients + 1))
    counts = class_counts(y, index, offsets, classes=["a", "b", "c", "d"])
    for client in range(clients):
        rows = index[offsets[client] : offsets[client + 1]]
        assert counts[client].tolist() == [(y[rows] == name).sum() for name in "abcd"]


def test_class_counts_of_a_label_matrix():
    y = np.array([[1, 0, 1], [0, 0, 0], [1, 1, 1]])
    counts = class_counts(y, np.array([2, 0, 1]), np.array([0, 2, 2, 3]))
    assert counts.tolist() == [[2, 1, 2], [0, 0, 0], [0, 0, 0]]


def test_what_cannot_be_summarised_is_refused():
    index, offsets = np.arange(2), np.array([0, 2])
    with pytest.raises(DataError, match=r"is not among the 2 agreed classes"):
        class_counts(np.array([0, 7]), index, offsets, classes=[0, 1])
    with pytest.raises(DataError, match=r"numbers .*not classes"):
        class_counts(np.array([0.5, 1]), index, offsets)
    with pytest.raises(DataError, match="no clients"):
        summarise([])
    with pytest.raises(DataError, match=r"shape \(1, 2\), not a row for each of 3 clients"):
        summarise([1, 1, 1], [[1, 2]])
    with pytest.raises(DataError, match="1 class names for 2 classes"):
        summarise([3], [[1, 2]], class_names=["a"])


def test_the_heat_map_shows_every_client_and_class():
    counts = np.arange(12).reshape(4, 3)
    figure = plot_counts(counts.sum(axis=1), counts, class_names=["x", "y", "z"])
    heat = figure.axes[0]
    assert np.array_equal(heat.images[0].get_array(), counts)
    assert heat.get_title() == "4 clients"
    assert [label.get_text() for label in heat.get_xticklabels()] == ["x", "y", "z"]
    side = heat.child_axes[0]
    assert [bar.get_width() for bar in side.patches] == counts.sum(axis=1).tolist()
    assert figure.axes[-1].get_ylabel() == "rows of the class"


def test_of_many_clients_a_sample_is_shown():
    counts = np.arange(1000)[:, None] * np.ones(2, dtype=int)
    figure = plot_counts(counts.sum(axis=1), counts, max_clients=10)
    shown = figure.axes[0].images[0].get_array()[:, 0]
    assert set(np.diff(shown).tolist()) <= {100}
    assert figure.axes[0].get_title() == "10 of 1,000 clients, evenly spaced"


def test_sizes_alone_are_bars_and_axes_may_be_given(tmp_path):
    figure = Figure()
    ax = figure.add_subplot()
    assert plot_counts([5, 2], None, ax=ax) is figure
    assert [bar.get_width() for bar in ax.patches] == [5, 2]
    plot_counts([5, 2], [[5, 0], [1, 1]]).savefig(tmp_path / "heat.png")
    assert (tmp_path / "heat.png").stat().st_size > 1000


def test_importing_it_does_not_import_matplotlib():
    code = "import sys, solera.data.summary; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

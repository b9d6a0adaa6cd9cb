"""Several labels of a row: unknown ones in arrays, frames and files, statistics, deals."""

from __future__ import annotations

import numpy as np
import pytest

import solera as so
from solera.core.errors import DataError, UsageError
from solera.core.schema import infer_target
from solera.data.label_statistics import label_statistics

pd = pytest.importorskip("pandas")
KNOWN = np.array([[1, 0], [0, 1], [1, 1], [0, 0]])
GAPS = np.array([[1, np.nan], [0, 1], [np.nan, 1], [0, 0]])
UNKNOWN = [[1, -1], [0, 1], [-1, 1], [0, 0]]
X = np.arange(8.0).reshape(4, 2)


@pytest.mark.parametrize(
    "y", [GAPS, UNKNOWN, np.array(UNKNOWN), GAPS.astype(object), pd.DataFrame(GAPS).astype("Int64")]
)
def test_gaps_and_minus_one_are_unknown_labels(y):
    fed = so.simulate(X, y, clients=2)
    assert fed.schema.target == "labels"
    assert sorted(fed.data.y.tolist()) == sorted(UNKNOWN)


def test_numbers_with_gaps_and_labels_without_zeros_are_refused():
    with pytest.raises(DataError, match="missing or infinite in 1"):
        so.simulate(X, np.array([[0.5, np.nan], [0, 1], [1, 1], [0, 0]]), clients=2)
    with pytest.raises(DataError, match="missing or infinite"):
        so.simulate(X, np.where(np.isnan(GAPS), np.inf, GAPS), clients=2)
    with pytest.raises(DataError, match=r"none is 0: −1 says that a label is unknown"):
        so.simulate(X, 2 * KNOWN - 1, clients=2)
    assert infer_target(np.array([[2, -1]]))[0] == "numbers"


@pytest.mark.parametrize(
    "columns",
    [
        {"A": [1, 0, None, 0], "B": [None, 1, 1, 0]},
        {"A": [1, 0, -1, 0], "B": [-1, 1, 1, 0]},
        {"A": [True, False, None, False], "B": [None, True, True, False]},
        {"A": [1.0, 0.0, -1.0, 0.0], "B": pd.array([None, 1, 1, 0], dtype="Int64")},
    ],
)
def test_label_columns_of_a_frame_may_have_gaps(columns):
    data = so.from_pandas(pd.DataFrame({"x": [1, 2, 3, 4], **columns}), target=["A", "B"])
    assert data.y.tolist() == UNKNOWN
    assert data.schema.label_names == ("A", "B")
    fed = so.simulate(pd.DataFrame({"x": [1, 2, 3, 4], **columns}), target=["A", "B"], clients=2)
    assert fed.schema.label_names == ("A", "B")


def test_columns_of_which_nothing_is_known_or_all_is_one_are_refused():
    frame = pd.DataFrame({"x": [1, 2], "A": [None, None], "B": [-1, -1], "C": [1, -1]})
    with pytest.raises(DataError, match="no label of any row is known"):
        so.from_pandas(frame, target=["A", "B"])
    with pytest.raises(DataError, match="none is 0"):
        so.from_pandas(frame, target=["B", "C"])


def test_statistics_of_labels_against_their_definitions():
    y = np.array([[1, 0, 0], [1, 1, 0], [1, 1, 0], [0, 1, 0]])
    found = label_statistics(y, ["a", "b", "c"])
    assert found.cardinality == 6 / 4
    assert found.density == 6 / 12
    assert found.imbalance == 1.0  # both labels that some row has are as frequent
    assert found.together == {"a & b": 2}
    assert found.present == {"a": 3, "b": 3, "c": 0}
    rare = np.zeros((8, 2), dtype=int)
    rare[:, 0], rare[0, 1] = 1, 1
    assert label_statistics(rare, ["a", "b"]).imbalance == (1 + 8) / 2


def test_unknown_labels_count_neither_way_in_a_summary():
    y = np.array([[1, -1], [1, -1], [0, 1], [1, 0], [0, 0], [-1, -1]])
    clients = so.partitions.Explicit([[0, 1], [2, 3, 4, 5]])
    fed = so.simulate(np.zeros((6, 1)), y, partition=clients)
    summary = fed.data.summary()
    assert summary.labels.present == {"0": 3, "1": 1}
    assert summary.labels.known == {"0": 5, "1": 3}
    assert summary.labels.cardinality == pytest.approx(3 / 5 + 1 / 3)
    assert summary.distance is None  # nobody knows how a client differs
    assert "0: 3 of 5, 1: 1 of 3" in str(summary)
    assert fed.data.class_counts().tolist() == [[2, 0], [1, 1]]
    fed.data.labelled = np.array([True] * 5 + [False])
    y[5] = 1  # what a row without a target holds is nothing
    assert fed.data.summary().labels == summary.labels
    heat = fed.data.plot().axes[0].images[0].get_array()
    assert heat.mask.tolist() == [[False, True], [False, False]]


@pytest.mark.data("yeast")
def test_names_of_labels_reach_summaries_of_data_sets():
    yeast = so.datasets.yeast()
    text = yeast.summary()
    assert "Class1: " in text
    assert "cardinality: 4.2" in text
    fed = so.simulate(yeast, clients=2)
    assert "Class1: " in str(fed.data.summary())
    assert fed.data.summary().distance is not None


def test_a_label_that_a_file_lacks_is_unknown_to_its_client(tmp_path):
    rows = pd.DataFrame({"x": [1.0, 2, 3], "A": [1, 0, 1], "B": [0, 0, 1]})
    for name, lacking in (("one", "B"), ("two", "A"), ("three", "x")):
        rows.drop(columns=lacking).to_csv(tmp_path / f"{name}.csv", index=False)
    files = [tmp_path / "one.csv", tmp_path / "two.csv"]
    source = so.from_files(files, target=["A", "B"])
    first, second = (source.segments(np.array([i]))[0].y.tolist() for i in range(2))
    assert first == [[1, -1], [0, -1], [1, -1]]
    assert second == [[-1, 0], [-1, 0], [-1, 1]]
    with pytest.raises(DataError, match="no column 'C'"):
        so.from_files(files, target=["A", "C"], columns=["x"])
    with pytest.raises(DataError, match=r"two\.csv has no column 'A'"):
        so.from_files(files, target="A", columns=["x"])
    with pytest.raises(DataError, match=r"three\.csv has no column 'x'"):
        so.from_files([tmp_path / "one.csv", tmp_path / "three.csv"], target=["A", "B"])
    numbers = rows.assign(A=[0.5, 1, 2], B=[1.5, 1, 2])
    numbers.to_csv(tmp_path / "four.csv", index=False)
    numbers.drop(columns="A").to_csv(tmp_path / "five.csv", index=False)
    with pytest.raises(DataError, match=r"five\.csv has no column 'A'"):
        so.from_files([tmp_path / "four.csv", tmp_path / "five.csv"], target=["A", "B"])


# --- deal_labels ---


def table(rows=300):
    draw = np.random.default_rng(0)
    frame = pd.DataFrame(draw.normal(size=(rows, 3)), columns=["u", "v", "w"])
    for i, name in enumerate(["A", "B", "C"]):
        frame[name] = (frame.iloc[:, i] > 0).astype(int)
    return frame


def test_labels_are_dealt_from_frames_by_their_names():
    frame = table()
    target = ["A", "B", "C"]
    dealt = so.data.deal_labels(frame, labels=[["A", "C"], ["B"]], target=target)
    assert [owned.tolist() for owned in dealt.owned] == [[0, 2], [1]]
    assert dealt.clients.schema.label_names == ("A", "B", "C")
    assert [feature.name for feature in dealt.clients.schema.features] == ["u", "v", "w"]
    first = dealt.clients.segments(np.array([0]))[0].y
    assert (first[:, 1] == -1).all()
    assert (first[:, [0, 2]] >= 0).all()
    two = so.data.deal_labels(frame[["u", "v", "w"]], frame[target], [["A", "C"], [1]])
    np.testing.assert_array_equal(two.clients.y, dealt.clients.y)
    arrays = so.data.deal_labels(frame[["u", "v", "w"]].to_numpy(), frame[target], [[0, 2], [1]])
    np.testing.assert_array_equal(arrays.clients.y, dealt.clients.y)
    assert arrays.clients.schema.label_names == ("A", "B", "C")
    with pytest.raises(UsageError, match="of A, B, C"):
        so.data.deal_labels(frame, labels=[["A", "D"]], target=target)
    with pytest.raises(UsageError, match="labels"):
        so.data.deal_labels(frame, target=target)


def test_dealing_adds_no_noise_unless_asked():
    frame = table()
    features, labels = frame[["u", "v", "w"]].to_numpy(), frame[["A", "B", "C"]].to_numpy()
    known = {tuple(row) for row in features.astype(np.float32).tolist()}
    clean = so.data.deal_labels(features, labels, [1, 1])
    assert {tuple(row) for row in clean.clients.X.tolist()} <= known
    noisy = so.data.deal_labels(features, labels, [1, 1], noise=0.5)
    assert not {tuple(row) for row in noisy.clients.X.tolist()} & known


@pytest.mark.data("scene")
def test_a_data_set_is_dealt_as_it_is():
    scene = so.datasets.scene()
    dealt = so.data.deal_labels(scene, labels=[["Beach", "Sunset"], ["Urban"]])
    assert dealt.clients.schema.label_names == scene.class_names
    assert dealt.clients.clients == 2

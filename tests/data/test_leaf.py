"""Sets that come with their owners: LEAF's files, made in its format, and what is at hand."""

from __future__ import annotations

import json

import numpy as np
import pytest

import solera as so
from solera.core.errors import DataError, DatasetUnavailable
from solera.data.leaf import LETTERS


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes users' rows as LEAF's scripts do."""
    monkeypatch.setenv("SOLERA_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SOLERA_OFFLINE", "1")

    def written(name, part, users, file="all_data_0.json"):
        folder = tmp_path / "leaf" / name / part
        folder.mkdir(parents=True, exist_ok=True)
        data = {user: {"x": x, "y": y} for user, (x, y) in users.items()}
        counts = [len(y) for _, y in users.values()]
        content = {"users": list(users), "num_samples": counts, "user_data": data}
        (folder / file).write_text(json.dumps(content))

    return written


def images(count, value):
    return [[value] * 784] * count, list(range(count))


def test_femnist_with_its_own_test_rows(write):
    write("femnist", "train", {"f0001_41": images(3, 0.25), "f0002_00": images(2, 0.5)})
    write("femnist", "train", {"f0003_07": images(4, 0.75)}, file="all_data_1.json")
    write("femnist", "test", {"f0001_41": images(1, 0.25), "f0003_07": images(1, 0.75)})
    data = so.datasets.femnist()
    assert (data.X.shape, data.X.dtype, data.X_test.shape) == ((9, 784), np.float32, (2, 784))
    assert data.class_names[10] == "A"
    assert data.class_names[61] == "z"
    fed = so.simulate(data, group="user")
    assert fed.names == ("f0001_41", "f0002_00", "f0003_07")
    assert fed.data.sizes().tolist() == [3, 2, 4]
    assert data.groups_test["user"].tolist() == ["f0001_41", "f0003_07"]


def test_the_last_rows_of_every_user_are_held_out(write):
    write("femnist", "train", {"a": images(10, 0.1), "b": images(4, 0.2)})
    data = so.datasets.femnist(test=0.25)
    assert data.groups_test["user"].tolist() == ["a", "a", "b"]
    assert data.y_test.tolist() == [8, 9, 3]


def test_shakespeare_in_leaf_s_windows(write):
    text = "To be, or not to be: that is the question: whether 'tis nobler in the mind to suffer~!"
    windows = [text[i : i + 80] for i in range(6)]
    following = [text[i + 80] for i in range(6)]
    write("shakespeare", "train", {"HAMLET_HAMLET": (windows, following)})
    write("shakespeare", "test", {"HAMLET_HAMLET": (windows[:1], following[:1])})
    data = so.datasets.shakespeare()
    letters = " " + LETTERS  # 0 is any other
    assert "".join(letters[n] for n in data.X[2]) == windows[2]
    assert [data.class_names[c] for c in data.y] == [c for c in following if c != "~"]
    assert len(data.y) == 5  # "~" is not among the characters that are guessed
    assert data.X[5 - 1][-1] == 0  # but may be among those that are read


def test_sentiment140_in_leaf_s_lines(write):
    def line(text):
        return ["1467810369", "Mon Apr 06 22:19:45 PDT 2009", "NO_QUERY", "someone", text]

    users = {"someone": ([line("so happy today!"), line("bad, bad day")], [1, 0]),
             "other": ([line("nothing")], [0])}  # fmt: skip
    write("sentiment140", "train", users)
    data = so.datasets.sentiment140(length=4, tokens=1000, test=0)
    assert data.X.shape == (3, 4)
    assert (data.X[2] > 0).tolist() == [False, False, False, True]  # short rows begin with zeros
    assert data.X[1][0] == data.X[1][2]  # the same word has the same number
    assert data.X.max() < 1000
    assert data.groups["user"].tolist() == ["someone", "someone", "other"]
    kept = so.datasets.sentiment140(length=4, least=2, test=0)
    assert set(kept.groups["user"]) == {"someone"}


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("{", "no file of LEAF"),
        ('{"users": []}', "user_data"),
        ('{"user_data": {"u": {"x": [[1]], "y": []}}}', "u has 1 rows and 0 targets"),
    ],
)
def test_a_damaged_file(write, tmp_path, content, what):
    write("femnist", "train", {"a": images(2, 0.1)})
    (tmp_path / "leaf/femnist/train/all_data_0.json").write_text(content)
    with pytest.raises(DataError, match=f"all_data_0.*{what}"):
        so.datasets.femnist()


def test_rows_of_another_shape_or_class(write):
    write("femnist", "train", {"a": ([[0.0] * 783], [1])})
    with pytest.raises(DataError, match=r"rows of a are of \(783,\), not 784"):
        so.datasets.femnist()
    write("femnist", "train", {"a": ([[0.0] * 784], [62])})
    with pytest.raises(DataError, match="a class beyond the 62"):
        so.datasets.femnist()


@pytest.mark.parametrize(
    ("name", "rows", "targets", "what"),
    [
        ("femnist", [["ink"] * 784], [3], "could not convert"),
        ("shakespeare", ["a" * 40, "b" * 120], ["x", "y"], "not 80 characters and the one after"),
        ("shakespeare", ["a" * 80], ["xy"], "not 80 characters and the one after"),
        ("shakespeare", [7], ["x"], "has no len"),
        ("sentiment140", [["too", "few"]], [1], "list index out of range"),
        ("sentiment140", ["fine"], ["happy"], "invalid literal"),
    ],
)
def test_rows_that_are_no_rows(write, name, rows, targets, what):
    """Two windows of 40 and 120 characters would make two rows, of nobody's text."""
    write(name, "train", {"ann": (rows, targets)})
    with pytest.raises(DataError, match=rf"{name}: rows of ann cannot be read: .*{what}"):
        so.datasets.load(name)


def test_without_files(write):
    with pytest.raises(DatasetUnavailable, match=r"put leaf/femnist/train/\*\.json into"):
        so.datasets.femnist()


@pytest.mark.data("shakespeare")
def test_roles_of_what_is_at_hand():
    data = so.datasets.shakespeare(stride=400)
    assert "shakespeare_tiny" in data.title
    assert data.X.shape[1] == 80
    roles = set(data.groups["user"])
    assert "First Citizen" in roles
    assert len(roles) > 150
    letters = " " + LETTERS
    first = data.X[data.groups["user"] == "First Citizen"][0]
    assert "".join(letters[n] for n in first).startswith("Before we proceed any further")


@pytest.mark.data("shakespeare")
def test_windows_that_share_text_are_not_on_both_sides():
    data = so.datasets.shakespeare(stride=40, test=0.3)
    letters = np.array(list(" " + LETTERS))
    of = data.groups["user"] == "GLOUCESTER"
    told = "".join(letters[data.X[of][-1]]) + data.class_names[data.y[of][-1]]
    held = "".join(letters[data.X_test[data.groups_test["user"] == "GLOUCESTER"][0]])
    assert told[-20:] not in held


@pytest.mark.data("sentiment140")
def test_an_lstm_learns_the_sentiment_of_tweets():
    pytest.importorskip("torch")
    data = so.datasets.sentiment140(tokens=500, length=8, least=3, test=0.4)
    assert "sentiment140_20k" in data.title
    model = so.FedAvg(so.nn.lstm(500, 2, embedding=4, hidden=8, depth=1), rounds=2, batch_size=8)
    fed = so.simulate(data, group="user")
    assert len(fed) > 100
    model.fit(fed)
    first, last = model.history_[0]["loss"], model.history_[-1]["loss"]
    assert last < first
    assert model.predict(data.X_test).shape == data.y_test.shape

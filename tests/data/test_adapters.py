"""Frames, PyTorch data sets and Hugging Face data sets become data sets."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from solera.core.errors import DataError, MissingExtra, UsageError
from solera.data import adapters

NAN = np.nan


@pytest.fixture
def pd():
    return pytest.importorskip("pandas", reason="from_pandas needs pandas")


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="from_torch is tested with PyTorch")


@pytest.fixture
def hf(pd, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return pytest.importorskip("datasets", reason="needs the Hugging Face datasets library")


def test_every_kind_of_column_becomes_numbers_or_codes(pd):
    columns = {
        "whole": [3, 1, 2],
        "real": [0.5, NAN, 1.5],
        "nullable": pd.array([7, None, 9], dtype="Int64"),
        "text": ["b", None, "a"],
        "string": pd.array(["x", "y", pd.NA], dtype="string"),
        "flag": [True, False, True],
        "nullable flag": pd.array([True, None, False], dtype="boolean"),
        "object flag": pd.Series([True, None, False], dtype=object),
        "ordered": pd.Categorical(["low", "high", None], categories=["low", "mid", "high"]),
    }
    dataset = adapters.from_pandas(pd.DataFrame(columns))
    expected = [
        [3, 1, 2],
        [0.5, NAN, 1.5],
        [7, NAN, 9],
        [1, NAN, 0],
        [0, 1, NAN],
        [1, 0, 1],
        [1, NAN, 0],
        [1, NAN, 0],
        [0, 2, NAN],
    ]
    assert np.array_equal(dataset.X, np.array(expected).T, equal_nan=True)
    categories = {f.name: f.categories for f in dataset.schema.features if f.kind == "categorical"}
    assert categories == {
        "text": ("a", "b"),
        "string": ("x", "y"),
        "flag": ("False", "True"),
        "nullable flag": ("False", "True"),
        "object flag": ("False", "True"),
        "ordered": ("low", "mid", "high"),
    }
    assert (dataset.y, dataset.y_test, dataset.schema.target) == (None, None, "none")
    assert dataset.all[1] is None
    assert "no target" in repr(dataset)


@pytest.mark.parametrize(
    ("values", "kind", "y", "names"),
    [
        (["no", "yes", "no"], "classes", [0, 1, 0], ("no", "yes")),
        ([30, 10, 30], "classes", [1, 0, 1], ("10", "30")),
        ([True, True, False], "classes", [1, 1, 0], ("False", "True")),
        ([1.0, 2.0, 2.0], "numbers", [1, 2, 2], ()),
    ],
)
def test_the_target_s_type_says_how_to_read_it(pd, values, kind, y, names):
    frame = pd.DataFrame({"x": [1, 2, 3], "y": values})
    dataset = adapters.from_pandas(frame, target="y")
    assert (dataset.schema.target, dataset.class_names) == (kind, names)
    assert dataset.y.tolist() == y
    assert dataset.schema.outputs == (len(names) or 1)
    assert dataset.schema.classes.tolist() == list(range(len(names)))
    assert dataset.X_test.shape == (0, 1)
    assert [f.name for f in dataset.schema.features] == ["x"]


def test_several_target_columns_are_labels_or_numbers(pd):
    frame = pd.DataFrame({"x": [1, 2], "a": [0, 1], "b": [True, True], "c": [0.5, 2], "d": "no"})
    labels = adapters.from_pandas(frame, target=["a", "b"])
    assert (labels.y.tolist(), labels.y.dtype) == ([[0, 1], [1, 1]], np.int8)
    assert (labels.schema.target, labels.class_names) == ("labels", ("a", "b"))
    numbers = adapters.from_pandas(frame, target=["a", "c"])
    assert (numbers.y.tolist(), numbers.schema.outputs) == ([[0, 0.5], [1, 2]], 2)
    with pytest.raises(DataError, match="'d' holds neither"):
        adapters.from_pandas(frame, target=["a", "d"])


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (np.array([1, 2], dtype="timedelta64[s]"), "such as days"),
        ([[1], [2]], "leave it out"),
        ([{"a": 1}, {}], "leave it out"),
        (["a", 1], "leave it out"),
        ([1j, 2], "leave it out"),
    ],
)
def test_columns_without_a_reading_are_named(pd, values, says):
    with pytest.raises(DataError, match="column 'odd' holds") as error:
        adapters.from_pandas(pd.DataFrame({"odd": values}))
    assert says in error.value.hint


def test_free_text_is_refused_unless_it_is_a_category(pd):
    frame = pd.DataFrame({"note": [f"note {i}" for i in range(300)]})
    with pytest.raises(DataError, match="'note' holds 300 different texts in 300 rows"):
        adapters.from_pandas(frame)
    assert adapters.from_pandas(frame.astype("category")).X.shape == (300, 1)


def test_frames_that_make_no_sense(pd):
    frame = pd.DataFrame({"x": [1, 2], "y": ["a", None]})
    with pytest.raises(UsageError, match="not ndarray"):
        adapters.from_pandas(np.eye(2))
    with pytest.raises(DataError, match=r"no column 'z'.*there are x, y"):
        adapters.from_pandas(frame, target="z")
    with pytest.raises(DataError, match="'y' has 1 missing values"):
        adapters.from_pandas(frame, target="y")
    with pytest.raises(DataError, match="besides the target"):
        adapters.from_pandas(frame[["x"]], target="x")
    with pytest.raises(DataError, match="several columns are called 'x'"):
        adapters.from_pandas(pd.DataFrame([[1, 2]], columns=["x", "x"]))


def test_without_pandas_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtra, match=r"solera\[pandas\]"):
        adapters.from_pandas(None)


class Pairs:
    """A map-style data set without PyTorch: the protocol is enough."""

    def __init__(self, x, y, **attributes):
        self.rows = list(zip(x, y, strict=True))
        self.__dict__.update(attributes)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def test_pairs_become_rows_and_classes():
    x = np.arange(12.0, dtype=np.float32).reshape(3, 2, 2)
    dataset = adapters.from_torch(Pairs(x, [7, 5, 7]))
    assert (dataset.X.shape, dataset.X.dtype) == ((3, 4), np.float32)
    assert (dataset.y.tolist(), dataset.class_names) == ([1, 0, 1], ("5", "7"))
    assert adapters.from_torch(Pairs(x, [7, 5, 7]), flat=False).X.shape == (3, 2, 2)
    assert adapters.from_torch(Pairs(x, [7, 5, 7]), limit=2).y.tolist() == [1, 0]


def test_the_data_set_s_own_class_names_are_used():
    dataset = adapters.from_torch(Pairs(np.eye(2), [2, 0], classes=["cat", "dog", "eel"]))
    assert (dataset.y.tolist(), dataset.class_names) == ([2, 0], ("cat", "dog", "eel"))
    assert dataset.schema.outputs == 3


def test_other_targets_of_pairs():
    x = np.eye(2)
    assert adapters.from_torch(Pairs(x, [0.5, 2.0])).schema.target == "numbers"
    labels = adapters.from_torch(Pairs(x, np.array([[1, 0, 1], [0, 0, 1]])))
    assert (labels.schema.target, labels.y.dtype, labels.schema.outputs) == ("labels", np.uint8, 3)
    numbers = adapters.from_torch(Pairs(x, np.array([[0.5, 1], [2, 3]])))
    assert (numbers.schema.target, numbers.schema.outputs) == ("numbers", 2)


def test_pairs_that_make_no_sense():
    with pytest.raises(UsageError, match="map-style data set, not generator"):
        adapters.from_torch(x for x in "ab")
    with pytest.raises(UsageError, match="limit=0"):
        adapters.from_torch(Pairs(np.eye(2), [0, 1]), limit=0)
    with pytest.raises(DataError, match="no rows"):
        adapters.from_torch(Pairs([], []))
    with pytest.raises(DataError, match="not pairs"):
        adapters.from_torch([1, 2, 3])
    with pytest.raises(DataError, match="x has rows of different shapes"):
        adapters.from_torch(Pairs([[1], [1, 2]], [0, 1]))
    with pytest.raises(DataError, match="not numbers"):
        adapters.from_torch(Pairs(["some", "text"], [0, 1]))


def test_torch_data_sets(torch):
    from torch.utils.data import IterableDataset, Subset, TensorDataset

    x = torch.arange(24, dtype=torch.float64).reshape(4, 2, 3).requires_grad_()
    whole = TensorDataset(x, torch.tensor([1, 0, 1, 2]))
    direct, by_row = adapters.from_torch(whole), adapters.from_torch(Subset(whole, range(4)))
    assert (direct.X.shape, direct.X.dtype) == ((4, 6), np.float64)
    assert np.array_equal(direct.X, by_row.X)
    assert np.array_equal(direct.y, by_row.y)
    assert direct.y.dtype == np.int64
    assert adapters.from_torch(whole, limit=3).X.shape == (3, 6)

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(())

    with pytest.raises(UsageError, match="not Stream"):
        adapters.from_torch(Stream())


def test_hugging_face_columns(hf):
    features = hf.Features(
        {
            "age": hf.Value("int32"),
            "town": hf.Value("string"),
            "vector": hf.Sequence(hf.Value("float32"), length=2),
            "label": hf.ClassLabel(names=["well", "ill", "unsure"]),
        }
    )
    rows = {
        "age": [30, None, 50],
        "town": ["Jerez", "Cadiz", "Jerez"],
        "vector": [[1, 2], [3, 4], [5, 6]],
        "label": [1, 0, 1],
    }
    table = hf.Dataset.from_dict(rows, features=features)
    dataset = adapters.from_huggingface(table, target="label")
    expected = [[30, 1, 1, 2], [NAN, 0, 3, 4], [50, 1, 5, 6]]
    assert np.array_equal(dataset.X, expected, equal_nan=True)
    assert [f.name for f in dataset.schema.features] == ["age", "town", "vector[0]", "vector[1]"]
    assert (dataset.y.tolist(), dataset.class_names) == ([1, 0, 1], ("well", "ill", "unsure"))
    chosen = adapters.from_huggingface(table, features=["town"], target="vector")
    assert (chosen.X.ravel().tolist(), chosen.y.tolist()) == ([1, 0, 1], rows["vector"])
    assert adapters.from_huggingface(table, features=["town"]).schema.target == "none"
    with pytest.raises(DataError, match="no column 'sex'"):
        adapters.from_huggingface(table, target="sex")
    with pytest.raises(UsageError, match=r"dataset\['train'\]"):
        adapters.from_huggingface(hf.DatasetDict(train=table), target="label")


def test_hugging_face_images_become_pixels(hf):
    image = pytest.importorskip("PIL.Image", reason="images need Pillow")
    pictures = [image.fromarray(np.full((2, 2), i, np.uint8)) for i in range(3)]
    table = hf.Dataset.from_dict({"image": pictures, "label": [4, 5, 4]})
    dataset = adapters.from_huggingface(table, target="label")
    assert dataset.X.tolist() == [[i] * 4 for i in range(3)]
    assert dataset.y.tolist() == [0, 1, 0]

"""ARFF files, dense and sparse, and the XML of MULAN that names labels."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import issparse

import solera as so
from solera.core.errors import DataError
from solera.data.own_tables import own
from solera.study.files.reader import read
from solera.study.run.schemes import load

pd = pytest.importorskip("pandas")

DENSE = r"""% made by hand
@relation 'toy: -C 2'

@attribute 'the size' numeric
@ATTRIBUTE colour {red, 'dark green', 'white, matt'}
@attribute n integer
@attribute A {0,1}
@attribute B {1,0}
@data
1.5, red, 3, 1, 0
?, 'dark green', ?, 0, 1
% between rows
2e3,'white, matt',7,?,1
"""
SPARSE = """@relation s
@attribute a numeric
@attribute b {0,1}
@attribute c numeric
@attribute colour {red,blue}
@attribute A {0,1}
@attribute B {1,0}
@DATA
{0 1.5, 4 1}
{}
{1 1,2 -2,3 blue, 5 0}
{2 ?, 4 ?}
"""
XML = """<?xml version="1.0" encoding="utf-8"?>
<labels xmlns="http://mulan.sourceforge.net/labels">
<label name="A"></label>
<label name="B&amp;C"><label name='inside'></label></label>
</labels>
"""


@pytest.fixture
def files(tmp_path):
    (tmp_path / "dense.arff").write_text(DENSE, encoding="utf-8")
    (tmp_path / "sparse.arff").write_text(SPARSE, encoding="utf-8")
    (tmp_path / "three.xml").write_text(XML, encoding="utf-8")
    (tmp_path / "two.xml").write_text('<labels><label name="B"/><label name="A"/></labels>')
    return tmp_path


def test_a_dense_file(files):
    frame = so.data.read_table(str(files / "dense.arff"))
    assert list(frame.columns) == ["the size", "colour", "n", "A", "B"]
    assert frame["the size"].tolist()[::2] == [1.5, 2000.0]
    assert list(frame["colour"].cat.categories) == ["red", "dark green", "white, matt"]
    assert frame["colour"].tolist() == ["red", "dark green", "white, matt"]
    assert frame["n"].isna().tolist() == [False, True, False]
    assert frame["A"].isna().tolist() == [False, False, True]
    assert frame["B"].tolist() == [0, 1, 1]
    data = so.from_pandas(frame, target=["A", "B"])
    assert data.y.tolist() == [[1, 0], [0, 1], [-1, 1]]
    assert data.schema.label_names == ("A", "B")


def test_a_sparse_file_stays_sparse(files):
    frame = so.data.read_table(str(files / "sparse.arff"))
    assert frame["colour"].tolist() == ["red", "red", "blue", "red"]
    assert frame["B"].tolist() == [1, 1, 0, 1]  # what is not named has the first value
    data = so.from_pandas(frame, target=["A", "B"], columns=["a", "b", "c"])
    assert issparse(data.X)
    wanted = [[1.5, 0, 0], [0, 0, 0], [0, 1, -2], [0, 0, np.nan]]
    np.testing.assert_array_equal(data.X.toarray(), wanted)
    assert data.y.tolist() == [[1, 1], [0, 1], [0, 0], [-1, 1]]
    assert so.from_pandas(frame, target="B").schema.target == "classes"
    mixed = so.from_pandas(frame, target="B")  # a category among them: whole rows
    assert mixed.X[:, 3].tolist() == [0, 0, 1, 0]


def test_rows_of_a_sparse_file_are_predicted_as_they_were_learned(files):
    rng = np.random.default_rng(0)
    lines = [f"{{0 {x:.3f},2 {-x:.3f},{3 + (x < 0)} 1}}" for x in rng.normal(size=60)]
    header = SPARSE.partition("@attribute colour")[0] + "@attribute A {0,1}\n@attribute B {0,1}\n"
    file = files / "many.arff"
    file.write_text("\n".join([header, "@data", *lines]))
    frame = so.data.read_table(str(file))
    fed = so.simulate(frame, target=["A", "B"], clients=3)
    model = so.FedLinear(rounds=20, lr=0.5).fit(fed)
    assert issparse(fed.data.X)
    assert (model.predict(frame) == frame[["A", "B"]].to_numpy()).all(axis=1).mean() > 0.9


def test_labels_that_an_xml_file_names(files):
    assert so.data.label_names(files / "three.xml") == ["A", "B&C", "inside"]
    data = own(str(files / "dense.arff"), target="two.xml", test=0.0)
    assert data.schema.label_names == ("B", "A")
    assert data.y.tolist() == [[0, 1], [1, 0], [1, -1]]
    (files / "none.xml").write_text("<labels></labels>")
    with pytest.raises(DataError, match=r"none\.xml names no labels"):
        so.data.label_names(files / "none.xml")
    with pytest.raises(DataError, match=r"absent\.xml"):
        so.data.label_names(files / "absent.xml")
    with pytest.raises(DataError, match="no column 'B&C'"):
        own(str(files / "dense.arff"), target="three.xml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("@relation x\n@attribute a numeric\n", "there is no line @data"),
        ("@relation x\n@attribute a numeric\n@data\n1,2\n", "row 0 has 2 values for 1 columns"),
        ("@relation x\n@attribute a {u,v}\n@data\nw\n", "column 'a' holds 'w', which is not decl"),
        ("@relation x\n@attribute a {u,v}\n@data\n{0 w}\n", "column 'a' holds 'w', which is not"),
        ("@relation x\n@attribute a numeric\n@data\nred\n", "column a: could not convert"),
        ("@relation x\n@attribute a string\n@data\nred\n", "String attributes not supported"),
        ("@relation x\n@attribute a numeric\n@data\n{5 1}\n", "cannot be read: "),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, text, message):
    file = tmp_path / "odd.arff"
    file.write_text(text)
    with pytest.raises(DataError, match=rf"odd\.arff.*{message}"):
        so.data.read_table(str(file))


def test_clients_in_arff_files(files):
    (files / "other.arff").write_text(DENSE.replace("2e3", "4"))
    source = so.from_files(str(files / "[do]*.arff"), target=["A", "B"])
    assert so.simulate(source).names == ("dense", "other")
    assert source.segments(np.array([1]))[0].y.tolist() == [[1, 0], [0, 1], [-1, 1]]


def test_a_study_of_an_arff_file_runs_again_when_the_labels_are_others(files):
    text = """
    [data]
    file = "sparse.arff"
    target = "two.xml"
    columns = ["a", "b"]
    test = 0.25
    [learner]
    kind = "FedLinear"
    """
    (files / "study.toml").write_text(text)
    (variant,) = read(files / "study.toml").variants()
    before = variant.key
    dataset = load(variant.data)
    assert dataset.schema.label_names == ("B", "A")
    assert issparse(dataset.X)
    (files / "two.xml").write_text('<labels><label name="A"/><label name="B"/></labels>')
    (variant,) = read(files / "study.toml").variants()
    assert variant.key != before
    assert load(variant.data).schema.label_names == ("A", "B")

"""An owner's rows: the same whatever they are read from, and clear words when they cannot be."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest

import solera as so
from solera.core.errors import DataError, UsageError
from solera.serve.agent.policy import Column
from solera.serve.agent.sources import open_source

pd = pytest.importorskip("pandas")
sqlalchemy = pytest.importorskip("sqlalchemy")
pytest.importorskip("pyarrow")


@pytest.fixture
def frame():
    rng = np.random.default_rng(3)
    n = 40
    frame = pd.DataFrame(
        {
            "age": rng.integers(20, 90, n),
            "bmi": rng.normal(25, 3, n).round(2),
            "blood": rng.choice(["A", "B", "0"], n),
            "ill": rng.choice(["no", "yes"], n),
        }
    )
    frame.loc[3, "bmi"] = np.nan
    frame.loc[5, "blood"] = None
    return frame


@pytest.fixture
def function(frame):
    """python:owner_loader:<name>, as an owner's own package would offer it."""
    module = types.ModuleType("owner_loader")
    module.dataset = lambda: so.from_pandas(frame, target="ill")
    module.data = lambda: open_source_of(frame)
    module.pair = lambda: (np.arange(12.0).reshape(6, 2), np.array([0, 1, 0, 1, 0, 1]))
    module.several = lambda: so.data.FederatedData(np.eye(4), None, np.array([0, 2, 4]))
    module.nothing = lambda: (np.empty((0, 2)), None)
    module.wrong = lambda: 3
    sys.modules["owner_loader"] = module
    yield "python:owner_loader"
    del sys.modules["owner_loader"]


def open_source_of(frame):
    made = so.from_pandas(frame, target="ill")
    y = np.array(made.class_names)[made.y]
    schema = so.data.Schema(made.schema.features, "classes", np.unique(y), 2)
    return so.data.FederatedData(made.X, y, np.array([0, len(y)]), schema=schema)


@pytest.fixture
def places(tmp_path, frame, function):
    """The same rows in every place rows can come from."""
    frame.to_csv(tmp_path / "rows.csv", index=False)
    frame.to_csv(tmp_path / "rows.csv.gz", index=False)
    frame.to_parquet(tmp_path / "rows.parquet")
    folder = tmp_path / "folder"
    folder.mkdir()
    frame[:10].to_csv(folder / "a.csv", index=False)
    frame[10:25][["ill", "blood", "bmi", "age"]].to_csv(folder / "b.csv.gz", index=False)
    frame[25:].to_parquet(folder / "c.parquet")
    (folder / "notes.txt").write_text("not data")
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/rows.db")
    frame.to_sql("visits", engine, index=False)
    engine.dispose()
    files = [str(tmp_path / f"rows{end}") for end in (".csv", ".csv.gz", ".parquet")]
    query = f"sql:sqlite:///{tmp_path}/rows.db#SELECT age, bmi, blood, ill FROM visits"
    return [*files, str(folder), query, f"{function}:dataset", f"{function}:data"]


def opened(place, **options):
    target = None if place.startswith("python:") else "ill"
    return open_source(place, target=target, **options)


def test_every_place_gives_the_same_rows_and_schema(places, frame):
    first = opened(places[0])
    assert first.clients == 1
    assert [f.name for f in first.schema.features] == ["age", "bmi", "blood"]
    assert first.schema.features[2].categories == ("0", "A", "B")
    assert first.schema.classes.tolist() == ["no", "yes"]
    assert first.y.tolist() == frame["ill"].tolist()
    for place in places[1:]:
        data = opened(place)
        assert data.schema == first.schema, place
        np.testing.assert_array_equal(data.X, first.X, err_msg=place)
        np.testing.assert_array_equal(data.y, first.y, err_msg=place)


def test_only_the_chosen_columns_are_shown(places):
    for place in places:
        data = opened(place, columns=["blood", "age"])
        assert [f.name for f in data.schema.features] == ["blood", "age"], place
        assert data.X.shape == (40, 2)
        assert data.schema.target == "classes"
        with pytest.raises(DataError, match="there is no column 'weight'"):
            opened(place, columns=["weight"])


def test_rows_are_set_aside(places):
    data = opened(places[0], test=0.25, validation=0.1, seed=4)
    assert [int(data.sizes(part)[0]) for part in ("train", "validation", "test")] == [26, 4, 10]
    same = opened(places[4], test=0.25, validation=0.1, seed=4)
    np.testing.assert_array_equal(data.X, same.X)


def test_classes_keep_their_values(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("x,grade\n1.5,3\n2.5,7\n0.5,3\n")
    data = open_source(str(path), target="grade")
    assert data.y.tolist() == [3, 7, 3]
    assert data.schema.classes.tolist() == [3, 7]
    numbers = open_source(str(path), target="x")
    assert numbers.schema.target == "numbers"
    assert open_source(str(path), target=None).schema.target == "none"


def test_owners_without_all_classes_learn_together(tmp_path):
    rng = np.random.default_rng(0)
    for name, classes in (("one", "ab"), ("two", "bc")):
        y = np.array(list(classes))[rng.integers(0, 2, 60)]
        x = np.searchsorted(["a", "b", "c"], y) + rng.normal(0, 0.1, 60)
        pd.DataFrame({"x": x, "z": x**2, "y": y}).to_csv(tmp_path / f"{name}.csv", index=False)
    one, two = (open_source(str(tmp_path / f"{n}.csv"), target="y") for n in ("one", "two"))
    X, y = np.concatenate([one.X, two.X]), np.concatenate([one.y, two.y])
    fed = so.Federation(so.simulate(X, y, clients=2, partition=so.partitions.IID()).engine)
    assert so.FedHEONN().fit(fed).score(X, y) > 0.9


def test_functions_of_the_owner(function):
    data = open_source(f"{function}:pair", target=None, columns=["x1"])
    assert data.X.tolist() == [[1.0], [3.0], [5.0], [7.0], [9.0], [11.0]]
    for name, message in [
        ("several", "the data is of 2 clients"),
        ("nothing", "has no rows"),
        ("wrong", "returned int"),
        ("absent", "cannot be found"),
    ]:
        with pytest.raises(DataError, match=message):
            open_source(f"{function}:{name}", target=None)
    with pytest.raises(DataError, match="No module named 'no_such"):
        open_source("python:no_such_package:rows", target=None)
    with pytest.raises(UsageError, match="returns the target itself"):
        open_source(f"{function}:pair", target="ill")


def write(tmp_path, **files):
    for name, text in files.items():
        (tmp_path / f"{name}.csv").write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ("a\n1\n", "b.csv has no column 'y', a.csv has"),
        ("a,y,z\n1,2,3\n", "b.csv has a column 'z', a.csv has not"),
        ("a,y\nhigh,2\n", "b.csv: column 'a' holds text, numbers in a.csv"),
    ],
)
def test_files_that_disagree(tmp_path, second, message):
    with pytest.raises(DataError, match=message):
        open_source(str(write(tmp_path, a="a,y\n1,2\n", b=second)), target="y")


def test_missing_cells_do_not_make_files_disagree(tmp_path):
    folder = write(tmp_path, a="a,b,y\n,,1\n", b="a,b,y\nlow,2.5,0\n")
    data = open_source(str(folder), target="y")
    assert data.schema.features[0].categories == ("low",)
    assert np.isnan(data.X[0]).all()


def test_what_cannot_be_read(tmp_path):
    write(tmp_path, empty="", header="a,y\n", rows="a,y\n1,2\n")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 not really")
    (tmp_path / "bad.csv.gz").write_bytes(b"not gzip")
    (tmp_path / "bad.xlsx").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    for name, message in [
        ("none.csv", "there is no file .*none.csv"),
        ("empty.csv", "empty.csv cannot be read: No columns"),
        ("header.csv", "header.csv has no rows"),
        ("bad.parquet", "bad.parquet cannot be read"),
        ("bad.csv.gz", "bad.csv.gz cannot be read"),
        ("bad.xlsx", "is none of .csv"),
        ("folder", "holds no .csv or"),
    ]:
        with pytest.raises(DataError, match=message):
            open_source(str(tmp_path / name), target="y")
    with pytest.raises(DataError, match=r"no column 'ill' \(there are a, y\)"):
        open_source(str(tmp_path / "rows.csv"), target="ill")


def test_queries_that_fail(tmp_path, places):
    query = places[4]
    base = query.partition("#")[0]
    for url, error, message in [
        (f"{base}#DELETE FROM visits", UsageError, "a SELECT must follow"),
        (base, UsageError, "a SELECT must follow"),
        (f"{base}#SELECT * FROM nowhere", DataError, "failed: no such table: nowhere"),
        (f"{query} WHERE age > 500", DataError, "the query has no rows"),
        (f"{base}x#SELECT 1", DataError, "there is no database"),
        ("sql:nonsense#SELECT 1", DataError, "not the URL of a database"),
    ]:
        with pytest.raises(error, match=message):
            open_source(url, target="ill")
    assert not (tmp_path / "rows.dbx").exists()


@pytest.mark.filterwarnings("ignore:Query string argument")
def test_a_query_changes_nothing_and_tells_no_password(places):
    base = places[4].partition("#")[0]
    before = len(opened(places[4]).X)
    with pytest.raises(DataError):
        open_source(f"{base}#WITH a AS (SELECT 1) DELETE FROM visits", target="ill")
    assert len(opened(places[4]).X) == before
    with pytest.raises(DataError) as error:
        open_source(f"{base}?key=hush#SELECT x FROM visits", target="ill")
    assert "hush" not in str(error.value)


# --- columns of other names, units and categories ------------------------------------------------

TRANSLATE = {
    "weight": Column("peso_lb", times=0.4536),
    "temperature": Column("temp_f", plus=-32.0, times=5 / 9),
    "sex": Column("sexo", categories={"H": "male", "M": "female"}),
    "smoker": Column("fuma", categories={"1": "yes", "0": "no"}),
}


def spanish(tmp_path, rows="100,212,H,1,si\n200,32,M,,no\n150,50,X,0,si\n"):
    path = tmp_path / "filas.csv"
    path.write_text("peso_lb,temp_f,sexo,fuma,enfermo\n" + rows)
    return str(path)


def test_columns_are_translated_before_anything_sees_them(tmp_path):
    ill = {"ill": Column("enfermo", categories={"si": "yes", "no": "no"})}
    data = open_source(spanish(tmp_path), target="ill", translate={**TRANSLATE, **ill})
    assert [f.name for f in data.schema.features] == ["weight", "temperature", "sex", "smoker"]
    assert data.X[:, 0].tolist() == pytest.approx([45.36, 90.72, 68.04])
    assert data.X[:, 1].tolist() == pytest.approx([100, 0, 10])
    assert data.schema.features[2].categories == ("male", "female")
    assert data.X[:2, 2].tolist() == [0, 1]
    assert np.isnan(data.X[2, 2]), "a category that is not listed is missing"
    assert data.schema.features[3].categories == ("yes", "no")
    assert np.isnan(data.X[1, 3])
    assert data.X[[0, 2], 3].tolist() == [0, 1]
    assert data.y.tolist() == ["yes", "no", "yes"]


def test_categories_that_no_row_has_keep_their_code(tmp_path):
    path = spanish(tmp_path, "100,212,M,1,si\n")
    data = open_source(path, target="enfermo", translate=TRANSLATE, columns=["sex"])
    assert data.schema.features[0].categories == ("male", "female")
    assert data.X.tolist() == [[1]]


@pytest.mark.parametrize(
    ("name", "column", "message"),
    [
        ("weight", Column("peso"), "there is no column 'peso'"),
        ("weight", Column("sexo", times=2.0), "column 'sexo' holds text, which has no unit"),
        ("temp_f", Column("peso_lb"), "the data has a column of that name already"),
    ],
)
def test_a_translation_that_makes_no_sense_is_named(tmp_path, name, column, message):
    with pytest.raises(DataError, match=message):
        open_source(spanish(tmp_path), target="enfermo", translate={name: column})


def test_whose_rows_they_are_is_known_and_not_shown(tmp_path):
    path = tmp_path / "visits.csv"
    lines = [f"P{i // 3},{i},{i % 2}" for i in range(30)]
    path.write_text("\n".join(["patient,age,ill", *lines]))
    data = open_source(str(path), target="ill", unit="patient", columns=["age"], test=0.2)
    assert [f.name for f in data.schema.features] == ["age"]
    assert data.X.shape == (30, 1)
    for part, size in (("train", 24), ("test", 6)):
        rows = data.segments(np.array([0]), part)[0]
        whose = data.units(0, part)
        assert len(rows) == len(whose) == size
        by_person = {int(code): set() for code in whose}
        for code, age in zip(whose.tolist(), rows.X[:, 0].tolist(), strict=True):
            by_person[code].add(int(age) // 3)
        assert all(len(people) == 1 for people in by_person.values())
    assert open_source(str(path), target="ill").units(0, "train") is None
    path.write_text("patient,age,ill\nP1,3,0\n,4,1\n")
    with pytest.raises(DataError, match="column 'patient' is missing in some rows"):
        open_source(str(path), target="ill", unit="patient")
    with pytest.raises(DataError, match="there is no column 'person'"):
        open_source(str(path), target="ill", unit="person")


def own_rows():
    return np.array([[1.0, 5.0], [2.0, 5.0], [3.0, 6.0]]), np.array([0, 1, 0])


def test_rows_of_a_function_can_say_whose_they_are():
    name = f"python:{__name__}:own_rows"
    data = open_source(name, target=None, unit="x1")
    assert data.X.tolist() == [[1], [2], [3]]
    assert data.units(0, "train").tolist() == [0, 0, 1]
    with pytest.raises(UsageError, match="returns its columns itself"):
        open_source(name, target=None, translate=TRANSLATE)


def test_identifiers_are_no_column_and_labels_may_be_missing(tmp_path):
    place = write(tmp_path, a="id,x,y\nP 1,1,0\nP 2,2,\nP 3,3,1\n")
    data = open_source(str(place), target="y", id="id")
    assert [feature.name for feature in data.schema.features] == ["x"]
    assert data.identifiers.tolist() == ["P 1", "P 2", "P 3"]
    assert data.labelled.tolist() == [True, False, True]
    assert data.schema.target == "classes"
    with pytest.raises(DataError, match="no column 'nhs'"):
        open_source(str(place), target="y", id="nhs")
    only = open_source(str(place), target="y", id="id", columns=["x"], test=0.34)
    assert sorted(only.identifiers.tolist()) == ["P 1", "P 2", "P 3"]


def test_several_targets_are_labels_and_no_features(tmp_path, frame):
    labels = frame.assign(A=(frame["age"] > 50).astype(int), B=(frame["age"] < 40).astype(int))
    labels.loc[0, "A"] = None
    labels.to_csv(tmp_path / "rows.csv", index=False)
    where = str(tmp_path / "rows.csv")
    data = open_source(where, target=["A", "B"])
    assert [feature.name for feature in data.schema.features] == ["age", "bmi", "blood", "ill"]
    assert data.schema.label_names == ("A", "B")
    assert data.y[0].tolist() == [-1, int(frame["age"][0] < 40)]
    some = open_source(where, target=["A", "B"], columns=["bmi", "A"])
    assert [feature.name for feature in some.schema.features] == ["bmi"]
    lacking = open_source(where, target=["B", "C"], columns=["bmi"])
    assert lacking.schema.label_names == ("B", "C")
    assert (lacking.y[:, 1] == -1).all()
    assert lacking.y[:, 0].tolist() == data.y[:, 1].tolist()
    with pytest.raises(DataError, match="no column 'C', 'D'"):
        open_source(where, target=["C", "D"])


def test_labels_that_an_xml_file_beside_the_rows_names(tmp_path):
    (tmp_path / "rows.arff").write_text(
        "@relation r\n@attribute x numeric\n@attribute A {0,1}\n@data\n1,0\n2,1\n3,?\n"
    )
    (tmp_path / "rows.xml").write_text('<labels><label name="A"/><label name="B"/></labels>')
    data = open_source(str(tmp_path / "rows.arff"), target="rows.xml")
    assert data.schema.label_names == ("A", "B")
    assert data.y.tolist() == [[0, -1], [1, -1], [-1, -1]]

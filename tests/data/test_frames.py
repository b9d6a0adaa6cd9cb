"""Frames are read once by what they hold, and ever after by the schema that came of it."""

from __future__ import annotations

import datetime
from dataclasses import replace

import numpy as np
import pytest

import solera as so
from solera.core.errors import DataError, UsageError
from solera.data import frames

pd = pytest.importorskip("pandas")
NAN = np.nan


def schema_of(frame, **options):
    return so.from_pandas(frame, **options).schema


def test_dates_are_days_since_1970_however_they_are_written():
    day = 19874.0  # 2024-05-31
    spring = {
        "stamp": pd.to_datetime(["2024-05-31", None]),
        "zone": pd.to_datetime(["2024-05-31 02:00+02:00", None]),
        "object": [datetime.date(2024, 5, 31), None],
        "text": ["2024-05-31", None],
        "moment": ["2024-05-31 12:00", None],
    }
    dataset = so.from_pandas(pd.DataFrame(spring))
    assert {f.kind for f in dataset.schema.features} == {"date"}
    expected = [[day, day, day, day, day + 0.5], [NAN] * 5]
    assert np.array_equal(dataset.X, expected, equal_nan=True)


def test_text_that_is_not_all_dates_stays_text():
    schema = schema_of(pd.DataFrame({"x": ["2024-05-31", "soon"]}))
    assert schema.features[0].categories == ("2024-05-31", "soon")


def test_kinds_overrule_what_a_column_seems_to_be():
    frame = pd.DataFrame({"ward": [10, 9, 10], "dose": ["1.5", "2", None], "y": [3, 5, 4]})
    kinds = {"ward": "categorical", "dose": "numeric", "y": "numeric"}
    dataset = so.from_pandas(frame, target="y", kinds=kinds)
    assert dataset.schema.features[0].categories == ("9", "10")
    assert np.array_equal(dataset.X, [[1, 1.5], [0, 2], [1, NAN]], equal_nan=True)
    assert (dataset.schema.target, dataset.y.tolist()) == ("numbers", [3, 5, 4])
    with pytest.raises(UsageError, match=r"ward.*must be 'numeric', 'categorical' or 'date'"):
        so.from_pandas(frame, kinds={"ward": "code"})
    with pytest.raises(DataError, match=r"no column 'wart'.*did you mean 'ward'"):
        so.from_pandas(frame, kinds={"wart": "categorical"})


def test_a_frame_is_encoded_by_the_schema_and_not_by_its_own_categories():
    schema = schema_of(pd.DataFrame({"smokes": ["daily", "former", "never"], "age": [1, 2, 3]}))
    later = pd.DataFrame({"note": ["…"] * 2, "age": [50, 60], "smokes": ["never", "never"]})
    assert frames.encode_frame(later, schema).tolist() == [[2, 50], [2, 60]]


@pytest.mark.parametrize(
    "same",
    [[3, 4], [3.0, 4.0], ["3", "4"], pd.Categorical([3, 4]), pd.array([3, 4], dtype="Int64")],
)
def test_a_category_is_the_same_however_its_column_is_stored(same):
    schema = schema_of(pd.DataFrame({"ward": pd.Categorical([4, 3])}))
    assert frames.encode_frame(pd.DataFrame({"ward": same}), schema).tolist() == [[0], [1]]


def test_booleans_and_missing_values_keep_their_codes():
    schema = schema_of(pd.DataFrame({"icu": [True, False]}))
    later = pd.DataFrame({"icu": pd.Series([True, None, True], dtype=object)})
    assert np.array_equal(frames.encode_frame(later, schema), [[1], [NAN], [1]], equal_nan=True)


def test_unknown_categories_follow_the_declared_rule():
    schema = schema_of(pd.DataFrame({"smokes": ["daily", "never"]}))
    later = pd.DataFrame({"smokes": ["never", "rarely"]})
    with pytest.raises(DataError, match=r"'smokes' holds 'rarely'.*known are 'daily', 'never'"):
        frames.encode_frame(later, schema)
    other = frames.encode_frame(later, replace(schema, unknown="other"))
    assert np.array_equal(other, [[1], [NAN]], equal_nan=True)


@pytest.mark.parametrize(
    ("column", "says"),
    [
        ({"age": ["old"]}, "'age' holds 'old', numbers are needed"),
        ({"age": pd.to_datetime(["2024-01-01"])}, "'age' holds datetime64.*numbers are needed"),
        ({"admitted": [20000]}, "'admitted' holds numbers, dates are needed"),
        ({"admitted": ["31/05/2024"]}, "'admitted' holds '31/05/2024', dates are needed"),
    ],
)
def test_a_column_of_another_type_is_named(column, says):
    frame = pd.DataFrame({"age": [50], "admitted": ["2024-05-31"]})
    with pytest.raises(DataError, match=says):
        frames.encode_frame(frame.assign(**column), schema_of(frame))


def test_all_missing_columns_are_named_with_what_may_be_meant():
    frame = pd.DataFrame({"age": [50], "smokes": ["never"], "bmi": [22.0]})
    later = pd.DataFrame({"Age": [50], "smoke": ["never"]})
    with pytest.raises(DataError, match=r"'age', 'smokes', 'bmi'.*'smoke' for 'smokes'"):
        frames.encode_frame(later, schema_of(frame))


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow", "duckdb"])
def test_frames_of_every_library_are_read_alike(library):
    frame = pd.DataFrame(
        {
            "age": [50, 60, 70],
            "smokes": ["never", None, "daily"],
            "admitted": pd.to_datetime(["2024-05-31", None, "2024-06-01"]),
            "icu": [True, False, True],
            "outcome": ["yes", "no", "yes"],
        }
    )
    module = pytest.importorskip(library)
    make = {
        "pandas": lambda: frame,
        "polars": lambda: module.from_pandas(frame),
        "pyarrow": lambda: module.table(frame),
        "duckdb": lambda: module.from_df(frame),
    }
    expected = so.from_pandas(frame, target="outcome")
    dataset = so.from_pandas(make[library](), target="outcome")
    assert dataset.schema == expected.schema
    assert np.array_equal(dataset.X, expected.X, equal_nan=True)
    assert dataset.y.tolist() == [1, 0, 1]
    again = frames.encode_frame(make[library](), dataset.schema)
    assert np.array_equal(again, expected.X, equal_nan=True)


def test_simulate_reads_a_frame_with_target_and_group():
    frame = pd.DataFrame(
        {"town": ["Vigo", "Lugo"] * 4, "x": range(8), "outcome": ["yes", "no", "no", "yes"] * 2}
    )
    federation = so.simulate(frame, target="outcome", group="town")
    assert federation.names == ("Lugo", "Vigo")
    assert federation.schema.classes.tolist() == ["no", "yes"]
    assert [f.name for f in federation.schema.features] == ["x"]
    rows = federation.data.segments(np.array([1]))[0]
    assert sorted(rows.X[:, 0]) == [0, 2, 4, 6]
    assert dict(zip(rows.X[:, 0], rows.y, strict=True))[2] == "no"
    dataset = so.from_pandas(frame, target="outcome", group="town")
    same = so.simulate(dataset, group="town")
    assert (same.names, same.schema) == (federation.names, federation.schema)
    assert np.array_equal(same.data.X, federation.data.X)


def test_names_of_clients_survive_splits_views_and_pictures():
    frame = pd.DataFrame({"town": ["Vigo", "Lugo"] * 10, "x": range(20), "y": ["a", "b"] * 10})
    federation = so.simulate(frame, target="y", group="town", test=0.2)
    assert federation.data.names == ("Lugo", "Vigo")
    assert federation.data.only(1).names == ("Vigo",)
    scaler = so.FedScaler().fit(federation)
    assert federation.prepared(scaler).names == ("Lugo", "Vigo")
    labels = [t.get_text() for a in federation.data.plot().axes for t in a.get_yticklabels()]
    assert "Vigo" in labels


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        (["no", "yes"], ["no", "yes"]),
        ([7, 3], [3, 7]),
        ([True, False], [False, True]),
        (pd.Categorical(["mid", "low"], categories=["low", "mid", "high"]), ["high", "low", "mid"]),
    ],
)
def test_classes_are_what_the_frame_calls_them(values, classes):
    federation = so.simulate(pd.DataFrame({"x": [1, 2], "y": values}), target="y", clients=1)
    assert federation.schema.classes.tolist() == classes
    assert sorted(federation.data.y.tolist()) == sorted([*values])


def test_what_simulate_cannot_read_is_said():
    frame = pd.DataFrame({"x": [1, 2], "town": ["Vigo", None], "y": ["a", "b"]})
    with pytest.raises(DataError, match=r"column 'town' is missing or infinite in 1 of 2 rows"):
        so.simulate(frame, target="y", group="town")
    with pytest.raises(UsageError, match="a group is a partition already"):
        so.simulate(frame, target="y", group="x", partition=so.Dirichlet(1.0))
    with pytest.raises(UsageError, match=r"target=…\) says how to read a data frame, X is ndarray"):
        so.simulate(np.eye(2), target="y")
    with pytest.raises(UsageError, match="names a column of a data frame"):
        so.simulate(np.eye(2), group="town")
    with pytest.raises(UsageError, match="has no such group"):
        so.simulate(so.from_pandas(frame, target="y"), group="town")
    with pytest.raises(UsageError, match="a target already"):
        so.simulate(frame, [0, 1], target="y")


@pytest.mark.parametrize(
    "y", [[1.0, NAN], ["a", None], np.array(["a", NAN], dtype=object), pd.array([1, None], "Int64")]
)
def test_a_missing_target_is_an_error_that_names_the_row(y):
    with pytest.raises(DataError, match=r"y is missing or infinite in 1 of 2 rows.*row 1"):
        so.simulate(np.eye(2), y, clients=1)


def test_nullable_targets_are_what_they_hold():
    assert frames.target_array(pd.array([1, 2], "Int64")).dtype.kind == "i"
    assert frames.target_array(pd.array([True, False], "boolean")).dtype.kind == "b"
    assert frames.target_array(pd.Series(["a", "b"], dtype="string")).dtype.kind == "U"

"""Dictionaries are drafted from tables, and a misfit comes with the line that mends it."""

import numpy as np
import pandas
import pytest

import solera as so
from solera.core.errors import DataError
from solera.data.dictionary_tables import table_of
from solera.data.misfits import misfits

DICTIONARY = so.epochs.Dictionary.parse(
    """
identifier = "patient"
target = "died"
[columns]
age = { unit = "years", bounds = [18, 110] }
weight = { unit = "kg", bounds = [30, 250], missing = true }
temperature = { unit = "°C", bounds = [30, 45] }
sex = { kind = "categorical", categories = ["female", "male"] }
seen = { kind = "date", bounds = [2010-01-01, 2024-12-31] }
died = { kind = "categorical", categories = ["no", "yes"] }
"""
)
FITS = pandas.DataFrame(
    {
        "patient": ["p1", "p2", "p3"],
        "age": [40, 50, 60],
        "weight": [70.5, np.nan, 90.0],
        "temperature": [36.5, 37.0, 39.0],
        "sex": ["female", "male", "male"],
        "seen": ["2020-02-01", "2021-02-01", "2022-02-01"],
        "died": ["no", "yes", "no"],
        "note": ["passed", "over", "here"],
    }
)


def test_a_table_that_fits_is_read():
    assert misfits(DICTIONARY, FITS) == []
    table = so.epochs.read_table(DICTIONARY, FITS)
    assert table.persons == ("p1", "p2", "p3")
    days = np.datetime64("2020-02-01").astype("datetime64[D]").astype(int)
    np.testing.assert_array_equal(table.values[0], [40, 70.5, 36.5, 0, days, 0])
    assert np.isnan(table.values[1, 1])


@pytest.mark.parametrize(
    ("changed", "column", "what", "mend"),
    [
        ({"sex": ["F", "M", "M"]}, "sex", "holds 'F', 'M'",
         'sex = { from = "sex", categories = { F = "female", M = "male" } }'),
        ({"sex": ["female", "x", "male"]}, "sex", "holds 'x'",
         'sex = { from = "sex", categories = { female = "female", male = "male", x = "?" } }'),
        ({"died": [0, 1, 0]}, "died", "holds '0', '1'",
         'died = { from = "died", categories = { 0 = "no", 1 = "yes" } }'),
        ({"weight": [155.0, 400, 500]}, "weight", "outside 30 … 250: 400, 500, in 2 of 3 rows",
         'weight = { from = "weight", times = 0.45359237 }  # pounds'),
        ({"temperature": [98.0, 99, 102]}, "temperature", "as Fahrenheit all fit",
         'temperature = { from = "temperature", plus = -32, times = 0.5555555556 }  # Fahrenheit'),
        ({"age": [40, 50, 400]}, "age", "outside 18 … 110: 400, in 1 of 3 rows", ""),
        ({"age": ["40", "fifty", "60"]}, "age", "holds 'fifty', numbers are needed", ""),
        ({"seen": ["1.2.2020", "2.2.2021", "3.2.2022"]}, "seen", "dates are needed", ""),
        ({"age": [40, None, 60]}, "age", "is missing in 1 of 3 rows",
         'age = { kind = "numeric", unit = "years", bounds = [18, 110], missing = true }'),
        ({"patient": ["p1", None, "p3"]}, "patient", "missing in 1 of 3 rows", ""),
    ],
)  # fmt: skip
def test_a_misfit_comes_with_what_mends_it(changed, column, what, mend):
    (misfit,) = misfits(DICTIONARY, FITS.assign(**changed))
    assert (misfit.column, misfit.mend) == (column, mend)
    assert what in misfit.what
    with pytest.raises(DataError, match=f"column '{column}'"):
        so.epochs.read_table(DICTIONARY, FITS.assign(**changed))


def test_columns_of_other_names_are_translated_at_once():
    renamed = FITS.rename(columns={"sex": "Sex", "weight": "Weight_kg", "age": "edad"})
    by_column = {m.column: m for m in misfits(DICTIONARY, renamed.assign(Sex=["f", "m", "m"]))}
    assert by_column["sex"].mend == (
        'sex = { from = "Sex", categories = { f = "female", m = "male" } }'
    )
    assert by_column["weight"].mend == 'weight = { from = "Weight_kg" }'
    assert "is not in the table" in by_column["age"].what


def test_lines_that_mend_are_lines_of_a_policy():
    """What check proposes, sources apply: the table fits then."""
    import tomllib

    from solera.serve.agent.policy import Column
    from solera.serve.agent.sources import translated

    table = FITS.assign(sex=["F", "M", "M"], weight=[155.0, 400, 500])
    lines = "\n".join(m.mend for m in misfits(DICTIONARY, table))
    columns = {
        name: Column(**{("source" if k == "from" else k): v for k, v in entry.items()})
        for name, entry in tomllib.loads(lines).items()
    }
    assert misfits(DICTIONARY, translated(table, columns)) == []


def test_a_draft_fits_the_table_that_it_was_drafted_from():
    drafted = so.epochs.draft(FITS.drop(columns="note"), target="died", identifier="patient")
    assert misfits(drafted, FITS) == []
    assert so.epochs.Dictionary.parse(drafted.toml()) == drafted
    age = drafted.by_name["age"]
    assert (age.bounds, age.grid) == ((40, 60), 1)
    assert drafted.by_name["weight"].missing
    assert drafted.by_name["weight"].bounds == (70, 90)
    assert drafted.target == ("died",)


@pytest.mark.parametrize(
    "y",
    [
        None,
        np.array([3, 1, 3, 1]),
        np.array(["b", "a", "b", "a"]),
        np.array([1.5, 2.5, 3.5, 4.5]),
        np.array([[1.5, 2.5], [3.5, 4.5], [1, 2], [3, 4]]),
        np.array([[1, 0], [0, -1], [1, 1], [0, 0]]),
    ],
)
def test_arrays_go_through_a_dictionary_and_come_back(y):
    X = np.array([[1.5, 2], [3, 4], [5, np.nan], [7, 8]])
    drafted = so.epochs.draft(X, y)
    schema = so.simulate(X, y, clients=2).schema
    table = table_of(drafted, schema, X, y)
    rows, has_target = drafted.rows(table.values)
    assert has_target.all()
    np.testing.assert_array_equal(rows.X, X)
    if y is None:
        assert rows.y is None
    else:
        np.testing.assert_array_equal(rows.y, y)
    assert drafted.schema().target == schema.target
    assert drafted.schema().classes.tolist() == schema.classes.tolist()
    assert drafted.gaps() == ("x1",)

"""Dictionaries are read with errors that name line and column, and written as one text."""

import re

import numpy as np
import pytest

from solera.core.errors import UsageError
from solera.core.schema import Feature
from solera.trust.epoch import Dictionary

TEXT = """\
identifier = "patient"
target = "died"
time = "admitted"

[columns]
age = { kind = "numeric", unit = "years", bounds = [18, 110], grid = 1 }
"heart rate" = { kind = "numeric", bounds = [20, 250] }
sex = { kind = "categorical", categories = ["female", "male"] }
admitted = { kind = "date", bounds = [2010-01-01, 2024-12-31] }
died = { kind = "categorical", categories = ["0", "1"] }

[populations.elderly-women]
age = { min = 65 }
sex = { in = ["female"] }

[populations.recent]
admitted = { min = 2020-01-01, max = 2024-12-31 }
"""
BASES = """
[bases."models/minilm"]
digest = "6f1e"
hidden = 16

[bases."models/minilm".layers]
"layer.0.query" = [8, 16]
"layer.0.value" = [8, 16]
"""
NAN = float("nan")
VALUES = np.array(
    [
        [70, 80, 0, 18000, 1],
        [40, 90, 1, 19000, 0],
        [80, NAN, 0, 19500, NAN],
        [NAN, 60, 0, NAN, 0],
    ]
)


def test_a_dictionary_is_written_as_it_was_read():
    dictionary = Dictionary.parse(TEXT)
    assert dictionary.toml() == TEXT
    assert Dictionary.parse(dictionary.toml()) == dictionary
    assert "bases" not in dictionary.toml()  # dictionaries that were signed keep their hash
    listing = Dictionary.parse(TEXT + BASES)
    assert listing.toml() == TEXT + BASES
    (base,) = listing.bases
    assert (base.name, base.digest, base.hidden) == ("models/minilm", "6f1e", 16)
    assert base.layers == (("layer.0.query", 8, 16), ("layer.0.value", 8, 16))


def test_the_schema_of_a_job_follows_from_the_dictionary():
    dictionary = Dictionary.parse(TEXT)
    schema = dictionary.schema()
    assert [f.name for f in schema.features] == ["age", "heart rate", "sex", "admitted"]
    assert schema.features[2] == Feature("sex", "categorical", ("female", "male"))
    assert (schema.target, schema.classes.tolist(), schema.outputs) == ("classes", [0, 1], 2)
    assert dictionary.schema(["age"], "heart rate").target == "numbers"
    assert dictionary.schema(["age"], ()).target == "none"
    with pytest.raises(UsageError, match="is the target"):
        dictionary.schema(["age", "died"])
    with pytest.raises(UsageError, match="no column 'agee'"):
        dictionary.schema(["agee"])


def test_rows_have_a_target_or_are_left_out():
    rows, has_target = Dictionary.parse(TEXT).rows(VALUES, ["age", "sex"])
    assert has_target.tolist() == [True, True, False, True]
    assert rows.y.tolist() == [1, 0, 0]
    np.testing.assert_array_equal(rows.X, [[70, 0], [40, 1], [NAN, 0]])


def test_a_label_that_is_missing_is_unknown():
    labels = TEXT.replace('sex = { kind = "categorical", categories = ["female", "male"] }',
                          'sex = { kind = "categorical", categories = ["0", "1"] }')  # fmt: skip
    dictionary = Dictionary.parse(labels.replace('["female"]', '["0"]'))
    rows, has_target = dictionary.rows(VALUES, ["age"], ["sex", "died"])
    assert has_target.all()
    assert rows.y.tolist() == [[0, 1], [1, 0], [0, -1], [0, 0]]
    assert dictionary.schema(["age"], ["sex", "died"]).target_names == ("sex", "died")


def test_populations_mark_rows_and_a_missing_value_is_not_included():
    marks = Dictionary.parse(TEXT).marks(VALUES)
    np.testing.assert_array_equal(marks[:, 0], True)
    assert marks[:, 1].tolist() == [True, False, True, False]
    assert marks[:, 2].tolist() == [False, True, True, False]


@pytest.mark.parametrize(
    ("wrong", "right", "said"),
    [
        ("bounds = [18, 110]", "bounds = [110, 18]", "d.toml:6: column 'age' needs bounds"),
        ('kind = "numeric", unit', 'kind = "number", unit', "d.toml:6: column 'age'.*'number'"),
        ("grid = 1", "grid = 0", "d.toml:6: column 'age': the grid"),
        ("grid = 1", "step = 1", "d.toml:6: column 'age' has no 'step'"),
        ('["female", "male"]', '["male", "male"]', "d.toml:8: column 'sex' needs categories"),
        ("2024-12-31] }", "2024] }", "d.toml:9: column 'admitted': 2024 is not a date"),
        ('target = "died"', 'target = "dead"', "d.toml:2: .* no column 'dead'"),
        ('target = "died"', 'target = ["sex", "age"]', "d.toml:2: .*a target is"),
        ('identifier = "patient"', 'identifier = "age"', "d.toml:1: the identifier"),
        ('time = "admitted"', 'time = "sex"', "d.toml:3: the time axis"),
        ('["female"] }', '["women"] }', "d.toml:14: column 'sex' has no category 'women'"),
        ("age = { min = 65 }", "edad = { min = 65 }", "d.toml:13: .* no column 'edad'"),
        ("age = { min = 65 }", "age = { }", "d.toml:13: column 'age'"),
        ("[populations.recent]", "[populations.all]", "d.toml:16: .*'all'"),
        ("[columns]", "[columns", r"d.toml:5: this is not TOML"),
        ("hidden = 16", "hidden = 0", r"d.toml:\d+: hidden = .0. is not 1 whole number"),
        ("hidden = 16", "hidden = 1.5", r"d.toml:\d+: hidden = .*is not 1 whole number"),
        ('"6f1e"', '""', r"d.toml:\d+: .*needs digest"),
        ("digest", "sha256", r"d.toml:\d+: .*has no 'sha256'"),
        ('"layer.0.value" = [8, 16]', "v = [8]", r"d.toml:\d+: v = .8. is not 2 whole numbers"),
        ('"layer.0.value" = [8, 16]', "v = [-1, 8]", r"d.toml:\d+: v = .* is not 2 whole numbers"),
        ('"models/minilm"', '" "', r"d.toml:\d+: .*no name that can be printed"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(wrong, right, said):
    with pytest.raises(UsageError, match=said):
        Dictionary.parse((TEXT + BASES).replace(wrong, right), file="d.toml")


VALUES_OF_TOML = (
    "1", "-1", "1e999", "nan", "true", '"x"', "[]", "[1]", "[1, 2]", '["a"]', "{}", "{ a = 1 }",
    "2020-01-01", "2020-01-01T10:00:00Z", "10:00:00", "1" + 400 * "0", "[[[]]]", '{ in = [1] }',
)  # fmt: skip


def test_whatever_is_written_is_read_or_refused_with_a_line():
    draw = np.random.default_rng(0)
    whole = TEXT + BASES
    places = list(re.finditer(r"= *([^,}\n]+)", whole))
    for _ in range(1000):
        place = places[draw.integers(len(places))]
        value = VALUES_OF_TOML[draw.integers(len(VALUES_OF_TOML))]
        text = whole[: place.start(1)] + value + whole[place.end(1) :]
        try:
            dictionary = Dictionary.parse(text)
        except UsageError as error:
            assert re.match(r"dictionary.toml:\d+: ", error.message), error  # noqa: PT017
        else:
            assert Dictionary.parse(dictionary.toml()) == dictionary
    with pytest.raises(UsageError, match="nested too deeply"):
        Dictionary.parse("a = " + 9999 * "[")

"""What is withheld is named by column, class and member."""

from __future__ import annotations

import numpy as np
import pytest

import solera as so
from solera.core.errors import PayloadError
from solera.core.replies import Reply
from solera.learn.whole_fields import WholeFields

SUM = so.aggregations.Sum()
NAMES = ["bias", "age", "smoker"]


def objection(absent, columns=NAMES, outputs=("no", "yes"), members=None):
    fold = WholeFields({"grams": SUM, "moments": SUM}, columns, outputs, members)
    payload = {name: np.zeros(np.shape(marks)) for name, marks in absent.items()}
    whole = {"grams": np.zeros(6), "moments": np.zeros((3, 2)), **payload}
    with pytest.raises(PayloadError, match=r"fewer persons than min_count have (.*); leave") as e:
        fold.take(Reply(0, whole, absent))
    assert not fold.accepts_gaps(["grams"])
    return e.value.message.partition(" have ")[2].partition("; leave")[0]


def pairs(*chosen, columns=3):
    """The triangle of a matrix with marks at some places."""
    i, j = np.triu_indices(columns)
    return np.array([(a, b) in chosen for a, b in zip(i.tolist(), j.tolist(), strict=True)])


def test_columns_and_pairs_of_columns():
    assert objection({"grams": pairs((0, 2), (1, 2), (2, 2))}) == "'smoker'"
    assert objection({"grams": pairs((1, 2))}) == "both 'age' and 'smoker'"


def test_classes_and_columns_among_them():
    marks = np.zeros((3, 2), dtype=bool)
    marks[0, 1] = marks[2, 0] = True
    assert objection({"moments": marks}) == "'smoker' in 'no' or the others, 'yes' or the others"
    both = {"grams": pairs((0, 2), (2, 2)), "moments": marks}
    assert objection(both) == "'smoker', 'yes' or the others", "the column alone says it"


def test_matrices_of_classes_and_of_all_rows():
    every, none = np.ones(6, dtype=bool), np.zeros(6, dtype=bool)
    assert objection({"grams": np.array([[none, every]])}) == "'yes'"
    assert objection({"grams": np.array([[every, none, every]])}) == "all columns, 'yes'"


def test_members_see_columns_of_their_own():
    marks = np.array([[pairs((1, 1), columns=2)], [pairs((0, 1), (1, 1), columns=2)]])
    assert objection({"grams": marks}, members=np.array([[0, 1], [0, 2]])) == "'age', 'smoker'"


def test_long_lists_are_cut_and_other_entries_named():
    columns = ["bias", *(f"c{i}" for i in range(8))]
    marks = pairs(*((i, i) for i in range(1, 9)), columns=9)
    assert objection({"grams": marks}, columns).endswith("'c4' and 3 more")
    assert objection({"rows": np.array(True)}, columns) == "the cells of 'rows'"


def test_whole_replies_are_added_up():
    fold = WholeFields({"rows": SUM}, NAMES, ["no"])
    assert fold.take(Reply(0, {"rows": 3})) == {"rows": 3}

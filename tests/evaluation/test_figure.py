"""A figure is a float that says whose rows it rests on, and keeps that wherever it goes."""

from __future__ import annotations

import copy
import json
import pickle

import msgspec
import numpy as np
import pytest

from solera.core.payload import decode, encode
from solera.evaluation.figure import Figure, measured, restored

ACCURACY = Figure(
    0.9, metric="accuracy", part="test", rows=90, clients=6, asked=10, absent=3, withheld=12,
    interval=(0.8, 0.95),
)  # fmt: skip


def test_it_is_a_float():
    assert float(ACCURACY) == ACCURACY == 0.9
    assert type(ACCURACY + 0.05) is float
    assert np.mean([ACCURACY, 0.7]) == pytest.approx(0.8)
    assert f"{ACCURACY:.2f}" == "0.90"
    assert json.loads(json.dumps({"accuracy": ACCURACY})) == {"accuracy": 0.9}


@pytest.mark.parametrize(
    ("about", "whose"),
    [
        ({"part": "rows", "rows": 40}, "40 rows at hand"),
        ({"part": "test", "rows": 40, "clients": 4, "asked": 4}, "40 test rows of 4 clients"),
        ({"part": "all", "rows": 9, "clients": 1, "asked": 1}, "9 rows of 1 client"),
        (
            {"part": "test", "rows": 90, "clients": 6, "asked": 10, "absent": 4},
            "90 test rows of 6 of 10 clients, 4 did not reply",
        ),
        (
            {"part": "train", "rows": 83, "clients": 2, "asked": 2, "withheld": 11},
            "83 train rows of 2 clients, 11 rows withheld by their owners",
        ),
        (
            {"part": "validation", "rows": None, "clients": 2, "asked": 2},
            "an unknown number of validation rows of 2 clients",
        ),
        ({"part": "unknown", "rows": None}, "rows that are not known"),
    ],
)
def test_it_says_whose_rows_it_rests_on(about, whose):
    figure = Figure(0.5, metric="accuracy", **about)
    assert figure.whose == whose
    assert repr(figure) == str(figure) == f"{figure}" == f"accuracy 0.5 of {whose}"


def test_bounds_intervals_and_the_positive_class_are_said():
    area = Figure(
        0.9, metric="auroc", part="rows", rows=8, bound=0.02, interval=(0.7, 1.0), positive="died"
    )
    assert repr(area) == "auroc 0.9 ± 0.02 (95 %: 0.7 to 1) of 8 rows at hand, positive class died"


@pytest.mark.parametrize("lacks", [{"withheld": 1}, {"absent": 1}, {"rows": None}])
def test_a_figure_that_lacks_rows_is_marked(lacks):
    about = {"metric": "accuracy", "part": "test", "rows": 9, "clients": 1, "asked": 2}
    assert Figure(0.5, **about).marked == "0.5"
    assert Figure(0.5, **(about | lacks)).marked == "0.5 (rows missing)"


def _through_json(figure):
    encoded = msgspec.json.encode({"accuracy": figure}, enc_hook=lambda value: value.to_payload())
    return restored(msgspec.json.decode(encoded))["accuracy"]


@pytest.mark.parametrize(
    "through",
    [
        lambda figure: restored(decode(encode({"accuracy": figure})))["accuracy"],
        _through_json,
        lambda figure: pickle.loads(pickle.dumps(figure)),  # noqa: S301
        copy.deepcopy,
    ],
    ids=["payload", "json", "pickle", "copy"],
)
def test_it_keeps_its_rows_on_the_way(through):
    arrived = through(ACCURACY)
    assert arrived == ACCURACY
    assert repr(arrived) == repr(ACCURACY)
    assert arrived.is_whole is False


def test_numbers_of_files_without_rows_are_of_rows_that_are_not_known():
    entry = {"round": 3, "bytes_up": 12, "epsilon": 0.5, "validation_loss": 0.25, "accuracy": 0.75}
    read = restored(entry)
    assert read == entry
    assert str(read["accuracy"]) == "accuracy 0.75 of rows that are not known"
    assert isinstance(read["validation_loss"], Figure)
    assert [name for name, value in read.items() if isinstance(value, Figure)] == [
        "validation_loss",
        "accuracy",
    ]
    assert restored(read)["accuracy"] is read["accuracy"]


def test_metrics_of_the_same_rows_share_what_is_said_of_them():
    figures = measured({"mse": 2.0, "r2": 0.5}, part="rows", rows=7)
    assert [str(figure) for figure in figures.values()] == [
        "mse 2 of 7 rows at hand",
        "r2 0.5 of 7 rows at hand",
    ]

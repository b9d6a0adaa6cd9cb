"""The vertical study: parties apart come near to joined rows, and beat the label owner alone."""

from __future__ import annotations

import pytest

import solera as so
from solera.published import vertical

pytest.importorskip("tenseal", reason="the extra 'he' is not installed")


@pytest.mark.data("heart_cleveland")
def test_parties_apart_learn_what_joined_rows_tell():
    data = so.datasets.load("heart_cleveland")
    found = vertical._compared(data, "logistic regression")
    assert found["apart"] > found["joined"] - 0.02
    assert found["apart"] > found["label owner alone"] + 0.05

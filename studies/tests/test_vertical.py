"""The vertical study: parties apart come near to joined rows, and beat the label owner alone."""

from __future__ import annotations

import numpy as np
import pytest

import solera as so
from solera_studies import vertical

pytest.importorskip("tenseal", reason="the extra 'he' is not installed")


@pytest.mark.data("heart_cleveland")
def test_parties_apart_learn_what_joined_rows_tell():
    data = so.datasets.load("heart_cleveland")
    draws = [vertical._compared(data, "logistic regression", seed) for seed in range(3)]
    apart, joined, alone = (
        np.mean([draw[scheme] for draw in draws])
        for scheme in ("apart", "joined", "label owner alone")
    )
    assert apart > joined - 0.04  # .025 over six draws of the test rows
    assert apart > alone + 0.03

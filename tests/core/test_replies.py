"""Stacked replies are the replies one by one."""

from __future__ import annotations

import numpy as np
import pytest

from solera.core.payload import encoded_size
from solera.core.replies import Stacked

COUNTS = np.array([0, 5, 127, 128, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**40])


@pytest.mark.parametrize(
    "fields",
    [
        {"loss": np.zeros(11), "rows": COUNTS},
        {"rows": COUNTS, "events": COUNTS[::-1].copy(), "sums": {"of": np.zeros((11, 7), "f4")}},
        {"moved": -COUNTS},
        {"rows": COUNTS, "more": COUNTS > 200},
        {"loss": np.zeros(11)},
    ],
    ids=lambda fields: ", ".join(fields),
)
def test_stacked_replies_have_the_sizes_of_single_ones(fields):
    stacked = Stacked(fields)
    assert stacked.sizes().tolist() == [encoded_size(reply) for reply in stacked]

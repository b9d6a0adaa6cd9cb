"""Nobody claims more rows than it agreed to, but noise may move a count."""

from __future__ import annotations

import numpy as np
import pytest

from solera.core.engine import Ask
from solera.core.replies import Batch
from solera.data.agreement import describe

pytest.importorskip("httpx", reason="the extra 'serve' is not installed")

from solera.serve.driver.agreed_rows import AgreedRows

NOISED = {"privacy": {"mechanism": "gaussian", "noise": 2.0, "share": 1}}
UPDATE = {"privacy": {"level": "record", "noise": 2.0, "clip": 1.0}}


def claims(ask, rows):
    """Whether a client of 40 rows may say that it has so many."""
    agreed = AgreedRows()
    for task, payload, told in ((describe.name, None, 40), ("heonn.statistics", ask, rows)):
        batch = Batch(np.array([0]), [{"rows": told}])
        kept, failures = agreed.checked(Ask(task, 1, payload, batch.clients, seed=0), batch)
    assert len(list(kept)) + len(failures) == 1
    return not failures


@pytest.mark.parametrize(
    ("ask", "rows", "may"),
    [
        (None, 40, True),
        (None, 41, False),
        (None, -1, False),
        (None, float("nan"), False),
        (UPDATE, 41, False),
        (NOISED, 41, True),
        (NOISED, -3, True),
        (NOISED, 241, False),
        (NOISED, -201, False),
        (NOISED, 2**62, False),
        (NOISED, float("inf"), False),
    ],
)
def test_what_a_client_may_claim(ask, rows, may):
    assert claims(ask, rows) == may

"""What a driver writes down of single clients: what their replies tell, and nothing withheld."""

from __future__ import annotations

import numpy as np
import pytest

for library in ("fastapi", "httpx", "sqlalchemy", "cryptography"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

from solera.core.replies import Batch, Failure  # noqa: E402
from solera.core.task import find_task  # noqa: E402
from solera.learn.linear import FedLinear  # noqa: E402
from solera.serve.driver.told import Told  # noqa: E402
from solera.serve.wire import MOST_TOLD  # noqa: E402

TASK = FedLinear.update.name


def noted(payloads, failures=()):
    told = Told()
    told.note(TASK, Batch(np.arange(len(payloads)), payloads), failures)
    return told.take(find_task(TASK))


def test_the_loss_of_a_reply_is_told_once():
    told = Told()
    told.note(TASK, Batch(np.array([3]), [{"loss": 0.1234567, "rows": 20}]), [])
    told.note("other.task", Batch(np.array([4]), [{"loss": 0.5, "rows": 20}]), [])
    assert told.take(find_task(TASK)) == {3: 0.123457}
    told.note(TASK, Batch(np.array([5]), [{"change": {"loss": 0.25}, "rows": 20}]), [])
    assert told.take(find_task(TASK)) == {5: 0.25}
    assert told.take(find_task(TASK)) == {}


@pytest.mark.parametrize(
    "payload",
    [
        {"loss": 0.0, "rows": 20},  # withheld by the gate
        {"loss": 0.5, "rows": 0},  # so are the rows
        {"loss": 0.5, "rows": 4},
        {"loss": np.array([0.5, 0.25]), "rows": 20},  # of parts, not of all rows
        {"loss": float("nan"), "rows": 20},
        {"masked": np.arange(3, dtype=np.uint64)},
        {"rows": 20},
        None,
    ],
)
def test_what_is_withheld_secret_or_of_few_rows_is_not_told(payload):
    assert noted([payload]) == {}


def test_a_reply_that_could_not_be_used_is_not_told():
    replies = [{"loss": 0.5, "rows": 20}, {"loss": 0.25, "rows": 20}]
    assert noted(replies, [Failure(0, "invalid", "not finite")]) == {1: 0.25}


def test_of_very_many_clients_the_first_are_told():
    many = [{"loss": 0.5, "rows": 20}] * (MOST_TOLD + 5)
    assert list(noted(many)) == list(range(MOST_TOLD))

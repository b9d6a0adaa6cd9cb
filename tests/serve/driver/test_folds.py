"""A reply that can be read and is wrong is charged to the client that gave it, and to no other."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import numpy as np
import pytest

import solera as so
from solera.core.aggregation import Mean, Sum
from solera.core.component import describe_fitted
from solera.core.engine import PerClient
from solera.core.payload import encode

for library in ("fastapi", "uvicorn", "httpx", "sqlalchemy", "alembic", "cryptography"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

from network import Network  # noqa: E402
from test_security import DATA, TRAIN, Hand, staff  # noqa: E402

from solera.core.replies import Batch, Reply  # noqa: E402
from solera.data.agreement import SchemaAgreement  # noqa: E402
from solera.serve.connection import Connection  # noqa: E402

HONEST = ("north", "south", "west")
ROGUE = 3


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    here = Network(tmp_path_factory.mktemp("folds"))
    try:
        here.start()
        staff(here, dict.fromkeys(HONEST))
        here.enrol("rogue")
        yield here
    finally:
        here.close()


@contextmanager
def answering(network, answer):
    """The last client answers every ask with what ``answer`` says to its task."""
    hand = Hand(network, "rogue")
    stop, trouble = threading.Event(), []

    def work():
        try:
            while not stop.is_set():
                for order in hand.orders(wait=0.3):
                    frame = encode(answer(order["task"]))
                    hand.reply(order["job"], order["sequence"], frame)
        except Exception as error:
            trouble.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert not trouble


ODD = [
    None,
    5,
    "text",
    [1, 2, 3],
    {},
    {"features": 5},
    {"features": [["a"]], "target": "classes", "classes": [], "gaps": [], "empty": False},
    {"features": [], "target": "classes", "classes": {"a": 1}, "gaps": 7, "empty": False},
]


def described(**changes):
    classes = np.arange(3)
    schema = DATA.schema.to_payload() | {"classes": classes}
    return schema | {"rows": 40, "empty": False, "gaps": []} | changes


def test_an_odd_reply_does_not_end_the_learner(network):
    fed = network.connect()
    expected = fed.ask("data.describe", to=[0, 1, 2]).fold(SchemaAgreement())["schema"]
    odd = [None]
    with answering(network, lambda _: odd[0]):
        for odd[0] in ODD:
            replies = fed.ask("data.describe", deadline=600)
            assert replies.fold(SchemaAgreement())["schema"] == expected, odd
            (failure,) = replies.failures
            assert (failure.client, failure.kind) == (ROGUE, "invalid"), odd


def test_replies_that_do_not_fit_the_others_are_left_out(network):
    """Each of them could be added up with itself: only together they cannot."""
    fed = network.connect()
    expected = encode(fed.ask("data.flaws", to=[0, 1, 2]).fold(Sum()))
    odd = [None]
    with answering(network, lambda _: odd[0]):
        for odd[0] in (5, {"gaps": []}, {"gaps": [], "empty": [1]}, [1.0], np.ones((2, 2))):
            replies = fed.ask("data.flaws", deadline=600)
            assert encode(replies.fold(Sum())) == expected, odd
            assert [(f.client, f.kind) for f in replies.failures] == [(ROGUE, "invalid")], odd


@pytest.mark.parametrize("liar", range(4))
def test_the_one_that_differs_is_named_wherever_it_stands(liar):
    shapes = [(2,)] * 4
    shapes[liar] = (3,)
    batch = Batch(np.arange(4), [{"x": np.ones(shape)} for shape in shapes])
    kept, failures = batch.combinable(Sum().lift, Sum().merge)
    assert [failure.client for failure in failures] == [liar]
    assert Sum().fold(kept)["x"].tolist() == [3.0, 3.0]
    assert isinstance(next(iter(kept)), Reply)


@pytest.mark.parametrize("claimed", [2**62, 2**31, 41, -1, 1e300])
def test_more_rows_than_agreed_do_not_replace_the_model(network, claimed):
    """The rogue client agrees to 40 rows and then claims more, to outweigh all others."""
    lie = {"coef": np.full((4, 3), 9.0), "intercept": np.zeros(3), "loss": 0.1}

    def answer(rows):
        def say(task):
            return described() if task == "data.describe" else {"change": lie, "rows": rows}

        return say

    def fit():
        fed = network.connect(seed=4)
        return so.FedLinear(rounds=2).fit(fed), fed

    with answering(network, lambda task: described() if task == "data.describe" else "nothing"):
        expected, _ = fit()
    with answering(network, answer(claimed)):
        model, fed = fit()
    assert encode(describe_fitted(model)) == encode(describe_fitted(expected))
    events = network.driver().request("GET", f"/v1/jobs/{fed.engine.job}/events").json()
    named = [e for e in events if e["event"] == "invalid"]
    assert {e["client"] for e in named} == {ROGUE}
    assert all("agreed to 40" in e["reason"] for e in named)
    with answering(network, answer(40)):
        believed, _ = fit()
    assert encode(describe_fitted(believed)) != encode(describe_fitted(expected)), "40 it may have"


def test_what_is_asked_of_honest_clients_is_unchanged(network):
    fed = network.connect()
    replies = fed.ask("linear.train", TRAIN, to=[0, 1, 2], deadline=600)
    assert set(replies.fold(Mean("rows", of="change"))) == {"coef", "intercept", "loss"}
    assert not replies.failures


def test_a_small_ask_is_one_message_and_one_wait_for_replies(network, monkeypatch):
    fed = network.connect()
    fed.ask("linear.train", TRAIN, to=[0, 1, 2], deadline=600).fold(Mean("rows"))
    sent, real = [], Connection.request

    def watched(self, method, path, **body):
        sent.append((method, path.partition("?")[0].rpartition("/")[2]))
        return real(self, method, path, **body)

    monkeypatch.setattr(Connection, "request", watched)
    for number, asked in enumerate([TRAIN, PerClient(dict.fromkeys(range(3), TRAIN))], 1):
        sent.clear()
        fed.ask("linear.train", asked, to=[0, 1, 2], deadline=600).fold(Mean("rows"))
        first, *waited = sent
        assert first == ("PUT", str(number))
        assert set(waited) == {("GET", "replies")}, "again if they take longer than 20 s"

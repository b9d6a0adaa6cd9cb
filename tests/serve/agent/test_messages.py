"""Messages between clients: sealed by one agent, opened by the other, and nowhere else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

for library in ("httpx", "cryptography"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

from solera.core.engine import Ask  # noqa: E402
from solera.core.errors import Refusal  # noqa: E402
from solera.core.payload import decode, encode  # noqa: E402
from solera.serve import wire  # noqa: E402
from solera.serve.agent.home import Place  # noqa: E402
from solera.serve.agent.messages import Messages  # noqa: E402
from solera.serve.agent.policy import OwnerPolicy  # noqa: E402
from solera.serve.identity import Identity, seal_key_message  # noqa: E402

NAMES = ("bank", "shop", "mill")

TRUSTED = OwnerPolicy.parse('policy = "trusted"')


class Town:
    """What a coordinator says of the clients' keys."""

    def __init__(self, folder):
        self.identities = [Identity.create(folder / name) for name in NAMES]
        self.folder = folder

    def call(self, method, path, kind):
        assert (method, path) == ("GET", "/v1/peers")
        return wire.Peers([self.peer(k) for k in range(3)])

    def peer(self, k):
        own = self.identities[k]
        vouched = own.sign(seal_key_message("town", own.seal_key)).hex()
        return wire.Peer(k, NAMES[k], own.sign_key.hex(), own.seal_key.hex(), vouched)

    def messages(self, k, policy=None):
        place = Place("https://here", None, k, NAMES[k], "town")
        policy = policy or TRUSTED
        return Messages(place, self.identities[k], self.folder / NAMES[k], self, lambda: policy)


@pytest.fixture
def town(tmp_path):
    return Town(tmp_path)


def ask(task="split.top", round=4, payload=None):
    return Ask(task, 1, payload or {}, np.array([0]), 0, round)


def sealed(town, k=1):
    """What the shop's task wrote for the bank, as it leaves."""
    letter = {"to": 0, "task": "split.top", "round": 4, "sealed": b"twelve numbers"}
    frame = town.messages(k).sealed(ask("split.bottom"), "loans", encode({"sealed": [letter]}))
    (found,) = decode(frame)["sealed"]
    assert b"twelve" not in found["sealed"]
    return {"sealed": [{"sender": k, "sealed": found["sealed"]}]}


def test_only_its_recipient_opens_a_message_and_only_for_its_ask(town):
    payload = sealed(town)
    opened = town.messages(0).opened(ask(payload=payload), "loans")
    assert opened.payload == {"sealed": [{"sender": 1, "sealed": b"twelve numbers"}]}
    moved = {
        "another job": (0, ask(payload=payload), "taxes"),
        "another round": (0, ask(round=5, payload=payload), "loans"),
        "another task": (0, ask("psi.multiply", payload=payload), "loans"),
        "another recipient": (2, ask(payload=payload), "loans"),
    }
    for k, elsewhere, job in moved.values():
        with pytest.raises(Refusal, match="does not open"):
            town.messages(k).opened(elsewhere, job)
    claimed = {"sealed": [{**payload["sealed"][0], "sender": 2}]}
    with pytest.raises(Refusal, match="does not open"):
        town.messages(0).opened(ask(payload=claimed), "loans")
    with pytest.raises(Refusal, match="is not sealed"):
        town.messages(0).opened(ask(payload={"sealed": [{"sender": 1}]}), "loans")


def test_strangers_and_peers_that_the_policy_does_not_know_are_refused(town):
    payload = sealed(town)
    other = replace(TRUSTED, peers={"shop": town.identities[2].sign_key.hex()})
    with pytest.raises(Refusal, match="does not know client 'shop'"):
        town.messages(0, other).opened(ask(payload=payload), "loans")
    known = replace(TRUSTED, peers={"shop": town.identities[1].sign_key.hex()})
    assert town.messages(0, known).opened(ask(payload=payload), "loans").payload["sealed"]
    away = {"sealed": [{"sender": 9, "sealed": payload["sealed"][0]["sealed"]}]}
    with pytest.raises(Refusal, match="no client 9"):
        town.messages(0).opened(ask(payload=away), "loans")


def test_a_coordinator_that_makes_keys_up_learns_nothing(town):
    sealed(town)  # the shop has seen the bank's key
    town.identities[0], real = Identity.create(town.folder / "eve"), town.identities[0]
    with pytest.raises(Refusal, match="messages among strangers"):
        sealed(town)
    assert real.sign_key != town.identities[0].sign_key


def test_other_tasks_are_left_alone(town):
    plain = ask("data.describe", payload={"sealed": [{"sender": 1, "sealed": b"x"}]})
    assert town.messages(0).opened(plain, "loans") is plain
    assert town.messages(0).sealed(plain, "loans", b"frame") == b"frame"

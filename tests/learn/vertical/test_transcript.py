"""All that coordinator and parties receive, recorded: what must not be there is not."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

import solera as so
from solera.core.engine import PerClient
from solera.core.errors import Refusal
from solera.core.payload import encode
from solera.core.sealing import message, open_ask, seal_reply
from solera.core.task import find_task, task
from solera.learn.averaging.training.architecture import architecture_of
from solera.learn.vertical import psi, split_tasks
from solera.learn.vertical.encoding import encode as encode_rows
from solera.privacy.psi import points_of
from solera.privacy.simulated_keys import SimulatedKeys

torch = pytest.importorskip("torch")


@pytest.fixture
def recorded(people, columns, monkeypatch):
    """A fit and a prediction; what the coordinator relays, and what each party's tasks open."""
    fed = so.simulate_vertical(people, columns=columns, target="y", id="id", policy="trusted")
    relayed, opened = [], {0: [], 1: []}
    run = fed.engine.run

    def watched(ask, aggregation):
        for client in ask.clients.tolist():
            relayed.append((ask.task, encode(ask.payload_for(client))))
        for block in run(ask, aggregation):
            if block.batch is not None:
                relayed.extend((ask.task, encode(reply.payload)) for reply in block.batch)
            yield block

    monkeypatch.setattr(fed.engine, "run", watched)
    from solera.engines import blocks

    def seen(task, payload, round, client, scope, sealer):
        found = open_ask(task, payload, round, client, scope, sealer)
        opened[client].append((task.name, encode(found)))
        return found

    monkeypatch.setattr(blocks, "open_ask", seen)
    model = so.SplitNN(3, epochs=2, batch_size=40, test=0.3).fit(fed)
    model.evaluate(fed)
    return fed, model, relayed, opened


def secrets(fed, model, party):
    """What only this party may know: identifiers, rows, labels, what its network says."""
    own = fed.data.parties[party]
    texts = [t for i in own.identifiers for t in (i, i.lower(), i.lower().replace("-", ""))]
    hashes = [getattr(hashlib, h)(t.encode()).digest() for h in ("sha256", "md5") for t in texts]
    points = [points_of([t]) for t in texts]
    split = model.part(fed, party)["split"]
    encoded = encode_rows(own.X, own.schema, split["encoding"])
    net = architecture_of(split["bottom"]["model"]).load(split["bottom"]["weights"]).eval()
    with torch.no_grad():
        said = net(torch.tensor(encoded.astype(np.float32))).numpy()
    rows = [row.tobytes() for values in (own.X, encoded, encoded.astype("f4")) for row in values]
    weights = [split[w]["weights"].tobytes() for w in ("bottom", "top") if w in split]
    return {
        "identifiers": [t.encode() for t in texts],
        "hashes": hashes + [h.hex().encode() for h in hashes] + points,
        "rows": rows,
        "weights": weights,
        "said": [row.tobytes() for row in said],
    }


def test_the_coordinator_reads_nothing_of_it(recorded):
    fed, model, relayed, _ = recorded
    everything = b"".join(frame for _, frame in relayed)
    for party in (0, 1):
        for what, values in secrets(fed, model, party).items():
            assert not any(value in everything for value in values), what
    order = model.part(fed, 0)["trained"]["order"]
    y = fed.data.parties[0].y
    for labels in (y, y[order], y[order].astype("f4"), y[order].astype("f8")):
        assert labels.tobytes() not in everything
    assert order.tobytes() not in everything


def test_no_party_reads_another_ones(recorded):
    fed, model, _, opened = recorded
    for party, other in ((0, 1), (1, 0)):
        received = b"".join(frame for _, frame in opened[party])
        found = secrets(fed, model, other)
        for what in ("identifiers", "hashes", "rows", "weights"):
            assert not any(value in received for value in found[what]), what
    received = b"".join(frame for _, frame in opened[1])
    y, order = fed.data.parties[0].y, model.part(fed, 0)["trained"]["order"]
    assert not any(labels.tobytes() in received for labels in (y, y[order]))


def test_the_recorder_would_see_it(recorded):
    """What the bottoms said reaches the label owner: the records are not empty."""
    fed, model, _, opened = recorded
    received = b"".join(frame for name, frame in opened[0] if name == "split.answer")
    said = secrets(fed, model, 1)["said"]
    test = model.part(fed, 1)["trained"]["order"][model.part(fed, 1)["trained"]["ends"][1] :]
    assert all(said[row] in received for row in test)


def test_sealed_bytes_open_nowhere_else():
    keys, scope = SimulatedKeys(7), ("town", "loans")
    top = find_task("split.top")
    reply = {"sealed": [message(2, top, 5, {"values": np.ones((1, 1))})]}
    (sent,) = seal_reply(split_tasks.bottom, reply, 1, scope, keys)["sealed"]
    assert np.ones((1, 1)).tobytes() not in sent["sealed"]
    ask = {"sealed": [{"sender": 1, "sealed": sent["sealed"]}]}
    opened = open_ask(top, ask, 5, 2, scope, keys)
    assert opened["sealed"][0]["sender"] == 1
    elsewhere = {
        "another job": (top, 5, 2, ("town", "other"), keys, 1),
        "another federation": (top, 5, 2, ("city", "loans"), keys, 1),
        "another round": (top, 6, 2, scope, keys, 1),
        "another task": (psi.multiply, 5, 2, scope, keys, 1),
        "another recipient": (top, 5, 3, scope, keys, 1),
        "another sender": (top, 5, 2, scope, keys, 0),
        "another's keys": (top, 5, 2, scope, SimulatedKeys(8), 1),
    }
    for reader, round, client, here, held, sender in elsewhere.values():
        moved = {"sealed": [{"sender": sender, "sealed": sent["sealed"]}]}
        with pytest.raises(Refusal, match="does not open"):
            open_ask(reader, moved, round, client, here, held)
    changed = bytearray(sent["sealed"])
    changed[-1] ^= 1
    with pytest.raises(Refusal, match="does not open"):
        open_ask(top, {"sealed": [{"sender": 1, "sealed": bytes(changed)}]}, 5, 2, scope, keys)
    with pytest.raises(Refusal, match="is not sealed"):
        open_ask(top, {"sealed": [{"sender": 1, "content": {}}]}, 5, 2, scope, keys)


def test_a_coordinator_that_tells_wrong_places_is_found_out(people, columns, monkeypatch):
    fed = so.simulate_vertical(people, columns=columns, target="y", id="id")

    def swapped(lists):
        found = [list(places) for places in real(lists)]
        found[1][0], found[1][1] = found[1][1], found[1][0]
        return found

    real = psi.psi.matches
    monkeypatch.setattr(psi.psi, "matches", swapped)
    with pytest.raises(so.errors.DataError, match="misaligned identifiers"):
        so.SplitNN(2, epochs=1).fit(fed)


def test_a_party_cannot_choose_the_order_after_it_has_seen_the_others(people, columns, monkeypatch):
    fed = so.simulate_vertical(people, columns=columns, target="y", id="id")
    run = fed.engine.run

    def changed(ask, aggregation):
        if ask.task == "psi.reveal":
            payloads = {
                c: {**ask.payload_for(c), "commitments": ask.payload_for(c)["commitments"][::-1]}
                for c in ask.clients.tolist()
            }
            ask = type(ask)(
                **{f: getattr(ask, f) for f in ask.__slots__ if f != "payload"},
                payload=PerClient(payloads),
            )
        return run(ask, aggregation)

    monkeypatch.setattr(fed.engine, "run", changed)
    with pytest.raises(so.errors.NotEnoughReplies, match="changed its contribution"):
        so.SplitNN(2, epochs=1).fit(fed)


def test_a_federation_without_keys_seals_nothing_in_the_clear():
    @task("test.whisper", sealed=True)
    def whisper(client, ask):
        return {"sealed": [message(1, whisper, 1, {"x": 1.0})]}

    fed = so.simulate(np.ones((20, 2)), np.arange(20) % 2, clients=2)
    with pytest.raises(so.errors.NotEnoughReplies, match="have no keys"):
        fed.ask(whisper, {}).collect()

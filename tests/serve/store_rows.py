"""Rows for tests of the store: clients, a job, asks and replies with values that hardly matter."""

from __future__ import annotations

import hashlib

from solera.serve import wire

NOW = 1_800_000_000.0


def digest(name: object) -> str:
    return hashlib.sha256(str(name).encode()).hexdigest()


def enrol(store, count, federation="cardio"):
    for i in range(count):
        key = f"{federation} {i}".encode()
        store.enrol(federation, f"site {i}", key, key + b" seal", {"data.describe": 1})


def add_job(store, id="j", federation="cardio", now=NOW, **other):
    values = {"kind": "driven", "spec": digest("spec"), "seed": 7, "owner": "ana"}
    return wire.Job.of(store.add_job(federation, wire.NewJob(id=id, **(values | other)), now))


def add_ask(store, seq=0, now=None, **other):
    values = {"task": "heonn.fit", "version": 1, "payload": digest("model"), "round": 0}
    values |= {"seconds": 60, "clients": [0, 1, 2]}
    new = wire.NewAsk(**(values | other))
    return store.add_ask("j", seq, new, NOW + seq if now is None else now)


def answer(**fields):
    return wire.NewReply(**({"size": 10, "signature": "ab" * 64} | fields))


def reply(store, client, seq=0, now=NOW + 9, federation="cardio", **other):
    values = {"status": "ok", "digest": digest((seq, client))}
    return add_reply(store, "j", seq, federation, client, answer(**(values | other)), now)


def add_reply(store, *delivered):
    """Whether a reply is new; raises what the store says against it."""
    (outcome,) = store.add_replies([delivered])
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def checkpoint(store, first, sequence, name):
    store.save_checkpoint("j", wire.NewCheckpoint(first, sequence, digest(name)), NOW)


def waiting(store, seq=0):
    """The clients that have not answered an ask yet."""
    answered = {row.client for row in store.replies("j", seq)}
    return [client for client in store.ask("j", seq).clients if client not in answered]


def client(store, id, federation="cardio"):
    return next(row for row in store.clients(federation) if row.id == id)

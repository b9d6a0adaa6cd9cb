"""Rows for tests of the store: clients, a job, asks and replies with values that hardly matter."""

from __future__ import annotations

import hashlib

NOW = 1_800_000_000.0


def digest(name: object) -> str:
    return hashlib.sha256(str(name).encode()).hexdigest()


def enrol(store, count, federation="cardio"):
    for i in range(count):
        key = f"{federation} {i}".encode()
        store.enrol(federation, f"site {i}", key, key + b" seal", {"data.describe": 1})


def add_job(store, id="j", federation="cardio", **other):
    values = {"kind": "driven", "spec": digest("spec"), "hash": "h", "seed": 7, "owner": "ana"}
    return store.add_job(id, federation, **(values | {"deadline": None, "now": NOW} | other))


def add_ask(store, seq=0, **other):
    values = {"task": "heonn.fit", "version": 1, "payload": digest("model"), "prepare": None}
    values |= {"round": 0, "deadline": NOW + 60, "clients": [0, 1, 2], "now": NOW + seq}
    return store.add_ask("j", seq, **(values | other))


def reply(store, client, seq=0, **other):
    values = {"status": "ok", "digest": digest((seq, client)), "size": 10, "reason": ""}
    return store.add_reply(
        "j", seq, client, **(values | {"signature": b"s", "now": NOW + 9} | other)
    )

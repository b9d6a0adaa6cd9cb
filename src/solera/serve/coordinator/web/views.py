"""What pages show: reads of the store, made fit for templates."""

from __future__ import annotations

import json
import re
import time
from typing import Any
from urllib.parse import urlencode

import msgspec
from markupsafe import Markup

from solera.core.meter import size
from solera.evaluation.figure import figures
from solera.serve.closed_words import job_words, name_of, parsed
from solera.serve.coordinator.service import Coordinator
from solera.serve.coordinator.store.base import NotFound
from solera.serve.coordinator.store.store import Store
from solera.serve.coordinator.store.watching import COST, Taken
from solera.serve.coordinator.web import words
from solera.serve.coordinator.web.live import spread
from solera.serve.coordinator.web.visitors import Visitor
from solera.serve.wire import Job

PRESENT_SECONDS = 60.0
_LAST_ASKS = 6
_MOST_TOLD = 120
"""Rounds of which the curves of clients are made."""
_PACE_ROUNDS = 20
_FAR = 10 * 365 * 86400.0
"""Seconds: nobody waits for what ends so late."""
_MOST_BARS = 60
_MOST_TROUBLE = 50
_MOST_EVENTS = 200
_WIDTH, _LEFT, _BAR = 900, 300, 480


def federation_card(store: Store, name: str) -> dict[str, Any]:
    """A federation in one line."""
    clients = [client for client in store.clients(name) if client.revoked is None]
    jobs = store.jobs(name)
    return {
        "name": name,
        "clients": len(clients),
        "present": sum(_is_present(client.seen) for client in clients),
        "jobs": len(jobs),
        "running": sum(job.state in words.GOING_ON for job in jobs),
    }


def federation(store: Store, name: str) -> dict[str, Any]:
    """Clients and jobs of a federation."""
    awaited = store.awaited(name)
    by_client: dict[int, list[Any]] = {}
    by_job: dict[str, list[Any]] = {}
    for entry in awaited:
        by_client.setdefault(entry.client, []).append(entry)
        by_job.setdefault(entry.job, []).append(entry)
    rows = store.clients(name)
    names = {row.id: row.name for row in rows}
    doing = {row.id: row.doing or "" for row in rows}
    clients = [
        {
            "id": row.id,
            "name": row.name,
            "key": row.sign_key.hex(),
            "seen": row.seen,
            "present": _is_present(row.seen),
            "version": row.version or "–",
            "revoked": row.revoked,
            "reason": row.reason,
            "words": words.of_client(row.doing or "", by_client.get(row.id, [])),
        }
        for row in rows
    ]
    jobs = [
        {
            "id": job.id,
            "owner": job.owner,
            "created": job.created,
            "words": words.of_job(job, by_job.get(job.id, []), names, doing),
        }
        for job in reversed(store.jobs(name))
    ]
    closed = [
        {
            "jid": job.jid,
            "name": name_of(parsed(job)),
            "kind": parsed(job).kind,
            "words": job_words(job),
            "researcher": parsed(job).researcher,
            "created": job.created,
        }
        for job in reversed(store.closed_jobs(name))
    ]
    return {"name": name, "clients": clients, "jobs": jobs, "closed": closed}


def job(store: Store, stored: Job, described: dict[str, Any]) -> dict[str, Any]:
    """One job: words, curves, who took how long, what went wrong."""
    names = store.client_names(stored.federation)
    going_on = stored.state in words.GOING_ON
    awaited = store.awaited(stored.federation, stored.id) if going_on else []
    try:
        model = store.model(stored.id)
    except NotFound:
        model = None
    rounds = store.rounds(stored.id)
    lines, chart = _bars(store.taken(stored.id, _LAST_ASKS), names)
    learner = described.get("learner") or {}
    metrics = store.judged(stored.id)
    of_clients = told(store, stored, names)
    return {
        "job": stored,
        "words": words.of_job(stored, awaited, names, store.doing(stored.federation)),
        "learner": words.of_learner(learner),
        "progress": store.progress(stored.id),
        "model": model,
        "metrics": metrics,
        "costs": costs(stored, rounds, store.noted(stored.id, COST)),
        "told": of_clients,
        "told_json": safe_json(of_clients),
        "no_told": _why_untold(rounds, going_on),
        "rounds": rounds,
        "last_round": [] if going_on or not rounds else [*figures(rounds[-1]).values()],
        "rounds_json": safe_json(rounds),
        "end": _estimated_end(store, stored, learner, len(rounds)) if going_on else None,
        "lines": lines,
        "chart": chart,
        "refusals": _trouble(store, stored.id, names),
        "toml": described.get("toml") or "",
        "going_on": going_on,
    }


def told(store: Store, job: Job, names: dict[int, str]) -> dict[str, Any]:
    """The losses that clients told, in some of the rounds, and the clients' names."""
    found = store.told(job.id, _MOST_TOLD)
    return {
        "known": found[-1][0] if found else 0,
        "names": {c: names[c] for c in job.clients or names if c in names},
        "rounds": [spread(facts) for _, facts in found],
    }


def _why_untold(rounds: list[dict[str, Any]], going_on: bool) -> str:
    """Why there are no losses of clients, where there are none."""
    if not rounds:
        return "No round has ended yet." if going_on else "This job has told of no rounds."
    if rounds[-1].get("secure"):
        return (
            "What clients send is added up in secret: nobody sees the loss of a single client, "
            "the coordinator included."
        )
    return "The clients of this job tell no loss of their own, or their owners withhold it."


def costs(job: Job, rounds: list[dict[str, Any]], noted: dict[str, float]) -> list[tuple[str, str]]:
    """Bytes, energy and privacy budget, each with who counted it."""
    driven = "counted by the program that drives the job"
    later = "told when the job has ended" if job.state in words.GOING_ON else "not told"
    down, up = ((_bytes(name, rounds, noted)) for name in ("bytes_down", "bytes_up"))
    epsilon = next((r["epsilon"] for r in reversed(rounds) if "epsilon" in r), None)
    energy = driven if job.kind == "driven" else later
    if "wh" in noted:
        energy = f"{noted['wh']:.3g} Wh at the coordinator, estimated from its processor time"
        energy += " and memory; clients do not report theirs"
    return [
        ("Sent to clients", driven if down is None else size(down)),
        ("Received from them", driven if up is None else size(up)),
        ("Energy", energy),
        (
            "Privacy budget",
            "this learner counts none; what clients spend is counted at their owners"
            if epsilon is None
            else f"ε = {epsilon:.4g} so far, as the learner counts it; owners count their own",
        ),
    ]


def _bytes(name: str, rounds: list[dict[str, Any]], noted: dict[str, float]) -> float | None:
    """Of the whole job where that is known, of its rounds otherwise."""
    of_rounds = [facts[name] for facts in rounds if name in facts]
    return noted.get(name, sum(of_rounds) if of_rounds else None)


def _estimated_end(store: Store, job: Job, learner: Any, done: int) -> float | None:
    """When the rounds that the learner was told to make are over, at the pace of the last ones."""
    rounds = next((own["rounds"] for _, own in words.steps_of(learner) if "rounds" in own), None)
    pace = store.pace(job.id, _PACE_ROUNDS)
    if not isinstance(rounds, int) or pace is None:
        return None
    seconds = max(0, rounds - done) * pace
    return time.time() + seconds if seconds < _FAR else None


def safe_json(content: Any) -> Any:
    """JSON for a data block of a page: nothing in it ends the block."""
    text = msgspec.json.encode(content, enc_hook=float).decode()
    for sign, code in (("<", "\\u003c"), (">", "\\u003e"), ("&", "\\u0026")):
        text = text.replace(sign, code)
    return Markup(text)


def _bars(taken: list[Taken], names: dict[int, str]) -> tuple[list[dict[str, Any]], dict[str, int]]:
    now = time.time()
    shown = taken[:_MOST_BARS]
    seconds = [(now if t.answered is None else t.answered) - t.asked for t in shown]
    longest = max(seconds, default=0.0) or 1.0
    lines = []
    for i, (entry, took) in enumerate(zip(shown, seconds, strict=True)):
        who = names.get(entry.client, f"client {entry.client}")
        status = entry.status if entry.status in ("ok", "open") else "failed"
        lines.append(
            {
                "y": 4 + 16 * i,
                "label": f"{entry.seq}. {entry.task}: {who}"[:46],
                "width": round(max(1.0, _BAR * took / longest), 1),
                "seconds": f"{took:.2f} s",
                "status": status,
                "title": f"{who}, {entry.task}, round {entry.round}: {entry.status}",
            }
        )
    return lines, {"width": _WIDTH, "height": 8 + 16 * len(lines), "left": _LEFT}


def _trouble(store: Store, job: str, names: dict[int, str]) -> list[dict[str, Any]]:
    """What went wrong, the newest first; the same thing again is counted."""
    return [
        {
            "time": last,
            "times": times,
            "event": event,
            "who": "" if client is None else names.get(client, str(client)),
            "reason": reason,
        }
        for client, event, reason, times, last in store.trouble(job, _MOST_TROUBLE)
    ]


def log(coordinator: Coordinator, visitor: Visitor, given: Any) -> dict[str, Any]:
    """The newest events that a visitor may see; a client is searched by its name or number."""
    store = coordinator.store
    text = {name: given.get(name, "").strip() for name in ("job", "event", "actor", "client")}
    names = {f: store.client_names(f) for f in store.federations() if visitor.sees(f)}
    federation, client = visitor.federation, _number(text["client"])
    if text["client"] and client is None:
        called = [(f, c) for f, known in names.items() for c in known if known[c] == text["client"]]
        federation, client = called[0] if called else (federation, -1)
    found = store.events(
        newest=True, limit=_MOST_EVENTS, federation=federation,
        client=client, before=_number(given.get("before", "")),
        job=text["job"] or None, event=text["event"] or None, actor=text["actor"] or None,
    )  # fmt: skip
    events = [
        {
            "time": e.time,
            "event": e.event,
            "federation": e.federation,
            "job": e.job,
            "client": ""
            if e.client is None
            else names.get(e.federation, {}).get(e.client, e.client),
            "reason": e.reason,
            "details": ", ".join(f"{k} {v}" for k, v in (e.facts or {}).items())[:200],
        }
        for e in found
    ]
    older = {**{k: v for k, v in text.items() if v}, "before": found[-1].id if found else 0}
    return {
        "events": events,
        **text,
        "older": urlencode(older) if len(found) == _MOST_EVENTS else "",
        "head": store.signed_head(),
        "log_problem": coordinator.log_problem,
    }


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,15}", text) else None


def operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any], str]]:
    """What can be asked, by path: its method, its description, and the fields of its body."""
    schemas = document["components"]["schemas"]
    found = []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            content: dict[str, Any] = operation.get("requestBody", {}).get("content", {})
            kind = next(iter(content), "")
            body: dict[str, Any] = content.get(kind, {})
            name = str(body.get("schema", {}).get("$ref", "")).rpartition("/")[2]
            fields = schemas.get(name, {}).get("properties", {})
            text = json.dumps(fields, indent=2, ensure_ascii=False) if fields else kind
            found.append((path, method.upper(), operation, text))
    return found


def _is_present(seen: float | None) -> bool:
    return seen is not None and time.time() - seen < PRESENT_SECONDS

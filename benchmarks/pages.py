"""How long the coordinator's pages take, and what open pages cost it.

    python benchmarks/pages.py                # 200 clients, 5,000 rounds, 20 open pages
    python benchmarks/pages.py --tiny

Pages are asked of a running service; the page to sign in, which reads nothing, is printed beside.
"""

from __future__ import annotations

import argparse
import resource
import socket
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import uvicorn

import solera as so
from solera.core.component import describe_fitted
from solera.core.payload import encode
from solera.learn.scores import ScoreGrid, score_ask
from solera.serve.coordinator.run import coordinator_app
from solera.serve.coordinator.store.base import note
from solera.serve.coordinator.store.events import TOLD
from solera.serve.coordinator.web.visitors import new_account
from solera.serve.wire import NewAsk, NewJob, NewReply

PATHS = (
    "/", "/federations/cardio", "/federations/cardio/data",
    "/federations/cardio/compare?job.long=on", "/jobs/long", "/log", "/log?actor=ada", "/health",
    "/accounts", "/docs",
)  # fmt: skip
PASSWORD = "correct horse battery"


def fill(folder: Path, clients: int, rounds: int) -> None:
    """A federation with so many clients, and a running job of so many rounds."""
    coordinator = coordinator_app(folder).state.coordinator
    store = coordinator.store
    store.add_account(new_account("ada", PASSWORD, "administrator", None), "benchmark")
    store.add_federation("cardio")
    for i in range(clients):
        key = i.to_bytes(32, "big")
        store.enrol("cardio", f"client-{i}", key, key, {})
    spec = coordinator.blobs.put(
        encode({"learner": {"kind": "FedLinear", "rounds": 9000}, "toml": "# a job"})
    )
    store.add_job("cardio", NewJob("long", "driven", spec, 0, "ada"), time.time())
    job = store.set_job_state("long", "running", "", time.time())
    ask = NewAsk(
        task="data.describe", version=1, payload=coordinator.blobs.put(encode(None)), round=0,
        clients=list(range(clients)),
    )  # fmt: skip
    store.add_ask("long", 0, ask, time.time())
    features = [[f"column-{i}", "numeric", []] for i in range(30)]
    for i in range(clients):
        told = {
            "features": features, "target": "classes", "classes": np.arange(2), "outputs": 2,
            "rows": 1000 + i, "empty": False, "gaps": [i % 30],
        }  # fmt: skip
        answer_to(coordinator, 0, i, encode(told))
    judge(coordinator, clients)
    with store._write() as connection:
        for i in range(rounds):
            facts = {"round": i, "loss": 1 / (i + 1), "clients": clients, "bytes_up": 1000.0}
            note(connection, "round", time.time(), of=job, facts=facts)
            losses = {str(client): 1 / (i + 1 + client % 7) for client in range(clients)}
            note(connection, TOLD, time.time(), of=job, facts={"round": i, "loss": losses})
    store.close()


def judge(coordinator: Any, clients: int) -> None:
    """What the clients count of a model of two classes, and of its scores."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50 * clients, 30))
    y = (X[:, 0] + rng.normal(size=len(X)) > 0).astype(int)
    fed = so.simulate(X, y, clients=clients, seed=0)
    model = so.FedLinear(rounds=1).fit(fed)
    described = describe_fitted(model.for_prediction())
    ask = {"model": described, "part": "train"}
    asks = {"learner.evaluate": ask}
    asks["learner.score_counts"] = score_ask(model, described, "train", ScoreGrid())
    for seq, (task, payload) in enumerate(asks.items(), start=1):
        digest = coordinator.blobs.put(encode(payload))
        new = NewAsk(task=task, version=1, payload=digest, round=0, clients=list(range(clients)))
        coordinator.store.add_ask("long", seq, new, time.time())
        for answer in fed.ask(task, payload):
            answer_to(coordinator, seq, answer.client, encode(answer.payload))


def answer_to(coordinator: Any, seq: int, client: int, frame: bytes) -> None:
    """One client's answer to an ask of the job."""
    reply = NewReply(
        status="ok", digest=coordinator.blobs.put(frame), size=len(frame), frame=None,
        reason="", signature="00" * 64,
    )  # fmt: skip
    delivered = ("long", seq, "cardio", client, reply, time.time())
    assert coordinator.store.add_replies([delivered]) == [True]


def serving(folder: Path) -> str:
    """The address of a coordinator that runs until this program ends."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = uvicorn.Config(coordinator_app(folder), host="127.0.0.1", port=port, log_config=None)
    server = uvicorn.Server(config)
    threading.Thread(target=server.run, daemon=True).start()
    while not server.started:
        time.sleep(0.05)
    return f"http://127.0.0.1:{port}"


def milliseconds(client: httpx.Client, path: str, times: int = 9) -> tuple[float, float]:
    """The median time of a page, and the processor time of both ends, of which others take none."""
    taken = []
    for _ in range(times):
        began, used = time.perf_counter(), time.process_time()
        client.get(path).raise_for_status()
        taken.append((time.perf_counter() - began, time.process_time() - used))
    wall, cpu = (sorted(values)[times // 2] for values in zip(*taken, strict=True))
    return 1000 * wall, 1000 * cpu


def watch(url: str, cookies: dict[str, str]) -> None:
    """An open page: reads news of the job."""
    client = httpx.Client(base_url=url, cookies=cookies, timeout=None)
    with client.stream("GET", "/jobs/long/live?known=0") as news:
        for _ in news.iter_lines():
            pass


def cpu_seconds(seconds: float) -> float:
    """Processor time that this process uses meanwhile."""

    def used() -> float:
        now = resource.getrusage(resource.RUSAGE_SELF)
        return now.ru_utime + now.ru_stime

    before = used()
    time.sleep(seconds)
    return used() - before


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tiny", action="store_true")
    tiny = parser.parse_args().tiny
    clients, rounds, pages, seconds = (5, 20, 2, 1.0) if tiny else (200, 5000, 20, 20.0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "coordinator"
        fill(folder, clients, rounds)
        url = serving(folder)
        with httpx.Client(base_url=url, timeout=60) as client:
            client.post("/sign-in", data={"name": "ada", "password": PASSWORD})
            null, _ = milliseconds(client, "/sign-in")
            print(f"{clients} clients, {rounds:,} rounds; the page to sign in: {null:.1f} ms")
            for path in PATHS:
                took, cpu = milliseconds(client, path)
                ratio = f"ratio {took / null:.1f}, {cpu:.0f} ms of a core"
                print(f"{path:40} {took:7.1f} ms, {ratio} (bar 300 ms)")
            idle = cpu_seconds(seconds)
            for _ in range(pages):
                given = (url, dict(client.cookies))
                threading.Thread(target=watch, args=given, daemon=True).start()
            time.sleep(2)
            busy = cpu_seconds(seconds)
        share = (busy - idle) / seconds
        print(f"{pages} open pages, both ends: {100 * share:.1f} % of a core (bar 5 %)")


if __name__ == "__main__":
    main()

"""Tasks for tests of the agent; also imported by agents that are processes of their own."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np

from solera.core.task import task


@task("agent.wait")
def wait(client, ask):
    """Works as long as a file exists."""
    while Path(ask["file"]).exists():
        time.sleep(0.02)
    return {"rows": len(client.data)}


@task("agent.count")
def count(client, ask):
    """How often this client was asked, and as many numbers as are wanted."""
    client.state["times"] = client.state.get("times", 0) + 1
    return {"times": client.state["times"], "numbers": np.arange(float(ask["numbers"]))}


@task("agent.rows")
def rows(client, ask):
    """What no task of a real federation may do."""
    return {"X": client.data.X, "names": [f.name for f in client.data.schema.features]}


@task("agent.die")
def die(client, ask):
    """Is killed so many times, each of which leaves a file; then answers."""
    folder = Path(ask["folder"])
    deaths = len(list(folder.glob("killed-*")))
    if deaths < ask["times"]:
        (folder / f"killed-{deaths}").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return {"draw": client.rng.normal(size=3), "secret": client.secret}


@task("agent.whisper", sealed=True)
def whisper(client, ask):
    """How often this client was asked for something that may have come too late."""
    client.state["whispers"] = client.state.get("whispers", 0) + 1
    return {"times": client.state["whispers"]}

"""Kills of whatever takes part in a closed job, while it runs."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

from closed_network import NAMES, ClosedNetwork
from network import Program, kill

DRIVER = """
import hashlib, sys
import solera as so
from solera.core.component import build, describe_fitted
from solera.core.payload import decode, encode
from solera.serve.driver.driven import connect
order = decode(open(sys.argv[1], "rb").read())
fed = connect(order["url"], federation=order["federation"], token=order["token"], ca=order["ca"],
              seed=order["seed"], owner="ana", researcher_key=order["key"], test=order["test"],
              validation=order["validation"])
learner = build(order["learner"])
if isinstance(learner, list):
    model, _ = fed.engine.owners.fit_grid(learner)
else:
    model = learner.fit(fed)
with open(sys.argv[2] + ".part", "wb") as file:
    file.write(encode(describe_fitted(model)))
import os
os.rename(sys.argv[2] + ".part", sys.argv[2])
"""
VICTIMS = ("coordinator", "agent", "learner", "worker", "driver")


class Driven:
    """A fit, or a grid, by a program of its own, that can be killed and run again."""

    def __init__(
        self,
        network: ClosedNetwork,
        learner: dict | list[dict],
        seed: int,
        test: float,
        validation: float = 0.0,
    ) -> None:
        from solera.core.payload import encode

        order = {
            "url": network.url,
            "federation": network.federation,
            "token": network.token,
            "ca": network.ca,
            "seed": seed,
            "key": str(network.folder / "researcher.key"),
            "learner": learner,
            "test": test,
            "validation": validation,
        }
        self.order = network.folder / f"order-{seed}-{time.monotonic_ns()}"
        self.order.write_bytes(encode(order))
        self.result = Path(f"{self.order}.result")
        self.start()

    def start(self) -> None:
        self.process = Program(DRIVER, str(self.order), str(self.result))

    def wait(self, seconds: float = 240.0) -> bytes:
        end = time.monotonic() + seconds
        while not self.result.exists():
            assert time.monotonic() < end, "the fit did not end"
            if self.process.poll() is not None and not self.result.exists():
                raise AssertionError(f"the driver ended with {self.process.poll()}")
            time.sleep(0.05)
        return self.result.read_bytes()


def strike(network: ClosedNetwork, driven: Driven, victim: str, draw: random.Random) -> bool:
    """Kill one process and see to it that it comes back; False where there was none."""
    name = draw.choice(NAMES)
    if victim == "coordinator":
        kill(network.coordinator)
        network.start(**network.options)
    elif victim == "driver":
        if driven.process.poll() is not None:
            return False
        kill(driven.process)
        driven.start()
    elif victim == "agent":
        kill(network.agents[name])
        network.work(name)
    else:
        mark = b"learner_process" if victim == "learner" else None
        children = [pid for pid in children_of(network.agents[name].pid) if is_like(pid, mark)]
        if not children:
            return False
        with suppress(ProcessLookupError):
            os.kill(draw.choice(children), signal.SIGKILL)
    return True


def children_of(parent: int) -> list[int]:
    """The processes that a process has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            stat = (path / "stat").read_text().rpartition(")")[2].split()
            if int(stat[1]) == parent:
                found.append(int(path.name))
    return found


def is_like(pid: int, mark: bytes | None) -> bool:
    """Whether a child is a learner's process, or, without a mark, the worker's."""
    with suppress(OSError):
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
        return mark in line if mark else b"learner_process" not in line
    return False


def storm(network: ClosedNetwork, driven: Driven, kills: int, draw: random.Random) -> list[str]:
    """Kill at random until so many have been; whom it struck."""
    struck: list[str] = []
    while len(struck) < kills and not driven.result.exists():
        time.sleep(draw.uniform(0.05, 1.0))
        victim = draw.choice(VICTIMS)
        if strike(network, driven, victim, draw):
            struck.append(victim)
    return struck

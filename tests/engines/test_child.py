"""A child works for its parent, says how it ended, and outlives neither parent nor patience."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from solera.core.engine import Ask, PerClient, Preparation
from solera.engines.asks import ask_from_payload, ask_to_payload
from solera.engines.child import Child, end

METHODS = [m for m in ("fork", "spawn") if m in multiprocessing.get_all_start_methods()]


def echo(pipe):
    """Send back what comes, until the other end is closed; a number is an exit code or a signal."""
    while True:
        try:
            what = pipe.recv()
        except EOFError:
            return
        if isinstance(what, int):
            os._exit(what) if what >= 0 else os.kill(os.getpid(), -what)
        pipe.send((what, signal.getsignal(signal.SIGINT) == signal.SIG_IGN))


def deaf(pipe, command):
    """Start another process and hear nothing."""
    started = subprocess.Popen(command)
    pipe.send(started.pid)
    time.sleep(600)


@pytest.mark.parametrize("method", METHODS)
def test_a_child_answers_and_ends_with_its_channel(method):
    child = Child(method, multiprocessing.Pipe(), echo)
    child.end.send("x")
    assert child.end.recv() == ("x", True)
    assert child.alive
    child.stop(grace=20)
    assert (child.alive, child.process.exitcode) == (False, 0)


@pytest.mark.parametrize(
    ("what", "fate"),
    [
        (3, "ended with exit code 3"),
        (-signal.SIGTERM, "was ended by SIGTERM"),
        (-signal.SIGKILL, "was killed (SIGKILL), as a system does that runs out of memory"),
    ],
)
def test_a_child_says_how_it_ended(what, fate):
    child = Child(METHODS[0], multiprocessing.Pipe(), echo)
    assert child.fate() == "stopped listening"
    child.end.send(int(what))
    child.process.join(600)
    assert child.fate() == fate
    child.stop()


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="there is no /proc")
@pytest.mark.parametrize("grace", [0.0, 0.1])
def test_a_child_that_does_not_listen_is_killed_with_all_it_started(grace):
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    child = Child(METHODS[0], multiprocessing.Pipe(), deaf, command)
    started = child.end.recv()
    child.stop(grace)
    assert not child.alive
    deadline = time.monotonic() + 600
    while not gone(started):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_program_that_does_not_end_in_time_is_killed():
    stubborn = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    )
    program = subprocess.Popen([sys.executable, "-c", stubborn], stdout=subprocess.PIPE)
    program.stdout.readline()
    end(program, 0.1)
    assert program.returncode == -signal.SIGKILL
    program.stdout.close()


@pytest.mark.parametrize("payload", [{"a": 1}, PerClient({2: {"a": 1}, 5: None})])
def test_an_ask_is_the_same_after_its_way_through_a_payload(payload):
    steps = (Preparation({"made": {}}, "ab"),)
    ask = Ask("t", 3, payload, np.array([2, 5]), 7, 1, 2.5, steps, 40)
    back = ask_from_payload(ask_to_payload(ask))
    assert back.clients.tolist() == [2, 5]
    for name in ("task", "version", "payload", "seed", "round", "deadline", "prepare", "size"):
        assert getattr(back, name) == getattr(ask, name)

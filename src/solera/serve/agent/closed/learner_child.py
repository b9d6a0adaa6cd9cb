"""The agent's end of the process in which a learner runs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Any, Self

from solera.serve.agent.channel import Channel
from solera.serve.agent.closed.connection import Interrupted
from solera.trust.epoch.runtime import pinned_environment

_PROGRAM = "solera.serve.agent.closed.learner_process"
_LOOK_SECONDS = 1.0


class LearnerDied(Exception):
    """The learner's process is gone."""


class LearnerProcess:
    """A learner at work on an ``order``; see :mod:`.work`. ``with`` ends it."""

    def __init__(self, order: dict[str, Any], stop: threading.Event) -> None:
        ours, theirs = socket.socketpair()
        self._stop = stop
        self._channel = Channel(ours)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", _PROGRAM, str(theirs.fileno())],
                env={**os.environ, **pinned_environment()},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.send(order)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: Any) -> None:
        """Tell the learner something."""
        try:
            self._channel.send(message)
        except OSError:
            raise LearnerDied(self._fate()) from None

    def receive(self) -> Any:
        """What the learner says next, however long it takes."""
        try:
            while not self._stop.is_set():
                if self._channel.wait(_LOOK_SECONDS):
                    return self._channel.receive()
        except (EOFError, OSError):
            raise LearnerDied(self._fate()) from None
        raise Interrupted("the agent was told to end")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.end.close()
        with suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _fate(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            code = self._process.wait(_LOOK_SECONDS)
            if code < 0:
                return f"the learner's process was ended by {signal.Signals(-code).name}"
            return f"the learner's process ended with exit code {code}"
        return "the learner's process stopped listening"

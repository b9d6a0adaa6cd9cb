"""Processes of our own: started in a program that has threads, watched over, and ended.

A :class:`Child` works for the process that started it, over a channel, and ends when that one
closes its end or dies. :func:`end` is for programs that were started by a command.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakSet

_LOOK_SECONDS = 0.5
_open: WeakSet[Any] = WeakSet()
"""Our ends of all channels; a forked child lets go of them, or others would not see them close."""


class Child:
    """A process that runs ``main(end, *arguments)``.

    ``ends`` are the two ends of the channel, ours and the child's: a pipe or a pair of sockets.
    ``method`` is "fork" or "spawn". Interrupts from the keyboard do not reach the child: its parent
    decides. What it starts in turn ends with it, and numerical libraries use one thread.
    """

    def __init__(
        self,
        method: str,
        ends: tuple[Any, Any],
        main: Callable[..., None],
        *arguments: Any,
        daemon: bool = True,
    ) -> None:
        self.end, theirs = ends
        self._home = os.getpid()
        inherited = [*_open, self.end] if method == "fork" else []
        context: Any = multiprocessing.get_context(method)
        self.process = context.Process(
            target=_live, args=(self._home, inherited, theirs, main, arguments), daemon=daemon
        )
        try:
            with whole_fork():
                self.process.start()
                theirs.close()
                _open.add(self.end)
        except BaseException:  # a signal came meanwhile: nobody will have this child
            if self.process.pid is not None:
                self.stop()
            raise

    @property
    def alive(self) -> bool:
        return bool(self.process.is_alive())

    def stop(self, grace: float = 0.0) -> None:
        """Close the channel; kill the child and what it started if that does not end it in time."""
        if self._home != os.getpid():  # a forked copy owns nothing
            return
        self.end.close()
        if grace:
            self.process.join(grace)
            if not self.alive:
                return
        with suppress(OSError, AttributeError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.join()

    def fate(self) -> str:
        """How the child ended, after "its process"."""
        code = self.process.exitcode
        if code is None:
            return "stopped listening"
        if code == -signal.SIGKILL:
            return "was killed (SIGKILL), as a system does that runs out of memory"
        if code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"


def _live(
    parent: int,
    inherited: Iterable[Any],
    end: Any,
    main: Callable[..., None],
    arguments: tuple[Any, ...],
) -> None:
    from threadpoolctl import threadpool_limits

    for other in inherited:
        other.close()
    _open.clear()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with suppress(AttributeError):
        os.setsid()
    die_with(parent)
    threadpool_limits(1)
    if torch := sys.modules.get("torch"):  # has a number of its own, once somebody has set it
        torch.set_num_threads(1)
    main(end, *arguments)


def die_with(parent: int) -> None:
    """End this process, and what it started, soon after its parent is gone, whatever it does.

    For processes that lead a group of their own.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_SECONDS)
        with suppress(OSError, AttributeError):
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=watch, name="watches its parent", daemon=True).start()


def end(program: subprocess.Popen[bytes], seconds: float) -> None:
    """Tell a program to end; kill it if it has not done so in time."""
    program.terminate()
    try:
        program.wait(seconds)
    except subprocess.TimeoutExpired:
        program.kill()
        program.wait()


@contextmanager
def whole_fork() -> Iterator[None]:
    """Around ``process.start()``: no warning about threads, and signals come when it is done.

    Threads of numerical libraries survive a fork: such processes use one thread. What the handler
    of a signal raises in the middle of a fork is lost, since the hooks of a fork ignore exceptions:
    a program that was interrupted just then would go on.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*fork.*")
        if threading.current_thread() is not threading.main_thread():  # no signal is handled there
            yield
            return
        came: list[int] = []
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        home = os.getpid()

        def later(number: int, _: Any) -> None:
            if os.getpid() == home:
                came.append(number)
            else:  # the new process does what the old one would have done
                signal.signal(number, before[signal.Signals(number)])
                signal.raise_signal(number)

        ours = [number for number, handler in before.items() if callable(handler)]
        for number in ours:
            signal.signal(number, later)
        try:
            yield
        finally:
            for number in ours:
                signal.signal(number, before[number])
            for missed in came:
                signal.raise_signal(missed)

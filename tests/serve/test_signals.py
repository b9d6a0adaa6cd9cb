"""Signals around a fork."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from solera.serve.signals import Terminated, after_the_fork, terminated_by_signal


def send(number, reached):
    os.kill(os.getpid(), number)
    reached.append("the line after the signal")


def test_an_interrupt_during_a_fork_is_raised_after_it():
    reached = []
    with pytest.raises(KeyboardInterrupt), after_the_fork():
        send(signal.SIGINT, reached)
    assert reached
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_end_of_the_process_is_raised_after_a_fork_too():
    reached = []
    with pytest.raises(Terminated), terminated_by_signal(), after_the_fork():
        send(signal.SIGTERM, reached)
    assert reached
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_other_threads_leave_signals_alone():
    done = []

    def work():
        with terminated_by_signal(), after_the_fork():
            done.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [signal.default_int_handler]

"""The process without rows in which an owner's learner runs.

It is started with :func:`~.pinned.pinned_environment`, before NumPy is loaded. It knows the text,
what the epoch says of columns, and totals; every sum it wants goes through its one socket to the
agent. It ends with the agent: a socket whose other end is gone ends it at once, whatever it does.
"""

from __future__ import annotations

import logging
import os
import queue
import socket
import sys
import threading
from typing import Any

from solera.core.aggregation import Aggregation
from solera.core.component import describe
from solera.core.engine import OUTSIDE, Ask, Fit
from solera.core.payload import encode
from solera.engines.asks import ask_to_payload
from solera.serve.agent.channel import Channel
from solera.serve.agent.closed.work import carry_out
from solera.trust.board.sums import Total

log = logging.getLogger("solera.learner")


class AgentExchange:
    """Sums over all owners, by way of the agent (:mod:`solera.trust.board.engine`)."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._fits: list[Fit] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def total(self, question: bytes, ask: Ask, aggregation: Aggregation) -> Total:
        """What all owners come to."""
        if ask.fit is not OUTSIDE and ask.fit not in self._fits:
            self._fits.append(ask.fit)
        asked = {"ask": ask_to_payload(ask), "aggregation": describe(aggregation)}
        place = {"fit": self.number_of(ask.fit), "round": ask.round}
        self._channel.send({"total": question, **place, **asked})
        total = self.receive()["total"]
        return Total(total["partial"], total["absent"], tuple(total["noised"]))

    def keeps(self, fit: Fit) -> bool:
        """The client's state comes and goes with every sum, that of an earlier job's model, too."""
        return True

    def number_of(self, fit: Fit) -> int:
        """Which fit of the job it is; what is asked outside of any is about the last one."""
        return self._fits.index(fit) if fit in self._fits else max(0, len(self._fits) - 1)

    def receive(self) -> Any:
        """What the agent says next."""
        return self._inbox.get()

    def _listen(self) -> None:
        try:
            while True:
                self._inbox.put(self._channel.receive())
        except (EOFError, OSError):
            os._exit(0)  # nobody wants the result any more


class WithoutTorch:
    """Finds no torch, which computes by paths of its own."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """An import of it fails as where it is not installed."""
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"no {name} in the process of a learner", name=name)


def main() -> None:
    """Learn what the agent says, and tell it the result."""
    sys.meta_path.insert(0, WithoutTorch())
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s learner: %(message)s")
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    exchange = AgentExchange(channel)
    order = exchange.receive()
    try:
        result, model = carry_out(order, exchange)
    except Exception as error:  # it follows from totals, so that all owners end with it
        log.exception("the learner failed")
        result, model = encode({"refused": f"the learner failed: {type(error).__name__}"}), None
    fit = exchange.number_of(getattr(model, "_client_fit", OUTSIDE))
    channel.send({"result": result, "fit": fit})
    exchange.receive()  # until the agent has it


if __name__ == "__main__":
    main()

"""The round loop of iterative learners: choose, ask, evaluate, tell, checkpoint, stop.

A learner writes ``for r in self.rounds(federation): …`` and keeps what it has learned in its own
attributes. Everything the loop needs to go on after an interruption is in the checkpoint: the
learner's state, the selector's, the callbacks' and the clients', so a resumed run ends with the
same bytes as one that was never interrupted.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from solera.core import rng
from solera.core.checkpoint import Checkpoint
from solera.core.clients import IntArray
from solera.core.constraints import Count, check_values, declared_types
from solera.core.engine import Engine
from solera.core.errors import CheckpointError, UsageError
from solera.core.federation import Federation, Replies, Updates
from solera.core.meter import Total
from solera.core.replies import Failure
from solera.core.selection import Roster, Selector, Work
from solera.core.state import Stateful, is_state
from solera.core.task import Task

log = logging.getLogger("solera")

_UNSOUND = ("invalid", "corrupt")
"""Kinds of failures of clients that replied, but nothing that may be aggregated."""


class Round:
    """One turn of the loop, as the learner sees it.

    ``chosen`` are the clients the selector wants, ``clients`` those of them that come back in time.
    """

    def __init__(
        self,
        index: int,
        clients: IntArray,
        federation: Federation,
        *,
        learner: Any = None,
        chosen: IntArray | None = None,
        coordinator_rows: Engine | None = None,
        before: Any = None,
        asked_before: int | None = None,
        prepared: Federation | None = None,
    ) -> None:
        self.index = index
        self.clients = clients
        self.chosen = clients if chosen is None else chosen
        self.learner = learner
        self.before = before
        self.metrics: dict[str, Any] = {}
        self.stopped: str | None = None
        self.federation = federation
        self.prepared = federation if prepared is None else prepared
        self.missed: list[Failure] = []
        self._coordinator_rows = coordinator_rows
        self._replies: list[Replies] = []
        asked = len(federation.meter.records)
        self._asked_before = asked if asked_before is None else asked_before

    def ask(
        self,
        task: str | Task,
        payload: Any = None,
        *,
        to: ArrayLike | None = None,
        deadline: float | None = None,
        quorum: int | float | None = None,
    ) -> Replies:
        """:meth:`Federation.ask` to the clients of this round."""
        replies = self.prepared.ask(
            task,
            payload,
            to=self.clients if to is None else to,
            deadline=deadline,
            quorum=quorum,
            round=self.index,
        )
        replies.coordinator_rows = self._coordinator_rows
        replies.keeps_updates = self.before is not None
        self._replies.append(replies)
        return replies

    @property
    def updates(self) -> list[Updates]:
        """For a selector that needs them: what was folded in this round, client by client."""
        return [r.updates for r in self._replies if r.updates is not None]

    @property
    def failures(self) -> list[Failure]:
        """Who failed so far in this round, and why."""
        asked = [failure for replies in self._replies for failure in replies.failures]
        return self.missed + asked

    @property
    def secure(self) -> bool:
        """Whether something of this round was folded in secret."""
        return any(replies.secure for replies in self._replies)

    @property
    def traffic(self) -> Total:
        """Bytes and seconds of this round so far."""
        return self.federation.meter.total(since=self._asked_before)

    def log(self, **metrics: Any) -> None:
        """Record numbers of this round; they appear in the history and in progress displays."""
        self.metrics.update(metrics)

    def stop(self, reason: str) -> None:
        """Make this the last round."""
        self.stopped = reason


class Callback(Stateful):
    """Something that watches a run. Override what you need.

    What it remembers between rounds is in attributes that end in an underscore.
    """

    def on_start(self, learner: Any, rounds: int, start: int) -> None:
        """Before the first round; ``start`` > 0 when the run is resumed."""

    def on_round(self, learner: Any, round: Round) -> None:
        """After every round; may log metrics and stop the run."""

    def on_end(self, learner: Any) -> None:
        """After the last round, also when it was interrupted."""


@dataclass
class Rounds:
    """Configuration and state of one loop; iterate it for the rounds."""

    federation: Federation
    learner: Any
    rounds: Count
    selector: Selector
    per_round: Count | None = None
    callbacks: Sequence[Callback] = ()
    checkpoint: Checkpoint | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    prepared: Federation | None = None

    def __iter__(self) -> Generator[Round, None, None]:
        start = self._restore()
        given = {"rounds": self.rounds, "per_round": self.per_round}
        check_values(self.learner, declared_types(Rounds), given)
        for callback in self.callbacks:
            callback.on_start(self.learner, self.rounds, start)
        try:
            for index in range(start, self.rounds):
                round = self._begin(index)
                if len(round.clients):
                    yield round
                    if round.prepared.noise is not None:
                        round.log(**round.prepared.noise.spent(self.federation))
                    self.selector.observe(round)
                else:
                    why = "nobody came back in time" if len(round.chosen) else "nobody was chosen"
                    log.warning("round %d skipped: %s", index, why)
                self._finish(round)
                if round.stopped:
                    log.info("stopped after round %d: %s", index, round.stopped)
                    break
        finally:
            for callback in self.callbacks:
                callback.on_end(self.learner)

    def _roster(self, time: float) -> Roster:
        federation, clients = self.federation, self.federation.engine.clients
        clock = federation.clock
        available = None if clock is None else clock.available(federation.seed, time, clients)
        if len(federation) < clients:
            everyone = federation.clients
            available = everyone if available is None else np.intersect1d(available, everyone)
        there = clients if available is None else len(available)
        budget = there if self.per_round is None else min(self.per_round, there)
        sizes = federation.engine.sizes("train")
        return Roster(clients, budget, sizes, available, federation.seed, federation, self.learner)

    def _begin(self, index: int) -> Round:
        """Choose clients and, in virtual time, see who comes back."""
        federation, clock = self.federation, self.federation.clock
        asked_before = len(federation.meter.records)
        time = self.history[-1]["time"] if clock is not None and self.history else 0.0
        roster = self._roster(time)
        draw = rng.generator(federation.seed, "select", index)
        chosen = np.zeros(0, dtype=np.int64)
        if roster.budget:
            chosen = np.sort(np.asarray(self.selector.choose(index, roster, draw), dtype=np.int64))
        missed: list[Failure] = []
        seconds = None
        if clock is not None and len(chosen):
            bits, epochs = self.learner.workload()
            if roster.sizes is None:
                raise UsageError("a clock needs to know how many rows clients have")
            work = Work(bits, epochs, roster.sizes[chosen])
            timing = clock.time_round(federation.seed, index, time, chosen, work)
            seconds, missed = timing.seconds, timing.missed
        elif clock is not None:
            seconds = clock.wait()
        clients = chosen
        if missed or (chosen[1:] == chosen[:-1]).any():
            clients = np.setdiff1d(chosen, [failure.client for failure in missed])
        round = Round(
            index,
            clients,
            federation,
            learner=self.learner,
            chosen=chosen,
            coordinator_rows=self.selector.coordinator_rows(),
            before=self.learner.get_state() if self.selector.needs_updates else None,
            asked_before=asked_before,
            prepared=self.prepared,
        )
        round.missed = missed
        if seconds is not None:
            round.log(seconds=seconds, time=time + seconds)
        return round

    def _finish(self, round: Round) -> None:
        traffic = round.traffic
        round.metrics = {
            "round": round.index,
            "clients": len(round.clients),
            "failures": len(round.failures),
            "bytes_down": traffic.down,
            "bytes_up": traffic.up,
            **({"secure": True} if round.secure else {}),
            **round.metrics,
        }
        excluded = [[f.client, f.reason] for f in round.failures if f.kind in _UNSOUND]
        if excluded:
            round.metrics["excluded"] = excluded
        for callback in self.callbacks:
            callback.on_round(self.learner, round)
        self.history.append(round.metrics)
        self.learner.history_ = self.history
        if self.checkpoint is not None:
            self.checkpoint.write(lambda: self._content(round))

    @property
    def _watchers(self) -> list[Stateful]:
        """The selector and the callbacks that have a state."""
        watchers: list[Stateful] = [self.selector, *self.callbacks]
        return [w for w in watchers if any(map(is_state, dir(w))) or w.get_state()]

    def _content(self, round: Round) -> dict[str, Any]:
        states = self.federation.states()
        return {
            "next": self.rounds if round.stopped else round.index + 1,
            "learner": self.learner.get_state(),
            "history": self.history,
            "watchers": [[type(w).__name__, w.get_state()] for w in self._watchers],
            "clients": [[client, states[client]] for client in sorted(states)],
        }

    def _restore(self) -> int:
        content = self.checkpoint.read() if self.checkpoint is not None else None
        if content is None:
            return 0
        self._restore_watchers(content["watchers"])
        self.learner.set_state(content["learner"])
        self.history[:] = map(self.learner.read_entry, content["history"])
        self.learner.history_ = self.history
        federation = self.federation
        federation.engine.restore(dict(content["clients"]), federation.current_fit)
        done = int(content["next"])
        if done > self.rounds:
            raise CheckpointError(
                f"the checkpoint is {done} rounds on, rounds={self.rounds} are fewer",
                hint="ask for as many or more, or use another file",
            )
        return done

    def _restore_watchers(self, saved: list[tuple[str, Any]]) -> None:
        """Give each selector and callback its state; those without any may come and go."""
        left: list[Stateful] = [self.selector, *self.callbacks]
        missing = []
        for name, state in saved:
            watcher = next((w for w in left if type(w).__name__ == name), None)
            if watcher is None:
                missing.append(name)
            else:
                watcher.set_state(state)
                left.remove(watcher)
        new = [type(w).__name__ for w in left if w in self._watchers]
        if missing or new:
            raise CheckpointError(
                "the checkpoint holds the state of other selectors and callbacks: this run lacks "
                f"{', '.join(missing) or 'none'} and adds {', '.join(new) or 'none'}",
                hint="resume with the callbacks the run was started with",
            )


def logged(entry: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of one round that the learner logged, without those of the loop itself."""
    loop = ("round", "clients", "failures", "bytes_down", "bytes_up", "secure", "seconds", "time")
    return {k: v for k, v in entry.items() if k not in loop and isinstance(v, int | float)}

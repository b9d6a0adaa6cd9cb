"""Averaging without a server: models travel from peer to peer."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any, Self

import numpy as np

from solera.core.clients import Array
from solera.core.errors import NotEnoughReplies, UsageError
from solera.core.federation import Federation
from solera.core.rng import generator
from solera.core.rounds import Round
from solera.core.topology import Peers
from solera.learn.averaging.base import Averaging
from solera.learn.base import Predictor
from solera.robust.buckets import Buckets


class PeerToPeer(Predictor):
    """Train an averaging learner on a federation whose topology is :class:`Peers`.

    Cyclic and random exchange: one model walks from peer to peer, each training it further; a round
    is K hops. Parallel exchange: all peers train and send to all others, so that after every
    round each holds the same mean, weighted by rows. Metrics of the whole are computed by
    a temporary coordinator, :meth:`evaluate`.
    """

    without_server = True
    closed_job = "models travel from peer to peer, which is no sum; the learner inside"

    def __init__(self, learner: Averaging) -> None:
        self.learner = learner

    def train(self, federation: Federation) -> None:
        topology = federation.topology
        if not isinstance(topology, Peers):
            raise UsageError(
                f"PeerToPeer needs a federation of peers, not {topology!r}",
                hint="so.simulate(…, topology=so.simulation.Peers('cyclic'))",
            )
        for name in ("per_round", "select", "dp", "aggregate"):
            value = getattr(self.learner, name, None)
            compares = name == "aggregate" and topology.exchange == "parallel"
            if value is not None and (not compares or isinstance(value, Buckets)):
                rule = "must be None: peers have no server that could heed it"
                raise UsageError.of(self.learner, name, value, rule)
        self.learner_ = self.learner.clone()
        self.learner_._client_fit = self._client_fit
        self.learner_.history_, self.learner_.schema_ = [], self.schema_
        self.learner_.begin(federation)
        for r in self.each_round(federation, rounds=self.learner.rounds):
            draw = generator(federation.seed, "route", r.index)
            steps = [federation.clients[s] for s in topology.route(len(federation), draw)]
            losses = [self._step(r, clients) for clients in steps]
            known = [loss for loss in losses if loss is not None]
            if not known:
                raise NotEnoughReplies(f"no peer replied in round {r.index}", r.failures)
            copies = len(federation) - 1 if topology.exchange == "parallel" else 1
            r.log(loss=float(np.mean(known)), messages=len(federation) * copies)
            self.learner_.after_round(r)
        self.learner_.history_ = self.history_
        self.learner_.after_rounds(federation)

    @property
    def sends_updates(self) -> bool:
        return True

    def _step(self, r: Round, clients: Any) -> float | None:
        """Train at these peers at once and keep the mean; a peer that fails is passed over."""
        learner = self.learner_
        ask = learner.round_ask(r.index)
        rule = learner.folding()
        partial = r.ask(learner.update, ask, to=clients, quorum=0).partial(rule)
        if partial is None:
            return None
        mean = rule.finish(partial)
        learner.apply_update(mean)
        return float(mean["loss"])

    @property
    def is_personal(self) -> bool:
        return "learner_" in vars(self) and self.learner_.is_personal

    def with_part(self, part: Mapping[str, Any] | None, owner: str = "") -> Self:
        own = copy(self)
        own.learner_ = self.learner_.with_part(part, owner)
        return own

    def needs_to_load(self) -> list[str]:
        return self.learner_.needs_to_load()

    def predict(self, X: Any) -> Array:
        self.check_fitted()
        self.check_common()
        return self.learner_.predict(X)

    def predict_proba(self, X: Any) -> Array:
        """Probabilities by the learner that was trained, where it has them."""
        self.check_fitted()
        self.check_common()
        probabilities: Array = self.learner_.predict_proba(X)  # type: ignore[attr-defined]
        return probabilities

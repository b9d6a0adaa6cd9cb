"""SimFL: boosting in which clients take turns, helped by similar rows of the others."""

from __future__ import annotations

from typing import Any

import numpy as np

from solera.core.aggregation import Collect, Fields, Sum
from solera.core.constraints import Count, NonNegative, Positive
from solera.core.errors import NotEnoughReplies
from solera.core.federation import Federation
from solera.learn.preprocess.moments import pooled_moments
from solera.learn.trees.boosting.base import Boosted, boosting_start
from solera.learn.trees.boosting.simfl_tasks import (
    build_tree,
    find_similar,
    hash_rows,
    similar_gradients,
)
from solera.learn.trees.client_trees import CollectTrees


class SimFL(Boosted):
    """Gradient boosting in which clients take turns to build trees (Li, Wen & He 2020, *SimFL*).

    Before training every client hashes its rows with min(40, d − 1) tables of eight random
    hyperplanes; of every other client's rows, the most similar one to each own row is the one that
    shares most hashes. In round t client t mod K builds the tree. All clients add up the gradients
    of their rows by the builder's row that each is similar to, so that the builder's tree fits the
    rows of all. Clients see the others' hashes, not their rows; :class:`FedHistGBDT` reveals less
    and needs no similarity, but asks more often.

    Parameters
    ----------
    rounds: trees (per class of several). lr: η. max_depth: levels of a tree. l2: λ.
    min_rows: fewest rows of a leaf at the builder.

    Attributes
    ----------
    trees_, initial_: the trees of every round, and the score before the first.
    builders_: the client that built each.
    """

    builders_: list[int]

    def __init__(
        self,
        *,
        rounds: Count = 50,
        lr: Positive = 0.1,
        max_depth: Count = 5,
        l2: NonNegative = 1.0,
        min_rows: Count = 5,
    ) -> None:
        self.rounds = rounds
        self.lr = lr
        self.max_depth = max_depth
        self.l2 = l2
        self.min_rows = min_rows

    def train(self, federation: Federation) -> None:
        loss, width = self.loss(), self.schema_.width
        _, self.initial_, _ = boosting_start(federation, loss, self.schema_.classes)
        codes = self._hash(federation)
        clients = np.array(list(codes), dtype=np.int64)
        hashes = list(codes.values())
        similar = {"clients": clients, "codes": hashes, "initial": self.initial_}
        federation.ask(find_similar, similar, to=clients).fold(Fields({"rows": Sum()}))
        order = {"loss": loss, "width": width, "classes": self.schema_.classes}
        build = self._build()
        self.trees_, self.builders_ = [], []
        recent = 2 * len(clients)  # clients that missed more trees than these sit out
        for r in self.each_round(federation, rounds=self.rounds):
            turn = r.index % len(clients)
            builder = int(clients[turn])
            first = max(0, len(self.trees_) - recent)
            ask = {
                **order,
                "from": first,
                "trees": [[t.to_payload() for t in trees] for trees in self.trees_[first:]],
                "builder": turn,
                "builder_rows": len(codes[builder]),
            }
            total = r.ask(similar_gradients, ask, to=clients).fold(Sum())
            r.log(loss=float(total["loss"] / total["rows"]))
            sums = {**build, "sums": total["sums"]}
            try:
                grown = r.ask(build_tree, sums, to=[builder]).fold(CollectTrees(width, 1))
            except NotEnoughReplies:
                continue  # the builder is away: the next one takes its turn
            self.trees_ = [*self.trees_, grown[builder]]
            self.builders_ = [*self.builders_, builder]

    def _build(self) -> dict[str, Any]:
        """How the builder of a round grows its tree."""
        return {
            "max_depth": self.max_depth,
            "min_rows": self.min_rows,
            "lr": float(self.lr),
            "l2": float(self.l2),
        }

    def _hash(self, federation: Federation) -> dict[int, Any]:
        """Every client's hashes; columns are scaled by folded moments first."""
        moments = pooled_moments(federation)
        spread = np.sqrt(moments["variance"])
        ask = {
            "width": self.schema_.width,
            "seed": federation.seed,
            "mean": moments["mean"],
            "scale": np.where(spread > 0, spread, 1.0),
        }
        replies = federation.ask(hash_rows, ask).fold(Collect())
        return {client: reply["codes"] for client, reply in replies.items()}

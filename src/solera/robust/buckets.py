"""Rules under secure aggregation: of buckets of clients, whose sums are all that is seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from solera.core.aggregation import Aggregation
from solera.core.clients import IntArray
from solera.core.constraints import Count
from solera.core.errors import NotEnoughReplies
from solera.core.rng import generator
from solera.robust.collect import Robust
from solera.robust.rules import Rule, Vectors, Verdict


class Buckets(Rule):
    """A rule over the means of buckets of clients, each of which can be a secure sum.

    Every round deals its clients at random into ``buckets`` of about the same size, takes the mean
    of each and applies ``rule`` to the means (Karimireddy, He & Jaggi 2022, "Byzantine-robust
    learning on heterogeneous datasets via bucketing", Algorithm 1, with buckets in place of pairs).

    The coordinator sees sums of n/b clients instead of one of n, and a bucket is as wrong as its
    worst client: with s attackers up to s of b means are wrong, so b must be more than 2s for a
    median. More buckets hold against more attackers and hide each client among fewer.
    """

    def __init__(self, rule: Rule, *, buckets: Count = 8) -> None:
        self.rule = rule
        self.buckets = buckets

    def judge(self, updates: Vectors) -> Verdict:
        return self.rule.judge(updates)

    def deal(self, clients: IntArray, seed: int, round: int) -> list[IntArray]:
        """The clients of every bucket, in order."""
        if len(clients) < self.buckets:
            raise NotEnoughReplies(
                f"{self!r} has {self.buckets} buckets for {len(clients)} clients",
                hint="ask more clients in a round, or use fewer buckets",
            )
        mixed = generator(seed, "robust.buckets", round).permutation(clients)
        return [np.sort(bucket) for bucket in np.array_split(mixed, self.buckets)]

    def fold(
        self, partials: Sequence[Any], mean: Aggregation, origin: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """What the rule makes of the buckets' means; ``judged`` names buckets, not clients."""
        whole = [(bucket, part) for bucket, part in enumerate(partials) if part is not None]
        means = []
        for bucket, part in whole:
            values = mean.result(part)
            means.append([bucket, {"values": {n: v for n, v in values.items() if n != "count"}}])
        if not means:
            raise NotEnoughReplies("no bucket has a reply")
        folded = Robust(mean, self.rule, origin).finish(means)
        judged = [[f"bucket {bucket}", *rest] for bucket, *rest in folded["judged"]]
        count = sum(part["count"] for _, part in whole if "count" in part)
        return {**folded, "judged": judged, "count": count or len(means)}

"""Who wins and who loses by federating: three schemes on every client's own test rows.

*alone*: each client trains on its own rows. *federated*: all train one model.
*centralised*: one model is trained on all training rows in one place. Every model is judged where
it would be used, on the test rows of each client.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from solera.core.clients import IntArray
from solera.core.errors import DataError, UsageError
from solera.data.federated import FederatedData
from solera.data.partition_groups import ByGroup
from solera.evaluation.evaluation import Evaluation
from solera.evaluation.metrics import headline_metric, sign
from solera.learn.base import Predictor
from solera.learn.evaluation import evaluation_of
from solera.simulate.simulation import simulate
from solera.study.files.tables import SCHEMES
from solera.study.run.judging import judged, own_models
from solera.study.run.schemes import one_client


@dataclass(frozen=True)
class ThreeSchemes:
    """What each scheme reached: over all test rows, and at every client with test rows."""

    evaluations: dict[str, Evaluation]
    rows: dict[int, int]

    def __getitem__(self, scheme: str) -> Evaluation:
        return self.evaluations[scheme]

    def table(self, metric: str | None = None) -> list[dict[str, Any]]:
        """A line per scheme: all test rows, then mean, worst, best and spread over clients.

        Without a name, of accuracy, subset accuracy or R².
        """
        metric = self._metric(metric)
        return [
            {
                "scheme": scheme,
                metric: evaluation.metrics[metric],
                **_spread([e[metric] for e in evaluation.clients.values() if metric in e], metric),
            }
            for scheme, evaluation in self.evaluations.items()
        ]

    def by_client(self, metric: str | None = None) -> list[dict[str, Any]]:
        """A line per client with the metric: that of every scheme, and what federating gains it.

        A gain is positive where federating is better, also of an error.
        """
        metric = self._metric(metric)
        lines = []
        for client, rows in self.rows.items():
            each = {s: evaluation.clients[client] for s, evaluation in self.evaluations.items()}
            if not all(metric in metrics for metrics in each.values()):
                continue
            scores = {s: metrics[metric] for s, metrics in each.items()}
            gain = sign(metric) * (scores["federated"] - scores["alone"])
            lines.append({"client": client, "rows": rows, **scores, "gain": gain})
        return lines

    def by_group(self, groups: Sequence[Any], metric: str | None = None) -> list[dict[str, Any]]:
        """A line per group of clients, and one for the gap between the best and the worst group.

        ``groups`` names the group of client 0, 1, … A line has the mean of the group's clients in
        every scheme, how many of them win or lose by federating, and the worst client and the
        standard deviation of the federated scheme.
        """
        if len(groups) <= max(self.rows):
            raise UsageError(f"{len(groups)} groups are named for {max(self.rows) + 1} clients")
        metric = self._metric(metric)
        lines: list[dict[str, Any]] = []
        each = self.by_client(metric)
        for group in sorted(set(groups), key=str):
            members = [line for line in each if groups[line["client"]] == group]
            if not members:
                continue
            gains = np.array([line["gain"] for line in members])
            spread = _spread([line["federated"] for line in members], metric)
            lines.append(
                {
                    "group": str(group),
                    "clients": len(members),
                    **{s: float(np.mean([line[s] for line in members])) for s in SCHEMES},
                    "win": int((gains > 0).sum()),
                    "lose": int((gains < 0).sum()),
                    "worst": spread["worst"],
                    "spread": spread["spread"],
                }
            )
        gap = {s: float(np.ptp([line[s] for line in lines])) for s in SCHEMES}
        return [*lines, {"group": "gap between groups", "clients": len(each), **gap}]

    def _metric(self, name: str | None) -> str:
        """The metric of this name, or the one that sums the models up."""
        known = self["federated"].metrics
        metric = headline_metric(known) if name is None else name
        if metric is None or metric not in known:
            raise UsageError(f"there is no metric {metric!r}", hint=f"there are {', '.join(known)}")
        return metric


def evaluate_groups(
    model: Predictor, X: Any, y: Any, groups: ArrayLike
) -> dict[str, dict[str, float]]:
    """The metrics of a model on each group of rows: women and men, age bands, courses."""
    named = np.asarray(groups).astype(str)
    regrouped = simulate(X, y, partition=ByGroup(named), schema=model.schema_)
    by_client = model.evaluate(regrouped, "train").clients
    return {str(name): by_client[i] for i, name in enumerate(np.unique(named))}


def _spread(scores: Sequence[float], metric: str) -> dict[str, float]:
    values = np.array(scores)
    worst, best = sorted([min(scores), max(scores)], key=lambda score: sign(metric) * score)
    return {
        "mean": float(values.mean()),
        "worst": float(worst),
        "best": float(best),
        "spread": float(values.std()),
    }


def three_schemes(
    learner: Predictor,
    data: FederatedData,
    *,
    seed: int = 0,
    progress: Callable[[str], None] = lambda text: None,
) -> ThreeSchemes:
    """Train a learner alone, federated and centralised, and judge it at every client.

    ``data`` is what clients hold, with test rows set aside: ``so.simulate(…, test=0.3).data``. All
    clients know all classes, as they would in a federation.
    """
    sizes = data.sizes("test").tolist()
    rows_tested = {client: rows for client, rows in enumerate(sizes) if rows}
    if not rows_tested:
        raise DataError("no client has test rows", hint="set some aside: so.simulate(test=0.3)")
    federation = simulate(data, seed=seed)

    def fitted(clients: IntArray) -> Predictor:
        rows = data.segments(clients, "train").joined()
        fitted = learner.clone().fit(one_client(rows, data.schema, seed, shuffle=False))
        first: Predictor = own_models(fitted)[0]
        return first

    progress("federated")
    federated = learner.clone().fit(federation).evaluate(federation)
    progress("centralised")
    centralised = fitted(np.arange(data.clients)).evaluate(federation)
    each = {}
    for client in rows_tested:
        progress(f"alone: client {client} of {data.clients}")
        only = np.array([client])
        found = judged(fitted(only), data.segments(only, "test").joined())
        assert found is not None
        each[client] = found
    alone = evaluation_of(each, "test")
    assert alone is not None
    evaluations = {"alone": alone, "federated": federated, "centralised": centralised}
    return ThreeSchemes(evaluations, rows_tested)

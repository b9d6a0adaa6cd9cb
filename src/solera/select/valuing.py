"""The utility of subsets of a round's updates: minus the validation loss of their average."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from solera.core.aggregation import Sum
from solera.core.clients import BoolArray, Client, FloatArray, IntArray, Part
from solera.core.component import build_fitted, describe_fitted
from solera.core.errors import DataError, Refusal, UsageError
from solera.core.rounds import Round
from solera.core.task import task
from solera.learn.averaging.base import Averaging
from solera.trust.constructors import count_by, sum_by


@task("select.losses")
def losses(client: Client, ask: Any) -> dict[str, Any]:
    """Sums of the losses of several models over rows the client keeps, and their number."""
    part: Part = ask["part"]
    rows = client.data.part(part)
    if not len(rows):
        raise Refusal(f"this client has no {part} rows")
    learner = build_fitted(ask["learner"])
    of_models = []
    for state in ask["states"]:
        learner.set_state({**ask["learner"]["learned"], **state})
        model = learner.with_part(client.state) if learner.is_personal else learner
        of_models.append(model.losses(rows.X, rows.y))
    return {
        "sums": sum_by(None, np.stack(of_models).T, part=part),
        "rows": count_by(None, part=part),
    }


class RoundUtility:
    """U(S) = −validation loss of the model that the updates of S alone would have made.

    U(∅) is the model before the round. ``X``, ``y`` are validation rows that the coordinator
    holds; without them clients judge by the ``part`` of their rows that they keep.
    """

    def __init__(self, round: Round, X: Any, y: Any, part: str) -> None:
        if not round.updates:
            raise UsageError(
                f"{type(round.learner).__name__} folds no replies, so clients have no value"
            )
        self.round = round
        self.X, self.y, self.part = X, y, part
        self.folded = round.updates[-1]
        self.evaluations = 0

    @property
    def clients(self) -> IntArray:
        """Those whose updates were folded."""
        return self.folded.clients

    def __call__(self, subsets: BoolArray) -> FloatArray:
        learner = self.round.learner
        after = learner.get_state()
        try:
            found = self._losses(subsets)
        finally:
            learner.set_state(after)
        self.evaluations += len(subsets)
        if not np.isfinite(found).all():
            raise DataError("the validation loss of some subset of clients is not finite")
        return -found

    def _losses(self, subsets: BoolArray) -> FloatArray:
        learner = self.round.learner
        if self.X is None:
            return self._at_clients([self._learn(subset).get_state() for subset in subsets])
        if isinstance(learner, Averaging):
            models = [self._learn(subset).get_model() for subset in subsets]
            return learner.losses_of(models, self.X, self.y)
        return np.array([self._learn(s).losses(self.X, self.y).mean() for s in subsets])

    def _learn(self, subset: BoolArray) -> Any:
        """The learner, as if only this subset had replied."""
        learner, rule = self.round.learner, self.folded.aggregation
        learner.set_state(self.round.before)
        if subset.any():
            partial = None
            for i in np.flatnonzero(subset).tolist():
                partial = rule.merge(partial, self.folded.partials[i])
            learner.apply_update(rule.result(partial))
        return learner

    def _at_clients(self, states: Sequence[Mapping[str, Any]]) -> FloatArray:
        learner, federation = self.round.learner, self.round.federation
        learner.set_state(states[0])
        described = describe_fitted(learner.for_prediction())
        names = described["learned"].keys() - {"schema_"}
        changed = [{name: state[name] for name in names} for state in states]
        ask = {"learner": described, "states": changed, "part": self.part}
        total = federation.ask(losses, ask, round=self.round.index).fold(Sum())
        if not total["rows"]:
            raise DataError(
                f"no client may tell the losses of its {self.part} rows: too few of them",
                hint=f"more {self.part} rows, or validation rows at the coordinator, X= and y=",
            )
        return np.asarray(total["sums"] / total["rows"])

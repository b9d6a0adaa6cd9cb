"""Preprocessing and a learner as one."""

from __future__ import annotations

from functools import reduce
from typing import Any, Self

from solera.core.declared import check_state
from solera.core.errors import Refusal, UsageError
from solera.core.federation import Federation
from solera.core.plan import Plan, in_turn, prepared_by
from solera.core.schema import Schema
from solera.learn.base import Learner, Predictor, Transformer


class Pipeline(Predictor):
    """Transformers, then a learner: ``Pipeline(FedScaler(), FedLinear())``.

    Each transformer is fitted on what the ones before it make of the clients' rows. The whole fits,
    predicts, saves and loads as one learner.
    """

    allows_missing = True
    steps_: list[Learner]

    def __init__(self, *steps: Learner) -> None:
        self.steps = steps

    @property
    def predicts(self) -> bool:
        return self.steps[-1].predicts

    def check_params(self) -> None:
        super().check_params()
        if not self.steps:
            raise UsageError("Pipeline() has no steps")
        for step in self.steps[:-1]:
            if not isinstance(step, Transformer):
                raise UsageError(f"Pipeline: {step!r} is not a transformer and must come last")

    def check_state(self, schema: Schema) -> None:
        """Refuse steps that are not the pipeline's, each for what the one before it gives."""
        if [type(step) for step in self.steps_] != [type(step) for step in self.steps]:
            raise Refusal("Pipeline: the fitted steps are not its steps")
        for step in self.steps_:
            check_state(step, schema)
            if isinstance(step, Transformer):
                schema = step.transform_schema(schema)

    def train(self, federation: Federation) -> None:
        callbacks, checkpoint = self._callbacks, self._checkpoint
        self.steps_ = []
        for step in self.steps[:-1]:
            self.steps_.append(step.clone().fit(federation))
            federation = federation.prepared(self.steps_[-1])
        last = self.steps[-1].clone()
        self.steps_.append(last.fit(federation, callbacks=callbacks, checkpoint=checkpoint))
        self.history_ = last.history_

    def training_asks(self) -> Plan:
        schema = self.schema_
        plans: list[Plan] = []
        before: list[Transformer] = []
        for place, step in enumerate(self.steps, start=1):
            watched = self._callbacks if place == len(self.steps) else ()
            plan = step.asks(schema, callbacks=watched)
            plans.append(reduce(lambda asks, by: prepared_by(by, asks), before, plan))
            if isinstance(step, Transformer):
                before.append(step)
                schema = step.planned_schema(schema)
        return in_turn(*plans)

    def for_prediction(self) -> Self:
        light = self.with_state(self.get_state())
        light.steps_ = [*self.steps_[:-1], self.steps_[-1].for_prediction()]
        return light

    def _prepared(self, X: Any) -> tuple[Any, Any]:
        """The last step, and the rows as those before it make them."""
        X = self.check_rows(X)
        *transformers, last = self.steps_
        for step in transformers:
            assert isinstance(step, Transformer)
            X = step.transform(X)
        return last, X

    def predict(self, X: Any) -> Any:
        last, X = self._prepared(X)
        return last.predict(X)

    def predict_proba(self, X: Any) -> Any:
        last, X = self._prepared(X)
        return last.predict_proba(X)

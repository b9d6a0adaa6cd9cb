"""Preprocessing and a learner as one."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any, Self

from solera.core.errors import UsageError
from solera.core.federation import Federation
from solera.core.schema import Schema
from solera.learn.base import Learner, Predictor, Transformer
from solera.learn.named_steps import as_tuples, automatic_names, set_named, with_named

_OF_LAST_STEP = {
    *("transform", "explain", "rules_"),
    *("plot", "to_text", "to_svg", "to_json", "to_graphviz"),
}


class Pipeline(Predictor):
    """Transformers, then a learner: ``Pipeline(FedScaler(), FedLinear())``.

    A step may have a name, ``Pipeline(("scale", FedScaler()), ("model", FedLinear()))``, and is
    called ``fedscaler`` otherwise; ``set_params(model__rounds=5)`` reaches into it.

    Each transformer is fitted on what the ones before it make of the clients' rows. The whole fits,
    predicts, saves and loads as one learner, and transforms where all steps do. Where the last is a
    tree, ``explain``, ``rules_``,
    ``plot``, ``to_text``, ``to_svg``, ``to_json`` and ``to_graphviz`` speak of the columns before
    the first step.
    """

    allows_missing = True
    takes_categories = True
    can_start = True
    steps_: list[Learner]

    def __init__(self, *steps: Learner | tuple[str, Learner]) -> None:
        self.steps = steps

    @classmethod
    def make(cls, params: Mapping[str, Any]) -> Self:
        return super().make({**params, "steps": as_tuples(params["steps"])})

    @property
    def learners(self) -> list[Learner]:
        """The steps without their names."""
        return [step if isinstance(step, Learner) else step[1] for step in self.steps]

    @property
    def named_steps(self) -> dict[str, Learner]:
        """The steps by name; fitted ones, once they are."""
        fitted = vars(self).get("steps_", ())
        steps = fitted if len(fitted) == len(self.steps) else self.learners
        return dict(zip(self._names(), steps, strict=True))

    def _names(self) -> list[str]:
        automatic = automatic_names(self.learners)
        return [
            name if isinstance(step, Learner) else step[0]
            for step, name in zip(self.steps, automatic, strict=True)
        ]

    def parameters_of_output(self, schema: Schema) -> int:
        if self.learners[-1].privacy is not None:
            return 0
        for step in self.learners[:-1]:
            assert isinstance(step, Transformer)
            schema = step.planned_schema(schema)
        return self.learners[-1].parameters_of_output(schema)

    @property
    def predicts(self) -> bool:
        return self.learners[-1].predicts

    def check_predicts(self) -> None:
        self.learners[-1].check_predicts()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.learners[-1].allows_missing
        tags.input_tags.sparse = all(learner.allows_sparse for learner in self.learners)
        return tags

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        params = super().get_params(deep=False)
        return with_named(params, self._unfitted()) if deep else params

    def set_params(self, **params: Any) -> Self:
        if "steps" in params:
            super().set_params(steps=params.pop("steps"))
        return super().set_params(**set_named(self._unfitted(), params, self._replace))

    def _unfitted(self) -> dict[str, Learner]:
        return dict(zip(self._names(), self.learners, strict=True))

    def _replace(self, name: str, learner: Learner) -> None:
        place = self._names().index(name)
        self.steps = tuple(
            (name, learner) if i == place else step for i, step in enumerate(self.steps)
        )

    def check_params(self) -> None:
        super().check_params()
        if not self.steps:
            raise UsageError("Pipeline() has no steps")
        for step in self.learners[:-1]:
            if not isinstance(step, Transformer):
                raise UsageError(f"Pipeline: {step!r} is not a transformer and must come last")
        names = self._names()
        for name in names:
            if "__" in name or name in self.parameters():
                raise UsageError(f"Pipeline: a step cannot be called {name!r}")
        if len(set(names)) < len(names):
            raise UsageError("Pipeline: two steps have the same name")
        for step in self.learners:
            step.check_params()

    def train(self, federation: Federation) -> None:
        callbacks, checkpoint = self._callbacks, self._checkpoint
        known = [] if self._start is None else self._start.steps_
        self.steps_ = []
        for i, step in enumerate(self.learners[:-1]):
            fitted = known[i] if known else step.clone().fit(federation, progress=False)
            self.steps_.append(fitted)
            federation = federation.prepared(fitted)
        last = self.learners[-1].clone()
        start = known[-1] if known else None
        options: dict[str, Any] = {"callbacks": callbacks, "checkpoint": checkpoint, "start": start}
        self.steps_.append(last.fit(federation, progress=False, **options))
        self.history_ = last.history_

    def _begin_with(self, start: Any) -> None:
        """Transformers are taken over as they are, so that the learner meets the same columns."""
        if not isinstance(start, Pipeline) or start.learners[:-1] != self.learners[:-1]:
            raise UsageError(
                "a Pipeline starts from one with the same transformers", hint=f"not from {start!r}"
            )
        super()._begin_with(start)

    @property
    def sends_updates(self) -> bool:
        return any(step.sends_updates for step in self.learners)

    @property
    def cuts_at_atoms(self) -> bool:
        return any(step.cuts_at_atoms for step in self.learners)

    def why_not_closed(self) -> str | None:
        for i, step in enumerate(self.learners):
            changing = [s for s in self.learners[:i] if not getattr(s, "keeps_atoms", False)]
            if step.cuts_at_atoms and changing:
                name, before = type(step).__name__, type(changing[0]).__name__
                return (
                    f"{name} cuts columns between the epoch's atoms, and {before} changes their "
                    f"values before; leave {before} out, so.Pipeline(so.FedBins(), …, so.{name}())"
                )
        return super().why_not_closed()

    @property
    def needs_exact_training(self) -> bool:
        return any(step.needs_exact_training for step in self.learners)

    @property
    def is_personal(self) -> bool:
        return "steps_" in vars(self) and self.steps_[-1].is_personal

    def with_part(self, part: Mapping[str, Any] | None, owner: str = "") -> Self:
        last: Any = self.steps_[-1]
        return self._ending_in(last.with_part(part, owner))

    def _ending_in(self, last: Learner) -> Self:
        """The same with another last step."""
        light = copy(self)
        light.steps_ = [*self.steps_[:-1], last]
        return light

    def needs_to_load(self) -> list[str]:
        return self.steps_[-1].needs_to_load()

    def for_prediction(self) -> Self:
        return self._ending_in(self.steps_[-1].for_prediction())

    def __getattr__(self, name: str) -> Any:
        """What the last step does besides predicting, for rows before the first."""
        if name not in _OF_LAST_STEP or "steps" not in vars(self):
            raise AttributeError(f"{type(self).__name__} has no {name}")
        last: Any = copy((vars(self).get("steps_") or self.learners)[-1])
        if isinstance(last, Pipeline) and "steps_" in vars(self):
            last.steps_ = [*self.steps_[:-1], *last.steps_]
            last.schema_ = self.schema_
            return getattr(last, name)
        if not hasattr(last, name):
            raise AttributeError(f"{type(last).__name__} has no {name}")
        if name == "transform":
            return lambda X: last.transform(self.prepared(self.check_rows(X)))
        last._pipeline = self
        return getattr(last, name)

    def prepared(self, X: Any) -> Any:
        """Rows as the steps before the last make them."""
        for step in self.steps_[:-1]:
            assert isinstance(step, Transformer)
            X = step.transform(X)
        return X

    def predict(self, X: Any) -> Any:
        return self._answer("predict", X)

    def predict_proba(self, X: Any) -> Any:
        return self._answer("predict_proba", X)

    def _answer(self, method: str, X: Any) -> Any:
        """What the last step says of the prepared rows."""
        X = self.check_rows(X)
        self.check_common()
        last = self.steps_[-1]
        if not hasattr(last, method):
            instead = "transform" if isinstance(last, Transformer) else "predict"
            raise UsageError(f"{type(last).__name__} does not {method}", hint=f"model.{instead}(X)")
        return getattr(last, method)(self.prepared(X))

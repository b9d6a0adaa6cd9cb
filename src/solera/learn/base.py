"""The kinds of learners: those that predict, that add up, that transform."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from solera.core.aggregation import Aggregation
from solera.core.clients import Array, FloatArray
from solera.core.errors import DataError, UsageError
from solera.core.federation import Federation
from solera.core.schema import UNKNOWN, Schema, class_codes
from solera.core.task import Task
from solera.data.frames import check_columns, encode_target, is_frame, to_pandas
from solera.evaluation.figure import Figure
from solera.evaluation.metrics import headline_of
from solera.learn.conditions import Condition
from solera.learn.learner import Learner, as_federation
from solera.learn.model_file import from_bytes, load

__all__ = [
    "Additive",
    "Learner",
    "Predictor",
    "Transformer",
    "as_federation",
    "from_bytes",
    "load",
]


class MissingRows(UserWarning):
    """A score rests on fewer rows than it is about."""


_LEAST = 1e-12
"""A probability of 0 has a loss all the same."""


class Predictor(Learner, abstract=True):
    """A learner that maps rows to classes, labels or numbers."""

    @property
    def predicts(self) -> bool:
        return True

    @abstractmethod
    def predict(self, X: Any) -> Array:
        """The predicted class, labels or numbers of every row."""

    def at(self, client: int | str) -> Self:
        """The model of one client, by its id or name, where every client has its own.

        It predicts, scores, saves and exports as any model. Over a network the clients' parts
        stay with their owners, who use theirs by ``solera predict``.
        """
        self.check_fitted()
        kind = type(self).__name__
        if not self.is_personal:
            raise UsageError(f"{kind} has one model for all clients", hint="model.predict(X)")
        if self._client_parts is None:
            raise UsageError(
                f"what clients keep of this {kind} is with their owners",
                hint="there, solera predict MODEL ROWS --folder FOLDER; evaluate(federation) asks",
            )
        parts = self._client_parts
        place = parts.find(client)
        return self.with_part(parts.parts[place], str(parts.name(place)))

    def common(self) -> Self:
        """The model that all clients share, where it was trained."""
        return self.with_part(None)

    def with_part(self, part: Mapping[str, Any] | None, owner: str = "") -> Self:
        """The model of the client that keeps this part of it; of None, that of nobody."""
        return self

    @property
    def classes_(self) -> Array:
        """The classes, in the order of the columns of ``predict_proba``."""
        self.check_fitted()
        if self.schema_.target != "classes":
            raise AttributeError(f"{type(self).__name__} was fitted to {self.schema_.target}")
        return self.schema_.classes

    def check_has_classes(self) -> None:
        """Raise :class:`UsageError` where numbers are predicted, which have no probabilities."""
        self.check_fitted()
        if self.schema_.target == "numbers":
            kind = type(self).__name__
            raise UsageError(
                f"{kind} was fitted to numbers, which have no probabilities",
                hint="predict gives the numbers",
            )

    def score(self, X: Any, y: Any = None) -> float:
        """Accuracy for classes, subset accuracy for labels, R² for numbers.

        A frame may bring its target along. X may also be a federation: then over all rows of its
        clients, which are counted where they are. It is a plain float, so that scikit-learn takes
        it: where rows are missing, a warning says which, and where noise leaves it open, how far.
        """
        figure = self.score_figure(X, y)
        if not figure.is_whole or figure.between is not None:
            warnings.warn(f"{type(self).__name__}.score: {figure}", MissingRows, stacklevel=2)
        return float(figure)

    def score_figure(self, X: Any, y: Any = None) -> Figure:
        """:meth:`score` with the rows that it rests on."""
        self.check_fitted()
        self.check_predicts()
        metric = headline_of(self.schema_.target)
        from solera.learn.evaluation import evaluate_all, evaluate_rows

        if isinstance(X, Federation):
            return evaluate_all(self, X)[metric]
        y = encode_target(self._target_of(X) if y is None else y, self.schema_)
        if self.schema_.target == "labels":
            return evaluate_rows(self, X, y)[metric]
        predicted = self.predict(X)
        if len(y) != len(predicted):
            raise DataError(f"X has {len(predicted):,} rows, y has {len(y):,}")
        if self.schema_.target == "numbers":
            from sklearn.metrics import r2_score

            if not np.isfinite(predicted).all():
                raise DataError(
                    f"{type(self).__name__} predicts numbers that are not finite: it has diverged",
                    hint="lower lr, or scale features and target before fit",
                )
            value = float(r2_score(y, predicted))
        else:
            value = float((predicted == y).mean())
        return Figure(value, metric=metric, part="rows", rows=len(y))

    def _target_of(self, X: Any) -> Any:
        """The target in a frame that brings it along."""
        names = self.schema_.target_names
        if not is_frame(X) or not names:
            raise UsageError("X does not come with its target: give y as well")
        frame = to_pandas(X)
        check_columns(names, frame.columns)
        return frame[names[0]] if len(names) == 1 else frame[[*names]]

    def losses(self, X: Any, y: Any) -> FloatArray:
        """−log p of the class, its mean over known labels, or half the squared error."""
        y = encode_target(y, self.schema_)
        if self.schema_.target == "numbers":
            error = np.asarray(self.predict(X), dtype=float) - y
            return np.asarray(0.5 * (error**2).reshape(len(y), -1).sum(axis=1))
        if not hasattr(self, "predict_proba"):
            return super().losses(X, y)
        p = np.asarray(self.predict_proba(X), dtype=float)
        if self.schema_.target == "labels":
            known = (y != UNKNOWN) & ~np.isnan(p)
            chosen = np.where(known, np.where(y > 0, p, 1 - p), 1.0)
            means = -np.log(np.maximum(chosen, _LEAST)).sum(axis=1)
            return np.asarray(means / np.maximum(known.sum(axis=1), 1))
        else:
            codes = class_codes(y, self.schema_.classes)
            chosen = np.take_along_axis(p, codes[:, None], axis=1)
        return np.asarray(-np.log(np.maximum(chosen, _LEAST)).mean(axis=1))

    def evaluate(
        self,
        federation: Any,
        part: str = "test",
        *,
        y: Any = None,
        per_client: bool = True,
        scores: Any = False,
        metrics: Sequence[str] = (),
    ) -> Any:
        """Metrics over the rows that every client keeps; see :func:`solera.learn.evaluate`.

        Rows of one's own may take the place of the federation: a frame with its target, or any
        rows and their ``y``.
        """
        from solera.learn.evaluation import evaluate, evaluate_rows

        self.check_predicts()
        if isinstance(federation, Federation):
            more: dict[str, Any] = {"scores": scores, "metrics": metrics}
            return evaluate(self, federation, part, per_client=per_client, **more)
        self.check_fitted()
        y = self._target_of(federation) if y is None else y
        return evaluate_rows(self, federation, y, scores, metrics)


def last_step(model: Any) -> Any:
    """The learner that predicts: the last of a pipeline's."""
    while "steps_" in vars(model):
        model = model.steps_[-1]
    return model


class Additive(Predictor, abstract=True):
    """A learner that needs one message of every client, and adds them up.

    Who comes when does not matter, so clients may also contribute to it one by one, as in the
    standing jobs of a coordinator.
    """

    contribution: ClassVar[Task]
    """The task of :meth:`question`."""

    @abstractmethod
    def prepare(self, federation: Federation, clients: ArrayLike | None = None) -> None:
        """Settle all that must be the same for everyone; ``schema_`` is known already."""

    @abstractmethod
    def question(self) -> tuple[Task, Any]:
        """What every client is asked."""

    @abstractmethod
    def aggregation(self) -> Aggregation:
        """How the answers are added up."""

    @abstractmethod
    def conclude(self, total: Any) -> None:
        """Learn from the sum of the answers."""


class Transformer(Learner, abstract=True):
    """A learner that maps rows to rows; clients apply it before the next step of a pipeline."""

    allows_missing: ClassVar[bool] = True
    takes_categories: ClassVar[bool] = True
    fills_missing: ClassVar[bool] = False
    """Whether no value is missing in transformed rows."""
    keeps_atoms: ClassVar[bool] = False
    """Whether columns hold the same values after it, or bins of these."""

    @abstractmethod
    def transform(self, X: Any) -> Any:
        """The transformed rows."""

    def fit_transform(self, X: Any, y: Any = None) -> Any:
        """Learn from rows of one's own and transform these; those of a federation stay there."""
        return self.fit(X, y).transform(X)

    def transform_rows(self, X: Any, schema: Schema) -> Any:
        """The transformed rows of a client that describes them by a schema of its own."""
        return self.transform(X)

    def condition_before(self, condition: Condition) -> Condition:
        """The condition on rows that transformed ones satisfy by this one."""
        raise UsageError(
            f"{type(self).__name__} does not say which column a condition comes from",
            hint="write its method condition_before, see docs/how-to/add-a-learner.md",
        )

    def transform_schema(self, schema: Schema) -> Schema:
        """What transformed rows look like."""
        return schema

    def planned_schema(self, schema: Schema) -> Schema:
        """What transformed rows will look like, as far as that is known before ``fit``."""
        step = self.clone()
        step.schema_ = schema
        return step.transform_schema(schema)

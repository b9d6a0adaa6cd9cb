"""What all learners share: parameters in the constructor, ``fit``, save and load."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from solera.core.aggregation import Aggregation
from solera.core.checkpoint import Checkpoint, CheckpointFile, fingerprint
from solera.core.clients import Array, FloatArray
from solera.core.component import Component, build_fitted, describe, describe_fitted
from solera.core.engine import CheckpointStore
from solera.core.errors import DataError, NotFitted, PayloadError, UsageError
from solera.core.federation import Federation
from solera.core.payload import Limits, decode, encode
from solera.core.private_files import write_file
from solera.core.rounds import Callback, Round, Rounds
from solera.core.schema import Schema, class_codes
from solera.core.selection import Selector, Uniform
from solera.core.state import Stateful, is_state
from solera.core.task import Task
from solera.data.agreement import agree

_LEAST = 1e-12
"""A probability of 0 has a loss all the same."""
_FILE_LIMITS = Limits(size=1 << 40, structure=1 << 28)
_FORMAT = 1
"""What a saved learner looks like; 1 holds parameters of networks in PyTorch's order."""


class Learner(Stateful, Component, abstract=True):
    """An estimator in the manner of scikit-learn whose ``fit`` takes a federation.

    A subclass writes :meth:`train`, keeps what it learns in attributes that end in an underscore,
    and replaces their values rather than changing them in place. It may loop over
    :meth:`each_round`.
    """

    allows_missing: ClassVar[bool] = False
    """Whether rows with missing values can be learned from."""

    schema_: Schema
    history_: list[dict[str, Any]]
    _selector: Selector | None = None
    _callbacks: Sequence[Callback] = ()
    _checkpoint: str | os.PathLike[str] | None = None
    _loop: Generator[Round, None, None] | None = None

    def fit(
        self,
        federation: Federation,
        *,
        callbacks: Sequence[Callback] = (),
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Learn from the clients of a federation.

        ``callbacks`` watch the rounds. With ``checkpoint``, a file, everything is stored after each
        round, and a run that was interrupted goes on where it stopped. Over a network the
        coordinator keeps the state of named jobs by itself.
        """
        if not isinstance(federation, Federation):
            raise UsageError(
                f"fit needs a federation, not {type(federation).__name__}",
                hint="for example so.simulate(X, y, clients=10)",
            )
        self.check_params()
        self.forget()
        self.history_ = []
        self.schema_ = agree(federation, allow_missing=self.allows_missing)
        self._callbacks, self._checkpoint = callbacks, checkpoint
        try:
            self.train(federation)
        finally:
            if self._loop is not None:
                self._loop.close()  # callbacks hear of the end before an error goes on
            for name in ("_callbacks", "_checkpoint", "_loop"):
                vars(self).pop(name, None)
        return self

    @abstractmethod
    def train(self, federation: Federation) -> None:
        """Learn; ``schema_`` is known already."""

    @property
    def predicts(self) -> bool:
        """Whether ``predict`` answers what the target asks, so that it can be judged by it."""
        return False

    def each_round(
        self,
        federation: Federation,
        *,
        rounds: int,
        per_round: int | None = None,
        select: Selector | None = None,
    ) -> Iterator[Round]:
        """The rounds of an iterative learner.

        Selection, callbacks, early stopping and checkpoints happen around the body. What the
        selector came to know can be read from ``selector_`` after ``fit``; it is not saved.
        """
        selector = Uniform() if select is None else select
        if not isinstance(selector, Selector):
            raise UsageError.of(
                self,
                "select",
                selector,
                "must be a selector",
                hint="for example so.selectors.Uniform()",
            )
        checkpoint = None
        store: CheckpointStore | None
        if self._checkpoint is None:
            store = federation.engine.checkpoint_store()
        else:
            store = CheckpointFile(self._checkpoint)
        if store is not None:
            sizes = federation.engine.sizes("train")
            seed, clients = federation.seed, len(federation)
            run = fingerprint(describe(self), seed, clients, self.schema_.to_payload(), sizes)
            checkpoint = Checkpoint(store, run)
        self._selector = selector.clone()
        self._loop = iter(
            Rounds(
                federation,
                self,
                rounds,
                self._selector,
                per_round,
                self._callbacks,
                checkpoint,
                self.history_,
            )
        )
        return self._loop

    @property
    def selector_(self) -> Selector:
        """The selector as the rounds left it: what it came to know of the clients."""
        if self._selector is None:
            raise NotFitted.of(self)
        return self._selector

    def workload(self) -> tuple[int, float]:
        """Bits of the model that travels, and passes of a client over its rows, in a round."""
        arrays = [v for n, v in vars(self).items() if is_state(n) and isinstance(v, np.ndarray)]
        return 8 * sum(array.nbytes for array in arrays), float(getattr(self, "epochs", 1))

    def losses(self, X: Any, y: Any) -> FloatArray:
        """The loss of every row under the current model, for selectors that look at it."""
        raise UsageError(f"{type(self).__name__} does not say the loss of a row")

    def for_prediction(self) -> Self:
        """The model without what only further training needs; this is what clients receive."""
        return self

    def with_state(self, state: Mapping[str, Any]) -> Self:
        """A learner of the same parameters that knows this and has no history."""
        learner = self.clone()
        learner.set_state(state)
        learner.history_ = []
        return learner

    def apply_update(self, folded: Any) -> None:
        """Change the model by the folded replies of one round, for selectors that try subsets."""
        raise UsageError(f"{type(self).__name__} does not say what a round does to its model")

    # --- what was learned ---

    def get_state(self) -> dict[str, Any]:
        """All that was learned, as a payload; the history is no part of it."""
        state = super().get_state()
        state.pop("history_", None)
        return state

    def check_fitted(self) -> None:
        """Raise :class:`NotFitted` before ``fit``."""
        if "schema_" not in vars(self):
            raise NotFitted.of(self)

    def check_rows(self, X: Any) -> Any:
        """X as rows of the width the learner was fitted on."""
        self.check_fitted()
        X = X if hasattr(X, "tocsr") else np.asarray(X)
        if X.ndim < 2:
            raise DataError(
                f"X has {X.ndim} dimension, rows and columns are needed",
                hint="X.reshape(1, -1) makes one row of a vector",
            )
        width = int(np.prod(X.shape[1:]))
        if width != self.schema_.width:
            raise DataError(
                f"X has {width} columns, {type(self).__name__} was fitted on {self.schema_.width}"
            )
        return X

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write parameters and everything learned to a file; :func:`load` reads it."""
        path = Path(path)
        write_file(path, self.to_bytes(), 0o644, overwrite=True)
        return path

    def to_bytes(self) -> bytes:
        """Parameters and everything learned, as :meth:`save` writes it."""
        self.check_fitted()
        content = {"format": _FORMAT, **describe_fitted(self), "history": self.history_}
        return encode(content, _FILE_LIMITS)


class Predictor(Learner, abstract=True):
    """A learner that maps rows to classes, labels or numbers."""

    @property
    def predicts(self) -> bool:
        return True

    @abstractmethod
    def predict(self, X: Any) -> Array:
        """The predicted class, labels or numbers of every row."""

    def score(self, X: Any, y: Any) -> float:
        """Accuracy for classes, subset accuracy for labels, R² for numbers."""
        y = np.asarray(y)
        predicted = self.predict(X)
        if len(y) != len(predicted):
            raise DataError(f"X has {len(predicted):,} rows, y has {len(y):,}")
        if not len(y):
            raise DataError("there are no rows to score")
        if self.schema_.target == "numbers":
            from sklearn.metrics import r2_score

            return float(r2_score(y, predicted))
        hits = predicted == y
        return float(hits.all(axis=1).mean() if hits.ndim == 2 else hits.mean())

    def losses(self, X: Any, y: Any) -> FloatArray:
        """−log p of the class, the mean of −log p over labels, or half the squared error."""
        y = np.asarray(y)
        if self.schema_.target == "numbers":
            error = np.asarray(self.predict(X), dtype=float) - y
            return np.asarray(0.5 * (error**2).reshape(len(y), -1).sum(axis=1))
        if not hasattr(self, "predict_proba"):
            return super().losses(X, y)
        p = np.asarray(self.predict_proba(X), dtype=float)
        if self.schema_.target == "labels":
            chosen = np.where(y > 0, p, 1 - p)
        else:
            codes = class_codes(y, self.schema_.classes)
            chosen = np.take_along_axis(p, codes[:, None], axis=1)
        return np.asarray(-np.log(np.maximum(chosen, _LEAST)).mean(axis=1))

    def evaluate(
        self, federation: Federation, part: str = "test", *, per_client: bool = True
    ) -> Any:
        """Metrics over the rows that every client keeps; see :func:`solera.evaluate`."""
        from solera.learn.evaluation import evaluate

        return evaluate(self, federation, part, per_client=per_client)


class Additive(Predictor, abstract=True):
    """A learner that needs one message of every client, and adds them up.

    Who comes when does not matter, so clients may also contribute to it one by one, as in the
    standing jobs of a coordinator.
    """

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

    @abstractmethod
    def transform(self, X: Any) -> Any:
        """The transformed rows."""

    def transform_rows(self, X: Any, schema: Schema) -> Any:
        """The transformed rows of a client that describes them by a schema of its own."""
        return self.transform(X)

    def transform_schema(self, schema: Schema) -> Schema:
        """What transformed rows look like."""
        return schema


def load(path: str | os.PathLike[str]) -> Any:
    """A learner written by :meth:`Learner.save`."""
    return from_bytes(Path(path).read_bytes(), str(path))


def from_bytes(frame: bytes, path: str = "this") -> Any:
    """A learner from what :meth:`Learner.to_bytes` gave; ``path`` is named in errors."""
    try:
        content = decode(frame, _FILE_LIMITS)
        written = content.get("format")
        if written != _FORMAT:
            raise PayloadError(f"its format is {written}, this version reads {_FORMAT}")
        learner = build_fitted(content)
        learner.history_ = content["history"]
    except PayloadError as error:
        raise PayloadError(f"{path} is not a saved learner: {error.message}") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise PayloadError(f"{path} is not a saved learner: {error!r}") from error
    return learner

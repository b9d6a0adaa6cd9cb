"""What all learners share: parameters in the constructor, ``fit``, save and load."""

from __future__ import annotations

import logging
import os
from abc import abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from solera.core.aggregation import Aggregation
from solera.core.checkpoint import Checkpoint, CheckpointFile, fingerprint
from solera.core.clients import Array, FloatArray
from solera.core.component import Component, build_fitted, describe, describe_fitted
from solera.core.constraints import names_checked
from solera.core.engine import CheckpointStore
from solera.core.errors import (
    CannotForget,
    DataError,
    NotFitted,
    PayloadError,
    SchemaError,
    UsageError,
)
from solera.core.federation import Federation
from solera.core.payload import Limits, decode, encode, is_finite
from solera.core.plan import Plan, in_turn, one_of
from solera.core.private_files import write_file
from solera.core.rounds import Callback, Round, Rounds
from solera.core.schema import Feature, Kind, Schema, Target, class_codes, numbered
from solera.core.selection import Selector, Uniform
from solera.core.state import Stateful, is_state
from solera.core.task import Task
from solera.data.agreement import AGREEMENT, agree, check_labelled
from solera.data.dataset import Dataset
from solera.data.federated import as_numbers
from solera.data.frames import check_columns, encode_frame, encode_target, is_frame, to_pandas
from solera.engines.kept import KeepingEngine, Kept, KeptReplies
from solera.learn.card import model_card, training_facts
from solera.learn.history import learner_html, plot_history
from solera.learn.progress import RoundBar, is_wanted
from solera.learn.rows import dense
from solera.learn.sklearn_tags import tags_of
from solera.learn.unlearning import (
    GoOn,
    KeepingRounds,
    Signer,
    check_can_keep,
    read_kept,
    receipt,
    write_kept,
)
from solera.learn.warm_start import continued_schema
from solera.simulate.simulation import simulate

log = logging.getLogger("solera")

_LEAST = 1e-12
"""A probability of 0 has a loss all the same."""
_MOST_COLUMNS = 10_000
"""A plan that is made before clients have agreed on their columns allows for so many."""
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
    allows_sparse: ClassVar[bool] = True
    """Whether sparse rows can be learned from."""
    can_start: ClassVar[bool] = False
    """Whether ``fit`` can start from a model."""

    schema_: Schema
    history_: list[dict[str, Any]]
    _selector: Selector | None = None
    _callbacks: Sequence[Callback] = ()
    _checkpoint: Any = None
    _loop: Generator[Round, None, None] | None = None
    _start: Any = None
    _trained_with: Mapping[str, Any] | None = None
    _kept: Kept | None = None
    _receipt: dict[str, Any] | None = None

    @names_checked
    def fit(
        self,
        federation: Any,
        y: Any = None,
        *,
        callbacks: Sequence[Callback] = (),
        checkpoint: str | os.PathLike[str] | GoOn | None = None,
        start: Learner | None = None,
        progress: bool | None = None,
        keep: bool | str | os.PathLike[str] = False,
    ) -> Self:
        """Learn from the clients of a federation.

        Rows of one's own (arrays or a frame with their target ``y``, or a :class:`Dataset`) are
        taken for those of one client.

        ``callbacks`` watch the rounds. With ``checkpoint``, a file, everything is stored after each
        round, and a run that was interrupted goes on where it stopped. Over a network the
        coordinator keeps the state of named jobs by itself; with more ``rounds`` than before, a
        finished run goes on as well. ``start`` is a fitted model to begin with instead of from
        nothing: of the same columns, and for averaging of the same shape. ``progress`` shows a
        bar of the rounds: by default in terminals and notebooks, once they take longer than a
        second. ``keep`` keeps what :meth:`forget` needs, in memory or in the file that it names;
        the model that :meth:`save` writes does not hold it.
        """
        self.check_params()
        if not self.allows_sparse and hasattr(federation, "tocsr"):
            raise DataError(f"{type(self).__name__} needs dense rows, X is sparse")
        federation = as_federation(federation, y)
        self.reset()
        self.history_ = []
        self._kept = None
        keeping = self._keeping(federation) if keep else None
        if keeping is not None:
            federation = federation.over(keeping)
        bar = [RoundBar()] if is_wanted(progress) else []
        with federation.announced(self, lambda: self.asks(None, callbacks=callbacks)):
            self.schema_ = self.agree_on_rows(federation)
            if start is not None:
                self._begin_with(start)
            self._callbacks, self._checkpoint = [*callbacks, *bar], checkpoint
            try:
                self.train(federation)
            finally:
                if self._loop is not None:
                    self._loop.close()  # callbacks hear of the end before an error goes on
                for name in ("_callbacks", "_checkpoint", "_loop", "_start"):
                    vars(self).pop(name, None)
        self._trained_with = training_facts(federation, self, started=start is not None)
        if keeping is not None:
            self._kept = keeping.kept
            self._kept["started"] = start is not None
            if not isinstance(keep, bool):
                write_kept(self._kept, keep)
        return self

    # --- forgetting a client ---

    def forget(
        self,
        client: int | str,
        federation: Federation | None = None,
        *,
        kept: str | os.PathLike[str] | None = None,
        key: Signer | None = None,
        progress: bool | None = None,
    ) -> Self:
        """Become the model of a federation that never had this client.

        What ``fit(keep=True)`` kept, or the file ``kept`` that it wrote, is folded once more
        without the client's replies; the result is that of a fit without it, to the bit.
        What then is asked with other numbers (by pipelines, trees, learners of many rounds) is
        asked the others again, for which ``federation`` is needed; with nothing kept, all of it.
        With a ``key``, :attr:`receipt` is a signed statement about it.
        """
        self.check_fitted()
        before = self.to_bytes()
        stored = self._kept if kept is None else read_kept(kept)
        if stored is None and federation is None:
            raise CannotForget(
                "nothing was kept of this model's training",
                hint="fit(federation, keep=True), or fit again: forget(client, federation)",
            )
        if stored is not None and stored["started"]:
            raise CannotForget(
                "the model began with another one, which knows the client as well",
                hint="forget the client in that one and fit(start=…) again",
            )
        known = dict(vars(self))
        try:
            exact = self._forget(client, stored, federation, progress)
        except BaseException:
            vars(self).clear()
            vars(self).update(known)  # what could not be forgotten is as it was
            raise
        self._receipt = None
        if key is not None:
            facts: dict[str, Any] = {"before": before, "after": self.to_bytes(), "exact": exact}
            self._receipt = receipt(key, client=str(client), **facts)
        return self

    @property
    def receipt(self) -> dict[str, Any] | None:
        """What was signed when a client was forgotten; see :func:`~.unlearning.check_receipt`."""
        return self._receipt

    def _forget(
        self, client: int | str, kept: Any, federation: Federation | None, progress: bool | None
    ) -> bool:
        """Fit without the client; whether the result is that of a federation without it."""
        if kept is None:
            assert federation is not None
            check_can_keep(federation)
            self.fit(federation.without(client), progress=progress)
            return True
        rest = self._rest(client, kept, federation)
        rest.engine = KeptReplies(kept, None if federation is None else federation.engine)
        self.fit(rest, progress=progress, keep=True)
        self._forgotten(rest)
        return True

    def _rest(self, client: int | str, kept: Any, federation: Federation | None) -> Federation:
        """The clients that are left of those that took part."""
        if federation is None:
            federation = Federation(KeptReplies(kept), seed=kept["seed"])
            federation.names = tuple(kept["names"])
        elif federation.engine.clients != kept["clients"] or federation.seed != kept["seed"]:
            raise CannotForget("the federation is not the one that the model was fitted to")
        gone = [federation.find_client(c) for c in kept.get("forgotten", [])]
        return federation.without(*gone, client)

    def _forgotten(self, rest: Federation) -> None:
        """Remember who has been forgotten, for the next one."""
        if self._kept is not None:
            everyone = range(rest.engine.clients)
            self._kept["forgotten"] = sorted(set(everyone) - set(rest.clients.tolist()))

    def _keeping(self, federation: Federation) -> KeepingEngine:
        """The engine that keeps what forgetting needs."""
        check_can_keep(federation)
        return KeepingEngine(federation.engine, federation.seed, federation.names)

    def agree_on_rows(self, federation: Federation) -> Schema:
        """What the rows of all clients look like, before anything is learned from them."""
        if self.predicts:
            check_labelled(federation)
        return agree(federation, allow_missing=self.allows_missing)

    def _begin_with(self, start: Any) -> None:
        """Make sure that learning can begin with this model."""
        kind = type(self).__name__
        if not self.can_start:
            raise UsageError(
                f"{kind} cannot start from a model",
                hint="learners of many rounds can; FedHEONN.partial_fit adds to what is known",
            )
        if not isinstance(start, Learner):
            raise UsageError(f"fit(start=…) needs a fitted learner, not {type(start).__name__}")
        start.check_fitted()
        self.schema_ = continued_schema(self.schema_, start.schema_)
        self._start = start

    @abstractmethod
    def train(self, federation: Federation) -> None:
        """Learn; ``schema_`` is known already."""

    # --- what will be asked ---

    def asks(self, schema: Schema | None, *, callbacks: Sequence[Callback] = ()) -> Plan:
        """What :meth:`fit` asks clients with such rows: tasks, ranges, and the most asks of each.

        Without a schema the plan holds for all rows that this learner can learn from; what depends
        on them is left open.
        """
        self.check_params()
        if schema is None:
            return _plan_for_any_rows(self, callbacks)
        learner = self.clone()
        learner.schema_, learner._callbacks = schema, callbacks
        return in_turn(AGREEMENT, learner.training_asks())

    def training_asks(self) -> Plan:
        """What :meth:`train` asks; ``schema_`` is known already, and nothing else."""
        raise UsageError(
            f"{type(self).__name__} does not say what it asks",
            hint="write its method training_asks, see docs/how-to/add-a-learner.md",
        )

    def loop_asks(
        self, rounds: int, per_round: int | None = None, select: Selector | None = None
    ) -> Plan:
        """What :meth:`each_round` asks besides the learner: for its selector and callbacks."""
        selection = () if select is None else select.asks(self, rounds, per_round)
        return in_turn(selection, *(c.asks(self, rounds) for c in self._callbacks))

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
        checkpoint: Any = None
        store: CheckpointStore | None
        if isinstance(self._checkpoint, GoOn):
            store, checkpoint = None, self._checkpoint
        elif self._checkpoint is None:
            store = federation.engine.checkpoint_store()
        else:
            store = CheckpointFile(self._checkpoint)
        if store is not None:
            sizes = federation.engine.sizes("train")
            seed, clients = federation.seed, len(federation)
            run = fingerprint(_identity(self), seed, clients, self.schema_.to_payload(), sizes)
            checkpoint = Checkpoint(store, run)
        if isinstance(federation.engine, KeepingRounds):
            federation.engine.checkpoint = checkpoint
            checkpoint = federation.engine
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

    def plot_history(self, *names: str) -> Any:
        """A matplotlib figure of what was logged in every round, or of the metrics named."""
        self.check_fitted()
        return plot_history(self.history_, names)

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

    @property
    def n_features_in_(self) -> int:
        """How many columns the learner was fitted on."""
        self.check_fitted()
        return self.schema_.width

    @property
    def feature_names_in_(self) -> Array:
        """The names of the columns it was fitted on; arrays have none."""
        self.check_fitted()
        features = self.schema_.features
        if features == numbered(len(features)):
            raise AttributeError(f"{type(self).__name__} was fitted on columns without names")
        return np.array([feature.name for feature in features], dtype=object)

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn's tools ask of an estimator."""
        return tags_of(self)

    def __sklearn_is_fitted__(self) -> bool:
        return "schema_" in vars(self)

    def check_rows(self, X: Any) -> Any:
        """X as rows of the columns the learner was fitted on; a frame's by their names."""
        self.check_fitted()
        if is_frame(X):
            X = encode_frame(X, self.schema_)
        X = X.tocsr() if hasattr(X, "tocsr") else as_numbers(np.asarray(X))
        if X.ndim < 2:
            raise DataError(
                f"X has {X.ndim} dimension, rows and columns are needed",
                hint="Reshape your data: X.reshape(1, -1) makes one row of a vector",
            )
        self.check_width(int(np.prod(X.shape[1:])))
        return self._check_complete(X)

    def check_width(self, width: int) -> None:
        """Raise :class:`DataError` for rows of more or fewer columns than it was fitted on."""
        if width != self.schema_.width:
            raise DataError(
                f"X has {width} features, but {type(self).__name__} is expecting "
                f"{self.schema_.width} features as input",
                hint="give it the columns that it was fitted on",
            )

    def _check_complete(self, X: Any) -> Any:
        """X, or an error that names the first column in which a value is missing."""
        values = X.data if hasattr(X, "tocsr") else X
        if self.allows_missing or values.dtype.kind != "f" or is_finite(values):
            return X
        finite = np.isfinite(dense(X)).all(axis=0)
        names = [
            f.name for f, whole in zip(self.schema_.features, finite, strict=True) if not whole
        ]
        raise DataError(
            f"X has missing or infinite values in {', '.join(names[:5])}"
            f"{' …' if len(names) > 5 else ''}, {type(self).__name__} needs them all",
            hint="so.Pipeline(so.FedImputer(), …) learns to fill them",
        )

    def _repr_html_(self) -> str:
        """What notebooks show: parameters and, once it is fitted, what it was fitted on."""
        return learner_html(self)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write parameters and everything learned to a file; :func:`load` reads it.

        No code is written: a model with a network of one's own warns what must be there to load it.
        """
        path = Path(path)
        write_file(path, self.to_bytes(), 0o644, overwrite=True)
        for need in self.needs_to_load():
            log.warning("%s holds no code: %s", path.name, need)
        return path

    def to_bytes(self) -> bytes:
        """Parameters and everything learned, as :meth:`save` writes it."""
        self.check_fitted()
        content = {"format": _FORMAT, **describe_fitted(self), "history": self.history_}
        if self._trained_with is not None:
            content["training"] = self._trained_with
        return encode(content, _FILE_LIMITS)

    def needs_to_load(self) -> list[str]:
        """What a process must do before it can load this model, in words; mostly nothing."""
        return []

    def card(self, evaluation: Any = None, *, energy: Any = None) -> str:
        """A model card in Markdown: data, clients, rounds, metrics, privacy, versions, limits.

        ``evaluation`` is what :meth:`Predictor.evaluate` returned, ``energy`` what
        ``so.energy.track_energy`` measured; what nobody measured, the card says is not known.
        """
        return model_card(self, evaluation, energy)

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Write what ``predict`` and ``predict_proba`` compute as an ONNX file.

        Its inputs and outputs are described in :mod:`solera.learn.export.model`; the file holds
        the schema as metadata, too. A learner whose prediction is no graph says so.
        """
        from solera.learn.export import export

        return export(self, path)

    def onnx_inputs(self, X: Any) -> dict[str, Array]:
        """These rows, a frame or an array, as the inputs that the exported graph takes."""
        from solera.learn.export import onnx_inputs

        return onnx_inputs(self, X)

    def to_sklearn(self) -> Any:
        """The fitted estimator of scikit-learn that predicts the same, where there is one.

        It takes rows as numbers, categories as codes, as ``predict`` takes arrays.
        """
        from solera.learn.export import to_sklearn

        return to_sklearn(self)


class Predictor(Learner, abstract=True):
    """A learner that maps rows to classes, labels or numbers."""

    @property
    def predicts(self) -> bool:
        return True

    @abstractmethod
    def predict(self, X: Any) -> Array:
        """The predicted class, labels or numbers of every row."""

    @property
    def classes_(self) -> Array:
        """The classes, in the order of the columns of ``predict_proba``."""
        self.check_fitted()
        if self.schema_.target != "classes":
            raise AttributeError(f"{type(self).__name__} was fitted to {self.schema_.target}")
        return self.schema_.classes

    def score(self, X: Any, y: Any = None) -> float:
        """Accuracy for classes, subset accuracy for labels, R² for numbers.

        A frame may bring its target along. X may also be a federation: then over all rows of its
        clients, which are counted where they are.
        """
        self.check_fitted()
        if isinstance(X, Federation):
            return self._score_clients(X)
        y = encode_target(self._target_of(X) if y is None else y, self.schema_)
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

    def _target_of(self, X: Any) -> Any:
        """The target in a frame that brings it along."""
        names = self.schema_.target_names
        if not is_frame(X) or not names:
            raise UsageError("X does not come with its target: give y as well")
        frame = to_pandas(X)
        check_columns(names, frame.columns)
        return frame[names[0]] if len(names) == 1 else frame[[*names]]

    def _score_clients(self, federation: Federation) -> float:
        from solera.learn.evaluation import evaluate_all

        return float(next(iter(evaluate_all(self, federation).metrics.values())))

    def losses(self, X: Any, y: Any) -> FloatArray:
        """−log p of the class, the mean of −log p over labels, or half the squared error."""
        y = encode_target(y, self.schema_)
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

        if isinstance(federation, Federation):
            more: dict[str, Any] = {"scores": scores, "metrics": metrics}
            return evaluate(self, federation, part, per_client=per_client, **more)
        self.check_fitted()
        y = self._target_of(federation) if y is None else y
        return evaluate_rows(self, federation, y, scores, metrics)


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

    @abstractmethod
    def transform(self, X: Any) -> Any:
        """The transformed rows."""

    def fit_transform(self, X: Any, y: Any = None) -> Any:
        """Learn from rows of one's own and transform these; those of a federation stay there."""
        return self.fit(X, y).transform(X)

    def transform_rows(self, X: Any, schema: Schema) -> Any:
        """The transformed rows of a client that describes them by a schema of its own."""
        return self.transform(X)

    def transform_schema(self, schema: Schema) -> Schema:
        """What transformed rows look like."""
        return schema

    def planned_schema(self, schema: Schema) -> Schema:
        """What transformed rows will look like, as far as that is known before ``fit``."""
        step = self.clone()
        step.schema_ = schema
        return step.transform_schema(schema)


def _plan_for_any_rows(learner: Learner, callbacks: Sequence[Callback]) -> Plan:
    plans, problems = [], []
    for schema in _possible_schemas():
        try:
            plans.append(learner.asks(schema, callbacks=callbacks))
        except (DataError, SchemaError) as problem:  # rows that it cannot learn from
            problems.append(problem)
    if not plans:
        raise problems[0]
    return one_of(*plans)


def _possible_schemas() -> Iterator[Schema]:
    """Rows of all kinds, no two of the same width and outputs, and wide ones."""
    targets: list[tuple[Target, int]] = [
        ("classes", 2), ("classes", 3), ("labels", 4), ("labels", 5), ("numbers", 1), ("numbers", 6)
    ]  # fmt: skip
    kinds: tuple[Kind, ...] = ("numeric", "categorical")
    for i, (kind, (target, outputs)) in enumerate(product(kinds, [*targets, ("none", 0)])):
        width = _MOST_COLUMNS if target == "classes" and outputs == 2 else 2 + i
        categories = () if kind == "numeric" else ("a", "b")
        features = (Feature("x", kind, categories),) * width
        classes = np.arange(outputs if target in ("classes", "labels") else 0)
        yield Schema(features, target, classes, outputs)


def _identity(learner: Learner) -> Any:
    """What a checkpoint belongs to: the learner, whatever the number of rounds.

    A schedule counts the rounds to come, and so does the noise for an ε: with one of them the
    number of rounds matters.
    """
    described = describe(learner)
    if described["params"].get("schedule") is None and described["params"].get("dp") is None:
        described["params"].pop("rounds", None)
    return described


def as_federation(given: Any, y: Any) -> Federation:
    """The federation, or one client who has these rows."""
    if isinstance(given, Federation):
        if y is not None:
            raise UsageError("fit(federation, y): the clients of a federation have their own y")
        return given
    if y is None and not isinstance(given, Dataset):
        raise UsageError(
            f"fit needs a federation, not {type(given).__name__}; of rows it requires y to be "
            "passed, but the target y is None",
            hint="for example so.simulate(X, y, clients=10)",
        )
    return simulate(given, y, clients=1)


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
        learner._trained_with = content.get("training")
    except PayloadError as error:
        raise PayloadError(f"{path} is not a saved learner: {error.message}") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise PayloadError(f"{path} is not a saved learner: {error!r}") from error
    return learner

"""What all learners share: parameters in the constructor, ``fit``, rounds, and save."""

from __future__ import annotations

import logging
import os
from abc import abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from solera.core.checkpoint import Checkpoint, CheckpointFile, fingerprint
from solera.core.clients import Array, FloatArray
from solera.core.component import describe
from solera.core.constraints import names_checked
from solera.core.engine import OUTSIDE, CheckpointStore, Fit
from solera.core.errors import (
    DataError,
    NotFitted,
    UsageError,
)
from solera.core.federation import Federation
from solera.core.payload import is_finite
from solera.core.private_files import write_file
from solera.core.rounds import Callback, Round, Rounds
from solera.core.schema import Schema, numbered
from solera.core.selection import Selector, Uniform
from solera.core.state import is_state
from solera.data.agreement import agree, check_labelled
from solera.data.arrays import as_rows
from solera.data.dataset import Dataset
from solera.data.files import require_pandas
from solera.data.frames import encode_frame, is_frame
from solera.evaluation.figure import restored
from solera.learn.card import model_card, training_facts
from solera.learn.client_models import ClientParts
from solera.learn.closed import (
    as_job,
    check_closed_fit,
    check_persons,
    count_all_persons,
    elsewhere,
    is_closed,
    is_noised,
)
from solera.learn.closed_losses import with_validation
from solera.learn.forgetting import Forgetful
from solera.learn.history import NameRows, learner_html, plot_history
from solera.learn.model_file import to_bytes
from solera.learn.progress import RoundBar, is_wanted
from solera.learn.rows import dense
from solera.learn.sklearn_tags import tags_of
from solera.learn.unlearning import (
    GoOn,
    KeepingRounds,
    write_kept,
)
from solera.learn.warm_start import continued_schema
from solera.learn.warnings_of_fit import warn
from solera.privacy.dp.mechanism import DP
from solera.privacy.dp.sums import Noise, at_the_sum, check_level, epsilon_so_far
from solera.simulate.simulation import simulate
from solera.trust.epoch.bases import Base

log = logging.getLogger("solera")


class Learner(Forgetful, abstract=True):
    """An estimator in the manner of scikit-learn whose ``fit`` takes a federation.

    A subclass writes :meth:`train`, keeps what it learns in attributes that end in an underscore,
    and replaces their values rather than changing them in place. It may loop over
    :meth:`each_round`.
    """

    allows_missing: ClassVar[bool] = False
    """Whether rows with missing values can be learned from."""
    allows_sparse: ClassVar[bool] = True
    """Whether sparse rows can be learned from."""
    takes_categories: ClassVar[bool] = False
    """Whether it knows codes of categories from numbers."""
    encoder: ClassVar[str] = "so.FedEncoder()"
    """What makes numbers of categories for it."""
    can_start: ClassVar[bool] = False
    """Whether ``fit`` can start from a model."""
    without_server: ClassVar[bool] = False
    """Whether it learns without a server where the clients are peers."""
    closed_job: ClassVar[str | None] = None
    """Why no closed job can carry it and what to use instead; None where one can."""
    hides_clients: ClassVar[bool] = False
    """Whether all that a client sends is bounded together, so that noise may hide the client."""
    judged_by: ClassVar[str | None] = None
    """What stands in the place of :meth:`evaluate`, where no target is predicted."""

    schema_: Schema
    accounts_: dict[str, Any]
    """What the noise of ``dp=`` has spent."""
    history_: list[dict[str, Any]]
    _selector: Selector | None = None
    _callbacks: Sequence[Callback] = ()
    _checkpoint: Any = None
    _loop: Generator[Round, None, None] | None = None
    _start: Any = None
    _remarks: tuple[str, ...] = ()
    _trained_with: dict[str, Any] | None = None
    _federation: Any = None

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

        Rows of one's own (arrays or a frame with their target ``y``, which of a frame may be a
        column's name, or a :class:`Dataset`) are taken for those of one client.

        ``callbacks`` watch the rounds. With ``checkpoint``, a file, everything is stored after each
        round, and a run that was interrupted goes on where it stopped. Over a network the
        coordinator keeps the state of named jobs by itself; with more ``rounds`` than before, a
        finished run goes on as well. Clients begin anew: what they kept for another fit is that
        fit's. ``start`` is a fitted model to begin with instead of from nothing: of the same
        columns, and for averaging of the same shape. Where it is of the same kind, clients begin
        with what they keep of it, too, as long as they do, or with what was saved with it, where
        they have the same names. ``progress`` shows a
        bar of the rounds: by default in terminals and notebooks, once they take longer than a
        second. ``keep`` keeps what :meth:`forget` needs, in memory or in the file that it names;
        the model that :meth:`save` writes does not hold it.
        """
        self.check_params()
        if not self.allows_sparse and hasattr(federation, "tocsr"):
            raise DataError(f"{type(self).__name__} needs dense rows, X is sparse")
        federation = as_job(self, as_federation(federation, y))
        closed = is_closed(federation)
        if closed:
            check_closed_fit(self, federation, callbacks, checkpoint=checkpoint, keep=keep)
            if (owners := elsewhere(federation)) is not None:
                self.reset()
                owners.fit(self, callbacks, start)
                return self
            callbacks = with_validation(callbacks)
        self.reset()
        self.history_ = []
        self._kept = self._client_parts = None
        keeping = self._keeping(federation) if keep else None
        if keeping is not None:
            federation = federation.over(keeping)
        outer = federation.current_fit
        self._client_fit = Fit() if outer is OUTSIDE else outer  # what is fitted inside is part
        bar = [RoundBar()] if is_wanted(progress) else []
        asks_before = len(federation.meter.records)
        with federation.announced(self):
            before = OUTSIDE
            if start is not None and type(start) is type(self):
                start.keeps_at(federation)
                before = start._client_fit
            federation = federation.fitting(self._client_fit, before)
            self.schema_ = self.agree_on_rows(federation)
            if closed and outer is OUTSIDE:
                persons = count_all_persons(federation, classes=not is_noised(self))
                check_persons(self, self.schema_, persons)
            if start is not None:
                self._begin_with(start)
            self._callbacks, self._checkpoint = [*callbacks, *bar], checkpoint
            self._federation = federation
            try:
                self.train(self.with_noise(federation))
                unheard = callbacks if self._loop is None else ()
            finally:
                if self._loop is not None:
                    self._loop.close()  # callbacks hear of the end before an error goes on
                for name in ("_callbacks", "_checkpoint", "_loop", "_start", "_federation"):
                    vars(self).pop(name, None)
            warnings = warn(self, federation, asks_before, unheard)
            if self.is_personal:
                self._client_parts = ClientParts.of(federation)
        self._trained_with = training_facts(federation, self, started=start is not None)
        if warnings:
            self._trained_with["warnings"] = warnings
        if keeping is not None:
            self._kept = keeping.kept
            self._kept["started"] = start is not None
            if not isinstance(keep, bool):
                write_kept(self._kept, keep)
        return self

    def at_clients(self, federation: Federation) -> Federation:
        """The federation as the fit of this model left it: clients see what they keep for it."""
        self.check_fitted()
        fit = self._client_fit
        during = fit is not OUTSIDE and federation.current_fit is fit
        if not during and not self.keeps_at(federation):
            raise UsageError(
                f"the clients of this federation keep nothing of this {type(self).__name__}",
                hint="take the federation of the fit itself, or clients of the same names; "
                "model.at(client) judges rows at hand",
            )
        return federation.fitting(fit)

    def keeps_at(self, federation: Federation) -> bool:
        """Whether these clients keep parts of this model; they get back those saved with it."""
        keeps = getattr(federation.engine, "keeps", None)
        if keeps is not None and keeps(self._client_fit):
            return True
        parts = self._client_parts
        if parts is None or not parts.are_of(federation):
            return False
        parts.give_back(federation, self._client_fit)
        return True

    def agree_on_rows(self, federation: Federation) -> Schema:
        """What the rows of all clients look like, before anything is learned from them."""
        if self.predicts:
            check_labelled(federation)
        schema = agree(federation, allow_missing=self.allows_missing)
        self.check_schema(schema)
        if schema.shape and not self.keeps_shape:
            shape = " × ".join(map(str, schema.shape))
            log.warning(
                "%s reads rows of %s as %d columns", type(self).__name__, shape, schema.width
            )
        return schema

    def check_schema(self, schema: Schema) -> None:
        """Refuse rows without the target that is to be predicted, and codes taken for numbers."""
        kind = type(self).__name__
        if not schema.features:
            raise DataError(
                f"{kind} reads columns, the rows are samples of a data set",
                hint="so.simulate(so.data.from_torch(dataset)) makes arrays of them; so.FedTorch "
                "trains on samples as they are",
            )
        if self.predicts and schema.target == "none":
            raise DataError(
                f"{kind} needs a target", hint="so.simulate(X, y), or so.simulate(frame, target=…)"
            )
        names = [repr(f.name) for f in schema.features if f.is_text]
        if names and not self.takes_categories:
            raise DataError(
                f"{kind} reads numbers, {', '.join(names[:5])} holds categories",
                hint=f"so.Pipeline({self.encoder}, so.{kind}(…)) makes columns of 0 and 1; where "
                "the order of categories counts, so.FedEncoder('ordinal')",
            )

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

    # --- noise ---

    @property
    def privacy(self) -> DP | None:
        """How much noise hides a row or a client, if any does: the parameter ``dp``."""
        dp: DP | None = vars(self).get("dp")
        return dp

    def noised_asks(self) -> int:
        """How many asks of a fit carry noise where some is wanted."""
        return int(vars(self)["rounds"])

    def noise_among(self, clients: int, *, closed: bool = False) -> Noise:
        """The noise of ``dp=`` on all that so many clients are asked, once it is priced."""
        assert self.privacy is not None
        if not self.hides_clients:
            check_level(self, self.privacy)
        return Noise(self, self.privacy, clients, closed=closed).opened(self.noised_asks())

    def with_noise(self, federation: Federation) -> Federation:
        """The federation that :meth:`train` asks: with the noise of ``dp=``, counted."""
        if self.privacy is None:
            return federation
        return federation.noised(self.noise_among(len(federation), closed=is_closed(federation)))

    @property
    def epsilon_(self) -> float | None:
        """ε that the noise of ``dp=`` has spent so far; None where there is none."""
        self.check_fitted()
        accounts = vars(self).get("accounts_")
        return None if accounts is None else epsilon_so_far(accounts)

    @property
    def privacy_(self) -> str:
        """What ``epsilon_`` promises, to whom."""
        accounts = self.accounts_
        dp = self.privacy
        hidden = "record" if dp is None else dp.level
        worth = f"ε = {self.epsilon_:.4g} at δ = {accounts['delta']:g}"
        peers = accounts.get("honest_peers")
        return f"{worth} for one {hidden}" if peers is None else f"{worth} {at_the_sum(peers)}"

    @property
    def is_personal(self) -> bool:
        """Whether every client has a model of its own, of which this one holds what all share."""
        return False

    def client_states(self) -> list[Any] | None:
        """What simulated clients keep at this moment of the fit of a personal model."""
        if not self.is_personal or not getattr(self._federation.engine, "simulated", False):
            return None
        return [list(pair) for pair in sorted(self._federation.states().items())]

    def restore_clients(self, states: list[Any] | None) -> None:
        """Put back what :meth:`client_states` returned."""
        if states is not None:
            self._federation.engine.restore(dict(states), self._client_fit)

    def check_common(self) -> None:
        """Raise :class:`UsageError` where every client has a model of its own."""
        if not self.is_personal:
            return
        parts = self._client_parts
        line = "at its owner, solera predict MODEL ROWS --folder FOLDER"
        if parts is not None and parts.parts:
            line = f"model.at({parts.name(min(parts.parts))!r}).predict(X)"
        raise UsageError(
            f"every client of this {type(self).__name__} has a model of its own, and rows name no "
            "client",
            hint=f"{line}; model.evaluate(federation) judges each by its own",
        )

    def remark(self, text: str) -> None:
        """Say something with the warnings of the fit that goes on."""
        self._remarks = (*self._remarks, text)

    def why_not_closed(self) -> str | None:
        """``closed_job``, or what of the parameters no closed job can carry."""
        return self.closed_job

    def base_among(self, bases: Sequence[Base]) -> Base | None:
        """Which base model of those that a dictionary lists it adapts, where it adapts one."""
        return None

    def parameters_of_output(self, schema: Schema) -> int:
        """Of a model that is solved exactly: how many parameters an output has; 0 of others."""
        return 0

    @property
    def cuts_at_atoms(self) -> bool:
        """Whether a closed job cuts its columns between the epoch's atoms."""
        return False

    @property
    def sends_updates(self) -> bool:
        """Whether clients send a model after steps over their rows."""
        return False

    @property
    def needs_exact_training(self) -> bool:
        """Whether exact sums of many rounds together can give away a person's target."""
        return self.sends_updates and self.privacy is None

    @property
    def keeps_shape(self) -> bool:
        """Whether images and the like are read in their own shape."""
        return False

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
        prepared: Federation | None = None,
    ) -> Iterator[Round]:
        """The rounds of an iterative learner.

        ``prepared`` are the same clients with rows as the learner trains on: it asks these, while
        callbacks and selectors judge it by rows as they are, without noise.

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
                federation.noised(None),
                self,
                rounds,
                self._selector,
                per_round,
                [NameRows(), *self._callbacks],
                checkpoint,
                self.history_,
                federation if prepared is None else prepared,
            )
        )
        return self._loop

    read_entry = staticmethod(restored)
    """What a checkpoint holds of a round, as an entry of the history."""

    def rows_of_loss(self, round: Round) -> dict[str, Any]:
        """Of which rows the loss is that a round logs: those of the clients that replied."""
        absent = {failure.client for failure in round.failures}
        sizes = round.federation.engine.sizes("train")
        replied = np.setdiff1d(round.clients, list(absent))
        return {
            "part": "train",
            "rows": None if sizes is None else int(sizes[replied].sum()),
            "clients": len(replied),
            "asked": len(round.chosen),
            "absent": len(absent),
        }

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

    def evaluate(self, federation: Any, *_: Any, **__: Any) -> Any:
        """Only of learners that predict a target."""
        self.check_predicts()

    def check_predicts(self) -> None:
        """Raise :class:`UsageError` where no target is predicted that could be compared with."""
        if not self.predicts:
            raise UsageError(
                f"{type(self).__name__} does not predict the target and cannot be judged by it",
                hint=self.judged_by,
            )

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
        """X as rows of the columns the learner was fitted on; a frame's by their names.

        Every method that takes rows passes them through here, or one row through
        :meth:`check_row`, and nowhere else; a target goes through
        :func:`solera.data.frames.encode_target`.
        """
        self.check_fitted()
        if isinstance(X, Federation):
            raise UsageError(
                "X is a federation, whose rows stay with its clients",
                hint="evaluate(federation) and score(federation) judge by them; here give rows",
            )
        X = encode_frame(X, self.schema_) if is_frame(X) else as_rows(X)
        if hasattr(X, "tocsr") and not self.allows_sparse:
            kind = type(self).__name__
            raise DataError(f"{kind} needs dense rows, X is sparse", hint="use X.toarray()")
        if not X.shape[0]:
            raise DataError(f"X has 0 sample(s) (shape={X.shape}) while a minimum of 1 is required")
        self.check_width(int(np.prod(X.shape[1:])))
        return self._check_complete(X)

    def check_row(self, x: Any) -> Any:
        """One row, as :meth:`check_rows` has it: a vector, or named by a dict or a Series."""
        if isinstance(x, Mapping):
            x = require_pandas("a row with names").DataFrame([x])
        elif hasattr(x, "to_frame"):
            x = x.to_frame().T
        elif not is_frame(x) and not isinstance(x, Federation) and np.ndim(x) == 1:
            x = np.asarray(x)[None]
        row = self.check_rows(x)
        if row.shape[0] > 1:
            raise DataError(f"one row is needed, X has {row.shape[0]:,}")
        return row

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
        return to_bytes(self)

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

        self.check_common()
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
    if isinstance(y, str) and is_frame(given):
        return simulate(given, target=y, clients=1)
    if y is None and not isinstance(given, Dataset):
        raise UsageError(
            f"fit needs a federation, not {type(given).__name__}; of rows it requires y to be "
            "passed, but the target y is None",
            hint="for example so.simulate(X, y, clients=10)",
        )
    return simulate(given, y, clients=1)

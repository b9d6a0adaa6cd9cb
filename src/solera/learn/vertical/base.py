"""The base of vertical learners, and how to write one.

A vertical federation (:func:`solera.simulate_vertical`, or agents that joined with ``--id``) is an
ordinary federation whose clients hold different columns of the same people. A learner of it is a
:class:`VerticalLearner`; it writes

``train_parties(parties)``
    the protocol: ``parties.ask(task, payload, to=[…], round=r)`` in a loop over
    ``self.each_round(parties.federation, rounds=…)``. Alignment has happened, ``self.parties_``,
    ``self.owners_`` (who holds labels, as positions) and ``self.schema_`` (all columns, the
    target of the label owner) are known, ``self.model_`` is the model's name.
``predict_parties(parties, part)``
    the protocol that ends with :func:`party.keep_outputs` at every label owner.

Its tasks are declared with ``sealed=True`` where parties exchange messages: an ask's entry
``sealed`` lists ``{"sender": int, "content": …}``. Owners let them run under the policy
``trusted`` only::

    @task("mine.forward", sealed=True)
    def forward(client, ask):
        rows = shared_rows(client, ask["model"])            # X, and y at the label owner
        part = part_of(client, ask["model"])                # this client's part of the model
        keep_part(client, ask["model"], weights=…)          # replaced, never changed in place
        return {"sealed": [message(ask["owner"], "mine.loss", ask["step"], {"u": …})]}

A message names its recipient by ``parties.numbers[k]``, the task that reads it and that ask's
``round=``: it opens nowhere else. ``parties.ask`` hands it over. See :mod:`solera.core.sealing`,
:mod:`solera.learn.vertical.party` and :mod:`solera.learn.vertical.parties`.

Everything a party keeps lies in its part of the model, at that client: ``save_part`` and
``load_part`` write and read it; the coordinator's own :meth:`Learner.save` holds no weight.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import numpy as np

from solera.core.component import describe
from solera.core.constraints import Positive, ProperFraction
from solera.core.errors import DataError, NotFitted, PayloadError, SchemaError, UsageError
from solera.core.federation import Federation
from solera.core.payload import decode, encode
from solera.core.private_files import write_file
from solera.core.schema import Feature, Schema
from solera.data.agreement import describe as describe_rows
from solera.data.files import require_pandas
from solera.evaluation.figure import Figure
from solera.evaluation.metrics import headline_of
from solera.learn.base import Predictor
from solera.learn.vertical.alignment import align
from solera.learn.vertical.judging import Said, judge, outputs
from solera.learn.vertical.parties import Parties
from solera.learn.vertical.party import PARTS, SharedPart
from solera.privacy.identifiers import Normalisation

Labels = str | int | Sequence[str | int] | None


class VerticalLearner(Predictor, abstract=True):
    """A learner for clients that hold different columns of the same people.

    Parameters
    ----------
    labels: the client that holds the target, by name or number; by default the only one that does.
        A list of clients where a learner allows for several label owners.
    align: ``"psi"`` finds the common rows by private set intersection of identifiers; ``"order"``
        takes all rows in the order in which clients hold them, which must be the same.
    normalise: how identifiers are written before they are compared, see
        :mod:`solera.privacy.identifiers`.
    validation, test: shares of the common rows to set aside.
    deadline: seconds after which a party that does not answer has left.
    """

    takes_categories = True
    closed_job = "clients hold different columns, of which nothing is a sum"
    several_owners = False
    """Whether it learns from several label owners."""
    parties_: list[str]
    owners_: list[int]
    model_: str

    def __init__(
        self,
        *,
        labels: Labels = None,
        align: Literal["psi", "order"] = "psi",
        normalise: Normalisation = "plain",
        validation: ProperFraction = 0.0,
        test: ProperFraction = 0.0,
        deadline: Positive | None = None,
    ) -> None:
        self.labels = labels
        self.align = align
        self.normalise = normalise
        self.validation = validation
        self.test = test
        self.deadline = deadline

    # --- to write ---

    @abstractmethod
    def train_parties(self, parties: Parties) -> None:
        """Learn; rows are aligned."""

    @abstractmethod
    def predict_parties(self, parties: Parties, part: SharedPart) -> None:
        """Make every label owner keep what the model says of the rows of a part."""

    def check_parties(self, views: Sequence[Schema]) -> None:
        """Raise an error where what the parties hold does not fit the parameters."""

    # --- learning ---

    def agree_on_rows(self, federation: Federation) -> Schema:
        """What the parties hold together; errors come before anything else is asked."""
        if len(federation) < 2:
            raise UsageError(
                f"{type(self).__name__} needs at least two parties, there is {len(federation)}",
                hint="so.simulate_vertical(df, columns={…}, target=…, id=…)",
            )
        parties = Parties(federation, deadline=self.deadline)
        told = parties.ask(describe_rows, None)
        views = [Schema.from_payload(told[k]) for k in range(len(parties))]
        for name, answer in zip(parties.names, told.values(), strict=True):
            if answer["empty"]:
                raise DataError(f"{name} has no rows")
        holders = [k for k, view in enumerate(views) if view.target != "none"]
        self.parties_ = list(parties.names)
        self.owners_ = self._chosen_owners(holders)
        self.check_parties(views)
        described = encode([describe(self), federation.seed, self.parties_])
        self.model_ = blake2b(described, digest_size=16).hexdigest()
        return self._joint(views)

    def _chosen_owners(self, holders: Sequence[int]) -> list[int]:
        """Positions of the label owners that are meant."""
        names = [self.parties_[k] for k in holders]
        if not holders:
            raise DataError(
                "no party holds labels", hint="let one of them join with its --target column"
            )
        if self.labels is None:
            if len(holders) > 1:
                raise DataError(
                    f"{', '.join(names)} all hold labels",
                    hint=f"say whose count: {type(self).__name__}(labels={names[0]!r})",
                )
            return list(holders)
        single = isinstance(self.labels, str | int)
        wanted: Any = [self.labels] if single else self.labels
        if len(wanted) > 1 and not self.several_owners:
            raise UsageError.of(self, "labels", self.labels, "names several, one is needed")
        chosen = []
        for label in wanted:
            known = self.parties_.index(label) if label in self.parties_ else label
            if not isinstance(known, int) or not 0 <= known < len(self.parties_):
                raise UsageError(
                    f"{type(self).__name__}(labels={self.labels!r}): there is no party {label!r}",
                    hint=f"there are {', '.join(self.parties_)}",
                )
            if known not in holders:
                raise DataError(
                    f"{self.parties_[known]} holds no labels", hint=f"{', '.join(names)} does"
                )
            chosen.append(known)
        return sorted(chosen)

    def _joint(self, views: Sequence[Schema]) -> Schema:
        names: dict[str, int] = {}
        for view in views:
            for feature in view.features:
                names[feature.name] = names.get(feature.name, 0) + 1
        features = [
            Feature(f.name if names[f.name] == 1 else f"{party}.{f.name}", f.kind, f.categories)
            for party, view in zip(self.parties_, views, strict=True)
            for f in view.features
        ]
        target = views[self.owners_[0]]
        classes = target.classes
        for k in self.owners_[1:]:
            if views[k].target != target.target:
                raise SchemaError(
                    f"{self.parties_[k]} has a target of {views[k].target}, "
                    f"{self.parties_[self.owners_[0]]} of {target.target}"
                )
            classes = np.union1d(classes, views[k].classes)
        outputs = len(classes) if target.target == "classes" else target.outputs
        return Schema(tuple(features), target.target, classes, outputs)

    def train(self, federation: Federation) -> None:
        parties = Parties(federation, deadline=self.deadline)
        self.rows_ = align(
            parties,
            self.model_,
            self.align,
            self.normalise,
            validation=self.validation,
            test=self.test,
        )
        self.train_parties(parties)

    # --- what was learned ---

    def predict_outputs(self, federation: Federation, part: SharedPart | None = None) -> Any:
        """What the model says of rows: a frame of probabilities by class, or of numbers.

        ``part`` names rows of the training's order. Without it all rows that the clients hold now
        are aligned, whether the model has seen them or not. The index says whose rows these are: in
        a simulation by identifiers, elsewhere by their numbers in the label owner's table, which
        they are in the order of.
        """
        self.check_fitted()
        self._check_federation(federation)
        with federation.announced(self):
            parties = self._parties(federation)
            said = self._say(parties, part)
            values, ids = outputs(parties, self.model_, self.owners_[0], said)
        names = self.schema_.classes if len(self.schema_.classes) else range(values.shape[1])
        return require_pandas("whose predictions these are").DataFrame(values, ids, names)

    def _say(self, parties: Parties, part: SharedPart | None) -> SharedPart:
        """Let the parties predict; which rows these are."""
        if part is None:
            align(parties, self.model_, self.align, self.normalise, now=True)
        self.predict_parties(parties, part or "now")
        return part or "now"

    def _check_federation(self, federation: Any) -> None:
        if not isinstance(federation, Federation):
            raise UsageError(
                f"{type(self).__name__} predicts with all its parties, X is "
                f"{type(federation).__name__}",
                hint="give the federation: each party holds its own part of the model",
            )

    def _parties(self, federation: Federation) -> Parties:
        parties = Parties(federation, deadline=self.deadline)
        if list(parties.names) != self.parties_:
            raise UsageError(
                f"the model was trained by {', '.join(self.parties_)}, these are "
                f"{', '.join(parties.names)}"
            )
        return parties

    def predict(self, X: Any, part: SharedPart | None = None) -> Any:
        """The predicted class or number of every row that the parties of a federation share.

        A pandas Series, or a frame of several labels or numbers; its index says whose they are.
        """
        said = self.predict_outputs(X, part)
        predicted = Said(self.schema_).predict(said.to_numpy())
        pandas = require_pandas("whose predictions these are")
        if predicted.ndim == 1:
            return pandas.Series(predicted, said.index, name="prediction")
        return pandas.DataFrame(predicted, said.index, said.columns)

    def predict_proba(self, X: Any, part: SharedPart | None = None) -> Any:
        """The probability of every class (or label) for each shared row, a column each."""
        self.check_has_classes()
        return self.predict_outputs(X, part)

    def evaluate(
        self,
        federation: Any,
        part: Any = "test",
        *,
        y: Any = None,
        per_client: bool = True,
        scores: Any = False,
        metrics: Sequence[str] = (),
    ) -> Any:
        """Metrics, counted by the label owner; neither labels nor predictions leave it.

        ``part`` are rows of the training's order, or None for all that the parties share now;
        ``scores`` as in :func:`solera.learn.evaluate`. With several label owners the counts of
        all are added.
        """
        self.check_fitted()
        self._check_federation(federation)
        if y is not None or metrics:
            raise UsageError("evaluate(federation): the label owner has the target and its metrics")
        with federation.announced(self):
            parties = self._parties(federation)
            rows = self._say(parties, part)
            return judge(parties, self.model_, self.owners_, rows, self.schema_, scores)

    def rows_of_loss(self, round: Any) -> dict[str, Any]:
        return {"part": "train", "rows": None}

    def score_figure(self, X: Any, y: Any = None) -> Figure:
        """Accuracy or R² over all rows that the parties share now, counted by the label owner."""
        if y is not None:
            raise UsageError("score(federation): the label owner has the target")
        figure: Figure = self.evaluate(X, None)[headline_of(self.schema_.target)]
        return figure

    # --- each party's own part ---

    def part(self, federation: Federation, party: str | int) -> dict[str, Any]:
        """A simulated party's part of the model; a real party's stays with it."""
        self.check_fitted()
        k = self.parties_.index(party) if isinstance(party, str) else int(party)
        states = federation.engine.states()
        held = states.get(k, {}).get(PARTS, {})
        if self.model_ not in held:
            raise NotFitted(
                f"{self.parties_[k]} holds no part of this model here",
                hint="load_part reads one; real parties keep theirs themselves",
            )
        return dict(held[self.model_])

    def save_part(
        self, federation: Federation, party: str | int, path: str | os.PathLike[str]
    ) -> Path:
        """Write a simulated party's part of the model, and nothing of the others'."""
        part = self.part(federation, party)
        content = {"solera_part": 1, "model": self.model_, "part": part}
        write_file(Path(path), encode(content), 0o600, overwrite=True)
        return Path(path)

    def load_part(
        self, federation: Federation, party: str | int, path: str | os.PathLike[str]
    ) -> None:
        """Give a simulated party its part of the model, as :meth:`save_part` wrote it."""
        self.check_fitted()
        content = decode(Path(path).read_bytes())
        if not isinstance(content, dict) or content.get("model") != self.model_:
            raise PayloadError(f"{path} is no part of this model")
        k = self.parties_.index(party) if isinstance(party, str) else int(party)
        states = {client: dict(state) for client, state in federation.engine.states().items()}
        own = states.setdefault(k, {})
        own[PARTS] = {**own.get(PARTS, {}), self.model_: content["part"]}
        federation.engine.restore(states)

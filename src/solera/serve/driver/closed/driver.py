"""``fit``, ``evaluate`` and ``describe`` over a network: closed jobs, unless all owners trust.

What a text cannot carry is refused before it is registered, with the line to write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NoReturn

from solera.core.component import Component
from solera.core.errors import DataError, UsageError
from solera.core.payload import decode
from solera.evaluation.evaluation import Evaluation
from solera.evaluation.figure import figures, restored
from solera.evaluation.stopping import EarlyStopping, StopAt
from solera.learn.learner import Learner
from solera.serve.connection import Connection
from solera.serve.driver.closed.attached import Attached
from solera.serve.driver.closed.epochs import signed_epoch
from solera.serve.driver.closed.researcher import Researcher
from solera.trust.board.text import JobText
from solera.trust.epoch.epoch import Epoch
from solera.trust.epoch.selection import Selection

RESULT = "closed_result"
"""Among what a model was trained with: the hash by which its owners know it."""


class ClosedDriver:
    """What the engine of a connected federation uses in the place of asks."""

    def __init__(
        self,
        connection: Connection,
        federation: str,
        researcher: Researcher,
        repeat: int,
        selection: Selection,
        patience: int = 7,
    ) -> None:
        self._connection, self._federation = connection, federation
        self._researcher, self._repeat = researcher, repeat
        self._selection, self._patience = selection, patience
        self._epoch: Epoch | None = None

    @property
    def epoch(self) -> Epoch:
        """The federation's signed epoch; an error that names the owners still missing."""
        if self._epoch is None:
            self._epoch = signed_epoch(self._connection, self._federation)
        return self._epoch

    def fit(self, learner: Learner, **options: Any) -> None:
        """Let all owners fit the learner; afterwards it has learned what they did."""
        check_options(learner, options)
        start = options.get("start")
        text = self._text(
            "training",
            learner=learner,
            callbacks=tuple(options.get("callbacks", ())),
            model=None if start is None else result_of(start),
        )
        closed = self._closed(text)
        result = opened(closed.result)
        learner.set_state(result["model"]["learned"])
        learner.history_ = [restored(entry) for entry in result["history"]]
        learner._trained_with = {RESULT: closed.digest.hex(), "epoch": self.epoch.hash.hex()}

    def evaluate(self, model: Learner, part: str, metrics: Sequence[str]) -> Evaluation:
        """Let all owners score a model on the test part, once; later calls get the same."""
        if part != "test":
            raise UsageError(
                f"a closed job scores the test part, not {part!r}", hint='model.evaluate(fed, "test")'
            )
        text = self._text("evaluation", model=result_of(model), metrics=tuple(metrics))
        result = opened(self._closed(text).result)
        told = figures(result["metrics"])
        return Evaluation(told, {}, dict(result["counts"]), notes=tuple(result["notes"]))

    def describe(self) -> Mapping[str, Any]:
        """What all rows together are like."""
        table: Mapping[str, Any] = opened(self._closed(self._text("statistics")).result)["table"]
        return table

    def _text(self, kind: Any, **content: Any) -> JobText:
        return JobText(
            kind=kind,
            learner=content.pop("learner", None),
            **asdict(self._selection),
            patience=self._patience,
            repeat=self._repeat,
            researcher=self._researcher.name,
            researcher_key=self._researcher.public,
            **content,
        )

    def _closed(self, text: JobText) -> Any:
        place = (self._connection, self._federation, self.epoch)
        return Attached(*place, text, self._researcher).wait()


def opened(result: bytes) -> dict[str, Any]:
    """What owners signed; an error where totals allowed no result."""
    content: dict[str, Any] = decode(result)
    if "failed" in content:
        raise DataError(f"all owners end with: {content['failed']}", hint=content["hint"] or None)
    return content


def result_of(model: Learner) -> str:
    """The hash by which owners know a model."""
    model.check_fitted()
    hash = (model._trained_with or {}).get(RESULT)
    if not isinstance(hash, str):
        raise UsageError(
            f"this {type(model).__name__} comes from elsewhere: owners know models by the hash of "
            "the closed job that made them",
            hint="fit it over this federation first",
        )
    return hash


def check_options(learner: Learner, options: Mapping[str, Any]) -> None:
    """Refuse what a text cannot carry, before it is registered."""
    kind = type(learner).__name__
    if reason := getattr(learner, "closed_job", None):
        raise UsageError(f"{kind} cannot be a closed job: {reason}")
    if options.get("checkpoint") is not None:
        _refuse("checkpoint=", "owners keep every sum, and the same call attaches again", "leave it out")
    if options.get("keep"):
        _refuse("keep=", "forgetting needs single clients' parts", 'the policy "trusted"')
    for callback in options.get("callbacks", ()):
        if not isinstance(callback, EarlyStopping | StopAt):
            name = type(callback).__name__
            _refuse(f"the callback {name}", "it would see what only owners see", "so.callbacks.EarlyStopping or StopAt")
    for name, instead in _PARAMETERS.items():
        if _has(learner, name):
            _refuse(f"{name}=", "all owners take part in every sum", instead)


_PARAMETERS = {
    "per_round": "leave per_round= out",
    "select": "leave select= out",
    "encrypt": "leave encrypt= out: owners mask what they share",
}


def _has(learner: Component, name: str) -> bool:
    """Whether a learner, or one inside it, was given this parameter."""
    params = learner.get_params(deep=False)
    if params.get(name) is not None:
        return True
    inside = [value for value in params.values() if isinstance(value, Component)]
    for value in params.values():
        if isinstance(value, list | tuple):
            inside += [one for one in value if isinstance(one, Component)]
    return any(_has(one, name) for one in inside)


def _refuse(what: str, why: str, instead: str) -> NoReturn:
    raise UsageError(f"a closed job carries no {what}: {why}", hint=instead)

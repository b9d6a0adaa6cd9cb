"""``fit``, ``evaluate`` and ``describe`` over a network, as closed jobs.

What no text can carry is refused by :mod:`solera.learn.closed` before it comes here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from solera.core.errors import DataError, UsageError
from solera.core.payload import decode
from solera.evaluation.evaluation import Evaluation
from solera.evaluation.figure import restored
from solera.learn.closed import check_bases
from solera.learn.closed_description import ColumnSummary
from solera.learn.closed_evaluation import from_payload, shown
from solera.learn.learner import Learner
from solera.serve.closed import ClosedJob
from solera.serve.closed_words import parsed
from solera.serve.connection import Connection
from solera.serve.driver.closed.attached import Attached
from solera.serve.driver.closed.epochs import signed_epoch
from solera.serve.driver.closed.researcher import Researcher
from solera.trust.board.result import Closed
from solera.trust.board.text import JobText
from solera.trust.epoch.epoch import Epoch
from solera.trust.epoch.selection import Selection

RESULT = "closed_result"
"""Among what a model was trained with: the hash by which its owners know it."""


class ClosedDriver:
    """The owners of a federation, who run closed jobs: :class:`solera.learn.closed.Owners`."""

    def __init__(
        self,
        connection: Connection,
        federation: str,
        researcher: Researcher,
        repeat: int,
        selection: Selection,
        patience: int = 7,
        positive: Any = None,
    ) -> None:
        self._connection, self._federation = connection, federation
        self._researcher, self._repeat = researcher, repeat
        self._selection, self._patience = selection, patience
        self._positive = "" if positive is None else str(positive)
        self._epoch: Epoch | None = None

    @property
    def epoch(self) -> Epoch:
        """The federation's signed epoch; an error that names the owners still missing."""
        if self._epoch is None:
            self._epoch = signed_epoch(self._connection, self._federation)
        return self._epoch

    def fit(self, learner: Learner, callbacks: Sequence[Any], start: Learner | None) -> None:
        """Let all owners fit the learner; afterwards it has learned what they did."""
        self._take(learner, self.register(learner, callbacks, start).wait())

    def fit_grid(self, learners: Sequence[Learner]) -> tuple[Learner, list[dict[str, Any]]]:
        """The learner with the smallest mean loss over the validation folds, and every loss."""
        closed = self.register(learners).wait()
        result = opened(closed.result)
        best = learners[result["best"]].clone()
        self._take(best, closed)
        return best, result["points"]

    def _take(self, learner: Learner, closed: Closed) -> None:
        result = opened(closed.result)
        learner.set_state(result["model"]["learned"])
        learner.history_ = [restored(entry) for entry in result["history"]]
        learner._trained_with = {RESULT: closed.digest.hex(), "epoch": self.epoch.hash.hex()}

    def register(
        self,
        learner: Learner | Sequence[Learner],
        callbacks: Sequence[Any] = (),
        start: Learner | None = None,
    ) -> Attached:
        """Show all owners the text of a fit, or of several learners to choose from."""
        began = None if start is None else result_of(start)
        about = {"callbacks": tuple(callbacks), "model": began, "positive": self._positive}
        selection, dictionary = self._selection, self.epoch.dictionary
        check_bases(learner, dictionary.bases)
        schema = dictionary.schema(selection.columns, selection.target)
        schema.with_positive(self._positive or None)  # an error unless it is one of two classes
        return self._attached(self._text("training", learner=learner, **about))

    def evaluate(
        self, model: Learner, part: str, scores: Any, metrics: Sequence[str]
    ) -> Evaluation:
        """Let all owners score a model on the test part, once; later calls get the same."""
        if part != "test":
            hint = 'model.evaluate(federation, "test")'
            raise UsageError(f"a closed job scores the test part, not {part!r}", hint=hint)
        text = self._text("evaluation", model=result_of(model), repeat=0, metrics=tuple(metrics))
        content = opened(self._closed(self._scored_before(text)).result)["evaluation"]
        return shown(from_payload(content), bool(scores), metrics)

    def _scored_before(self, text: JobText) -> JobText:
        """The text of the one scoring that there is, if any: it may give other metrics."""
        path = f"/v1/federations/{self._federation}/closed"
        for job in self._connection.call("GET", path, list[ClosedJob]):
            earlier = parsed(job)
            again = replace(text, metrics=earlier.metrics, patience=earlier.patience)
            if earlier == again and (job.epoch, job.state) == (self.epoch.hash.hex(), "finished"):
                return earlier
        return text

    def describe(self) -> ColumnSummary:
        """What all training rows together are like."""
        told = opened(self._closed(self._text("statistics")).result)["description"]
        selection = self._selection
        schema = self.epoch.dictionary.schema(selection.columns, selection.target)
        return ColumnSummary.from_payload(schema, told)

    def statistics(self, job: Any) -> Any:
        """What ``job.look`` comes to at all owners, as plain data."""
        return opened(self._closed(self._text("statistics", learner=job)).result)["statistics"]

    def _text(self, kind: Any, **content: Any) -> JobText:
        return JobText(
            kind=kind,
            learner=content.pop("learner", None),
            **asdict(self._selection),
            patience=self._patience,
            repeat=content.pop("repeat", self._repeat),
            researcher=self._researcher.name,
            researcher_key=self._researcher.public,
            **content,
        )

    def _closed(self, text: JobText) -> Closed:
        return self._attached(text).wait()

    def _attached(self, text: JobText) -> Attached:
        place = (self._connection, self._federation, self.epoch)
        return Attached(*place, text, self._researcher)


def opened(result: bytes) -> dict[str, Any]:
    """What owners signed; an error where totals allowed no result."""
    content: dict[str, Any] = decode(result)
    if "refused" in content:
        raise DataError(f"all owners end with: {content['refused']}")
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

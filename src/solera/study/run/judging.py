"""What models come to on test rows, on clients' own rows and on those of others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

import numpy as np

from solera.core.clients import Rows
from solera.core.errors import UsageError
from solera.core.schema import Schema
from solera.data.dataset import Dataset
from solera.data.federated import FederatedData
from solera.evaluation.counts import summed
from solera.evaluation.curves import Curves, curves_of
from solera.evaluation.evaluation import Evaluation
from solera.evaluation.figure import measured
from solera.evaluation.metrics import headline_metric
from solera.evaluation.scores import Scores
from solera.learn.evaluation import evaluate, evaluate_rows
from solera.learn.scores import gives_scores
from solera.simulate.simulation import Simulation
from solera.study.rows import Answers, Said
from solera.study.run.record import TrainingRecord
from solera.study.run.results import Result, finite

MOST_CLASSES = 100
"""Confusion matrices of more classes are not kept."""
MOST_CURVES = 50
"""Curves of more clients are not kept."""


class Judges:
    """What several models, one after the other, come to on the data set's test rows."""

    def __init__(self, record: TrainingRecord, dataset: Dataset, *, scores: bool) -> None:
        self.record = record
        self.dataset = dataset
        self.scores = scores
        self.each: list[Evaluation] = []
        self._said: list[Any] = []
        self._schema = dataset.schema

    def add(self, model: Any) -> None:
        X, y = self.dataset.X_test, self.dataset.y_test
        if not model.predicts or y is None or not X.shape[0]:
            return
        (said,) = self.record.predictions([model], X)
        if self.scores and gives_scores(model):
            self.each.append(evaluate_rows(model, X, y, True))
        else:
            self.each.append(judged_answers(model.schema_, said, y))
        self._said.append(said)
        self._schema = model.schema_

    def found(self) -> dict[str, Any]:
        """Means over the models, and what they answered."""
        if not self.each:
            return {"metrics": {}}
        answers = Answers.of(self._schema, self.dataset.y_test, self._said)
        return {**on_same_rows(self.each), "answers": answers.packed()}


def judged_answers(schema: Schema, said: Any, y: Any, pivot: Any = None) -> Evaluation:
    return evaluate_rows(Said(schema, said), said, y, pivot=pivot)


def own_answers(record: TrainingRecord, model: Any, data: FederatedData) -> bytes:
    """What each client's model, or that of all, answers on the client's own test rows."""
    kept = model._client_parts.parts if model.is_personal else range(data.clients)
    clients = [c for c in np.flatnonzero(data.sizes("test")) if c in kept]
    tested = [data.segments(np.array([client]), "test").joined() for client in clients]
    own = [model.at(client) if model.is_personal else model for client in clients]
    said = [record.predictions([m], rows.X)[0] for m, rows in zip(own, tested, strict=True)]
    truth = np.concatenate([rows.y for rows in tested])
    return Answers.of(model.schema_, truth, [np.concatenate(said)]).packed()


def baseline(dataset: Dataset, data: FederatedData) -> dict[str, Any]:
    """What the most frequent class, or the mean, of all training rows comes to."""
    everyone = np.arange(data.clients)
    y, schema = data.segments(everyone, "train").joined().y, dataset.schema
    truth = dataset.y_test
    if truth is None or not len(truth):
        truth = data.segments(everyone, "test").joined().y
    if y is None or truth is None or not len(truth):
        return {}
    if schema.target == "classes":
        values, counts = np.unique(y, return_counts=True)
        answer = values[counts.argmax()]
    elif schema.target == "labels":
        answer = ((y == 1).sum(axis=0) > (y == 0).sum(axis=0)).astype(y.dtype)
    else:
        answer = y.mean(axis=0)
    said = np.repeat(np.asarray(answer)[None], len(truth), axis=0)
    return finite(judged_answers(schema, said, truth).metrics)


def own_models(model: Any) -> list[Any]:
    """Every client's own model, or the one of all."""
    parts = model._client_parts
    return [model.at(client) for client in parts.parts] if model.is_personal else [model]


def on_same_rows(found: Sequence[Evaluation]) -> dict[str, Any]:
    """What one model, or the mean of several, comes to on as many test rows."""
    if not found:
        return {"metrics": {}}
    figures = found[0].metrics
    if len(found) > 1:
        known = [name for name in figures if all(name in one.metrics for one in found)]
        means = {name: float(np.mean([one.metrics[name] for one in found])) for name in known}
        figures = measured(means, part="rows", rows=int(found[0].counts["rows"]))
    confusion = _confusion(summed([one.counts for one in found]))
    return {"metrics": finite(figures), "confusion": confusion}


def of_common(model: Any, federation: Simulation) -> dict[str, Any] | None:
    """What clients' test rows say of the model that all share beside their own."""
    if not model.is_personal:
        return None
    with suppress(UsageError):
        return finite(evaluate(model.common(), federation).metrics)
    return {}


def judged(model: Any, rows: Rows) -> Evaluation | None:
    """What one client that holds all of these rows would find; None without rows."""
    if not model.predicts or rows.y is None or not len(rows):
        return None
    return evaluate_rows(model, rows.X, rows.y, pivot=0.0)


def pooled_curves(test: Evaluation | None, clients: Evaluation | None) -> dict[str, Any]:
    """The curves of the test rows or, without these, of clients' own, and of each client's own."""
    of_clients = [] if clients is None else known_curves(clients.client_scores.values())
    pooled = next((e.scores for e in (test, clients) if e is not None and e.scores), None)
    return {
        "curves": None if pooled is None else curves_of(pooled),
        "client_curves": of_clients,
    }


def known_curves(scores: Iterable[Scores | None]) -> list[Curves]:
    """The curves of as many clients as pictures show."""
    found = (curves_of(each) for each in scores if each is not None)
    return list(islice((curves for curves in found if curves is not None), MOST_CURVES))


def client_results(test: Evaluation | None, validation: Evaluation | None) -> dict[str, Any]:
    """What clients' own rows say, folded and one by one."""
    results: dict[str, Any] = {}
    if test is not None:
        score = headline_metric(test.metrics)
        each = {int(c): values[score] for c, values in test.clients.items() if score in values}
        results |= {"client_metrics": finite(test.metrics), "clients": finite(each)}
    if validation is not None:
        results["validation"] = finite(validation.metrics)
    return results


def _confusion(counts: Any) -> list[list[int]]:
    if "confusion" not in counts or len(counts["confusion"]) > MOST_CLASSES:
        return []
    matrix: list[list[int]] = np.asarray(counts["confusion"]).tolist()
    return matrix


def measured_figures(result: Result) -> dict[str, Any]:
    """What the study measured of a model, for its card."""
    by_part = {
        "test rows": result.metrics,
        "clients' own test rows": result.client_metrics,
        "validation rows": result.validation,
        "baseline, the most frequent class or the mean": result.baseline,
    }
    return {part: [[n, f.to_payload()] for n, f in each.items()] for part, each in by_part.items()}

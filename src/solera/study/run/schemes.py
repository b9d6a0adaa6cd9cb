"""Train once and judge: federated, every client alone, or all rows in one place."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from solera.core.clients import IntArray, Part
from solera.core.errors import UsageError
from solera.core.payload import encoded_size
from solera.core.rounds import Callback, Round, logged
from solera.data import datasets
from solera.data.dataset import Dataset
from solera.data.federated import FederatedData
from solera.data.own_tables import own
from solera.data.partition_groups import ByGroup
from solera.evaluation.counts import summed
from solera.evaluation.curves import Curves, curves_of
from solera.evaluation.evaluation import Evaluation
from solera.evaluation.figure import measured
from solera.evaluation.metrics import headline_metric
from solera.evaluation.scores import Scores
from solera.green.energy import COORDINATOR, EnergyOptions, EnergyUse, track_energy
from solera.green.power import Sampler
from solera.learn.card import CARD
from solera.learn.evaluation import evaluate, evaluate_rows, evaluation_of
from solera.learn.scores import gives_scores
from solera.simulate.simulation import Simulation, simulate
from solera.study.files.tables import DataSpec, Scheme
from solera.study.run.cells import Cell
from solera.study.run.folder import write_text
from solera.study.run.results import Result, finite

MOST_CLASSES = 100
"""Confusion matrices of more classes are not kept."""
MOST_CURVES = 50
"""Curves of more clients are not kept."""


def train(
    cell: Cell,
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    callbacks: Sequence[Callback] = (),
    energy: EnergyOptions | None = None,
    sampler: Sampler | None = None,
    stage: Callable[[str], None] = lambda text: None,
    save: str | os.PathLike[str] | None = None,
) -> Result:
    """The result of one training.

    The model goes to the file ``save`` and its card beside it, except those of clients alone, who
    have one each. ``energy`` measures it, with a ``sampler`` that is shared by several
    trainings, if any.
    """
    measured: AbstractContextManager[Any] = nullcontext(_Unmeasured())
    if energy is not None:
        measured = track_energy(options=energy, sampler=sampler)
    with measured as tracked:
        tracked.stage("reading data")
        dataset = load(cell.variant.data)
        stage("dividing the rows")
        record = TrainingRecord(tracked)
        options = {"callbacks": [record, *callbacks], "checkpoint": checkpoint}
        result, model = _SCHEMES[cell.scheme](
            _Training(cell, dataset, tracked, record, stage, options)
        )
        if save is not None and model is not None:
            tracked.stage("storing")
            model.save(save)
    result = replace(result, seconds=round(record.seconds, 3), selected=record.selected_.tolist())
    if energy is not None:
        result = replace(result, energy=_with_earlier(tracked.use, record.earlier_kwh_, energy))
    if save is not None and model is not None:
        write_text(Path(f"{os.fspath(save)}{CARD}"), _card(model, result))
    return result


def _card(model: Any, result: Result) -> str:
    """The model card, with what test rows and clients say of it and what its training took."""
    clients = {client: {figure.metric: figure} for client, figure in result.clients.items()}
    found = Evaluation(result.metrics or result.client_metrics, clients, {})
    return str(model.card(found if found.metrics else None, energy=result.energy))


# --- the three schemes ---


@dataclass(frozen=True)
class _Training:
    """What a scheme works with; ``options`` are those of the learner's fit."""

    cell: Cell
    dataset: Dataset
    tracked: Any
    record: TrainingRecord
    stage: Callable[[str], None]
    options: dict[str, Any]

    def federation(self) -> Simulation:
        """The federation that is trained on."""
        engine = self.cell.variant.engine
        data = divided(self.cell, self.dataset)
        return simulate(
            data,
            seed=self.cell.seed,
            engine=engine.kind,
            engine_options=engine.options,
            attack=self.cell.variant.attack,
            secure=self.cell.variant.secure,
        )

    def fit(self, federation: Simulation, **options: Any) -> Any:
        """The learner, fitted."""
        self.tracked.attach(federation)
        self.tracked.stage(COORDINATOR)
        return self.cell.variant.learner.clone().fit(federation, progress=False, **options)

    def evaluate(self, model: Any, federation: Simulation) -> Result:
        """What a model that all clients share comes to; bytes are left to the scheme."""
        self.end()
        wanted = {
            "test": self.cell.variant.data.client_test > 0,
            "validation": self.cell.fold is not None,
        }
        scores = self.cell.scores and model.predicts and gives_scores(model)
        kept = [
            evaluate(model, federation, part, scores=scores)
            if model.predicts and wanted[part] and federation.data.sizes(part).any()
            else None
            for part in wanted
        ]
        X, y = self.dataset.X_test, self.dataset.y_test
        each = [judged(one, X, y, scores=scores) for one in own_models(model)]
        return Result(
            seed=self.cell.seed,
            rounds=len(model.history_),
            **_on_same_rows(each),
            common=_of_common(model, federation) if kept[0] is not None else None,
            history=model.history_,
            names=list(federation.names),
            **_curves(each[0] if len(each) == 1 else None, kept[0]),
            **_client_results(*kept),
        )

    def end(self) -> None:
        """Training is over."""
        self.record.stop()
        self.tracked.stage("scoring")
        self.stage("scoring")


def _federated(training: _Training) -> tuple[Result, Any]:
    with training.federation() as federation:
        model = training.fit(federation, **training.options)
        sent = federation.meter.total()
        result = training.evaluate(model, federation)
    earlier = model.history_[: training.record.start]
    down = sent.down + sum(entry["bytes_down"] for entry in earlier)
    up = sent.up + sum(entry["bytes_up"] for entry in earlier)
    return replace(result, bytes_down=down, bytes_up=up), model


def _centralised(training: _Training) -> tuple[Result, Any]:
    """All rows in one place, which is what federated learning avoids: the rows are sent."""
    with training.federation() as federation:
        rows = federation.data.segments(federation.clients, "train").joined()
        training.tracked.attach(federation)
        one = one_client(rows, training.dataset.schema, training.cell.seed)
        (model,) = own_models(training.fit(one, **training.options))
        result = training.evaluate(model, federation)
    return replace(result, bytes_up=_size(rows.X, rows.y)), model


def _alone(training: _Training) -> tuple[Result, None]:
    """Every client learns from its own rows only; nothing is sent.

    Metrics are means over the clients' models, each judged on the same test rows.
    """
    cell, dataset = training.cell, training.dataset
    data = divided(cell, dataset)
    held_out: list[Evaluation | None] = []
    histories = []
    kept: dict[Part, dict[int, Any]] = {"test": {}, "validation": {}}
    for client in range(data.clients):
        only = np.array([client])
        rows = data.segments(only, "train").joined()
        (model,) = own_models(training.fit(one_client(rows, dataset.schema, cell.seed)))
        histories.append(model.history_)
        scores = cell.scores and model.predicts and gives_scores(model)
        held_out.append(judged(model, dataset.X_test, dataset.y_test, scores=scores))
        for part, by_client in kept.items():
            rows = data.segments(only, part).joined()
            own = judged(model, rows.X, rows.y, pivot=0.0)
            if own is not None:
                by_client[client] = own
    training.end()
    result = Result(
        seed=cell.seed,
        rounds=max(map(len, histories)),
        **_on_same_rows(held_out),
        history=_mean_history(histories),
        names=list(data.names),
        client_curves=_known_curves(found.scores for found in held_out if found is not None),
        **_client_results(*(evaluation_of(each, part) for part, each in kept.items())),
    )
    return result, None


def own_models(model: Any) -> list[Any]:
    """Every client's own model, or the one of all."""
    parts = model._client_parts
    return [model.at(client) for client in parts.parts] if model.is_personal else [model]


def _on_same_rows(each: Sequence[Evaluation | None]) -> dict[str, Any]:
    """What one model, or the mean of several, comes to on the same test rows."""
    found = [one for one in each if one is not None]
    if not found:
        return {"metrics": {}}
    figures = found[0].metrics
    if len(found) > 1:
        known = [name for name in figures if all(name in one.metrics for one in found)]
        means = {name: float(np.mean([one.metrics[name] for one in found])) for name in known}
        figures = measured(means, part="rows", rows=int(found[0].counts["rows"]))
    confusion = _confusion(summed([one.counts for one in found]))
    return {"metrics": finite(figures), "confusion": confusion}


def _of_common(model: Any, federation: Simulation) -> dict[str, Any] | None:
    """What clients' test rows say of the model that all share beside their own."""
    if not model.is_personal:
        return None
    with suppress(UsageError):
        return finite(evaluate(model.common(), federation).metrics)
    return {}


def _mean_history(histories: Sequence[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """What the clients logged, averaged over those that still trained in that round."""
    mean = []
    for index in range(max(map(len, histories))):
        entries = [history[index] for history in histories if len(history) > index]
        names = dict.fromkeys(name for entry in entries for name in logged(entry))
        values = {n: float(np.mean([e[n] for e in entries if n in e])) for n in names}
        mean.append({"round": index, "clients": len(entries), **finite(values)})
    return mean


_SCHEMES: dict[Scheme, Callable[[_Training], tuple[Result, Any]]] = {
    "alone": _alone,
    "federated": _federated,
    "centralised": _centralised,
}


# --- data and federations ---


@lru_cache(maxsize=2)
def _dataset(name: str, options: bytes) -> Dataset:
    given, _ = msgspec.json.decode(options)
    if "file" not in given:
        return datasets.load(name, **given)
    return replace(own(**given), name=name).with_class_names()


def load(data: DataSpec) -> Dataset:
    """The data set of a cell, kept for the next cells that need it.

    Classes of one's own rows go by their names, so that models saved here predict these.
    """
    options = msgspec.json.encode([data.options, data.identity()], order="sorted")
    dataset = _dataset(data.name, options)
    if data.positive is None:
        return dataset
    named = dataset.with_class_names()
    return replace(named, schema=named.schema.with_positive(data.positive))


def divided(cell: Cell, dataset: Dataset) -> FederatedData:
    """Who holds which rows."""
    variant, fold = cell.variant, cell.fold
    group = variant.data.group
    partition = variant.partition if group is None else ByGroup(dataset.groups[group])
    whole = simulate(
        dataset.X,
        dataset.y,
        clients=variant.data.clients,
        partition=partition,
        test=variant.data.client_test,
        seed=cell.seed,
        schema=dataset.schema,
    )
    data: FederatedData = whole.data
    return data if fold is None else data.fold(fold.number, fold.of, seed=cell.seed)


def one_client(rows: Any, schema: Any, seed: int, *, shuffle: bool = True) -> Simulation:
    """A federation of one client that has all of these rows, in another order or in this one."""
    if shuffle:
        return simulate(rows.X, rows.y, clients=1, seed=seed, schema=schema)
    ends = np.array([0, rows.X.shape[0]])
    return simulate(FederatedData(rows.X, rows.y, ends, schema=schema), seed=seed)


# --- evaluation ---


def judged(
    model: Any, X: Any, y: Any, *, scores: bool = False, pivot: Any = None
) -> Evaluation | None:
    """What one client that holds all of these rows would find; None without rows."""
    if not model.predicts or y is None or not X.shape[0]:
        return None
    return evaluate_rows(model, X, y, scores, pivot=pivot)


def _curves(test: Evaluation | None, clients: Evaluation | None) -> dict[str, Any]:
    """The curves of the test rows or, without these, of clients' own, and of each client's own."""
    of_clients = [] if clients is None else _known_curves(clients.client_scores.values())
    pooled = next((e.scores for e in (test, clients) if e is not None and e.scores), None)
    return {
        "curves": None if pooled is None else curves_of(pooled),
        "client_curves": of_clients,
    }


def _known_curves(scores: Iterable[Scores | None]) -> list[Curves]:
    """The curves of as many clients as pictures show."""
    found = (curves_of(each) for each in scores if each is not None)
    return list(islice((curves for curves in found if curves is not None), MOST_CURVES))


def _client_results(test: Evaluation | None, validation: Evaluation | None) -> dict[str, Any]:
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


def _size(X: Any, y: Any) -> int:
    """Bytes of rows that are sent."""
    if hasattr(X, "tocsr"):
        X = X.tocsr()
        X = [X.data, X.indices, X.indptr]
    return encoded_size({"X": X, "y": y})


# --- time, clients and energy ---


class TrainingRecord(Callback):
    """Seconds, chosen clients and energy of training, carried on from the checkpoint.

    ``start`` is the first round of this start, ``selected_`` in how many rounds each client took
    part.
    """

    def __init__(self, tracked: Any) -> None:
        self.start = 0
        self.earlier_kwh_ = 0.0
        self._tracked = tracked
        self._earlier_seconds = 0.0
        self._began = time.perf_counter()
        self._ended: float | None = None
        self.selected_: IntArray = np.zeros(0, dtype=np.int64)

    @property
    def seconds(self) -> float:
        now = time.perf_counter() if self._ended is None else self._ended
        return self._earlier_seconds + now - self._began

    def stop(self) -> None:
        self._ended = time.perf_counter()

    def on_start(self, learner: Any, rounds: int, start: int) -> None:
        self.start = start

    def on_round(self, learner: Any, round: Round) -> None:
        chosen = np.bincount(round.clients, minlength=len(round.federation))
        self.selected_ = self.selected_ + chosen if len(self.selected_) else chosen

    def get_state(self) -> Any:
        kwh = self.earlier_kwh_ + self._tracked.wh / 1000
        return {"seconds": self.seconds, "selected": self.selected_, "kwh": kwh}

    def set_state(self, state: Any) -> None:
        self._earlier_seconds = state["seconds"]
        self.selected_ = state["selected"]
        self.earlier_kwh_ = state["kwh"]


class _Unmeasured:
    """Stands where energy is not asked for."""

    wh = 0.0

    def stage(self, name: str) -> None: ...

    def attach(self, federation: Any) -> None: ...


def _with_earlier(use: EnergyUse, kwh: float, options: EnergyOptions) -> EnergyUse:
    """What this start took and what earlier ones of the same training took."""
    if not kwh:
        return use
    co2e = kwh * options.grams_per_kwh() / 1000
    return use + EnergyUse(kwh, co2e, 0.0, use.source, {"earlier starts": kwh})

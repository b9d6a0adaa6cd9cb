"""Train once and judge: federated, every client alone, or all rows in one place."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from solera.core.clients import Part, Rows
from solera.core.payload import encoded_size
from solera.core.rounds import Callback, logged
from solera.data import datasets
from solera.data.dataset import Dataset
from solera.data.federated import FederatedData
from solera.data.own_tables import own
from solera.data.partition_groups import ByGroup
from solera.green.energy import EnergyOptions, track_energy
from solera.green.power import Sampler
from solera.learn.card import CARD
from solera.learn.evaluation import evaluate, evaluation_of
from solera.learn.scores import gives_scores
from solera.simulate.simulation import Simulation, simulate
from solera.study.files.tables import DataSpec, Scheme
from solera.study.rows import Answers
from solera.study.run.cells import Cell
from solera.study.run.folder import write_text
from solera.study.run.judging import (
    Judges,
    baseline,
    client_results,
    judged,
    judged_answers,
    known_curves,
    measured_figures,
    of_common,
    on_same_rows,
    own_answers,
    own_models,
    pooled_curves,
)
from solera.study.run.record import TrainingRecord, Unmeasured, some_of, told, with_earlier
from solera.study.run.results import Result, finite
from solera.study.run.warm_up import warm_up


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
    measured: AbstractContextManager[Any] = nullcontext(Unmeasured())
    if energy is not None:
        measured = track_energy(options=energy, sampler=sampler)
    with measured as tracked:
        tracked.stage("reading data")
        dataset = load(cell.variant.data)
        tracked.stage("warming up")
        warm_up(cell.variant, dataset)
        tracked.stage("reading data")
        stage("dividing the rows")
        record = TrainingRecord(tracked)
        options = {"callbacks": [record, *callbacks], "checkpoint": checkpoint}
        result, model = _SCHEMES[cell.scheme](
            _Training(cell, dataset, tracked, record, stage, options)
        )
        result = replace(
            result,
            seconds=round(record.seconds, 6),
            predicting=round(record.predicting, 6),
            selected=record.selected_.tolist(),
        )
        if save is not None and model is not None:
            tracked.stage("storing")
            facts = model._trained_with or {}
            model._trained_with = {**facts, "measured": measured_figures(result)}
            model.save(save)
    if energy is not None:
        result = replace(result, energy=with_earlier(tracked.use, record.earlier_kwh_, energy))
    if save is not None and model is not None:
        write_text(Path(f"{os.fspath(save)}{CARD}"), str(model.card(energy=result.energy)))
    return result


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
        learner = self.cell.variant.learner.clone()
        with self.record.training(learner):
            return learner.fit(federation, progress=False, **options)

    def hold_out(self, data: FederatedData) -> None:
        """Name the rows that judge the model in every round."""
        parts: tuple[Part, ...] = ("validation", "test")
        self.record.part = next((part for part in parts if data.sizes(part).any()), None)
        rows = Rows(self.dataset.X_test, self.dataset.y_test)
        if self.record.part is not None and (self.cell.fold is not None or not len(rows)):
            rows = data.segments(np.arange(data.clients), self.record.part).joined()
        if rows.y is not None and len(rows):
            self.record.held_out = some_of(rows, self.cell.seed)

    def evaluate(self, model: Any, federation: Simulation) -> Result:
        """What a model that all clients share comes to; bytes are left to the scheme."""
        self.stage("scoring")
        data = federation.data
        wanted = {
            "test": self.cell.variant.data.client_test > 0,
            "validation": self.cell.fold is not None,
        }
        scores = bool(self.cell.scores and model.predicts and gives_scores(model))
        kept = [
            evaluate(model, federation, part, scores=scores)
            if model.predicts and wanted[part] and data.sizes(part).any()
            else None
            for part in wanted
        ]
        judges = Judges(self.record, self.dataset, scores=self.cell.scores)
        for one in own_models(model):
            judges.add(one)
        return Result(
            seed=self.cell.seed,
            rounds=len(model.history_),
            **judges.found(),
            own_answers=b"" if kept[0] is None else own_answers(self.record, model, data),
            baseline=baseline(self.dataset, data) if model.predicts else {},
            common=of_common(model, federation) if kept[0] is not None else None,
            history=model.history_,
            names=list(federation.names),
            warnings=list(told((model._trained_with or {}).get("warnings", ()))),
            **pooled_curves(judges.each[0] if len(judges.each) == 1 else None, kept[0]),
            **client_results(*kept),
        )


def _federated(training: _Training) -> tuple[Result, Any]:
    with training.federation() as federation:
        training.hold_out(federation.data)
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
        training.hold_out(federation.data)
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
    tested = data.segments(np.arange(data.clients), "test").joined()
    owner = np.repeat(np.arange(data.clients), data.sizes("test"))
    judges = Judges(training.record, dataset, scores=cell.scores)
    histories, said, others, warnings = [], [], [], []
    kept: dict[Part, dict[int, Any]] = {"test": {}, "validation": {}}
    for client in range(data.clients):
        only = np.array([client])
        rows = data.segments(only, "train").joined()
        fitted = training.fit(one_client(rows, dataset.schema, cell.seed))
        (model,) = own_models(fitted)
        histories.append(model.history_)
        warnings += (fitted._trained_with or {}).get("warnings", ())
        judges.add(model)
        validation = data.segments(only, "validation").joined()
        if (judgement := judged(model, validation)) is not None:
            kept["validation"][client] = judgement
        if not model.predicts or tested.y is None or not len(tested):
            continue
        (answers,) = training.record.predictions([model], tested.X)
        of_own = {True: owner == client, False: owner != client}
        found = {
            is_own: judged_answers(model.schema_, answers[chosen], tested.y[chosen], 0.0)
            for is_own, chosen in of_own.items()
            if chosen.any()
        }
        if True in found:
            kept["test"][client] = found[True]
            said.append(answers[of_own[True]])
        if False in found:
            others.append(found[False])
    schema = dataset.schema
    own = Answers.of(schema, tested.y, [np.concatenate(said)]).packed() if said else b""
    training.stage("scoring")
    result = Result(
        seed=cell.seed,
        rounds=max(map(len, histories)),
        **judges.found(),
        own_answers=own,
        others=on_same_rows(others)["metrics"],
        baseline=baseline(dataset, data) if model.predicts else {},
        history=_mean_history(histories),
        names=list(data.names),
        warnings=list(told(warnings)),
        client_curves=known_curves(found.scores for found in judges.each),
        **client_results(*(evaluation_of(each, part) for part, each in kept.items())),
    )
    return result, None


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


def _size(X: Any, y: Any) -> int:
    """Bytes of rows that are sent."""
    if hasattr(X, "tocsr"):
        X = X.tocsr()
        X = [X.data, X.indices, X.indptr]
    return encoded_size({"X": X, "y": y})

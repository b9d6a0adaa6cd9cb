"""Train once and judge: federated, every client alone, or all rows in one place."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from solera.core.clients import IntArray, Part
from solera.core.payload import encoded_size
from solera.core.replies import map_leaves
from solera.core.rounds import Callback, Round
from solera.data.dataset import Dataset
from solera.data.federated import FederatedData
from solera.green.energy import COORDINATOR, EnergyOptions, EnergyUse, Tracked, track_energy
from solera.green.power import Sampler
from solera.learn.evaluation import Evaluation, evaluate, metrics
from solera.simulate.simulation import Simulation, simulate
from solera.study.files.tables import EngineSpec, Spec
from solera.study.run.results import Result, finite, logged, score_name

MOST_CLASSES = 100
"""Confusion matrices of more classes are not kept."""


class Fold(NamedTuple):
    """Which part of a k-fold cross-validation."""

    number: int
    of: int


@dataclass(frozen=True)
class Training:
    """One training of a run: which seed, in which scheme, and which fold is left out."""

    spec: Spec
    seed: int
    scheme: Literal["alone", "federated", "centralised"] = "federated"
    fold: Fold | None = None


def train(
    training: Training,
    load: Callable[[], Dataset],
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    callbacks: Sequence[Callback] = (),
    energy: EnergyOptions | None = None,
    sampler: Sampler | None = None,
    stage: Callable[[str], None] = lambda text: None,
    save: str | os.PathLike[str] | None = None,
) -> Result:
    """The result of one training.

    The model goes to the file ``save``, except where every client has one of its own. ``energy``
    measures it, with a ``sampler`` that is shared by several trainings, if any.
    """
    with _measured(energy, sampler) as tracked:
        tracked.stage("reading data")
        dataset = load()
        stage("dividing the rows")
        watch = Watch(tracked)
        fit = {"callbacks": [watch, *callbacks], "checkpoint": checkpoint}
        work = _Work(training, dataset, tracked, watch, stage, fit)
        schemes = {"federated": _federated, "alone": _alone, "centralised": _centralised}
        result, model = schemes[training.scheme](work)
        if save is not None and model is not None:
            tracked.stage("storing")
            model.save(save)
    result = replace(result, seconds=round(watch.seconds, 3), selected=watch.selected)
    if energy is not None:
        result = replace(result, energy=_with_earlier(tracked.use, watch.earlier_kwh, energy))
    return result


# --- the three schemes ---


@dataclass(frozen=True)
class _Work:
    """What a scheme works with; ``fit`` are options of the learner's fit."""

    training: Training
    dataset: Dataset
    tracked: Any
    watch: Watch
    stage: Callable[[str], None]
    fit: dict[str, Any]

    def judge(self) -> None:
        """Training is over."""
        self.watch.stop()
        self.tracked.stage("scoring")
        self.stage("scoring")


def _federated(work: _Work) -> tuple[Result, Any]:
    model = work.training.spec.learner.clone()
    with federation_of(work.training, work.dataset) as federation:
        work.tracked.attach(federation)
        work.tracked.stage(COORDINATOR)
        model.fit(federation, **work.fit)
        sent, earlier = federation.meter.total(), model.history_[: work.watch.start]
        work.judge()
        result = _judged(work.training, model, federation, work.dataset)
    return (
        replace(
            result,
            bytes_down=sent.down + sum(r["bytes_down"] for r in earlier),
            bytes_up=sent.up + sum(r["bytes_up"] for r in earlier),
        ),
        model,
    )


def _centralised(work: _Work) -> tuple[Result, Any]:
    """All rows in one place, which is what federated learning avoids: the rows are sent."""
    training, schema = work.training, work.dataset.schema
    model = training.spec.learner.clone()
    with federation_of(training, work.dataset) as federation:
        rows = federation.data.segments(federation.clients, "train").joined()
        one = simulate(rows.X, rows.y, clients=1, seed=training.seed, schema=schema)
        work.tracked.attach(one)
        work.tracked.attach(federation)
        work.tracked.stage(COORDINATOR)
        model.fit(one, **work.fit)
        work.judge()
        result = _judged(training, model, federation, work.dataset)
    sent = {"X": rows.X, "y": rows.y}
    return replace(result, bytes_up=_size(sent), bytes_down=0), model


def _alone(work: _Work) -> tuple[Result, None]:
    """Every client learns from its own rows only; nothing is sent. Metrics are clients' means."""
    training, dataset = work.training, work.dataset
    data = divided(training, dataset)
    held_out, histories = [], []
    own: dict[Part, dict[int, Any]] = {"test": {}, "validation": {}}
    work.tracked.stage(COORDINATOR)
    for client in range(data.clients):
        mine = np.array([client])
        rows = data.segments(mine, "train").joined()
        one = simulate(rows.X, rows.y, clients=1, seed=training.seed, schema=dataset.schema)
        work.tracked.attach(one)
        model = training.spec.learner.clone().fit(one)
        histories.append(model.history_)
        held_out.append(_counts(model, dataset.X_test, dataset.y_test, dataset))
        for part, counts in own.items():
            kept = data.segments(mine, part).joined()
            found = _counts(model, kept.X, kept.y, dataset)
            if found is not None:
                counts[client] = found
    work.judge()
    known = [counts for counts in held_out if counts is not None]
    each = [metrics(counts) for counts in known]
    names = each[0] if each else {}
    return (
        Result(
            seed=training.seed,
            rounds=max(map(len, histories)),
            metrics=finite({name: float(np.mean([m[name] for m in each])) for name in names}),
            bytes_down=0,
            bytes_up=0,
            seconds=0.0,
            history=_mean_history(histories),
            confusion=_confusion(_summed(known)) if known else [],
            **_own(*(_evaluation(counts) for counts in own.values())),
        ),
        None,
    )


def _mean_history(histories: Sequence[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """What the clients logged, averaged over those that still trained in that round."""
    mean = []
    for index in range(max(map(len, histories))):
        entries = [history[index] for history in histories if len(history) > index]
        names = dict.fromkeys(name for entry in entries for name in logged(entry))
        values = {n: float(np.mean([e[n] for e in entries if n in e])) for n in names}
        mean.append({"round": index, "clients": len(entries), **finite(values)})
    return mean


# --- federations ---


def divided(training: Training, dataset: Dataset) -> FederatedData:
    """Who holds which rows."""
    spec, fold = training.spec, training.fold
    whole = simulate(
        dataset.X,
        dataset.y,
        clients=spec.data.clients,
        partition=spec.partition,
        test=spec.data.client_test,
        seed=training.seed,
        schema=dataset.schema,
    )
    data: FederatedData = whole.data
    return data if fold is None else data.fold(fold.number, fold.of, seed=training.seed)


def federation_of(training: Training, dataset: Dataset) -> Simulation:
    """The federation that is trained on."""
    engine: EngineSpec = training.spec.engine
    return simulate(
        divided(training, dataset),
        seed=training.seed,
        engine=engine.kind,
        workers=engine.workers,
    )


# --- judging ---


def _judged(training: Training, model: Any, federation: Simulation, dataset: Dataset) -> Result:
    wanted = {"test": training.spec.data.client_test > 0, "validation": training.fold is not None}
    own = [
        evaluate(model, federation, part)
        if model.predicts and wanted[part] and federation.data.sizes(part).any()
        else None
        for part in wanted
    ]
    counts = _counts(model, dataset.X_test, dataset.y_test, dataset)
    return Result(
        seed=training.seed,
        rounds=len(model.history_),
        metrics={} if counts is None else finite(metrics(counts)),
        bytes_down=0,
        bytes_up=0,
        seconds=0.0,
        history=model.history_,
        confusion=_confusion(counts),
        **_own(*own),
    )


def _counts(model: Any, X: Any, y: Any, dataset: Dataset) -> Any:
    """Counts over some rows, as one client that holds them all would count; None without rows."""
    if not model.predicts or dataset.y is None or not X.shape[0]:
        return None
    everything = simulate(X, y, clients=1, schema=dataset.schema)
    return evaluate(model, everything, "train").counts


def _evaluation(counts: dict[int, Any]) -> Evaluation | None:
    """What clients counted, each with a model of its own."""
    if not counts:
        return None
    total = _summed(list(counts.values()))
    return Evaluation(metrics(total), {client: metrics(c) for client, c in counts.items()}, total)


def _own(test: Evaluation | None, validation: Evaluation | None) -> dict[str, Any]:
    """What clients' own rows say, folded and one by one."""
    found: dict[str, Any] = {}
    if test is not None:
        score = score_name(test.metrics)
        each = {int(client): values[score] for client, values in test.clients.items() if score}
        found |= {"client_metrics": finite(test.metrics), "clients": finite(each)}
    if validation is not None:
        found["validation"] = finite(validation.metrics)
    return found


def _summed(counts: Sequence[Any]) -> Any:
    return map_leaves(lambda *leaves: sum(leaves), *counts)


def _confusion(counts: Any) -> list[list[int]]:
    if counts is None or "confusion" not in counts or len(counts["confusion"]) > MOST_CLASSES:
        return []
    found: list[list[int]] = np.asarray(counts["confusion"]).tolist()
    return found


def _size(payload: dict[str, Any]) -> int:
    if hasattr(payload["X"], "tocsr"):
        X = payload["X"].tocsr()
        payload = {**payload, "X": [X.data, X.indices, X.indptr]}
    return encoded_size(payload)


# --- time, clients and energy ---


class Watch(Callback):
    """Seconds, chosen clients and energy of training, carried on from the checkpoint.

    ``start`` is the first round of this start.
    """

    def __init__(self, tracked: Any) -> None:
        self.start = 0
        self.earlier_kwh = 0.0
        self._tracked = tracked
        self._before = 0.0
        self._began = time.perf_counter()
        self._ended: float | None = None
        self._selected: IntArray = np.zeros(0, dtype=np.int64)

    @property
    def seconds(self) -> float:
        now = time.perf_counter() if self._ended is None else self._ended
        return self._before + now - self._began

    @property
    def selected(self) -> list[int]:
        """In how many rounds each client took part."""
        chosen: list[int] = self._selected.tolist()
        return chosen

    def stop(self) -> None:
        self._ended = time.perf_counter()

    def on_start(self, learner: Any, rounds: int, start: int) -> None:
        self.start = start

    def on_round(self, learner: Any, round: Round) -> None:
        if not len(self._selected):
            self._selected = np.zeros(len(round.federation), dtype=np.int64)
        self._selected = self._selected + np.bincount(round.clients, minlength=len(self._selected))

    def get_state(self) -> Any:
        kwh = self.earlier_kwh + self._tracked.wh / 1000
        return {"seconds": self.seconds, "selected": self._selected, "kwh": kwh}

    def set_state(self, state: Any) -> None:
        self._before = state["seconds"]
        self._selected = state["selected"]
        self.earlier_kwh = state["kwh"]


class _Unmeasured:
    """Stands where energy is not asked for."""

    wh = 0.0

    def stage(self, name: str) -> None: ...

    def attach(self, federation: Any) -> None: ...


@contextmanager
def _measured(energy: EnergyOptions | None, sampler: Sampler | None) -> Iterator[Any]:
    if energy is None:
        yield _Unmeasured()
    else:
        tracked: Tracked
        with track_energy(options=energy, sampler=sampler) as tracked:
            yield tracked


def _with_earlier(use: EnergyUse, kwh: float, options: EnergyOptions) -> EnergyUse:
    """What this start took and what earlier ones of the same training took."""
    if not kwh:
        return use
    co2e = kwh * options.grams_per_kwh() / 1000
    return use + EnergyUse(kwh, co2e, 0.0, use.source, {"earlier starts": kwh})

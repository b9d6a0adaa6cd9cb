"""Carry out a run file: for every seed simulate, fit, score; keep what is finished.

The run folder holds the run file (``spec.toml``), the results so far (``results.json``), the fitted
learners (``model-seed<k>.sol``), the versions of what was used (``environment.json``) and
``report.html``. Every round is checkpointed and every finished seed is written at once, so an
interrupted run that is started again repeats nothing and ends with the same numbers.
"""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

import solera
from solera.core.errors import SoleraError, UsageError
from solera.core.rounds import Callback
from solera.data import datasets
from solera.data.dataset import Dataset
from solera.data.federated import FederatedData
from solera.learn.evaluation import evaluate
from solera.simulate.simulation import Simulation, simulate
from solera.study.spec import EngineSpec, Spec, read

if TYPE_CHECKING:
    from solera.study.report import Section

K = TypeVar("K")
SCORES = ("accuracy", "subset_accuracy", "r2")
"""The metric that sums up a model, for classes, labels and numbers."""


@dataclass(frozen=True)
class Result:
    """What one seed came to.

    ``metrics`` are those of the data set's test rows, ``client_metrics`` those of all rows that
    clients keep to test on, ``clients`` the score of each client on its own of these. Bytes and
    seconds count training only, over all starts of an interrupted run.
    """

    seed: int
    rounds: int
    metrics: dict[str, float]
    bytes_down: int
    bytes_up: int
    seconds: float
    client_metrics: dict[str, float] = field(default_factory=dict)
    clients: dict[int, float] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)

    @property
    def score(self) -> str | None:
        """The name of the metric that sums up the model."""
        return score_name(self.metrics or self.client_metrics)


class Progress(Protocol):
    """Something that shows how far a run is."""

    def stage(self, text: str) -> None:
        """What happens now, until the next stage or the next rounds."""

    def watch(self, title: str) -> Callback:
        """A callback that shows the rounds of the next fit."""


def run(
    spec: Spec,
    folder: str | os.PathLike[str],
    progress: Progress | None = None,
    *,
    fresh: bool = False,
) -> list[Result]:
    """Run every seed that has no result in ``folder`` yet; the results of all of them.

    ``fresh`` removes what an earlier run left in the folder. Results of another run file are an
    error otherwise; more or fewer seeds of the same one are not.
    """
    folder, progress = Path(folder), progress or _Silent()
    _prepare(folder, spec, fresh)
    progress.stage(f"reading {spec.data.name}")
    dataset = datasets.load(spec.data.name, **spec.data.options)
    results = finished(folder)
    try:
        for seed in spec.seeds:
            if seed not in results:
                results[seed] = _run_seed(spec, dataset, seed, folder, progress)
                _write(folder / "results.json", list(results.values()))
                _checkpoint(folder, seed).unlink(missing_ok=True)
    finally:
        ours = [results[seed] for seed in spec.seeds if seed in results]
        if ours:
            progress.stage("writing the report")
            write_report(folder, spec, ours, dataset)
    return ours


def finished(folder: str | os.PathLike[str]) -> dict[int, Result]:
    """Results that a run folder holds, by seed."""
    path = Path(folder) / "results.json"
    if not path.exists():
        return {}
    try:
        results = msgspec.json.decode(path.read_bytes(), type=list[Result])
    except msgspec.DecodeError as error:
        raise SoleraError(
            f"{path} is damaged: {error}", hint="delete it, or start again with --fresh"
        ) from error
    return {result.seed: result for result in results}


def write_report(
    folder: Path,
    spec: Spec,
    results: Sequence[Result],
    dataset: Dataset,
    extra: Sequence[Section] = (),
) -> None:
    """Write ``report.html``, with ``extra`` sections after the results."""
    from solera.study.report import report

    page = report(spec, results, dataset, divided(spec, dataset, results[0].seed), extra)
    (folder / "report.html").write_text(page, encoding="utf-8")


def divided(spec: Spec, dataset: Dataset, seed: int) -> FederatedData:
    """Who holds which rows in the run of that seed."""
    local = replace(spec, engine=EngineSpec())
    data: FederatedData = simulation(local, dataset, seed).data
    return data


def simulation(spec: Spec, dataset: Dataset, seed: int) -> Simulation:
    """The federation that a run file describes."""
    return simulate(
        dataset.X,
        dataset.y,
        clients=spec.data.clients,
        partition=spec.partition,
        test=spec.data.client_test,
        seed=seed,
        engine=spec.engine.kind,
        workers=spec.engine.workers,
        schema=dataset.schema,
    )


def held_out_metrics(model: Any, dataset: Dataset) -> dict[str, float]:
    """Metrics over the test rows of a data set, as one client that holds them all would count."""
    if not model.predicts or dataset.y is None or not dataset.X_test.shape[0]:
        return {}
    everything = simulate(dataset.X_test, dataset.y_test, clients=1, schema=dataset.schema)
    return _finite(evaluate(model, everything, "train").metrics)


def score_name(metrics: Any) -> str | None:
    """Which of some metrics sums up the model."""
    return next((name for name in SCORES if name in metrics), None)


def headline(results: Sequence[Result]) -> list[str]:
    """Names of the metrics that tables show; ``results.json`` has all of them."""
    names = dict.fromkeys(name for result in results for name in result.metrics)
    return [name for name in names if name not in ("macro_precision", "macro_recall")]


def logged(entry: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of one round that the learner logged, without those of the loop itself."""
    loop = ("round", "clients", "failures", "bytes_down", "bytes_up")
    return {k: v for k, v in entry.items() if k not in loop and isinstance(v, int | float)}


def _finite(metrics: dict[K, float]) -> dict[K, float]:
    """JSON has no number for a metric that overflowed; reports show it as missing."""
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def _run_seed(spec: Spec, dataset: Dataset, seed: int, folder: Path, progress: Progress) -> Result:
    progress.stage(f"seed {seed}: dividing the rows")
    model = spec.learner.clone()
    watch = _Stopwatch()
    with simulation(spec, dataset, seed) as federation:
        callbacks = [watch, progress.watch(f"seed {seed}")]
        model.fit(federation, callbacks=callbacks, checkpoint=_checkpoint(folder, seed))
        watch.stop()
        sent, earlier = federation.meter.total(), model.history_[: watch.start]
        progress.stage(f"seed {seed}: scoring")
        own: dict[str, Any] = {}
        if spec.data.client_test and model.predicts:
            judged = evaluate(model, federation)
            score = score_name(judged.metrics)
            each = {int(c): found[score] for c, found in judged.clients.items() if score}
            own = {"client_metrics": _finite(judged.metrics), "clients": _finite(each)}
    model.save(folder / f"model-seed{seed}.sol")
    return Result(
        seed=seed,
        rounds=len(model.history_),
        metrics=held_out_metrics(model, dataset),
        bytes_down=sent.down + sum(r["bytes_down"] for r in earlier),
        bytes_up=sent.up + sum(r["bytes_up"] for r in earlier),
        seconds=round(watch.seconds, 3),
        history=model.history_,
        **own,
    )


class _Stopwatch(Callback):
    """Seconds of training, carried on from the checkpoint; ``start`` is this run's first round."""

    def __init__(self) -> None:
        self.start = 0
        self._before = 0.0
        self._began = time.perf_counter()
        self._ended: float | None = None

    @property
    def seconds(self) -> float:
        now = time.perf_counter() if self._ended is None else self._ended
        return self._before + now - self._began

    def stop(self) -> None:
        self._ended = time.perf_counter()

    def on_start(self, learner: Any, rounds: int, start: int) -> None:
        self.start = start

    def get_state(self) -> Any:
        return {"seconds": self.seconds}

    def set_state(self, state: Any) -> None:
        self._before = state["seconds"]


class _Silent:
    """Shows nothing."""

    def stage(self, text: str) -> None: ...

    def watch(self, title: str) -> Callback:
        return Callback()


# --- the run folder ---


def _prepare(folder: Path, spec: Spec, fresh: bool) -> None:
    """Make the folder ready for this run, or refuse it when it holds another one."""
    folder.mkdir(parents=True, exist_ok=True)
    if fresh:
        for pattern in ("results.json", "report.html", "model-seed*.sol", "checkpoint-seed*.sol"):
            for path in folder.glob(pattern):
                path.unlink()
    elif (folder / "spec.toml").exists() and not _same_run(folder / "spec.toml", spec):
        raise UsageError(
            f"{folder} holds a run of another file than this one",
            hint="give another --folder, or --fresh to remove that run",
        )
    (folder / "spec.toml").write_text(spec.text, encoding="utf-8")
    _write(folder / "environment.json", environment())


def _same_run(path: Path, spec: Spec) -> bool:
    try:
        return replace(read(path), name=spec.name, seeds=spec.seeds) == spec
    except UsageError:
        return False


def _checkpoint(folder: Path, seed: int) -> Path:
    return folder / f"checkpoint-seed{seed}.sol"


def _write(path: Path, content: Any) -> None:
    """Replace a JSON file in one step, so that an interruption leaves the old or the new one."""
    temporary = path.with_name(path.name + ".new")
    encoded = msgspec.json.encode(content, enc_hook=lambda value: value.tolist())
    temporary.write_bytes(msgspec.json.format(encoded, indent=2) + b"\n")
    os.replace(temporary, path)


def environment() -> dict[str, str]:
    """Versions of what results may depend on."""
    return {
        "platform": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "solera": solera.__version__,
        **{package: version(package) for package in ("numpy", "scipy", "scikit-learn")},
    }

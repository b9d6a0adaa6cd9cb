"""Energy: the parts add up to the whole, whoever measures it, and measuring costs little."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import solera as so
from solera.core.errors import MissingExtra, UsageError
from solera.core.meter import Record
from solera.green import carbon
from solera.green.energy import EnergyUse, _owners
from solera.green.power import JOULES_PER_KWH, PowerModel, Sampler, load

needs_codecarbon = pytest.mark.skipif(
    find_spec("codecarbon") is None, reason="CodeCarbon (extra 'green') is not installed"
)


def federation(**options: Any) -> Any:
    X, y, _, _ = so.datasets.digits()
    return so.simulate(X, y, clients=8, seed=0, **options)


def burn(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        sum(range(1000))


def test_the_model_is_the_equation_of_the_thesis() -> None:
    # E = t (n_c P_c u_c + n_m P_m) PUE: half an hour on 4 cores at 50 %, with 16 GB
    model = PowerModel(core_watts=10.0, memory_watts=0.3725, pue=1.67)
    seconds = 1800.0
    joules = model.joules(seconds * 4 * 0.5, seconds * 16)
    kwh = 0.5 * (4 * 10.0 * 0.5 + 16 * 0.3725) * 1.67 * 0.001
    assert joules / JOULES_PER_KWH == pytest.approx(kwh)


def test_a_sampler_counts_the_time_that_was_used() -> None:
    model = PowerModel(core_watts=10.0, memory_watts=0.0)
    with Sampler(model, every=0.05, children=False) as sampler:
        time.sleep(0.3)
        while len(sampler.times) < 5:  # a busy machine
            time.sleep(0.05)
        idle = sampler.read()
        burn(0.3)
    busy = sampler.joules[-1] - idle
    assert 2.7 < busy < 4.5, "0.3 s of this process"
    assert idle < 1.0, "as long, but asleep"
    assert np.all(np.diff(sampler.joules) >= 0)
    assert np.all(np.diff(sampler.times) > 0)
    assert len(sampler.times) >= 6


def test_the_curve_is_whole_while_it_is_written() -> None:
    """Cells of studies failed on a busy machine: a time had been added, and no joules yet."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with Sampler(every=0.0, children=False) as sampler:
            end = time.monotonic() + 1
            while time.monotonic() < end:
                assert sampler.at([sampler.times[0]]).tolist() == [0.0]
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="running children are seen on Linux")
def test_children_count_while_they_run_and_when_they_have_ended() -> None:
    before = load().cpu_seconds
    with federation(engine="processes", workers=2) as fed:
        so.FedLinear(rounds=30, epochs=3, lr=0.001).fit(fed)
        during = load()
        assert during.cpu_seconds > before
    after = load().cpu_seconds
    assert after >= during.cpu_seconds - 0.05  # ended children are not forgotten
    assert 0.005 < load().gigabytes < 50


def test_numbers_of_rounds_may_lie_far_apart() -> None:
    fed = federation()
    with so.energy.track_energy(fed, source="model") as tracked:
        for number in (0, 1, 1 << 40):  # predictions of vertical learners are numbered so
            fed.ask("data.describe", {}, round=number).collect()
    assert len(tracked.use.rounds) == 3
    assert sum(tracked.use.rounds) == pytest.approx(tracked.use.kwh, rel=1e-9)


def test_tasks_rounds_and_clients_add_up() -> None:
    fed = federation()
    with so.energy.track_energy(fed, country="ESP", source="model") as tracked:
        so.FedLinear(rounds=12, per_round=4, epochs=20, lr=0.001).fit(fed)
        tracked.stage("idle")
        time.sleep(0.05)
    use = tracked.use
    assert use.kwh > 0
    assert sum(use.tasks.values()) == pytest.approx(use.kwh, rel=1e-9)
    assert sum(use.rounds) == pytest.approx(use.kwh, rel=1e-9)
    asked = sum(kwh for task, kwh in use.tasks.items() if task not in ("coordinator", "idle"))
    assert sum(use.clients) == pytest.approx(asked, rel=1e-9)
    assert {"linear.train", "coordinator", "idle"} <= set(use.tasks)
    assert use.tasks["linear.train"] > use.tasks["idle"]
    assert len(use.rounds) == 12
    assert len(use.clients) == 8
    assert use.co2e == pytest.approx(use.kwh * carbon.intensity("ESP") / 1000)
    assert use.per_wh(0.9) == pytest.approx(0.9 / (1000 * use.kwh))
    assert "Wh" in str(use)


def test_clients_that_are_left_out_take_nothing() -> None:
    X = np.random.default_rng(0).normal(size=(40, 3))
    fed = so.simulate(X, X[:, 0] > 0, clients=4)
    for some in (fed.without(0, 1), fed[-20:]):
        with so.energy.track_energy(some, source="model") as tracked:
            so.FedHEONN().fit(some)
        shares = tracked.use.clients
        assert shares[:2] == [0, 0] < shares[2:]


def test_the_innermost_ask_owns_a_moment() -> None:
    none = np.zeros(0, dtype=np.int64)

    def ask(began: float, ended: float) -> Record:
        return Record(0, "t", none, none, none, none, began, ended - began, 0.0)

    moments = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    assert _owners(moments, [ask(1, 4), ask(2, 3)]) == [-1, 0, 1, 0, -1]
    assert _owners(moments, []) == [-1] * 5


def test_uses_add_up() -> None:
    a = EnergyUse(1.0, 0.5, 10.0, "model", {"x": 0.6, "y": 0.4}, [1.0], [0.2, 0.3])
    b = EnergyUse(2.0, 1.0, 5.0, "model", {"x": 2.0}, [0.5, 1.5], [])
    total = a + b
    assert (total.kwh, total.co2e, total.seconds, total.source) == (3.0, 1.5, 15.0, "model")
    assert total.tasks == {"x": 2.6, "y": 0.4}
    assert total.rounds == [1.5, 1.5]
    assert total.clients == [0.2, 0.3]
    assert (a + replace(b, source="codecarbon")).source == "mixed"
    assert EnergyUse(0.0, 0.0, 0.0, "model").per_wh(1.0) == float("inf")


@pytest.mark.parametrize(("workers", "gap"), [(1, 0.03), (2, 0.1)])
def test_a_study_adds_up_to_what_a_meter_around_it_reads(
    tmp_path: Path, workers: int, gap: float
) -> None:
    """The sum of all tasks of all cells against one meter around everything; of four cells.

    Processes that end leave some CPU time that only the meter around them sees. Memory is left
    out: that meter sees all children, those of earlier tests among them, for as long as it takes.
    """
    from solera.study.files.reader import parse
    from solera.study.run.runner import run_study

    text = (
        'seeds = [0, 1]\nschemes = ["alone", "federated"]\n[data]\nname = "digits"\n'
        'clients = 10\nclient_test = 0.2\n[learner]\nkind = "FedLinear"\nrounds = 80\n'
        'epochs = 3\nlr = 1e-3\n[energy]\nsource = "model"\nmemory_watts = 0\n'
    )
    study = parse(text, file="study.toml", name="study")
    run = run_study(study, tmp_path, workers=workers)
    uses = [r.energy for _, r in run.finished if r.energy is not None]
    parts = sum(sum(use.tasks.values()) for use in uses)
    assert len(uses) == 4
    assert parts == pytest.approx(sum(use.kwh for use in uses), rel=1e-9)
    assert run.energy is not None
    assert parts + run.coordination_kwh == pytest.approx(run.energy.kwh, rel=gap)


@needs_codecarbon
def test_codecarbon_measures_and_tasks_share_it() -> None:
    fed = federation()
    with so.energy.track_energy(fed, source="codecarbon", country="ESP") as tracked:
        so.FedLinear(rounds=40, lr=0.001).fit(fed)
        burn(0.5)
    use = tracked.use
    assert use.source == "codecarbon"
    assert use.kwh > 0
    assert sum(use.tasks.values()) == pytest.approx(use.kwh, rel=1e-9)
    assert use.co2e == pytest.approx(use.kwh * carbon.intensity("ESP") / 1000)
    assert 100 < carbon.intensity("ESP") < 400
    assert carbon.intensity("FRA") < carbon.intensity("POL")
    with pytest.raises(UsageError, match="no country 'Spain'"):
        carbon.intensity("Spain")


def test_without_codecarbon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carbon, "installed", lambda: False)
    carbon.tracker.cache_clear()
    assert so.energy.EnergyOptions().resolved() == "model"
    assert carbon.intensity("WORLD") == 475.0
    with pytest.raises(MissingExtra, match=r"'FRA' needs the extra 'green'"):
        carbon.intensity("FRA")
    with pytest.raises(MissingExtra, match="green"), so.energy.track_energy(source="codecarbon"):
        pass
    with so.energy.track_energy(intensity=100.0, pue=2.0) as tracked:
        burn(0.05)
    assert tracked.use.co2e == pytest.approx(tracked.use.kwh / 10)


def test_wrong_options() -> None:
    for options, message in (
        ({"source": "guess"}, "source must be"),
        ({"core_watts": -1.0}, "core_watts must be a number of at least 0"),
    ):
        with pytest.raises(UsageError, match=message), so.energy.track_energy(**options):
            pass
    with pytest.raises(UsageError, match="wh must be a number > 0"):
        so.callbacks.EnergyBudget(0)


def test_a_budget_stops_training(tmp_path: Path) -> None:
    whole = so.FedLinear(rounds=400, lr=0.001)
    budget = so.callbacks.EnergyBudget(wh=2e-4)  # 12 W for some 60 ms
    model = whole.clone().fit(federation(), callbacks=[budget])
    assert 1 <= len(model.history_) < 400
    assert model.history_[-1]["wh"] >= 2e-4
    assert all(entry["wh"] < 2e-4 for entry in model.history_[:-1])

    class Interrupt(so.callbacks.Callback):
        def on_round(self, learner: Any, round: Any) -> None:
            if round.index == 2:
                raise KeyboardInterrupt

    path = tmp_path / "checkpoint.sol"
    first = so.callbacks.EnergyBudget(wh=10.0)
    with pytest.raises(KeyboardInterrupt):
        whole.clone().fit(federation(), callbacks=[first, Interrupt()], checkpoint=path)
    again = so.callbacks.EnergyBudget(wh=10.0)
    short = so.FedLinear(rounds=400, lr=0.001)
    second = [again, Stop(5)]
    short.fit(federation(), callbacks=second, checkpoint=path)
    spent = [entry["wh"] for entry in short.history_]
    assert np.all(np.diff(spent) > 0)  # what the first start took is not forgotten


class Stop(so.callbacks.Callback):
    def __init__(self, after: int) -> None:
        self.after = after

    def on_round(self, learner: Any, round: Any) -> None:
        if round.index == self.after:
            round.stop("enough")

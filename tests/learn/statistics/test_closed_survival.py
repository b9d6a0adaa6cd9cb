"""Survival in closed jobs: equal to what all rows in one place give, and nothing of few persons."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from statsmodels.duration.hazard_regression import PHReg
from statsmodels.duration.survfunc import SurvfuncRight, survdiff

import solera as so
from solera.core.errors import DataError, GateRefusal, UsageError
from solera.learn.statistics import survival_grid
from solera.simulate.owners import SimulatedOwners

NAMES = np.array(["north", "south", "east", "west"])
SITES = np.repeat(NAMES, 75)
MIN_COUNT = 5


def trial(seed: int = 0, rows: int = 300, columns: int = 4, censored: float = 150.0):
    """Patients of four sites, times in days."""
    draw = np.random.default_rng(seed)
    X = draw.normal(size=(rows, columns)) * 2 + 7
    arm = draw.integers(0, 3, rows)
    hazard = (X - 7) @ np.linspace(0.3, -0.2, columns) - 0.3 * arm
    event, end = draw.exponential(100 * np.exp(-hazard)), draw.exponential(censored, rows)
    frame = pd.DataFrame(X.round(3), columns=[f"x{j}" for j in range(columns)])
    return frame.assign(
        arm=np.array(["a", "b", "c"])[arm],
        days=np.ceil(np.minimum(event, end)),
        event=(event <= end).astype(float),
    )


def owners(frame: pd.DataFrame, seed: int = 0, policy="sums", **options) -> so.Federation:
    dictionary = so.epochs.draft(frame, target=["days", "event"], time="days")
    sites = frame.assign(site=SITES if len(frame) == 300 else np.resize(NAMES, len(frame)))
    return so.simulate(
        sites, group="site", dictionary=dictionary, policy=policy, seed=seed, **options
    )


def reference(frame: pd.DataFrame, times) -> np.ndarray:
    """Kaplan and Meier's S just before each time, of single rows."""
    curve = SurvfuncRight(frame["days"], frame["event"])
    before = np.searchsorted(curve.surv_times, times, side="left")
    return np.append(1.0, curve.surv_prob)[before]


# --- curves ---


@pytest.mark.parametrize("censored", [60.0, 150.0, 500.0, 3000.0])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_curve_is_within_two_hundredths_of_single_rows(censored: float, seed: int) -> None:
    frame = trial(seed, censored=censored)
    curve = so.learn.kaplan_meier(owners(frame, seed)).curves[0]
    assert len(curve.times) >= 3
    assert curve.rows == 300
    np.testing.assert_allclose(curve.survival, reference(frame, curve.times), atol=0.02)
    before = [((frame["days"] < t) & (frame["event"] > 0)).sum() for t in curve.times]
    assert np.cumsum(curve.events).tolist() == before  # these counts are exact


@pytest.mark.parametrize("seed", [3, 4])
def test_groups_have_curves_and_a_test(seed: int) -> None:
    frame = trial(seed, rows=900)
    curves = so.learn.kaplan_meier(owners(frame, seed), by="arm")
    for curve in curves.curves:
        rows = frame[frame["arm"] == curve.name]
        assert curve.rows == len(rows)
        np.testing.assert_allclose(curve.survival, reference(rows, curve.times), atol=0.02)
    statistic, df, _ = curves.log_rank()
    truth, _ = survdiff(frame["days"], frame["event"], frame["arm"])
    assert df == 2
    assert np.sqrt(statistic) == pytest.approx(np.sqrt(truth), abs=0.7)


def test_a_curve_says_its_grid() -> None:
    curves = so.learn.kaplan_meier(owners(trial()), by="arm")
    times = ", ".join(f"{t:g}" for t in curves.curves[0].times)
    assert "times of the epoch" in str(curves)
    assert f"a: {times}" in str(curves)
    assert f"a: {times}" in curves._repr_html_()
    assert f"a: {times}" in curves.plot().get_supxlabel()


@pytest.mark.data
def test_a_curve_of_real_patients_is_within_five_thousandths() -> None:
    """TCGA-BRCA, 1,088 persons of six regions."""
    file = Path(os.environ["SOLERA_DATA"]) / "flamby_tcga_brca.csv.gz"
    if not file.exists():
        pytest.skip(f"{file.name} is not in the folder SOLERA_DATA")
    table = pd.read_csv(file)
    frame = pd.DataFrame({"x": np.arange(len(table)) % 7, "days": table["T"], "event": table["E"]})
    frame = frame.astype(float)
    dictionary = so.epochs.draft(frame, target=["days", "event"], time="days")
    far = []
    for seed in range(5):
        secrets = {k: bytes([seed, k]) * 16 for k in range(6)}
        fed = so.simulate(
            frame.assign(center=table["center"]),
            group="center",
            dictionary=dictionary,
            policy="sums",
            secrets=secrets,
        )
        curve = so.learn.kaplan_meier(fed).curves[0]
        assert len(curve.times) >= 4
        far.append(np.abs(curve.survival - reference(frame, curve.times)).max())
    assert np.median(far) < 0.005
    assert max(far) < 0.01


def test_few_censored_rows_are_counted_with_noise() -> None:
    frame = trial(5, censored=1e6)
    frame.loc[:3, "event"] = 0.0
    curves = so.learn.kaplan_meier(owners(frame))
    assert "all: about 10 censored rows or fewer, counted with noise" in str(curves)
    curve = curves.curves[0]
    np.testing.assert_allclose(curve.survival, reference(frame, curve.times), atol=0.02)


def test_groups_of_few_events_have_no_curve() -> None:
    frame = trial(6)
    few = frame["arm"] == "c"
    frame.loc[few, "event"] = 0.0
    curves = so.learn.kaplan_meier(owners(frame), by="arm")
    assert [len(curve.times) > 0 for curve in curves.curves] == [True, True, False]
    assert "c: too few events" in str(curves)
    assert curves.log_rank()[1] == 1
    assert len(curves.plot().axes[0].lines) == 3
    frame.loc[frame["arm"] == "b", "event"] = 0.0
    assert "log-rank test:" not in str(so.learn.kaplan_meier(owners(frame), by="arm"))
    frame = frame.drop(np.flatnonzero(few)[12:]).reset_index(drop=True)
    with pytest.raises(DataError, match="rows are too few for counts"):
        so.learn.kaplan_meier(owners(frame, test=0.4), by="arm")
    with pytest.raises(DataError, match="20 events or more"):
        so.learn.kaplan_meier(owners(frame.assign(event=0.0)))


# --- Cox's model ---


def at_grid(frame: pd.DataFrame, model: so.FedCox) -> tuple[np.ndarray, np.ndarray]:
    """Times and events as the model says that it counts them."""
    days, event = frame["days"].to_numpy(), frame["event"].to_numpy()
    times = np.append(model.times_, np.inf)
    until, counted = model.censored_times_.T
    time = np.where(
        event == 1,
        times[np.searchsorted(times, days, side="right")],
        counted[np.searchsorted(until, days, side="right")],
    )
    event = np.where(np.isin(time, model.times_), event, 0.0)
    return np.where(np.isinf(time), 1e9, time), event


@pytest.mark.parametrize("censored", [150.0, 2000.0, 1e6])
@pytest.mark.parametrize("seed", [0, 1])
def test_all_rows_together_are_one_model_on_the_times_of_the_grid(seed, censored) -> None:
    """The oracle is statsmodels; benchmarks/survival.py compares with lifelines."""
    frame = trial(seed, censored=censored).drop(columns="arm")
    model = so.FedCox(strata=None).fit(owners(frame, seed), progress=False)
    time, event = at_grid(frame, model)
    X = frame.filter(like="x").to_numpy()
    truth = PHReg(time, X, status=event, ties="efron").fit(tol=1e-13, disp=False)
    np.testing.assert_allclose(model.params_, truth.params, rtol=1e-6)
    np.testing.assert_allclose(model.standard_errors, truth.bse, rtol=1e-6)
    assert model.log_likelihood_ == pytest.approx(truth.llf, rel=1e-8)
    assert (model.rows_, model.events_) == (300, int(event.sum()))
    assert f"on {len(model.times_)} intervals of the epoch's times" in str(model.summary())
    all_events = model.events_ == frame["event"].sum()
    assert ("later events counted as censored" in str(model.summary())) == (not all_events)
    single = PHReg(frame["days"], X, status=frame["event"], ties="efron").fit(disp=False)
    assert (np.abs(model.params_ - single.params) < 1.5 * single.bse).all()


@pytest.mark.parametrize("seed", [0, 1])
def test_strata_of_owners_are_those_of_all_rows_in_one_place(seed: int) -> None:
    frame = trial(seed).drop(columns="arm")
    model = so.FedCox().fit(owners(frame, seed), progress=False)
    truth = PHReg(
        frame["days"],
        frame.filter(like="x"),
        status=frame["event"],
        strata=SITES,
        ties="efron",
    ).fit(tol=1e-13, disp=False)
    np.testing.assert_allclose(model.params_, truth.params, rtol=1e-6)
    np.testing.assert_allclose(model.standard_errors, truth.bse, rtol=1e-6)
    assert model.events_ == frame["event"].sum()


def test_an_event_may_be_a_label_of_the_dictionary() -> None:
    frame = trial().drop(columns="arm")
    numbers = so.FedCox(strata=None).fit(owners(frame), progress=False)
    labels = frame.astype({"event": int})
    text = so.epochs.draft(frame, target=["days", "event"], time="days").toml()
    line = 'event = { kind = "categorical", categories = ["0", "1"] }'
    lines = [line if entry.startswith("event =") else entry for entry in text.splitlines()]
    dictionary = so.epochs.Dictionary.parse("\n".join(lines))
    fed = so.simulate(
        labels.assign(site=SITES), group="site", dictionary=dictionary, policy="sums", seed=0
    )
    model = so.FedCox(strata=None).fit(fed, progress=False)
    truth = PHReg(*_at(labels, model), ties="efron").fit(tol=1e-13, disp=False)
    np.testing.assert_allclose(model.params_, truth.params, rtol=1e-6)
    np.testing.assert_allclose(model.params_, numbers.params_, atol=0.1)


def _at(frame, model):
    time, event = at_grid(frame, model)
    return time, frame.filter(like="x").to_numpy(), event


def test_what_cannot_be_fitted_is_named() -> None:
    frame = trial(columns=2).drop(columns="arm")
    with pytest.raises(UsageError, match="has the times of an epoch"):
        so.FedCox(strata=None).fit(so.simulate(frame, target=["days", "event"], clients=4))
    early = frame.assign(x1=frame["event"])
    for strata in ("client", None):
        with pytest.raises(DataError, match="x1 tells who has the event without error"):
            so.FedCox(strata=strata).fit(owners(early), progress=False)
    wide = trial(rows=100, columns=17).drop(columns="arm")
    with pytest.raises(GateRefusal, match="17 parameters of one output need 102 persons"):
        so.FedCox().fit(owners(wide), progress=False)
    few = frame.assign(event=(np.arange(len(frame)) < 4) * 1.0)
    with pytest.raises(DataError, match="fewer than about 10 events"):
        so.FedCox().fit(owners(few), progress=False)
    with pytest.raises(DataError, match="20 events or more"):
        so.FedCox(strata=None).fit(owners(few), progress=False)


# --- what is told ---


@dataclass
class Reader:
    """What an owner reads of a job: the sets of rows of which it is told exact numbers."""

    frame: pd.DataFrame
    sets: list[np.ndarray] = field(default_factory=list)

    def read(self, ask, total) -> None:
        payload = ask.payload
        if ask.task not in ("survival.counts", "cox.hazards") or total.noised:
            return
        group = np.zeros(len(self.frame), dtype=int)
        if payload["by"] is not None:
            codes = pd.Categorical(self.frame[payload["by"]]).codes
            group = np.asarray(payload["groups"])[codes]
        place = np.searchsorted(payload["edges"], self.frame["days"], side="right")
        cell = np.asarray(payload["cells"])[group, self.frame["event"].astype(int), place]
        entry = {"survival.counts": "counts", "cox.hazards": "sums"}[ask.task]
        absent = getattr(total.partial, "absent", {}).get(entry, None)
        for number in range(int(np.asarray(payload["cells"]).max()) + 1):
            if absent is None or not np.any(absent[number]):
                self.sets.append(cell == number)


@pytest.fixture
def readers(monkeypatch):
    """Lets a reader of ``readers[0]`` read every total."""
    reading: list[Reader] = []
    before = SimulatedOwners.total

    def total(self, question, ask, aggregation):
        answer = before(self, question, ask, aggregation)
        for reader in reading:
            reader.read(ask, answer)
        return answer

    monkeypatch.setattr(SimulatedOwners, "total", total)
    return reading


JOBS = {
    "curve": lambda fed: so.learn.kaplan_meier(fed),
    "curves": lambda fed: so.learn.kaplan_meier(fed, by="arm"),
    "cox": lambda fed: so.Pipeline(so.learn.FedSelect(["x0", "x1"]), so.FedCox(strata=None)).fit(
        fed, progress=False
    ),
}


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("censored", [40.0, 150.0, 3000.0])
def test_no_exact_number_is_of_few_persons(readers, name: str, censored: float) -> None:
    """Every set of rows that sums and differences of told sets give has five persons or none."""
    several = 0
    for seed in range(4):
        frame = trial(seed, rows=600, censored=censored)
        reader = Reader(frame)
        readers[:] = [reader]
        with contextlib.suppress(DataError):  # too few events for a grid
            JOBS[name](owners(frame, seed))
        if not reader.sets:
            continue
        several += 1
        told = {marks.tobytes(): marks for marks in [*reader.sets, np.ones(len(frame), bool)]}
        marks = np.array(list(told.values()))
        sums = np.cumsum(marks[:-1], axis=0)
        assert (sums <= 1).all()  # cells of a job share no row, so differences are sums of others
        sizes = marks.sum(axis=1)
        assert ((sizes >= MIN_COUNT) | (sizes == 0)).all(), sizes
        others = len(frame) - sums[-1].sum()
        assert others == 0 or others >= MIN_COUNT
    assert several >= 2


def test_the_judge_holds_where_the_learner_would_ask_for_less(monkeypatch, readers) -> None:
    """A learner that asks for cells of few persons is told nothing exact of them."""
    monkeypatch.setattr(survival_grid, "LEAST", 2)
    monkeypatch.setattr(survival_grid, "_MARGIN", 0)
    readers[:] = [Reader(trial())]
    with pytest.raises(DataError, match="rows are too few for counts"):
        so.learn.kaplan_meier(owners(readers[0].frame))
    assert not readers[0].sets

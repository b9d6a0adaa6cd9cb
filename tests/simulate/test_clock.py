"""Virtual time: resources, rounds, deadlines, dropouts, the day, and when to stop."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import solera as so
from solera.core.errors import UsageError
from solera.core.selection import Work

IDS = np.arange(50)
WORK = Work(1_400_000, 5.0, np.full(50, 60))


def test_resources_follow_the_model_of_the_thesis():
    ids = np.arange(20_000)
    model = so.simulation.Resources()
    usual, now = model.usual(1, ids), model.now(1, 7, ids)
    assert usual.speed.min() >= 10
    assert usual.speed.max() <= 100
    assert usual.speed.mean() == pytest.approx(55, abs=0.6)
    assert (usual.link == 1.4e6).all()
    for factor in (now.speed / usual.speed, now.link / usual.link):
        assert np.abs(factor - 1).max() <= 0.2 + 1e-12
        assert factor.mean() == pytest.approx(1, abs=0.003)
        assert factor.std() == pytest.approx(0.088, abs=0.002)  # a normal cut at two deviations
    assert model.allows_upload(1, ids).mean() == pytest.approx(0.01, abs=0.003)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 99), round=st.integers(0, 99), cut=st.integers(1, 49))
def test_resources_do_not_depend_on_who_else_is_asked(seed, round, cut):
    model = so.simulation.Resources(link=(1e5, 1e6))
    together = model.now(seed, round, IDS)
    alone = model.now(seed, round, IDS[cut:])
    assert np.array_equal(together.speed[cut:], alone.speed)
    assert np.array_equal(together.link[cut:], alone.link)


def test_a_round_takes_the_time_of_the_formula():
    steady = so.simulation.Resources(speed=50.0, link=1.4e6, variation=0.0)
    three = Work(1_400_000, 5.0, np.array([10, 20, 30]))
    for uploads, expected in (("sequential", 1 + 1 + 3), ("parallel", 1 + 3 + 1)):
        timing = so.simulation.VirtualClock(steady, uploads=uploads).time_round(
            0, 0, 0.0, np.arange(3), three
        )
        assert timing.seconds == pytest.approx(expected)
        assert not timing.missed
    # ready after 1, 2 and 3 s: one after the other is no slower here; two at once it is
    same = Work(1_400_000, 5.0, np.array([30, 30, 30]))
    timing = so.simulation.VirtualClock(steady, overhead=2.0).time_round(
        0, 0, 0.0, np.arange(3), same
    )
    assert timing.seconds == pytest.approx(2 + 1 + 3 + 3)


@settings(max_examples=40, deadline=None)
@given(deadline=st.floats(0.5, 120), seed=st.integers(0, 50))
def test_a_deadline_is_kept_and_the_late_are_named(deadline, seed):
    clock, free = so.simulation.VirtualClock(deadline=deadline), so.simulation.VirtualClock()
    timing, whole = (c.time_round(seed, 0, 0.0, IDS, WORK) for c in (clock, free))
    assert timing.seconds <= max(deadline, 0) + 1e-9
    assert {failure.kind for failure in timing.missed} <= {"late"}
    assert bool(timing.missed) == (whole.seconds > deadline)
    if timing.missed:
        assert timing.seconds == pytest.approx(deadline)


def test_dropouts_and_stragglers():
    failures = so.simulation.Failures(dropout=0.3, straggle=0.3, delay=100.0)
    clock = so.simulation.VirtualClock(failures=failures)
    timing = clock.time_round(0, 0, 0.0, IDS, WORK)
    plain = so.simulation.VirtualClock().time_round(0, 0, 0.0, IDS, WORK)
    assert 5 < len(timing.missed) < 26
    assert {failure.kind for failure in timing.missed} == {"dropped"}
    assert timing.seconds > plain.seconds
    assert clock.time_round(0, 0, 0.0, IDS, WORK) == timing


def test_availability_over_the_day():
    day = so.simulation.Availability(8)
    ids = np.arange(3000)
    left = np.array([day.left(0, hour * 3600.0, ids) for hour in range(48)])
    there = left > 0
    assert there.mean() == pytest.approx(1 / 3, abs=0.02)
    assert np.array_equal(there[:24], there[24:])
    assert (there[:24].sum(axis=0) <= 9).all()
    assert left.max() <= 8 * 3600
    assert (so.simulation.Availability(8, together=1.0).left(0, 0.0, ids) > 0).all()
    assert not (so.simulation.Availability(8, together=1.0).left(0, 9 * 3600.0, ids) > 0).any()
    assert (so.simulation.Availability(24).left(0, 1.0, ids) > 0).all()


def fit(clock, callbacks=(), rounds=5, **options):
    X, y, *_ = so.datasets.digits()
    fed = so.simulate(X / 16, y, clients=20, seed=2, clock=clock)
    options = {"per_round": 5, **options}
    return so.FedLinear(rounds=rounds, **options).fit(fed, callbacks=list(callbacks))


def test_clients_that_leave_are_lost_and_time_passes():
    history = fit(
        so.simulation.VirtualClock(failures=so.simulation.Failures(dropout=0.5)), rounds=8
    ).history_
    assert any(entry["failures"] for entry in history)
    assert all(entry["clients"] + entry["failures"] == 5 for entry in history)
    times = [entry["time"] for entry in history]
    assert times == pytest.approx(np.cumsum([entry["seconds"] for entry in history]))


def test_nobody_in_time_is_a_skipped_round(caplog):
    with caplog.at_level(logging.WARNING, "solera"):
        model = fit(so.simulation.VirtualClock(deadline=0.01), rounds=3)
    assert "nobody came back in time" in caplog.text
    assert [entry["seconds"] for entry in model.history_] == pytest.approx([0.01] * 3)
    assert not model.coef_.any()


def test_nobody_there_is_a_skipped_round_and_the_clock_goes_on(caplog):
    night = so.simulation.VirtualClock(
        so.simulation.Resources(speed=0.2),
        availability=so.simulation.Availability(1, together=1.0),
        idle=1200.0,
    )
    with caplog.at_level(logging.WARNING, "solera"):
        history = fit(night, rounds=110).history_
    assert "nobody was chosen" in caplog.text
    days = {int(entry["time"] // 86400) for entry in history if entry["clients"]}
    assert {0, 1} <= days


def test_stop_at_a_time_or_a_score():
    _, _, X_test, y_test = so.datasets.digits()
    history = fit(
        so.simulation.VirtualClock(), [so.callbacks.StopAt(time=60)], rounds=1000
    ).history_
    assert history[-1]["time"] >= 60 > history[-2]["time"]
    score = so.callbacks.Evaluate(X_test / 16, y_test)
    history = fit(
        so.simulation.VirtualClock(), [score, so.callbacks.StopAt(target=0.6)], rounds=200
    ).history_
    assert history[-1]["score"] >= 0.6 > history[-2]["score"]
    history = fit(None, [so.callbacks.StopAt(metric="loss", target=1.5)], rounds=200).history_
    assert history[-1]["loss"] <= 1.5 < history[-2]["loss"]
    assert len(fit(None, [so.callbacks.StopAt(time=1e-9)], rounds=200).history_) == 1


def test_interrupted_time_goes_on(tmp_path):
    class Interrupt(so.callbacks.Callback):
        def on_round(self, learner, round):
            if round.index == 2:
                raise KeyboardInterrupt

    X, y, *_ = so.datasets.digits()

    def fed():
        return so.simulate(
            X,
            y,
            clients=9,
            clock=so.simulation.VirtualClock(availability=so.simulation.Availability(9)),
        )

    model = so.FedLinear(rounds=6, per_round=3)
    plain = model.clone().fit(fed())
    with pytest.raises(KeyboardInterrupt):
        model.clone().fit(fed(), checkpoint=tmp_path / "c", callbacks=[Interrupt()])
    assert model.clone().fit(fed(), checkpoint=tmp_path / "c").history_ == plain.history_


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: so.simulation.VirtualClock(uploads="both"), "uploads must be"),
        (lambda: so.simulation.VirtualClock(deadline=0), "deadline must be a number > 0"),
        (lambda: so.simulation.VirtualClock(overhead=-1), "overhead must be"),
        (lambda: so.simulation.VirtualClock(idle=0), "idle must be"),
        (
            lambda: so.simulation.VirtualClock(failures=so.simulation.Failures(corrupt=0.1)),
            "corrupt",
        ),
        (lambda: so.simulation.VirtualClock(so.simulation.Resources(speed=0)), "speed must be"),
        (lambda: so.simulation.VirtualClock(so.simulation.Resources(link=(2, 1))), "link must be"),
        (
            lambda: so.simulation.VirtualClock(so.simulation.Resources(variation=1)),
            "variation must be",
        ),
        (lambda: so.simulation.VirtualClock(so.simulation.Resources(spread=-1)), "spread must be"),
        (lambda: so.simulation.VirtualClock(so.simulation.Resources(upload=2)), "upload must be"),
        (
            lambda: so.simulation.VirtualClock(so.simulation.Resources(reports="never")),
            "reports must be",
        ),
        (
            lambda: so.simulation.VirtualClock(availability=so.simulation.Availability(0)),
            "hours must be",
        ),
        (
            lambda: so.simulation.VirtualClock(
                availability=so.simulation.Availability(1, together=2)
            ),
            "together must",
        ),
    ],
)
def test_bad_parameters_are_named(make, words):
    with pytest.raises(UsageError, match=words):
        fit(make())


def test_bad_ways_to_stop_are_named():
    with pytest.raises(UsageError, match="time must be"):
        so.callbacks.StopAt(time=0)
    with pytest.raises(UsageError, match="mode must be"):
        so.callbacks.StopAt(target=1, mode="up")


def test_a_clock_needs_to_know_the_rows():
    lazy = so.data.LazyData(
        lambda client, rng: (rng.normal(size=(5, 2)), rng.normal(size=5)), clients=4
    )
    with pytest.raises(UsageError, match="how many rows"):
        so.FedLinear(rounds=1).fit(so.simulate(lazy, clock=so.simulation.VirtualClock()))

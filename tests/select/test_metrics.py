"""What selections come to: metrics, pictures, grid search."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import solera as so
from solera.core.errors import DataError, UsageError

HISTORY = [
    {"round": i, "clients": 3, "bytes_down": 10, "bytes_up": 5, "time": 60.0 * (i + 1),
     "seconds": 60.0, "score": s, "loss": (1 - s) / 7, "held_out_loss": 1 - s}
    for i, s in enumerate([0.2, 0.5, 0.9, 0.8])
]  # fmt: skip


def test_arrival_area_updates_and_bytes():
    assert so.selectors.rounds_to(HISTORY, 0.5) == 2
    assert so.selectors.time_to(HISTORY, 0.85) == 180.0
    assert so.selectors.rounds_to(HISTORY, 0.95) is None
    assert so.selectors.time_to(HISTORY, 0.95) is None
    assert so.selectors.area_under(HISTORY) == pytest.approx((0.65 + 0.3 + 0.15) / 3)
    assert so.selectors.area_under(HISTORY, over="time") == pytest.approx((0.65 + 0.3 + 0.15) / 3)
    assert so.selectors.updates(HISTORY) == 12
    assert so.selectors.traffic(HISTORY) == 60
    of_training = so.selectors.area_under(HISTORY, "loss")
    assert of_training == pytest.approx((0.65 + 0.3 + 0.15) / 21), "that of who was chosen"
    skipped = [*HISTORY[:1], {"round": 1, "clients": 0, "bytes_down": 0, "bytes_up": 0}]
    assert so.selectors.area_under(skipped) == pytest.approx(0.8)
    with pytest.raises(UsageError, match="no time"):
        so.selectors.time_to([{"score": 1.0}], 0.5)
    with pytest.raises(DataError, match=r"no round has both 'held_out_loss'.*Evaluate\(X, y\)"):
        so.selectors.area_under([{"round": 0, "loss": 1.0}])


counts = st.lists(st.integers(0, 20), min_size=1, max_size=30)


@settings(max_examples=80, deadline=None)
@given(counts=counts)
def test_gini_is_half_the_mean_relative_difference(counts):
    n = np.array(counts, float)
    found = so.selectors.gini(n)
    total = n.sum()
    expected = np.abs(n[:, None] - n).sum() / (2 * len(n) * total) if total else 0.0
    assert found == pytest.approx(expected, abs=1e-12)
    assert 0 <= found < 1
    assert so.selectors.gini(n * 7) == pytest.approx(found)
    assert so.selectors.coverage(n) == pytest.approx((n > 0).mean())


def test_gini_by_group():
    found = so.selectors.gini_by_group([4, 4, 0, 8], ["a", "a", "b", "b"])
    assert found["a"] == {"share": 0.5, "coverage": 1.0, "gini": 0.0}
    assert found["b"] == {"share": 0.5, "coverage": 0.5, "gini": 0.5}
    with pytest.raises(DataError, match="3 groups"):
        so.selectors.gini_by_group([1, 2], ["a", "b", "c"])
    for bad in ([], [-1], [np.nan]):
        with pytest.raises(DataError):
            so.selectors.gini(bad)


def fed(seed=0):
    X, y, *_ = so.datasets.digits()
    failures = so.simulation.Failures(dropout=0.2)
    clock = so.simulation.VirtualClock()
    options = {"clock": clock, "failures": failures, "validation": 0.2}
    return so.simulate(X / 16, y, clients=12, seed=seed, **options)


def test_selections_are_recorded():
    seen = so.selectors.Selections()
    assert "area" not in so.selectors.summarise(so.FedLinear(rounds=2).fit(fed()).history_), (
        "a loss of the training rows of some is that of nobody"
    )
    rows = fed().data.segments(np.arange(12), "validation").joined()
    watch = [seen, so.callbacks.Evaluate(rows.X, rows.y)]
    model = so.FedLinear(rounds=6, per_round=4).fit(fed(), callbacks=watch)
    assert seen.chosen_.sum() == 24
    lost = sum(entry["failures"] for entry in model.history_)
    assert seen.took_part_.sum() == 24 - lost < 24
    found = so.selectors.summarise(model.history_, seen, targets=[0.01])
    assert found["rounds"] == 6
    assert found["coverage"] <= 1
    assert found["time"] == model.history_[-1]["time"]
    assert set(found) == {
        "rounds", "updates", "RoA@0.01", "ToA@0.01", "area", "time", "bytes", "coverage", "gini",
    }  # fmt: skip
    again = so.selectors.Selections()
    again.set_state(seen.get_state())
    assert np.array_equal(again.chosen_, seen.chosen_)


def test_grid_search_finds_the_smallest_area_of_the_held_out_loss():
    learner = so.FedLinear(rounds=4, per_round=3, select=so.ActiveSampling())
    grid = {"alpha2": [0.0, 1.0], "alpha3": [0.0, 1.0]}
    found = so.selectors.grid_search(learner, fed, grid, seeds=[0, 1])
    assert len(found) == 4
    assert [entry["area"] for entry in found] == sorted(entry["area"] for entry in found)
    best = {name: found[0][name] for name in grid}
    areas = []
    for seed in (0, 1):
        rows = fed(seed).data.segments(np.arange(12), "validation").joined()
        model = so.FedLinear(rounds=4, per_round=3, select=so.ActiveSampling(**best))
        model.fit(fed(seed), callbacks=[so.callbacks.Evaluate(rows.X, rows.y)])
        p = model.predict_proba(rows.X)[np.arange(len(rows.y)), rows.y]
        assert model.history_[-1]["held_out_loss"] == pytest.approx(-np.log(p).mean())
        areas.append(so.selectors.area_under(model.history_))
    assert found[0]["area"] == pytest.approx(np.mean(areas))
    assert learner.select == so.ActiveSampling()
    with pytest.raises(UsageError, match="no selector"):
        so.selectors.grid_search(so.FedLinear(), fed, grid)
    with pytest.raises(UsageError, match="at least one value"):
        so.selectors.grid_search(learner, fed, {"alpha2": []})
    X, y, *_ = so.datasets.digits()
    with pytest.raises(UsageError, match=r"no validation rows to tune by.*validation=0\.2"):
        so.selectors.grid_search(learner, lambda seed: so.simulate(X, y, clients=4), grid)


def test_pictures_show_what_they_are_given():
    later = [{**entry, "score": entry["score"] / 2, "seconds": 30.0} for entry in HISTORY[:3]]
    runs = {"one": [HISTORY, later], "two": [later]}
    ax = so.selectors.plot_learning(runs).axes[0]
    np.testing.assert_allclose(ax.lines[0].get_ydata(), [0.15, 0.375, 0.675])
    assert len(ax.collections) == 2
    ax = so.selectors.plot_learning(runs, over="time").axes[0]
    assert ax.lines[0].get_xdata()[-1] == 3.0
    ax = so.selectors.plot_times(runs).axes[0]
    np.testing.assert_allclose(ax.lines[0].get_ydata(), [45, 45, 45])
    ax = so.selectors.plot_clients(runs).axes[0]
    np.testing.assert_allclose(ax.lines[1].get_ydata(), [3, 3, 3])
    draw = np.random.default_rng(0)
    ax = so.selectors.plot_selections({"a": draw.poisson(5, 400), "b": np.ones(9)}).axes[0]
    line = ax.lines[0]
    assert np.trapezoid(line.get_ydata(), line.get_xdata()) == pytest.approx(1, abs=0.05)
    heights = [patch.get_height() for patch in ax.patches]
    assert max(heights) == pytest.approx(1.0)  # all of b fall into one bar
    for bad in (lambda: so.selectors.plot_times({"x": []}),
                lambda: so.selectors.plot_selections({"x": []}),
                lambda: so.selectors.plot_learning({"x": [HISTORY]}, "f1")):  # fmt: skip
        with pytest.raises(DataError):
            bad()


@pytest.mark.parametrize(
    "plot",
    [so.selectors.plot_times, lambda runs: so.selectors.plot_learning(runs, "loss", over="time")],
    ids=["times", "learning"],
)
def test_times_are_drawn_where_there_are_some(plot):
    X = np.random.default_rng(0).normal(size=(40, 2))
    clients = so.simulate(X, (X[:, 0] > 0).astype(int), clients=4, seed=0)
    timeless = so.FedLinear(rounds=2, per_round=2).fit(clients)
    with pytest.raises(DataError, match=r"'uniform' have no '(time|seconds)'.*clock=") as error:
        plot({"uniform": [timeless.history_]})
    assert "so.simulation.VirtualClock()" in error.value.hint

"""FedCS, HybridFL, DynHybridFL: schedules against the slow version, deadlines, uploaded rows."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import solera as so
from solera.core.selection import Work
from solera.core.task import _tasks, find_task
from solera.select import upload
from solera.select.resources import Estimates, _is_sound
from solera.select.schedule import greedy_schedule
from solera.select.upload import plan_upload
from solera.simulate.clock import VirtualClock, finishing_times

seconds = st.floats(0.01, 60)
candidates = st.lists(st.tuples(seconds, seconds), min_size=0, max_size=9)


def slow(training, uploading, deadline, counts=None, term="variance"):
    """The textbook loop: every candidate is tried, the best is added while the round fits."""
    chosen, left = [], list(range(len(training)))

    def time_of(order):
        distributed = max((uploading[k] for k in order), default=0.0)
        elapsed = 0.0
        for k in order:
            elapsed = max(elapsed, training[k]) + uploading[k]
        return distributed + elapsed

    while left:
        longer = {k: time_of([*chosen, k]) - time_of(chosen) for k in left}

        def cost(k, longer=longer):
            if counts is None:
                return longer[k]
            totals = counts[[*chosen, k]].sum(axis=0)
            spread = totals.var() if term == "variance" else totals.std()
            return longer[k] * max(spread / totals.mean(), 1e-9)

        best = min(left, key=cost)
        left.remove(best)
        if time_of([*chosen, best]) < deadline:
            chosen.append(best)
    return chosen, time_of(chosen)


@settings(max_examples=150, deadline=None)
@given(pairs=candidates, deadline=st.floats(1, 200))
def test_fedcs_is_the_textbook_loop_and_keeps_its_deadline(pairs, deadline):
    training, uploading = np.array(pairs).reshape(-1, 2).T
    found = greedy_schedule(training, uploading, deadline)
    expected, time = slow(training, uploading, deadline)
    assert found.chosen.tolist() == expected
    assert found.seconds == pytest.approx(time)
    assert found.seconds < deadline


@settings(max_examples=100, deadline=None)
@given(
    pairs=candidates,
    deadline=st.floats(1, 200),
    term=st.sampled_from(["variance", "deviation"]),
    seed=st.integers(0, 99),
)
def test_hybrid_is_the_textbook_loop(pairs, deadline, term, seed):
    training, uploading = np.array(pairs).reshape(-1, 2).T
    counts = np.random.default_rng(seed).integers(1, 30, (len(pairs), 3)).astype(float)
    found = greedy_schedule(training, uploading, deadline, counts=counts, term=term)
    expected, time = slow(training, uploading, deadline, counts, term)
    assert found.seconds == pytest.approx(time) or found.chosen.tolist() != expected
    if found.chosen.tolist() != expected:  # a tie in the last bits
        assert len(found.chosen) == pytest.approx(len(expected), abs=2)
    assert found.seconds < deadline


@settings(max_examples=60, deadline=None)
@given(pairs=candidates.filter(len))
def test_the_clock_never_needs_longer_than_the_estimate(pairs):
    training, uploading = np.array(pairs).T
    plan = greedy_schedule(training, uploading, 1e9)
    real = uploading.max() + finishing_times(training, uploading, "sequential").max()
    assert real <= plan.seconds + 1e-6


@settings(max_examples=60, deadline=None)
@given(pairs=candidates.filter(len))
def test_sequential_uploads_are_served_in_order(pairs):
    training, uploading = np.array(pairs).T
    free, ends = 0.0, np.empty(len(pairs))
    for k in np.argsort(training, kind="stable"):
        free = ends[k] = max(free, training[k]) + uploading[k]
    np.testing.assert_allclose(finishing_times(training, uploading, "sequential"), ends)
    parallel = finishing_times(training, uploading, "parallel")
    np.testing.assert_allclose(parallel, training + uploading)


# --- DynHybridFL ---


def estimates(load, n=3):
    ones = np.ones(n)
    counts = np.ones((n, 2), dtype=np.int64)
    return Estimates(
        np.arange(n), 0.75 * load * ones, 0.25 * load * ones, ones, counts, ones,
        np.zeros(n, bool),
    )  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(loads=st.lists(st.floats(0.1, 50), min_size=1, max_size=8))
def test_the_published_deadline_telescopes(loads):
    selector = so.selectors.DynHybridFL(deadline=180)
    found = [selector.deadline_of(estimates(load)) for load in loads]
    step_by_step = [180.0]
    for before, now in pairwise(loads):
        step_by_step.append(step_by_step[-1] * now / before)
    np.testing.assert_allclose(found, step_by_step, rtol=1e-9)
    np.testing.assert_allclose(found, 180 * np.array(loads) / loads[0], rtol=1e-9)


@settings(max_examples=60, deadline=None)
@given(loads=st.lists(st.floats(0.1, 50), min_size=2, max_size=8))
def test_running_mean_and_bounds(loads):
    selector = so.selectors.DynHybridFL(deadline=100, reference="running_mean")
    found = [selector.deadline_of(estimates(load)) for load in loads]
    assert found[0] == pytest.approx(100)
    for t in range(1, len(loads)):
        assert found[t] == pytest.approx(100 * loads[t] / np.mean(loads[:t]))
    bounded = so.selectors.DynHybridFL(deadline=100, lower=90, upper=110)
    assert all(90 <= bounded.deadline_of(estimates(load)) <= 110 for load in loads)


# --- rows sent to the coordinator ---


def test_upload_takes_turns_over_classes_and_prefers_fast_links():
    links, bits = np.array([1.0, 2.0]), np.array([1.0, 1.0])
    left = np.array([[5, 5], [1, 5]])
    taken = plan_upload(links, bits, left, seconds=3.0)
    # 0.5 s a row from client 1; its class 0 ends after one row, then client 0 sends that class.
    assert taken.tolist() == [[1, 0], [1, 2]]
    assert plan_upload(links, bits, left, seconds=1e9).tolist() == left.tolist()
    assert not plan_upload(links, bits, left, seconds=0.1).any()


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 999), budget=st.floats(0, 20))
def test_upload_never_takes_more_than_there_is_nor_longer_than_allowed(seed, budget):
    draw = np.random.default_rng(seed)
    links, bits = draw.uniform(1, 5, 3), draw.uniform(1, 3, 3)
    left = draw.integers(0, 4, (3, 4))
    taken = plan_upload(links, bits, left, budget)
    assert (taken <= left).all()
    assert (taken.sum(axis=1) * bits / links).sum() <= budget + 1e-9


def digits(select, resources, rounds=3, **options):
    X, y, *_ = so.datasets.digits()
    fed = so.simulate(X / 16, y, clients=20, seed=1, clock=so.simulation.VirtualClock(resources))
    model = so.FedLinear(rounds=rounds, per_round=10, select=select, epochs=5, **options)
    return fed, model.fit(fed)


def test_rows_are_sent_only_by_those_who_allow_it_and_each_once(monkeypatch):
    stand_ins = []
    fetch = upload.fetch_rows

    def watched(*arguments):
        stand_ins.append(fetch(*arguments))
        return stand_ins[-1]

    monkeypatch.setattr("solera.select.resources.fetch_rows", watched)
    slow_link = so.simulation.Resources(upload=0.6, link=1e4)
    fed, model = digits(so.selectors.HybridFL(deadline=30), slow_link, rounds=6)
    sent = [entry["uploaded"] for entry in model.history_ if "uploaded" in entry]
    assert sum(sent) > 0
    allows = slow_link.allows_upload(1, np.arange(20))
    asked = [r for r in fed.meter.records if r.task == "select.upload"]
    assert all(allows[record.clients].all() for record in asked)
    rows = np.concatenate([engine.source.X for engine in stand_ins])
    assert len(rows) == sum(sent) == len(np.unique(rows, axis=0))


def test_rows_are_sent_again_in_every_round_where_asked_for(monkeypatch):
    sent = []
    fetch = upload.fetch_rows

    def watched(roster, takes, round):
        sent.append({client: first.tolist() for client, (first, _) in takes.items()})
        return fetch(roster, takes, round)

    monkeypatch.setattr("solera.select.resources.fetch_rows", watched)
    slow_link = so.simulation.Resources(upload=1.0, link=1e4)
    digits(so.selectors.HybridFL(deadline=30, resend=True), slow_link, rounds=8)
    assert len(set().union(*sent)) < sum(map(len, sent))  # some client sends in two rounds
    assert all(set(first) == {0} for asked in sent for first in asked.values())


def test_nobody_sends_rows_when_nobody_allows_it():
    fed, model = digits(
        so.selectors.HybridFL(deadline=30), so.simulation.Resources(upload=0.0, link=1e4)
    )
    assert [entry["uploaded"] for entry in model.history_] == [0, 0, 0]
    assert not any(record.task == "select.upload" for record in fed.meter.records)
    fed, model = digits(
        so.selectors.HybridFL(deadline=30, upload=False),
        so.simulation.Resources(upload=1.0, link=1e4),
    )
    assert not any(record.task == "select.upload" for record in fed.meter.records)


def test_an_owner_who_stops_uploads_is_heeded_at_the_next_ask(tmp_path, monkeypatch):
    """The same process answers all asks, so it may not remember what the file said."""
    file = tmp_path / "resources.toml"
    says = "samples_per_second = 50.0\nbits_per_second = 1e4\nupload = {}\n"
    monkeypatch.setenv("SOLERA_RESOURCES", str(file))

    class Stop(so.callbacks.Callback):
        def on_round(self, learner, round):
            if round.index == 1:
                file.write_text(says.format("false"))

    file.write_text(says.format("true"))
    X, y, *_ = so.datasets.digits()
    learner = so.FedLinear(rounds=4, per_round=10, select=so.selectors.HybridFL(deadline=10))
    model = learner.fit(so.simulate(X[:600] / 16, y[:600], clients=20, seed=1), callbacks=[Stop()])
    sent = [entry["uploaded"] for entry in model.history_]
    assert min(sent[:2]) > 0
    assert sent[2:] == [0, 0]


def test_uploaded_rows_enter_the_average_as_one_more_member():
    class Fixed(so.selectors.Selector):
        """Everybody, and the coordinator with the rows of client 0 once more."""

        def choose(self, round, roster, rng):
            self.fed = roster.federation
            return roster.ids

        def coordinator_rows(self):
            data = self.fed.data
            first = data.segments(np.array([0]))[0]
            one = so.data.FederatedData(
                first.X, first.y, np.array([0, len(first.y)]), schema=data.schema
            )
            return so.simulate(one).engine

    X, y, *_ = so.datasets.digits()
    X, y = X[:60] / 16, y[:60]
    how = {"rounds": 1, "batch_size": None, "lr": 0.5}
    with_coordinator_rows = so.FedLinear(select=Fixed(), **how).fit(
        so.simulate(X, y, partition=so.partitions.ByGroup(np.arange(60) // 20))
    )
    Xd, yd = np.concatenate([X, X[:20]]), np.concatenate([y, y[:20]])
    doubled = so.FedLinear(**how).fit(
        so.simulate(Xd, yd, partition=so.partitions.ByGroup(np.arange(80) // 20))
    )
    np.testing.assert_allclose(with_coordinator_rows.coef_, doubled.coef_, atol=1e-12)


def test_hybrid_works_without_classes_and_behind_a_pipeline():
    draw = np.random.default_rng(0)
    X = draw.normal(size=(80, 3))
    fed = so.simulate(X, X[:, 0], clients=8, clock=so.simulation.VirtualClock())
    model = so.FedLinear(rounds=3, per_round=4, select=so.selectors.HybridFL()).fit(fed)
    assert all(entry["clients"] for entry in model.history_)
    resources = so.simulation.Resources(upload=1.0, link=1e4)
    fed = so.simulate(X, (X[:, 0] > 0) * 1, clients=8, clock=so.simulation.VirtualClock(resources))
    inner = so.FedLinear(rounds=3, per_round=6, select=so.selectors.HybridFL(deadline=8), epochs=5)
    model = so.Pipeline(so.FedScaler(), inner).fit(fed)
    assert model.score(X, (X[:, 0] > 0) * 1) > 0.8


GOOD = {
    "speed": 5.0, "link": 1e6, "rows": 3, "row_bits": 64, "upload": False,
    "counts": np.array([1, 2]),
}  # fmt: skip


@pytest.mark.parametrize(
    "lie",
    [
        {"speed": 0.0}, {"speed": -1.0}, {"speed": float("inf")}, {"link": 0}, {"rows": -1},
        {"row_bits": 0}, {"upload": "yes"}, {"counts": np.array([1])}, {"counts": [1.5, 2.0]},
        {"counts": np.array([-1, 0])}, {"speed": "fast"}, {"rows": None},
    ],
    ids=str,
)  # fmt: skip
def test_reports_that_cannot_be_true_count_as_no_report(lie):
    assert _is_sound(GOOD, 2)
    assert not _is_sound({**GOOD, **lie}, 2)
    assert not _is_sound({k: v for k, v in GOOD.items() if k not in lie}, 2)


def test_who_declines_counts_as_the_slowest(monkeypatch):
    task = find_task("select.resources")

    def some(client, ask):
        if client.id % 2:
            raise so.errors.Refusal("no")
        return task.one(client, ask)

    monkeypatch.setitem(_tasks, "select.resources", replace(task, one=some))
    _, model = digits(so.selectors.FedCS(deadline=1e6), so.simulation.Resources())
    assert [entry["clients"] for entry in model.history_] == [10, 10, 10]


# --- published figures ---


def test_clients_per_round_of_the_thesis():
    clock = VirtualClock()
    ids = np.arange(100)
    for parameters, rows, low, high in ((101_770, 60, 73, 76), (1_342_122, 50, 4, 5)):
        found = []
        for round in range(20):
            state = clock.model().now(0, round, ids)
            plan = greedy_schedule(5 * rows / state.speed, 32 * parameters / state.link, 180.0)
            found.append(len(plan.chosen))
            work = Work(32 * parameters, 5.0, np.full(len(plan.chosen), rows))
            timing = clock.time_round(0, round, 0.0, ids[plan.chosen], work)
            assert timing.seconds <= plan.seconds + 1e-6 < 180
        assert low <= np.mean(found) <= high + 1.5

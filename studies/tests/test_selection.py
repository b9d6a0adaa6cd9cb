"""The published experiments of client selection, and their figures that need no training."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from solera.study import named as tables
from solera_studies import selection_performance, selection_protocol, selection_resources
from solera_studies.rows import AS_PUBLISHED, OURS

MNIST, CIFAR = selection_resources.SETTINGS


def selectors():
    """The published ones, and ours."""
    return {
        name: selector
        for protocol in (AS_PUBLISHED, OURS)
        for name, selector in selection_resources.selectors(protocol, upload=False).items()
    }


@pytest.fixture
def hours(monkeypatch):
    monkeypatch.setattr(selection_resources, "MINUTES", 100)


def test_hybrid_completes_more_rounds_than_scheduled_uniform(hours):
    rounds, clients = {}, {}
    for name, selector in selectors().items():
        history = selection_resources.rehearse(MNIST, selector, 0)
        rounds[name] = len(history)
        clients[name] = np.mean([entry["clients"] for entry in history])
        assert history[-1]["time"] >= 6000 > history[-2]["time"]
    assert rounds["HybridFL"] > 1.2 * rounds["RandomSampling"]
    assert rounds["Dyn-HybridFL"] > 1.2 * rounds["RandomSampling"]
    assert clients["HybridFL"] == pytest.approx(74.2, abs=1)  # the thesis: 9352 / 126
    bounded = "DynHybridFL, running mean, at least 170 s, at most 190 s"
    history = selection_resources.rehearse(MNIST, selectors()[bounded], 1)
    assert all(170 <= entry["deadline"] <= 190 for entry in history)


def test_four_or_five_clients_send_the_large_network(hours):
    history = selection_resources.rehearse(CIFAR, selectors()["HybridFL"], 0)
    assert np.mean([entry["clients"] for entry in history]) == pytest.approx(4.4, abs=0.3)
    assert all(entry["seconds"] < 180 for entry in history)


@pytest.mark.parametrize("kind", selection_performance.KINDS)
def test_partitions(kind):
    y = np.arange(6000) % 10
    for protocol in (AS_PUBLISHED, OURS):
        rule = selection_protocol.partition(kind, protocol, 30, 0)
        found = rule.assign(6000, y, clients=30, seed=0)
        classes = [len(np.unique(y[found.rows_of(k)])) for k in range(30)]
        assert set(classes) == ({2} if kind == "two classes" else {10})
        rounded_down = kind == "nearly IID" and protocol == AS_PUBLISHED
        assert (sum(found.sizes) < 6000) == rounded_down


def test_seeds_that_never_arrive_are_told_apart():
    assert selection_protocol.mean([2, None, 4]) == 3
    assert selection_protocol.mean([None]) is None
    assert selection_protocol.spread([2, None, 4]) == "± 1, 2 of 3 seeds"
    assert selection_protocol.spread([None, None]) == "reached by none of 2 seeds"
    assert selection_protocol.spread([3]) == "one seed"  # which has no spread
    assert selection_protocol.spread([None]) == "not reached, one seed"


@pytest.fixture
def small_images(monkeypatch):
    draw = np.random.default_rng(0)
    X = draw.random((700, 784)).astype(np.float32)
    y = np.arange(700) % 10
    X[np.arange(700), y] += 6
    monkeypatch.setattr(
        selection_protocol.datasets, "load", lambda name: (X[:600], y[:600], X[600:], y[600:])
    )


def test_a_small_run_fills_the_table(small_images, monkeypatch):
    mnist = selection_performance.SETTINGS[0]
    setting = replace(mnist, small=(12, 5, 540), targets=(0.2, 0.999))
    monkeypatch.setattr(selection_performance, "SETTINGS", (setting,))
    rows = selection_performance.run()
    tables.check_printed(selection_performance, rows, full=False)
    assert len(rows) == 3 * 3 * 7
    by_label = {(r["label"], r["protocol"]): r for r in rows}
    accuracy = by_label["mnist, nearly IID, AFL, accuracy after 5 rounds", AS_PUBLISHED]
    assert accuracy["thesis"] == 0.9469
    assert 0 <= accuracy["measured"] <= 1
    plain = by_label["mnist, nearly IID, Uniform, accuracy after 5 rounds", OURS]
    assert plain["measured"] > 0.2
    greedy = by_label["mnist, nearly IID, GreedyFed, accuracy after 5 rounds", OURS]
    assert "in turn for 4 rounds, greedy for 1" in greedy["note"]
    assert all(line["size"] for line in rows)
    assert by_label["mnist, two classes, Uniform, coverage", OURS]["measured"] <= 1
    assert ("mnist, two classes, Uniform, coverage", AS_PUBLISHED) not in by_label


def test_as_published_scales_as_the_programs_do(small_images):
    theirs = selection_protocol.as_published("mnist", None)
    assert theirs.X.min() >= -1
    assert theirs.X.max() <= 1
    assert (len(theirs.X), len(theirs.X_validation)) == (540, 60)
    ours = selection_protocol.read("mnist", None, 0.1)
    assert abs(np.concatenate([ours.X, ours.X_validation]).mean()) < 1e-3
    first = ours.first(100)
    assert (len(first.X), len(first.X_validation), len(first.X_test)) == (100, 10, 100)


@pytest.mark.parametrize("trained_as_mnist", [True, False])
def test_cifar_is_tested_with_the_scaling_of_mnist(monkeypatch, trained_as_mnist):
    X = np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3)).astype(np.float32)
    y = np.arange(20) % 10
    monkeypatch.setattr(selection_protocol.datasets, "load", lambda name: (X, y, X, y))
    images = selection_protocol.as_published(
        "cifar10", None, train_as_mnist=trained_as_mnist, validation=0.0
    )
    assert np.allclose(images.X, images.X_test) == trained_as_mnist
    assert images.X_test.min() >= -1
    if not trained_as_mnist:
        pixel = X[3, 4, 5] / X.max()
        mean, spread = selection_protocol._CIFAR_MEAN, selection_protocol._CIFAR_SPREAD
        np.testing.assert_allclose(images.X[3, 4, 5], (pixel - mean) / spread, rtol=1e-5)


def test_afl_as_published_takes_the_highest():
    setting = selection_performance.SETTINGS[0]
    images = selection_protocol.Images(*[None] * 7)
    theirs = selection_performance._selector(setting, "AFL", AS_PUBLISHED, images)
    ours = selection_performance._selector(setting, "AFL", OURS, images)
    assert (theirs.alpha2, theirs.mean) == (np.inf, True)
    assert (ours.alpha1, ours.alpha2, ours.alpha3) == (0.5, 0.03, 0.3)
    assert selection_performance.SETTINGS[1].alphas == (0.75, 0.03, 0.3)


@pytest.mark.parametrize("order", ["class after class", "file"])
def test_rows_as_published_lie_in_their_order_and_stay_so(order):
    protocol = selection_protocol
    draw = np.random.default_rng(0)
    y = draw.integers(0, 10, 600)
    X = np.arange(600, dtype=np.float32)[:, None]
    images = protocol.Images(X, y, X, y, X, y, None)
    theirs, ours = (
        protocol.dealt(images, "nearly IID", whose, 5, 0, order) for whose in (AS_PUBLISHED, OURS)
    )
    for client in range(5):
        a, b = (data.segments(np.array([client]))[0] for data in (theirs, ours))
        sorted_by = [rows.X[:, 0] if order == "file" else rows.y for rows in (a, b)]
        assert (np.diff(sorted_by[0]) >= 0).all()
        assert not (np.diff(sorted_by[1]) >= 0).all()
        assert len(a) < len(b)  # rounded down, class by class
    for whose, shuffled in ((AS_PUBLISHED, False), (OURS, True)):
        model = protocol.learner(None, protocol=whose, rounds=1, per_round=1, select=None)
        assert model.shuffle is shuffled

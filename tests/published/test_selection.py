"""The published experiments of client selection, and their figures that need no training."""

from __future__ import annotations

import numpy as np
import pytest

from solera.published import selection_performance, selection_protocol, selection_resources

MNIST, CIFAR = selection_resources.SETTINGS


@pytest.fixture
def hours(monkeypatch):
    monkeypatch.setattr(selection_resources, "MINUTES", 100)


def test_hybrid_completes_more_rounds_than_scheduled_uniform(hours):
    rounds, clients = {}, {}
    for name, selector in selection_resources.selectors(upload=False).items():
        history = selection_resources.rehearse(MNIST, selector, 0)
        rounds[name] = len(history)
        clients[name] = np.mean([entry["clients"] for entry in history])
        assert history[-1]["time"] >= 6000 > history[-2]["time"]
    assert rounds["HybridFL"] > 1.2 * rounds["scheduled uniform"]
    assert rounds["DynHybridFL"] > 1.2 * rounds["scheduled uniform"]
    assert clients["HybridFL"] == pytest.approx(74.2, abs=1)  # the thesis: 9352 / 126
    bounded = "DynHybridFL, running mean, at least 170 s, at most 190 s"
    history = selection_resources.rehearse(
        MNIST, selection_resources.selectors(upload=False)[bounded], 1
    )
    assert all(170 <= entry["deadline"] <= 190 for entry in history)


def test_four_or_five_clients_send_the_large_network(hours):
    history = selection_resources.rehearse(
        CIFAR, selection_resources.selectors(upload=False)["HybridFL"], 0
    )
    assert np.mean([entry["clients"] for entry in history]) == pytest.approx(4.4, abs=0.3)
    assert all(entry["seconds"] < 180 for entry in history)


@pytest.mark.parametrize("kind", selection_protocol.PARTITIONS)
def test_partitions(kind):
    y = np.arange(6000) % 10
    found = selection_protocol.partition(kind, 30, 0).assign(6000, y, clients=30, seed=0)
    classes = [len(np.unique(y[found.rows_of(k)])) for k in range(30)]
    assert set(classes) == ({2} if kind == "two classes" else {10})


def test_seeds_that_never_arrive_are_told_apart():
    assert selection_protocol.mean([2, None, 4]) == 3
    assert selection_protocol.mean([None]) is None
    assert selection_protocol.spread([2, None, 4]) == "± 1, 2 of 3 seeds"
    assert selection_protocol.spread([None, None]) == "reached by none of 2 seeds"


def test_a_small_run_fills_the_table(monkeypatch):
    draw = np.random.default_rng(0)
    X = draw.normal(size=(700, 784)).astype(np.float32)
    y = np.arange(700) % 10
    X[np.arange(700), y] += 6
    images = selection_protocol.Images(
        X[:600], y[:600], X[600:], y[600:], X[600:], y[600:], selection_protocol.MLP
    )
    setting = selection_performance.SETTINGS[0]
    for name in setting.published:
        found = [
            selection_performance._one(
                selection_performance.Setting(
                    "mnist", selection_protocol.MLP, 12, 3, 150, 3, 100, (0.2, 0.999),
                    setting.published,
                ),
                images, 3, "nearly IID", name, seed,
            )
            for seed in (0, 1)
        ]  # fmt: skip
        rows = selection_performance._rows(setting, 3, "nearly IID", name, found)
        assert [row["thesis"] for row in rows[:4]] == list(setting.published[name])
        assert rows[2]["ours"] > 0.2
        assert rows[5]["ours"] <= 9 / 12 + 1e-9

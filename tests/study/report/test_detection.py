"""What reports say of clients that were not believed."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

import solera as so
from solera.study.report.detection import detection
from solera.study.report.sections import SECTIONS


def test_who_was_down_weighted_when_and_why():
    X = np.random.default_rng(0).normal(size=(120, 3))
    y = (X[:, 0] > 0).astype(int)
    attack = so.robust.SignFlip(0.25, factor=50)
    fed = so.simulate(X, y, clients=8, seed=2, attack=attack)
    model = so.FedLinear(rounds=3, aggregate=so.robust.MultiKrum(2)).fit(fed, progress=False)
    study = SimpleNamespace(series={"FedLinear": [SimpleNamespace(history=model.history_)]})
    (table,) = detection(study)
    assert sorted(row[1] for row in table.rows) == [str(c) for c in fed.attackers]
    for row in table.rows:
        assert row[2:6] == ["down-weighted", 3, 1, 3]
        assert "away" in row[-1]
    honest = SimpleNamespace(series={"x": [SimpleNamespace(history=[{"loss": 1.0}])]})
    assert detection(honest) == []
    assert detection in SECTIONS.values()

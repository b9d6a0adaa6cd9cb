"""The table "what combines" of the documentation: what it says is refused is, the rest works."""

from __future__ import annotations

import os

import pytest

import solera as so

pytest.importorskip("torch", reason="the extra 'torch' is not installed")
pytest.importorskip("tenseal", reason="the extra 'he' is not installed")
pytest.importorskip("dp_accounting", reason="the extra 'dp' is not installed")
pytest.importorskip("cryptography", reason="the extra 'secure' is not installed")


@pytest.fixture
def make(tmp_path, monkeypatch):
    monkeypatch.setenv("SOLERA_KEYS", str(tmp_path))
    X, y, _, _ = so.datasets.wine()
    return lambda **how: so.simulate(X / X.max(axis=0), y, clients=6, seed=0, **how)


def averaging(**how):
    return so.FedAvg(so.nn.mlp(13, 3), rounds=1, weight=None, **how)


def test_what_combines(make):
    dp = so.DP(epsilon=8, delta=1e-3, clip=1.0)
    averaging(dp=dp).fit(make(secure=True))
    buckets = so.robust.Buckets(so.robust.Median(), buckets=3)
    averaging(aggregate=buckets).fit(make(secure=True))


def test_what_does_not_combine_is_refused(make):
    so.keys.create(os.environ["SOLERA_KEYS"], "k")
    encrypt, dp = so.Encryption("k"), so.DP(epsilon=8, delta=1e-3, clip=1.0, level="record")
    median = so.robust.Median()
    for learner, how in (
        (lambda: so.FedHEONN(lam=0.1, encrypt=encrypt), {"secure": True}),
        (lambda: averaging(aggregate=median), {"secure": True}),
        (lambda: so.FedHEONN(lam=0.1, encrypt=encrypt, dp=dp), {}),
        (lambda: averaging(aggregate=median, dp=so.DP(epsilon=8, delta=1e-3, clip=1.0)), {}),
    ):
        with pytest.raises(so.errors.SoleraError):
            learner().fit(make(**how))

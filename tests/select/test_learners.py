"""Every selector with every kind of iterative learner."""

from __future__ import annotations

import numpy as np
import pytest

import solera as so

SELECTORS = {
    "uniform": so.selectors.Uniform(),
    "robin": so.selectors.RoundRobin(),
    "active": so.ActiveSampling(),
    "power": so.selectors.PowerOfChoice(),
    "greedy": so.selectors.GreedyShapley(part="train"),
    "ucb": so.selectors.ShapleyUCB(part="train"),
    "softmax": so.selectors.ShapleySoftmax(part="train"),
    "fedcs": so.selectors.FedCS(),
    "hybrid": so.selectors.HybridFL(),
    "dynamic": so.selectors.DynHybridFL(),
}
HOW = {"rounds": 3, "per_round": 3}
NET = so.nn.mlp(2, 4, 3)
LEARNERS = {
    "linear": lambda select: so.FedLinear(select=select, **HOW),
    "averaging": lambda select: so.FedAvg(NET, select=select, **HOW),
    "scaffold": lambda select: so.Scaffold(NET, select=select, **HOW),
    "yogi": lambda select: so.FedYogi(NET, select=select, **HOW),
    "nova": lambda select: so.FedNova(NET, select=select, **HOW),
    "personal": lambda select: so.FedPer(NET, select=select, **HOW),
    "weights": lambda select: so.FedAvg(NET, select=select, send="weights", **HOW),
    "compressed": lambda select: so.FedAvg(
        NET, select=select, update_steps=[so.updates.TopK(0.5)], **HOW
    ),
}


def federation(y=True):
    draw = np.random.default_rng(0)
    X = np.concatenate([draw.normal(c, 0.3, (30, 2)) for c in ((0, 0), (4, 0), (0, 4))])
    order = draw.permutation(90)
    kinds = np.arange(3).repeat(30)[order]
    return so.simulate(
        X[order], kinds if y else None, clients=6, clock=so.simulation.VirtualClock()
    )


@pytest.mark.parametrize("select", SELECTORS.values(), ids=SELECTORS)
@pytest.mark.parametrize("learner", LEARNERS)
def test_learners_of_models(learner, select):
    model = LEARNERS[learner](select).fit(federation())
    assert [entry["clients"] for entry in model.history_] == [3, 3, 3]
    if isinstance(select, so.selectors.GreedyShapley):
        assert [entry["evaluations"] for entry in model.history_] == [8, 8, 8]


@pytest.mark.parametrize("select", SELECTORS.values(), ids=SELECTORS)
def test_k_means(select):
    pytest.importorskip("solera.learn.cluster.kmeans")
    model = so.FedKMeans(3, select=select, tolerance=0.0, **HOW).fit(federation(y=False))
    assert [entry["clients"] for entry in model.history_] == [3, 3, 3]
    assert model.inertia_ < 90

"""Saved models and messages hold parameters as PyTorch does, however they are trained."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import solera as so
from solera.core.payload import decode, encode
from solera.learn.averaging.training import architecture, layers

rng = np.random.default_rng(5)
X = rng.normal(size=(240, 8))
Y = (X @ rng.normal(size=(8, 3))).argmax(axis=1)
DATA = so.data.FederatedData(X, Y, np.array([0, 60, 70, 150, 240])).split(test=0.2, seed=0)
NET = so.nn.mlp(8, 40, 3)
OPTIONS = {"rounds": 4, "lr": 0.2, "batch_size": 10, "dtype": "float64"}


@pytest.fixture
def narrow(monkeypatch):
    """Sets the width from which weights are trained transposed, as another version might."""

    def change(width):
        monkeypatch.setattr(layers, "NARROW", width)
        architecture.built_architecture.cache_clear()

    yield change
    monkeypatch.undo()
    architecture.built_architecture.cache_clear()


def test_a_saved_model_predicts_the_same_with_another_constant(narrow, tmp_path):
    narrow(32)
    model = so.FedAvg(NET, **OPTIONS).fit(so.simulate(DATA))
    before = model.decision_function(X)
    model.save(tmp_path / "model.sol")
    narrow(48)
    loaded = so.load(tmp_path / "model.sol")
    np.testing.assert_allclose(loaded.decision_function(X), before, atol=1e-12)


LEARNERS = {
    "plain": lambda: so.FedAvg(NET, **OPTIONS),
    "momentum": lambda: so.FedAvg(NET, momentum=0.9, send="weights", **OPTIONS),
    "compressed": lambda: so.FedAvg(NET, update_steps=[so.updates.RandomMask(0.3)], **OPTIONS),
    "noisy": lambda: so.FedAvg(
        NET, update_steps=[so.updates.Clip(1.0), so.updates.Noise(0.01)], **OPTIONS
    ),
    "control variates": lambda: so.Scaffold(NET, **OPTIONS),
    "private head": lambda: so.FedRep(NET, private=["0"], **OPTIONS),
    "own model": lambda: so.Ditto(NET, **OPTIONS),
}


@pytest.mark.parametrize("make", LEARNERS.values(), ids=LEARNERS)
def test_clients_with_another_constant_than_the_coordinator(make, narrow):
    narrow(32)
    expected = answers(make().fit(so.simulate(DATA)))
    narrow(48)
    with so.simulate(DATA, engine="processes", workers=1) as federation:
        so.FedAvg(NET, **OPTIONS).fit(federation)  # the workers begin here, with 48
        narrow(32)
        model = make().fit(federation)
    np.testing.assert_allclose(answers(model), expected, atol=1e-9)


def answers(model):
    """What it says of rows, or every client's own model."""
    models = [model.at(client) for client in range(3)] if model.is_personal else [model]
    return [model.decision_function(X) for model in models]


@pytest.mark.parametrize("make", [LEARNERS["private head"], LEARNERS["own model"]])
def test_what_clients_keep_survives_another_constant(make, narrow):
    narrow(32)
    federation = so.simulate(DATA)
    model = make().fit(federation)
    before = model.evaluate(federation)
    narrow(48)
    assert model.evaluate(federation).clients == before.clients


class Normalised(torch.nn.Module):
    """Running statistics between parameters."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 40)
        self.norm = torch.nn.BatchNorm1d(40)
        self.last = torch.nn.Linear(40, 3)

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.first(x))))


@pytest.mark.parametrize("net", [NET, Normalised()], ids=["layers", "module"])
def test_weights_are_the_state_dict_in_its_order(net):
    model = so.FedAvg(net, **OPTIONS).fit(so.simulate(DATA))
    values = [v for v in model.module().state_dict().values() if v.is_floating_point()]
    flat = np.concatenate([value.numpy().reshape(-1) for value in values])
    np.testing.assert_array_equal(model.weights_, flat)


def test_convolutions_with_running_statistics_are_the_state_dict_in_its_order():
    images = rng.random((40, 64))
    federation = so.simulate(images, np.arange(40) % 2, clients=2)
    learner = so.Scaffold(so.nn.complex_cnn((8, 8, 1), 2), rounds=2, per_round=1, lr=0.01)
    model = learner.fit(federation)
    values = [v for v in model.module().state_dict().values() if v.is_floating_point()]
    flat = np.concatenate([value.numpy().reshape(-1) for value in values])
    np.testing.assert_array_equal(model.weights_, flat)
    trained = sum(value.numel() for value in model.module().parameters())
    assert model.control_.shape == (trained,)


def test_a_model_of_another_format_is_refused_and_not_misread(tmp_path):
    content = decode(so.FedAvg(NET, **OPTIONS).fit(so.simulate(DATA)).to_bytes())
    content.pop("format")
    (tmp_path / "old.sol").write_bytes(encode(content))
    with pytest.raises(so.errors.PayloadError, match="its format is None, this version reads 1"):
        so.load(tmp_path / "old.sol")

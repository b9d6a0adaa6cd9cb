"""What a card computes, looked at on a card: elsewhere nothing of this runs."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch

import solera as so
from solera.learn.averaging.training import channels_last, compiled, recorded
from solera.learn.averaging.training.architecture import Architecture

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

NETWORKS = {
    "dense": so.nn.mlp(60, 40, 5),
    "kernel 4": so.nn.simple_cnn((11, 10, 2), 5),
    "batch normalisation": so.nn.complex_cnn((9, 8, 1), 5),
    "pooling and dropout": so.nn.conv_net((8, 8, 3), 5, channels=(3, 4), dense=8, dropout=0.2),
    "tensor cores": so.nn.conv_net((8, 8, 3), 5, channels=(32, 64), dense=8, dropout=0.0),
}
SIZES = {"even": [30] * 6, "uneven": [7, 30, 8, 2, 12, 40], "one": [20]}
"""No batch has one row alone, in which batch normalisation divides rounding by almost nothing."""


def learned(network, sizes, **options):
    """A fitted learner, and the change of its weights."""
    inputs, total = Architecture(network).inputs, sum(sizes)
    draw = np.random.default_rng(0)
    X, y = draw.random((total, inputs)), draw.integers(0, 5, total)
    rows = np.split(np.arange(total), np.cumsum(sizes)[:-1])
    fed = so.simulate(
        X, y, clients=len(sizes), partition=so.partitions.Explicit(rows), seed=0, test=0.0
    )
    learner = so.FedAvg(network, rounds=4, lr=0.005, batch_size=5, **options).fit(fed)
    start = Architecture(network).start(fed.seed, learner.dtype)
    return learner, learner.weights_ - start, X


def off(got, wanted):
    return np.linalg.norm(got - wanted) / np.linalg.norm(wanted)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_a_gpu_is_as_near_to_the_truth_as_a_cpu(network, sizes):
    """With nothing asked for but the network; the truth is float64 on a CPU."""
    truth, wanted, X = learned(network, sizes, device="cpu", dtype="float64")
    _, double, _ = learned(network, sizes, dtype="float64")
    assert off(double, wanted) < 1e-6
    _, on_cpu, _ = learned(network, sizes, device="cpu")
    by_default, got, _ = learned(network, sizes)
    assert off(got, wanted) < 3 * off(on_cpu, wanted) + 1e-5
    assert np.mean(by_default.predict(X) == truth.predict(X)) > 0.9


def test_rounds_alike_are_played_back():
    before = recorded.plays()
    learned(NETWORKS["kernel 4"], SIZES["even"])
    assert recorded.plays() >= before + 2


LAYERS = [
    ((4, 10, 32, 32, 32), 32, 3, 1),
    ((4, 10, 16, 16, 32), 64, 3, 1),
    ((4, 10, 16, 16, 64), 64, 3, 1),
    ((4, 10, 8, 8, 64), 128, 3, 1),
    ((4, 10, 8, 8, 128), 128, 3, 1),
    ((2, 3, 9, 7, 96), 32, 5, 0),
    ((3, 1, 5, 6, 32), 64, 4, 2),
]
"""Images, outputs, kernel and padding: those of ComplexCNN, and odd ones."""


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=["tf32", "bfloat16"])
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_our_kernels_convolve(layer, kind):
    """As patches do in float64, but for the bits that tensor cores leave out."""
    shape, outputs, kernel, padding = layer
    torch.manual_seed(0)
    x = torch.randn(shape, device="cuda", dtype=kind)
    weight = torch.randn(shape[0], outputs, shape[4], kernel, kernel, device="cuda", dtype=kind)
    bias = torch.randn(shape[0], outputs, device="cuda", dtype=kind)
    assert channels_last.implicit.suits(x, weight)
    found = []
    for way, dtype in (
        (channels_last.ImplicitConvolution, kind),
        (channels_last.Convolution, torch.float64),
    ):
        leaves = [t.to(dtype, copy=True).requires_grad_() for t in (x, weight, bias)]
        y = way.apply(*leaves, padding)
        error = torch.linspace(-1, 1, y.numel(), device="cuda", dtype=kind).view_as(y).to(dtype)
        found.append([y.detach(), *torch.autograd.grad(y, leaves, error)])
    allowed = 2e-3 if kind == torch.float32 else 6e-3
    for ours, exact in zip(*found, strict=True):
        assert float((ours.double() - exact).norm() / exact.norm()) < allowed


@pytest.mark.parametrize("precision", ["tf32", "bfloat16"])
def test_shorter_numbers_are_near_and_use_our_kernels(precision, monkeypatch):
    network = NETWORKS["tensor cores"]
    asked = []
    suits = channels_last.implicit.suits
    monkeypatch.setattr(
        channels_last.implicit, "suits", lambda *a: asked.append(suits(*a)) or asked[-1]
    )
    _, wanted, _ = learned(network, SIZES["even"])
    assert asked == []  # float32 is float32
    _, got, _ = learned(network, SIZES["even"], precision=precision)
    assert any(asked)
    assert 1e-6 < off(got, wanted) < 0.1


def test_a_card_that_is_not_there_is_named():
    with pytest.raises(so.errors.UsageError, match="device='cuda:99': this process sees"):
        learned(NETWORKS["dense"], SIZES["one"], device="cuda:99")


@pytest.mark.parametrize("device", [None, "cpu"])
def test_worker_processes_train_after_this_one_has(device):
    """No fork could, neither on the card nor on the CPU."""
    network = torch.nn.Linear(60, 5)
    draw = np.random.default_rng(0)
    X, y = draw.random((60, 60)), draw.integers(0, 5, 60)
    found = []
    for engine in ({}, {"engine": "processes", "workers": 2}):
        with so.simulate(X, y, clients=6, seed=0, **engine) as fed:
            learner = so.FedAvg(network, rounds=2, device=device, dtype="float64").fit(fed)
            found.append(learner.weights_)
    assert np.allclose(*found, rtol=1e-9, atol=1e-12)


def test_tf32_leaves_double_precision_alone():
    network = NETWORKS["tensor cores"]
    _, wanted, _ = learned(network, SIZES["even"], dtype="float64")
    _, got, _ = learned(network, SIZES["even"], dtype="float64", precision="tf32")
    assert off(got, wanted) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
def test_compiled_steps_learn_as_others(precision, caplog):
    """Batch normalisation of few rows makes much of rounding, so it has its own measure."""
    caplog.set_level(logging.WARNING, "solera")
    for network, allowed in (("tensor cores", 0.02), ("batch normalisation", 0.2)):
        plain, wanted, _ = learned(NETWORKS[network], SIZES["even"], precision=precision)
        same, got, _ = learned(NETWORKS[network], SIZES["even"], precision=precision, compile=True)
        assert off(got, wanted) < allowed
        losses = [learner.history_[-1]["loss"] for learner in (plain, same)]
        assert losses[1] == pytest.approx(losses[0], rel=0.02)
    assert compiled._alike
    assert all(compiled._alike.values())
    assert "wrongly" not in caplog.text

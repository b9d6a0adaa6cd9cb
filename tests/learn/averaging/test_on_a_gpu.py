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
    """A fitted learner, and the change of its weights.

    One round of batch normalisation: in four, float64 comes out otherwise on a CPU already when
    sums are added in another order.
    """
    inputs, total = Architecture(network).inputs, sum(sizes)
    X, y = np.random.default_rng(0).random((total, inputs)), np.arange(total) % 5
    rounds = 1 if network is NETWORKS["batch normalisation"] else 4
    rows = np.split(np.arange(total), np.cumsum(sizes)[:-1])
    fed = so.simulate(
        X, y, clients=len(sizes), partition=so.partitions.Explicit(rows), seed=0, test=0.0
    )
    learner = so.FedAvg(network, rounds=rounds, lr=0.005, batch_size=5, **options).fit(fed)
    return learner, learner.weights_ - Architecture(network).start(fed.seed, learner.dtype)


def off(got, wanted):
    return np.linalg.norm(got - wanted) / np.linalg.norm(wanted)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_a_gpu_is_as_near_to_the_truth_as_a_cpu(network, sizes):
    """With nothing asked for but the network; the truth is float64 on a CPU."""
    truth, wanted = learned(network, sizes, device="cpu", dtype="float64")
    _, double = learned(network, sizes, dtype="float64")
    assert off(double, wanted) < 1e-6
    _, on_cpu = learned(network, sizes, device="cpu")
    _, by_default = learned(network, sizes)
    # Statistics of few rows cost a GPU's one pass more bits than a CPU's two.
    batch_normalised = network is NETWORKS["batch normalisation"]
    assert off(by_default, wanted) < (0.05 if batch_normalised else 5 * off(on_cpu, wanted) + 1e-5)
    X = np.random.default_rng(1).random((20, Architecture(network).inputs))
    outputs = truth.decision_function(X)
    truth.device = None
    assert np.allclose(truth.decision_function(X), outputs, rtol=1e-9, atol=1e-9)


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


@pytest.mark.parametrize(
    ("kind", "exact", "allowed"),
    [(torch.float32, True, 3e-6), (torch.float32, False, 2e-3), (torch.bfloat16, False, 6e-3)],
    ids=["float32", "tf32", "bfloat16"],
)
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_our_kernels_convolve(layer, kind, exact, allowed):
    """As patches do in float64, but for the bits that tensor cores leave out."""
    shape, outputs, kernel, padding = layer
    torch.manual_seed(0)
    x = torch.randn(shape, device="cuda", dtype=kind)
    weight = torch.randn(shape[0], outputs, shape[4], kernel, kernel, device="cuda", dtype=kind)
    bias = torch.randn(shape[0], outputs, device="cuda", dtype=kind)
    assert channels_last.implicit.suits(x, weight)
    found = []
    for way, dtype, more in (
        (channels_last.ImplicitConvolution, kind, (padding, exact)),
        (channels_last.Convolution, torch.float64, (padding,)),
    ):
        leaves = [t.to(dtype, copy=True).requires_grad_() for t in (x, weight, bias)]
        y = way.apply(*leaves, *more)
        error = torch.linspace(-1, 1, y.numel(), device="cuda", dtype=kind).view_as(y).to(dtype)
        found.append([y.detach(), *torch.autograd.grad(y, leaves, error)])
    for ours, exact in zip(*found, strict=True):
        assert float((ours.double() - exact).norm() / exact.norm()) < allowed


@pytest.mark.parametrize("precision", ["tf32", "bfloat16"])
def test_shorter_numbers_are_near_and_float32_is_float32(precision, monkeypatch):
    monkeypatch.setattr(recorded, "_known", recorded.OrderedDict())  # nothing is played back
    exact = []
    apply = channels_last.ImplicitConvolution.apply
    monkeypatch.setattr(
        channels_last.ImplicitConvolution, "apply", lambda *a: exact.append(a[-1]) or apply(*a)
    )
    _, wanted = learned(NETWORKS["tensor cores"], SIZES["even"])
    assert exact
    assert all(exact)
    exact.clear()
    _, got = learned(NETWORKS["tensor cores"], SIZES["even"], precision=precision)
    assert exact
    assert not any(exact)
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
    _, wanted = learned(network, SIZES["even"], dtype="float64")
    _, got = learned(network, SIZES["even"], dtype="float64", precision="tf32")
    assert off(got, wanted) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("network", ["tensor cores", "batch normalisation"])
@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
def test_compiled_steps_learn_as_others(precision, network, caplog):
    caplog.set_level(logging.WARNING, "solera")
    plain, wanted = learned(NETWORKS[network], SIZES["even"], precision=precision)
    same, got = learned(NETWORKS[network], SIZES["even"], precision=precision, compile=True)
    assert off(got, wanted) < (0.02 if network == "tensor cores" else 0.2)
    losses = [learner.history_[0]["loss"] for learner in (plain, same)]
    assert losses[1] == pytest.approx(losses[0], rel=0.01)
    assert compiled._alike
    assert all(compiled._alike.values())
    assert "wrongly" not in caplog.text

"""What a GPU runs, as far as a CPU can tell: other layouts, other precisions, repeated work."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import solera as so
from solera.core.clients import Segments
from solera.core.rng import stream_keys
from solera.learn.averaging import models, nn
from solera.learn.averaging.training import (
    batched,
    batched_models,
    channels_last,
    compiled,
    devices,
    layout,
    recorded,
)
from solera.learn.averaging.training.architecture import Architecture
from solera.learn.averaging.training.batched import train_batched
from solera.learn.averaging.training.batched_models import Correction
from solera.learn.averaging.training.batches import TrainingConfig
from solera.learn.averaging.training.client_rows import ClientRows

NETWORKS = {
    "kernel 4": nn.simple_cnn((11, 10, 2), 5),
    "batch normalisation": nn.complex_cnn((9, 8, 1), 5),
    "pooling and dropout": nn.conv_net((8, 8, 3), 5, channels=(3, 4), dense=8, dropout=0.2),
}
UNEVEN, EVEN, ONE = np.array([7, 3, 6, 1]), np.array([6, 6, 6]), np.array([6])


def as_on_gpu(monkeypatch):
    """Let a CPU take the paths of a GPU: channels last, all clients at once, repeated work."""
    monkeypatch.setattr(batched_models, "is_gpu", lambda device: True)
    monkeypatch.setattr(batched, "is_gpu", lambda device: True)
    monkeypatch.setattr(batched, "tile_size", lambda *_: 100)
    monkeypatch.setattr(recorded, "_known", recorded.OrderedDict())


class MadeTwice(torch.overrides.TorchFunctionMode):
    """Counts how many operations gave each tensor: two, if the second gave back its input."""

    def __init__(self):
        super().__init__()
        self.given = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.given += [result] if isinstance(result, torch.Tensor) else []
        return result

    def count(self, tensor):
        return sum(given is tensor for given in self.given)


@pytest.mark.parametrize("short", [False, True], ids=["float32", "bfloat16"])
def test_what_our_functions_give_is_made_once(short):
    """PyTorch 2.11 loses all gradients of y.to(float32) for a y of float32 when it traces them."""
    x, channels = torch.rand(2, 3, 6, 5, 4), torch.rand(2, 4)
    weight = torch.rand(2, 4, 4, 3, 3)
    kind = torch.bfloat16 if short else torch.float32
    with MadeTwice() as made:
        y, *_ = channels_last.normalise(x.to(kind), channels, channels, None, 1e-5)
        z = channels_last.convolve(x.to(kind), weight.to(kind), channels.to(kind), 1, False)
    assert y.dtype == z.dtype == kind
    assert made.count(y) == made.count(z) == 1


SHAPES = [((2, 3, 6, 5, 32), 64, 1), ((2, 1, 6, 7, 64), 32, 0), ((1, 2, 4, 4, 32), 96, 2)]
"""Images, outputs and padding of convolutions."""


def implicitly_off(shape, outputs, padding):
    """How far an implicit convolution is from one of patches: y, then the gradients."""
    torch.manual_seed(0)
    bounds = torch.zeros(shape), torch.zeros(shape[0], outputs, shape[4], 3, 3)
    leaves = [torch.randn_like(t).requires_grad_() for t in (*bounds, bounds[1][:, :, 0, 0, 0])]
    found = []
    for way, more in (
        (channels_last.ImplicitConvolution, (padding, True)),
        (channels_last.Convolution, (padding,)),
    ):
        y = way.apply(*leaves, *more)
        error = torch.linspace(-1, 1, y.numel()).view_as(y)
        found.append([y.detach(), *torch.autograd.grad((y * error).sum(), leaves)])
    return max(float((a - b).norm() / b.norm()) for a, b in zip(*found, strict=True))


@pytest.mark.skipif(channels_last.implicit is not None, reason="Triton's own kernels are tested")
@pytest.mark.parametrize("case", SHAPES, ids=str)
def test_implicit_convolutions_have_the_gradients_of_others(case):
    """Their two operators are written here as their equations say, with patches."""

    def convolve(x, weight, padding, exact):
        columns = weight.flatten(2).transpose(1, 2)
        grown = 2 * padding - weight.shape[2] + 1
        y = torch.bmm(channels_last.patches(x, weight.shape[2], padding), columns)
        return y.view(*x.shape[:2], x.shape[2] + grown, x.shape[3] + grown, -1)

    def convolution_gradient(x, error, kernel, padding, exact):
        around = channels_last.patches(x, kernel, padding)
        gradient = torch.bmm(around.transpose(1, 2), error.flatten(1, 3))
        return gradient.view(len(x), kernel, kernel, x.shape[4], -1)

    with torch.library._scoped_library("solera", "DEF") as library:
        library.define("convolve(Tensor x, Tensor weight, int padding, bool exact) -> Tensor")
        library.define(
            "convolution_gradient(Tensor x, Tensor error, int kernel, int padding, bool exact)"
            " -> Tensor"
        )
        library.impl("convolve", convolve, "CPU")
        library.impl("convolution_gradient", convolution_gradient, "CPU")
        assert implicitly_off(*case) < 1e-5


@pytest.mark.slow
def test_kernels_of_implicit_convolutions():
    """Triton runs them on a CPU when told so before it is imported."""
    pytest.importorskip("triton", reason="Triton comes with PyTorch for a GPU")
    here = "from tests.learn.averaging.test_gpu_training import SHAPES, implicitly_off"
    work = f"{here}; print(max(implicitly_off(*case) for case in SHAPES))"
    run = subprocess.run(
        [sys.executable, "-c", work],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert float(run.stdout) < 1e-5, run.stderr


def trained(model, sizes, config, dtype="float64", seed=0, start=True):
    """What training changes, and the losses."""
    rng = np.random.default_rng(seed)
    architecture = model if isinstance(model, Architecture) else Architecture(model)
    width = architecture.inputs or 12
    X = rng.normal(size=(sizes.sum(), width)).astype(dtype)
    y = rng.integers(0, 5, sizes.sum())
    keys = stream_keys(0, "test", 0, np.arange(len(sizes)))
    sent = architecture.training_layout.arrange(torch.tensor(architecture.start(seed, dtype)))
    rows = ClientRows(
        Segments(X, y, np.cumsum(sizes) - sizes, sizes), keys, "softmax", np.arange(5), sent
    )
    weights = torch.empty(len(sizes), len(sent), dtype=sent.dtype)
    losses, _ = train_batched(
        architecture, weights, rows, config, Correction(anchor=sent), start=sent
    )
    return weights.numpy(), losses


@pytest.mark.parametrize("sizes", [UNEVEN, EVEN, ONE], ids=["uneven", "even", "one client"])
@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_channels_last_trains_as_channels_first(network, sizes, monkeypatch):
    config = TrainingConfig("softmax", 0.05, batch_size=4, momentum=0.5, epochs=2)
    wanted, losses = trained(network, sizes, config)
    as_on_gpu(monkeypatch)
    got, got_losses = trained(network, sizes, config)
    # Batch normalisation of one row divides by almost nothing.
    deep = isinstance(network, models.ComplexCNN)
    assert np.abs(got - wanted).max() < (1e-6 if deep else 1e-12)
    assert np.allclose(got_losses, losses, atol=1e-6 if deep else 1e-12)


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_channels_last_predicts_as_channels_first(network, monkeypatch):
    architecture = Architecture(network)
    X = np.random.default_rng(0).normal(size=(6, architecture.inputs))
    start = architecture.start(0, "float64")
    wanted = so.learn.averaging.predicting.outputs_of(architecture, start, X, "cpu")
    as_on_gpu(monkeypatch)
    got = so.learn.averaging.predicting.outputs_of(architecture, start, X, "cpu")
    assert np.abs(got - wanted).max() < 1e-12


@pytest.mark.parametrize(
    "model",
    [
        nn.mlp(12, 40, 5),
        NETWORKS["kernel 4"],
        models.described(torch.nn.Linear(12, 5)),
    ],
    ids=["dense", "images", "module"],
)
def test_bfloat16_is_near_float32_and_not_it(model, monkeypatch):
    as_on_gpu(monkeypatch)
    plain = TrainingConfig("softmax", 0.01, batch_size=3)
    wanted, losses = trained(model, EVEN, plain, "float32")
    short = TrainingConfig("softmax", 0.01, batch_size=3, precision="bfloat16")
    got, got_losses = trained(model, EVEN, short, "float32")
    assert got.dtype == np.float32
    assert 0 < np.linalg.norm(got - wanted) < 0.1 * np.linalg.norm(wanted)
    assert np.allclose(got_losses, losses, rtol=0.05)


def test_short_copies_of_weights_follow_the_gradients(monkeypatch):
    as_on_gpu(monkeypatch)
    options = {"lr": 0.3, "batch_size": 2, "epochs": 2, "precision": "bfloat16"}
    got, losses = trained(NETWORKS["kernel 4"], EVEN, TrainingConfig("softmax", **options))
    # With momentum, if ever so little, weights are shortened anew in every step.
    anew = TrainingConfig("softmax", momentum=1e-30, **options)
    wanted, wanted_losses = trained(NETWORKS["kernel 4"], EVEN, anew)
    assert np.abs(wanted).max() > 0.1
    assert np.allclose(got, wanted, atol=1e-12)
    assert np.allclose(losses, wanted_losses, atol=1e-12)


@pytest.mark.parametrize("network", [nn.mlp(12, 40, 5), nn.complex_cnn((9, 8, 1), 5)])
def test_a_gpu_reorders_parameters_by_one_gather(network, monkeypatch):
    architecture = Architecture(network)
    order = architecture.training_layout
    for size in (architecture.layout.size, architecture.layout.trained):
        vectors = torch.arange(2.0 * size).view(2, size)
        arranged, restored = order.arrange(vectors), order.restore(vectors)
        monkeypatch.setattr(layout, "is_gpu", lambda device: True)
        assert torch.equal(order.arrange(vectors), arranged)
        assert torch.equal(order.restore(vectors), restored)
        assert torch.equal(order.restore(vectors[1]), restored[1])
        monkeypatch.undo()


def played_back(monkeypatch):
    """A recorder for a CPU, strict as a graph: work is done on inputs and results of its own."""
    made = []

    def record(work, inputs):
        own = [value.clone() for value in inputs]
        results = [value.clone() for value in work(*own)]
        made.append(work)

        def play(*inputs):
            for mine, value in zip(own, inputs, strict=True):
                mine.copy_(value)
            for result, value in zip(results, work(*own), strict=True):
                result.copy_(value)
            return results

        return play

    monkeypatch.setattr(recorded, "record", record)
    return made


def test_rounds_alike_are_recorded_once_and_change_nothing(monkeypatch):
    config = TrainingConfig("softmax", 0.05, batch_size=4, epochs=2)
    architecture = Architecture(NETWORKS["kernel 4"])
    as_on_gpu(monkeypatch)
    made = played_back(monkeypatch)
    got = [trained(architecture, EVEN, config, seed=seed) for seed in (1, 2, 3, 4)]
    assert len(made) == 1
    for seed, (changes, losses) in zip((1, 2, 3, 4), got, strict=True):
        monkeypatch.setattr(recorded, "_known", recorded.OrderedDict())
        wanted, wanted_losses = trained(architecture, EVEN, config, seed=seed)
        assert np.array_equal(changes, wanted)  # nothing was overwritten by a later round
        assert np.array_equal(losses, wanted_losses)


@pytest.mark.parametrize(
    ("network", "sizes", "change"),
    [
        ("kernel 4", UNEVEN, {}),
        ("pooling and dropout", EVEN, {}),
        ("kernel 4", EVEN, {"lr": 0.2}),
    ],
    ids=["other sizes", "draws", "another rate"],
)
def test_what_does_not_repeat_is_not_recorded(network, sizes, change, monkeypatch):
    as_on_gpu(monkeypatch)
    made = played_back(monkeypatch)
    architecture = Architecture(NETWORKS[network])
    for turn in range(2):
        values = {"lr": 0.1, **(change if turn else {})}
        trained(architecture, sizes, TrainingConfig("softmax", batch_size=4, **values))
    assert not made


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_compiled_steps_trace_without_a_break(precision, monkeypatch):
    """The same arithmetic through PyTorch's tracer, without the compiler that comes after it."""
    as_on_gpu(monkeypatch)
    translate = torch.compile

    def traced(function, **options):
        return translate(function, backend="aot_eager", fullgraph=True, **options)

    monkeypatch.setattr(torch, "compile", traced)
    monkeypatch.setattr(compiled, "_alike", {})
    batched_models.compiled_objective.cache_clear()
    batched_models.compiled_follow.cache_clear()
    architecture = Architecture(NETWORKS["batch normalisation"])
    config = {"loss": "softmax", "lr": 0.01, "batch_size": 3, "precision": precision}
    wanted, _ = trained(architecture, EVEN, TrainingConfig(**config), "float32")
    got, _ = trained(architecture, EVEN, TrainingConfig(compile=True, **config), "float32")
    batched_models.compiled_objective.cache_clear()
    batched_models.compiled_follow.cache_clear()
    torch._dynamo.reset()
    assert np.allclose(got, wanted, atol=1e-5)
    assert all(compiled._alike.values())


@pytest.mark.slow
def test_compiled_steps_are_as_near_to_float64_as_others(monkeypatch):
    """Eight steps through all of the compiler, as it is for a CPU.

    Batch normalisation of three rows makes much of rounding: without the compiler .037 is seen,
    with it .052, and a step that learns nothing is 1 away.
    """
    as_on_gpu(monkeypatch)
    monkeypatch.setattr(compiled, "_alike", {})
    architecture = Architecture(NETWORKS["batch normalisation"])
    config = {"loss": "softmax", "lr": 0.01, "batch_size": 3, "epochs": 4}
    exact, _ = trained(architecture, EVEN, TrainingConfig(**config), "float64")
    plain, _ = trained(architecture, EVEN, TrainingConfig(**config), "float32")
    got, _ = trained(architecture, EVEN, TrainingConfig(compile=True, **config), "float32")
    batched_models.compiled_objective.cache_clear()
    batched_models.compiled_follow.cache_clear()
    torch._dynamo.reset()
    assert list(compiled._alike.values()) == [True]
    assert np.linalg.norm(got - exact) < 3 * np.linalg.norm(plain - exact)


@pytest.mark.parametrize("momentum", [0.0, 0.5], ids=["held apart", "in one matrix"])
def test_a_compiler_that_is_wrong_is_left_out(momentum, monkeypatch, caplog):
    """Here it doubles what is minimised, and with it the gradients."""
    as_on_gpu(monkeypatch)
    played_back(monkeypatch)
    calls = []

    def wrongly(function, **options):
        def call(*args):
            calls.append(function.__name__)
            result = function(*args)
            return result if result is None else (2 * result[0], *result[1:])

        return call

    monkeypatch.setattr(torch, "compile", wrongly)
    monkeypatch.setattr(compiled, "_alike", {})
    batched_models.compiled_objective.cache_clear()
    batched_models.compiled_follow.cache_clear()
    config = {"loss": "softmax", "lr": 0.01, "batch_size": 3, "momentum": momentum}
    architecture = Architecture(NETWORKS["kernel 4"])
    wanted, losses = trained(architecture, EVEN, TrainingConfig(**config))
    for _ in range(2):
        got, got_losses = trained(architecture, EVEN, TrainingConfig(compile=True, **config))
        assert np.allclose(got, wanted, atol=1e-12)
        assert np.allclose(got_losses, losses, atol=1e-12)
    batched_models.compiled_objective.cache_clear()
    batched_models.compiled_follow.cache_clear()
    assert calls.count("objective") == 1  # it was tried once, and never used
    assert [record.message for record in caplog.records if "wrongly" in record.message][1:] == []
    assert "off by 1 " in caplog.text


def test_a_compiler_that_is_right_is_used(monkeypatch, caplog):
    as_on_gpu(monkeypatch)
    calls = []

    def rightly(function, **options):
        return lambda *args: (calls.append(function.__name__), function(*args))[1]

    monkeypatch.setattr(torch, "compile", rightly)
    monkeypatch.setattr(compiled, "_alike", {})
    batched_models.compiled_objective.cache_clear()
    batched_models.compiled_follow.cache_clear()
    config = {"loss": "softmax", "lr": 0.01, "batch_size": 3}
    architecture = Architecture(NETWORKS["kernel 4"])
    wanted, _ = trained(architecture, EVEN, TrainingConfig(**config))
    got, _ = trained(architecture, EVEN, TrainingConfig(compile=True, **config))
    batched_models.compiled_objective.cache_clear()
    batched_models.compiled_follow.cache_clear()
    assert calls.count("objective") == calls.count("follow") == 1 + 2
    assert np.allclose(got, wanted, atol=1e-12)
    assert "wrongly" not in caplog.text


def test_tensor_cores_are_used_in_tf32_alone():
    before = torch.get_float32_matmul_precision()
    with devices.tensor_cores("tf32"):
        assert torch.get_float32_matmul_precision() == "high"
    with devices.tensor_cores("bfloat16"):
        assert torch.get_float32_matmul_precision() == before
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.parametrize("argument", [{"precision": "tf32"}, {"compile": True}])
def test_what_needs_a_gpu_says_so(argument):
    fed = so.simulate(np.eye(6), np.arange(6) % 2, clients=2, seed=0)
    learner = so.FedAvg(nn.linear(6, 2), rounds=1, device="cpu", **argument)
    with pytest.raises(so.errors.UsageError, match="on a GPU"):
        learner.fit(fed)

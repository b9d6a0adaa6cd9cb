"""FedAvg as people write PyTorch: losses, optimisers, shapes and classes as torch has them."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import solera as so
from solera.core.errors import DataError, SoleraError, UsageError

X, Y, X_TEST, Y_TEST = so.datasets.digits()
IMAGES = X.reshape(-1, 1, 8, 8)


def dense():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(64, 10))


def convolving(channels=1, outputs=10):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(channels, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, outputs)
        )


def fit(model, fed=None, **options):
    options = {"rounds": 2, "lr": 0.1, **options}
    return so.FedAvg(model, **options).fit(fed or so.simulate(X, Y, clients=4, seed=0))


class Entropy(nn.Module):
    def forward(self, outputs, target):
        assert target.dtype == torch.int64
        assert target.ndim == 1
        return -outputs.log_softmax(1)[torch.arange(len(target)), target]


@pytest.mark.parametrize(
    "loss",
    [nn.CrossEntropyLoss(), F.cross_entropy, Entropy(), lambda z, y: Entropy()(z, y)],
    ids=["module", "function", "own", "lambda"],
)
@pytest.mark.parametrize("make", [dense, lambda: so.nn.linear(64, 10)], ids=["module", "so.nn"])
def test_losses_get_indices_of_classes(loss, make):
    """Whatever the classes are called: 10, 20, … here."""
    fed = so.simulate(X, 10 * Y + 10, clients=4, seed=0)
    own, usual = fit(make(), fed, loss=loss), fit(make(), fed)
    np.testing.assert_allclose(own.weights_, usual.weights_, atol=2e-5)
    assert own.predict(X_TEST).min() >= 10


def test_losses_of_torch_have_their_parameters():
    fed = so.simulate(X, Y, clients=4, seed=0)
    smooth = fit(dense(), fed, loss=nn.CrossEntropyLoss(label_smoothing=0.3))
    weighted = fit(dense(), fed, loss=nn.CrossEntropyLoss(weight=torch.arange(10.0)))
    plain = fit(dense(), fed)
    assert len({model.weights_.tobytes() for model in (smooth, weighted, plain)}) == 3
    numbers = so.simulate(X, X[:, :2].sum(1), clients=4, seed=0)
    squared = fit(so.nn.linear(64, 1), numbers, loss=nn.MSELoss(), lr=1e-4)
    halved = fit(so.nn.linear(64, 1), numbers, lr=2e-4)
    np.testing.assert_allclose(squared.weights_, halved.weights_, atol=1e-6)
    with pytest.raises(SoleraError, match=r"gives one number for a batch.*reduction='none'"):
        fit(dense(), fed, loss=lambda z, y: F.cross_entropy(z, y))


NESTEROV = partial(torch.optim.SGD, momentum=0.9, nesterov=True)


@pytest.mark.parametrize(
    "optimiser",
    [torch.optim.AdamW, "adamw", "RMSprop", torch.optim.Adagrad, NESTEROV],
    ids=["class", "name", "Name", "adagrad", "partial"],
)
def test_any_optimiser_of_torch(optimiser):
    fed = so.simulate(X, Y, clients=3, seed=0)
    options = {"lr": 0.01, "batch_size": None, "rounds": 2, "epochs": 3}
    model = fit(dense(), fed, optimiser=optimiser, **options)
    make = {"adamw": torch.optim.AdamW, "RMSprop": torch.optim.RMSprop}.get(optimiser, optimiser)

    def train(network, loader, context):
        weights = {"weight_decay": 0.0} if make is torch.optim.AdamW else {}
        stepper = make(network.parameters(), lr=0.01, **weights)
        for _ in range(3):
            for rows, classes in loader:
                stepper.zero_grad()
                F.cross_entropy(network(rows), classes).backward()
                stepper.step()

    loop = so.FedTorch(dense(), train=train, batch_size=None, rounds=2).fit(fed)
    np.testing.assert_allclose(model.weights_, loop.weights_, atol=2e-5)
    layered = fit(so.nn.linear(64, 10), fed, optimiser=optimiser, **options)
    assert layered.score(X_TEST, Y_TEST) > 0.3


def test_our_own_optimisers_are_those_of_torch():
    for ours, theirs in (("sgd", torch.optim.SGD), ("adam", torch.optim.Adam)):
        one, other = fit(dense(), optimiser=ours), fit(dense(), optimizer=theirs)
        assert np.array_equal(one.weights_, other.weights_)
    model = so.FedAvg(dense(), optimizer="adam")
    assert model.optimiser == "adam"
    assert model.set_params(optimizer="sgd").optimiser == "sgd"
    with pytest.raises(UsageError, match=r"'adamv' is none of torch\.optim.*Adam"):
        so.FedAvg(dense(), optimizer="adamv")
    with pytest.raises(UsageError, match=r"LBFGS.*so\.FedTorch"):
        so.FedAvg(dense(), optimizer=torch.optim.LBFGS)
    with pytest.raises(SoleraError, match="takes no momentum"):
        fit(dense(), optimizer="adamw", momentum=0.9)


def test_own_optimisers_keep_what_is_frozen_and_are_pulled():
    fed = so.simulate(X, Y, clients=3, seed=0)
    options = {"rounds": 2, "lr": 0.01, "optimiser": "adamw"}
    start = so.FedAvg(dense(), rounds=1, lr=1e-12).fit(fed).weights_
    far, near = (so.FedProx(dense(), mu=mu, **options).fit(fed).weights_ for mu in (0.0, 50.0))
    assert np.linalg.norm(near - start) < np.linalg.norm(far - start)
    so.learn.FedRep(so.nn.mlp(64, 8, 10), **options).fit(fed)


def test_networks_get_rows_in_their_own_shape(tmp_path):
    fed = so.simulate(IMAGES, Y, clients=4, seed=0, test=0.2)
    model = fit(convolving(), fed, rounds=3)
    assert model.schema_.shape == (1, 8, 8)
    assert model.score(X_TEST.reshape(-1, 1, 8, 8), Y_TEST) > 0.4
    assert np.array_equal(model.predict(X_TEST), model.predict(X_TEST.reshape(-1, 1, 8, 8)))
    module = model.module()
    assert module(torch.zeros(3, 1, 8, 8)).shape == module(torch.zeros(3, 64)).shape == (3, 10)
    model.save(tmp_path / "model.sol")
    assert np.array_equal(so.load(tmp_path / "model.sol").predict(X_TEST), model.predict(X_TEST))
    for engine in ("local", "processes"):
        samples = TensorDataset(torch.tensor(IMAGES).float(), torch.tensor(Y))
        with so.simulate(samples, clients=4, seed=0, test=0.2, engine=engine) as fed:
            again = fit(convolving(), fed, rounds=3)
        np.testing.assert_allclose(again.weights_, model.weights_, atol=1e-6)


def test_what_a_learner_flattens_is_said(caplog):
    fed = so.simulate(IMAGES, Y, clients=4, seed=0)
    so.FedLinear(rounds=1).fit(fed)
    assert "FedLinear reads rows of 1 × 8 × 8 as 64 columns" in caplog.text
    caplog.clear()
    fit(convolving(), fed, rounds=1)
    assert not caplog.text


def test_channels_are_agreed():
    draw = np.random.default_rng(0)
    first = draw.normal(size=(40, 3, 8, 8)).astype(np.float32)
    y = np.arange(40) % 2
    network = so.nn.simple_cnn((8, 8, 3), 2)
    with pytest.raises(DataError, match=r"3 × 8 × 8, channels first.*8 × 8 × 3.*transpose"):
        fit(network, so.simulate(first, y, clients=2, seed=0))
    last = fit(network, so.simulate(first.transpose(0, 2, 3, 1), y, clients=2, seed=0))
    dataset = TensorDataset(torch.tensor(first), torch.tensor(y))
    read = fit(network, so.simulate(so.data.from_torch(dataset), clients=2, seed=0))
    assert np.array_equal(last.weights_, read.weights_)
    assert so.data.from_torch(dataset, flat=False).X.shape == (40, 3, 8, 8)


def test_shapes_that_do_not_fit_name_layer_and_shapes():
    fed = so.simulate(IMAGES, Y, clients=2, seed=0)
    with pytest.raises(DataError, match=r"rows of 1 × 8 × 8: layer '0', Linear\(.*gets 1 × 8 × 8"):
        fit(nn.Sequential(nn.Linear(64, 10)), fed)
    with pytest.raises(DataError, match=r"layer '0', Conv2d\(3, .*gets 1 × 8 × 8"):
        fit(convolving(channels=3), fed)
    with pytest.raises(DataError, match=r"gives 7 for a row, the target has 10 classes"):
        fit(convolving(outputs=7), fed)
    with pytest.raises(DataError, match=r"rows of 64: layer"):
        fit(nn.Sequential(nn.Linear(63, 10)))


def test_the_order_of_classes_is_kept():
    y = np.array(["low", "mid", "high"])[np.arange(60) % 3]
    rows = np.random.default_rng(0).normal(size=(60, 4)) + 2 * np.eye(4)[np.arange(60) % 3]
    order = ["low", "mid", "high"]
    fed = so.simulate(rows, y, clients=3, seed=0, classes=order)
    model = fit(so.nn.linear(4, 3), fed, rounds=20)
    assert model.classes_.tolist() == order
    seen = []

    def train(network, loader, context):
        seen.append(context.classes.tolist())
        stepper = torch.optim.SGD(network.parameters(), lr=0.1)
        for X, target in loader:
            stepper.zero_grad()
            F.cross_entropy(network(X), target).backward()
            stepper.step()

    so.FedTorch(nn.Linear(4, 3), train=train, rounds=1).fit(fed)
    assert seen == [order] * 3
    assert model.score(rows, y) > 0.6
    with pytest.raises(UsageError, match="twice"):
        so.simulate(rows, y, classes=["low", "low"])
    with pytest.raises(DataError, match="not among"):
        so.simulate(rows, y, classes=["low", "mid"])

    class Named(TensorDataset):
        classes = ("zebra", "ape")

    dataset = Named(torch.tensor(rows), torch.arange(60) % 2)
    read = so.simulate(so.data.from_torch(dataset), clients=2)
    assert read.schema.classes.tolist() == ["zebra", "ape"]


def test_networks_of_sixteen_bits_are_trained_in_thirty_two():
    model = fit(dense().bfloat16())
    assert model.weights_.dtype == np.float32
    assert model.score(X_TEST, Y_TEST) > 0.5

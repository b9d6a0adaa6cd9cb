"""Batched training, the reference version, and centralised training: the same arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import solera as so
from solera.core.clients import Segments
from solera.core.replies import Batch, Stacked
from solera.core.rng import stream_keys
from solera.learn.averaging import models, nn
from solera.learn.averaging.training import batched, low_rank
from solera.learn.averaging.training.architecture import Architecture
from solera.learn.averaging.training.batched import train_batched
from solera.learn.averaging.training.batched_models import Correction
from solera.learn.averaging.training.batches import TrainingConfig, deal_batches
from solera.learn.averaging.training.client_rows import ClientRows
from solera.learn.averaging.training.devices import borrow
from solera.learn.averaging.training.lazy_updates import StackedUpdates
from solera.learn.averaging.training.low_rank import low_rank_pays, train_low_rank
from solera.learn.averaging.training.reference import train_reference
from solera.learn.averaging.update_mean import UpdateMean

SIZES = np.array([30, 8, 17, 1, 30])
rng = np.random.default_rng(0)


def odd_module():
    """Attention-like products that none of our layers has."""

    class Odd(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = torch.nn.Linear(64, 6), torch.nn.Linear(64, 6)
            self.out = torch.nn.Linear(6, 5)

        def forward(self, x):
            return self.out(torch.tanh(self.a(x)) * self.b(x))

    torch.manual_seed(3)
    return Odd()


MODELS = {
    "linear": lambda: nn.linear(64, 5),
    "mlp": lambda: nn.mlp(64, 40, 5),
    "deep tanh dropout": lambda: nn.mlp(64, 7, 33, 5, activation="tanh", dropout=0.3),
    "sigmoid": lambda: nn.mlp(64, 9, 5, activation="sigmoid"),
    "conv": lambda: nn.conv_net((8, 8, 1), 5, channels=(3,), dense=8, dropout=0.2),
    "batch norm": lambda: nn.complex_cnn((8, 8, 1), 5),
    "module": lambda: models.described(odd_module()),
    "lstm": lambda: nn.lstm(4, 5, embedding=3, hidden=6),
}
HOW = {
    "sgd": TrainingConfig("softmax", 0.1, batch_size=8),
    "momentum": TrainingConfig("softmax", 0.05, momentum=0.9, l2=0.01, batch_size=8, epochs=2),
    "adam": TrainingConfig("softmax", 0.01, optimiser="adam", mu=0.1, batch_size=8, epochs=2),
    "steps": TrainingConfig("softmax", 0.1, steps=7, batch_size=8),
    "full batch": TrainingConfig("softmax", 0.1, epochs=3),
    "in order": TrainingConfig("softmax", 0.1, batch_size=8, epochs=2, shuffle=False),
}


def compare(model, config, target="classes", tile=None, monkeypatch=None, tolerance=1e-11):
    count = SIZES.sum()
    rng = np.random.default_rng(0)
    X = rng.normal(size=(count, 64))
    if isinstance(model, models.LSTM):
        X = rng.integers(0, model.tokens, size=(count, 6)).astype(float)
    y = rng.integers(0, 5, count) if config.loss == "softmax" else rng.normal(size=(count, 5))
    if config.loss == "sigmoid":
        y = (y > 0).astype(np.uint8)
    architecture = Architecture(model)
    start = architecture.start(0, "float64")
    keys = stream_keys(0, "test", 0, np.arange(len(SIZES)))
    rows = Segments(X, y, np.cumsum(SIZES) - SIZES, SIZES)
    layout = architecture.training_layout
    sent = layout.arrange(torch.tensor(start))
    weights = sent.repeat(len(SIZES), 1)
    gathered = ClientRows(rows, keys, config.loss, np.arange(5), weights)
    if tile:
        monkeypatch.setattr(batched, "tile_size", lambda *_: tile)
    correction = Correction(anchor=sent)
    losses, steps = train_batched(architecture, weights, gathered, config, correction)
    for k in range(len(SIZES)):
        targets = np.asarray(rows[k].y, float) if config.loss != "softmax" else rows[k].y
        row, loss, made = train_reference(
            architecture,
            start,
            rows[k].X,
            targets,
            keys[k : k + 1],
            config,
            Correction(torch.tensor(start)),
        )
        assert made == steps[k]
        error = np.abs(layout.restore(weights[k]).numpy() - row)
        # Adam may turn the rounding of a gradient that is nearly zero into a step of its own.
        assert np.quantile(error, 0.999 if config.optimiser == "adam" else 1) < tolerance
        assert losses[k] == pytest.approx(loss, abs=tolerance)


@pytest.mark.parametrize("config", HOW.values(), ids=HOW)
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_batched_training_equals_the_reference(model, config):
    made = model()
    deep = isinstance(made, models.ComplexCNN)
    compare(made, config, tolerance=1e-6 if deep else 1e-10)


@pytest.mark.parametrize("model", ["mlp", "conv", "batch norm", "lstm"])
@pytest.mark.parametrize("tile", [2, 5])
def test_the_tile_changes_nothing(model, tile, monkeypatch):
    """Stacked convolutions, padding and running statistics, as on a GPU."""
    made = MODELS[model]()
    tolerance = 1e-6 if model == "batch norm" else 1e-10
    compare(made, HOW["steps"], tile=tile, monkeypatch=monkeypatch, tolerance=tolerance)


@pytest.mark.parametrize("loss", ["sigmoid", "squared", "labels/asymmetric"])
def test_other_losses(loss):
    compare(nn.mlp(64, 40, 5), TrainingConfig(loss, 0.05, batch_size=8, epochs=2))


def both_ways(model, config):
    """The same training with and without matrices of the first layer: rows of changes."""
    rng = np.random.default_rng(4)
    X, y = rng.normal(size=(SIZES.sum(), 64)), rng.integers(0, 5, SIZES.sum())
    architecture = Architecture(model)
    start = architecture.training_layout.arrange(torch.tensor(architecture.start(0, "float64")))
    keys = stream_keys(0, "test", 0, np.arange(len(SIZES)))
    segments = Segments(X, y, np.cumsum(SIZES) - SIZES, SIZES)
    rows = ClientRows(segments, keys, config.loss, np.arange(5), start)
    changes = start.repeat(len(SIZES), 1)
    losses, _ = train_batched(architecture, changes, rows, config, Correction())
    changes -= start
    rest = {"loss": losses, "rows": SIZES.astype(float)}
    changes = architecture.training_layout.restore(changes)
    stacked = Stacked({"update": {"values": changes.numpy()}, **rest})
    return stacked, train_low_rank(architecture, start, rows, config)


WIDE = {
    "linear": nn.linear(64, 40),
    "mlp": nn.mlp(64, 40, 5),
    "deep tanh dropout": nn.mlp(64, 33, 7, 5, activation="tanh", dropout=0.3),
    "sigmoid": nn.mlp(64, 36, 5, activation="sigmoid"),
}


@pytest.mark.parametrize("tile", [1, 1 << 22])
@pytest.mark.parametrize("config", ["sgd", "steps", "full batch"])
@pytest.mark.parametrize("model", WIDE)
def test_low_rank_updates_are_the_same_updates(model, config, tile, monkeypatch):
    monkeypatch.setattr(low_rank, "_ROWS", tile)
    written, factors = both_ways(WIDE[model], HOW[config])
    values = written.fields["update"]["values"]
    np.testing.assert_allclose(factors.fields["update"]["values"], values, atol=1e-11)
    np.testing.assert_allclose(factors.rest["loss"], written.fields["loss"], atol=1e-11)
    rule, ids = UpdateMean(values.shape[1]), np.arange(len(SIZES))
    a, b = (rule.result(rule.fold(Batch(ids, s))) for s in (written, factors))
    np.testing.assert_allclose(a["update"], b["update"], atol=1e-11)
    assert set(factors.outline()) == set(factors[0])
    assert factors.outline()["update"]["values"].shape == factors[0]["update"]["values"].shape
    assert factors.sizes().tolist() == written.sizes().tolist()
    for part in (factors.between(1, 3), factors.take(np.array([1, 2]))):
        np.testing.assert_allclose(part[1]["update"]["values"], values[2], atol=1e-11)
        assert part[1]["rows"] == SIZES[2]
    factors.errors[3, 0, 0] = np.inf
    assert factors.finite().tolist() == [True, True, True, False, True]


def test_low_rank_updates_are_used_where_rows_are_few():
    config, cpu = TrainingConfig("softmax", 0.1, batch_size=20), torch.device("cpu")
    wide, sixty = Architecture(nn.mlp(784, 128, 10)), np.array([60, 20])
    assert low_rank_pays(wide, config, sixty, cpu)
    assert not low_rank_pays(wide, config, np.array([600]), cpu)
    assert not low_rank_pays(
        wide, TrainingConfig("softmax", 0.1, momentum=0.9, batch_size=20), sixty, cpu
    )
    assert not low_rank_pays(Architecture(nn.linear(784, 10)), config, np.array([20]), cpu)
    assert not low_rank_pays(wide, config, np.array([60, 2, 2, 2]), cpu)
    assert not low_rank_pays(Architecture(nn.conv_net((8, 8, 1), 5)), config, sixty, cpu)


def test_a_masked_step_moves_nothing():
    """A client of one row beside one of thirty ends where it ends alone."""
    keys = stream_keys(0, "test", 0, np.arange(2))
    dealt = deal_batches(keys, np.array([30, 1]), TrainingConfig("softmax", 0.1, batch_size=8))
    assert dealt.counts.tolist() == [[8, 8, 8, 6], [1, 0, 0, 0]]
    assert sorted(dealt.index[0, :30].tolist()) == list(range(30))


def test_every_epoch_deals_every_row_once():
    keys = stream_keys(1, "test", 0, np.arange(3))
    sizes = np.array([5, 12, 7])
    dealt = deal_batches(keys, sizes, TrainingConfig("softmax", 0.1, batch_size=4, epochs=3))
    for k, size in enumerate(sizes):
        taken = []
        for step, count in enumerate(dealt.counts[k]):
            taken += dealt.index[k, step * 4 : step * 4 + count].tolist()
        assert np.bincount(taken, minlength=size).tolist() == [3] * size


def test_borrowed_memory_is_not_given_away_while_it_is_used():
    like = torch.zeros(1)
    first = borrow(3, 4, like).fill_(1).numpy()[1:]
    second = borrow(3, 4, like).fill_(2).numpy()
    assert (first == 1).all()
    assert (second == 2).all()
    place = second.ctypes.data
    del second
    third = borrow(3, 4, like)
    assert third.data_ptr() == place
    assert (first == 1).all()


def test_replies_on_a_device_fold_like_those_in_memory():
    values = rng.normal(size=(5, 7))
    rest = {"rows": np.arange(1.0, 6), "loss": rng.normal(size=5)}
    here = Stacked({"update": {"values": values}, **rest})
    there = StackedUpdates(torch.from_numpy(values), rest=rest)
    ids = np.arange(5)
    rule = UpdateMean(7)
    a, b = (rule.result(rule.fold(Batch(ids, stack))) for stack in (here, there))
    np.testing.assert_allclose(a["update"], b["update"])
    assert a["loss"] == pytest.approx(b["loss"])
    assert here.sizes().tolist() == there.sizes().tolist()
    assert len(there.between(1, 3)) == 2
    np.testing.assert_array_equal(there[2]["update"]["values"], values[2])
    values[3, 1] = np.nan
    assert there.finite().tolist() == [True, True, True, False, True]


# --- whole learners ---

X = rng.normal(size=(300, 6))
Y = (X @ rng.normal(size=(6, 3))).argmax(axis=1)
UNEQUAL = so.data.FederatedData(X, Y, np.array([0, 140, 150, 240, 300]))
EXACT = {"dtype": "float64", "lr": 0.3, "batch_size": None}


def fit(learner, data=UNEQUAL, seed=0, **options):
    return learner.fit(so.simulate(data, seed=seed), **options)


def test_one_full_batch_step_is_centralised_gradient_descent():
    model = fit(so.FedSGD(so.nn.mlp(6, 8, 3), rounds=5, **EXACT))
    net = so.FedAvg(so.nn.mlp(6, 8, 3), rounds=1, **EXACT)
    net.schema_ = model.schema_
    net.weights_ = net.first_model(0)["weights"]
    module = net.module().train()
    optimiser = torch.optim.SGD(module.parameters(), lr=0.3)
    for _ in range(5):
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(module(torch.tensor(X)), torch.tensor(Y))
        loss.backward()
        optimiser.step()
    for name, value in model.module().state_dict().items():
        np.testing.assert_allclose(value, module.state_dict()[name], rtol=1e-9, atol=1e-12)


NET = so.nn.mlp(6, 8, 3)


@pytest.mark.parametrize(
    "relative",
    [
        so.FedProx(NET, mu=0.0, rounds=3, epochs=2, **EXACT),
        so.FedAvgM(NET, beta=0.0, rounds=3, epochs=2, **EXACT),
        so.FedNova(NET, rounds=3, local_steps=4, **EXACT),
        so.FedAvg(NET, rounds=3, epochs=2, send="weights", **EXACT),
        so.FedAvg(NET, rounds=3, epochs=2, weight=lambda reply: 2 * reply["rows"], **EXACT),
        so.FedAvg(
            NET,
            rounds=3,
            epochs=2,
            update_steps=[so.updates.Clip(1e9), so.updates.TopK(1.0)],
            **EXACT,
        ),
        so.Ditto(NET, rounds=3, epochs=2, **EXACT),
        so.Scaffold(NET, rounds=1, epochs=2, **EXACT),
    ],
    ids=lambda learner: type(learner).__name__,
)
def test_relatives_reduce_to_fedavg(relative):
    options = {"rounds": relative.rounds, "epochs": relative.epochs}
    plain = so.FedAvg(NET, **options, local_steps=relative.local_steps, **EXACT)
    np.testing.assert_allclose(
        fit(relative.clone()).weights_, fit(plain).weights_, rtol=1e-9, atol=1e-12
    )


def test_nova_differs_where_clients_make_different_numbers_of_steps():
    exact = {**EXACT, "batch_size": 16}
    plain = fit(so.FedAvg(NET, rounds=2, **exact)).weights_
    assert not np.allclose(fit(so.FedNova(NET, rounds=2, **exact)).weights_, plain)


def test_scaffold_reaches_the_optimum_where_averaging_drifts():
    """Many full local passes over unlike clients: the fixed point of FedAvg is not the optimum."""
    order = np.argsort(Y, kind="stable")
    unlike = so.data.FederatedData(X[order], Y[order], np.array([0, 100, 200, 300]))
    central = fit(so.FedSGD(so.nn.linear(6, 3), rounds=150, l2=0.1, lr=0.5, dtype="float64"))
    shared = {"rounds": 30, "l2": 0.1, "lr": 0.2, "dtype": "float64", "batch_size": None}
    errors = {
        cls: np.abs(fit(cls(so.nn.linear(6, 3), epochs=20, weight=None, **shared), unlike).weights_
                    - central.weights_).max()
        for cls in (so.FedAvg, so.Scaffold)
    }  # fmt: skip
    assert errors[so.Scaffold] < 0.01 < errors[so.FedAvg]


def test_binary_target_with_one_output():
    two = (Y > 0).astype(int)
    data = so.data.FederatedData(X, two, UNEQUAL.offsets)
    model = fit(so.FedAvg(so.nn.mlp(6, 16, 1), rounds=30, lr=0.5), data)
    assert model.score(X, two) > 0.9
    p = model.predict_proba(X)
    assert p.shape == (300, 2)
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-6)


def test_custom_loss_and_module_are_trained_and_evaluated():
    def hinge(outputs, target):
        right = outputs.gather(-1, target.unsqueeze(-1))
        margin = (1 - right + outputs).clamp(min=0)
        return margin.sum(dim=-1) - 1

    so.nn.register_loss("test.hinge", hinge)
    with pytest.raises(so.errors.DataError):
        fit(
            so.FedAvg(NET, rounds=1, loss="softmax"),
            so.data.FederatedData(X, X[:, 0], UNEQUAL.offsets),
        )
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.GELU(), torch.nn.Linear(12, 3))
    model = fit(so.FedAvg(net, rounds=20, lr=0.5), seed=1)
    assert model.score(X, Y) > 0.85
    fed = so.simulate(X, Y, clients=4, test=0.25)
    assert model.evaluate(fed)["accuracy"] > 0.85


def test_registered_factory_travels_as_name_and_parameters():
    net = so.nn.register("test.wide", lambda width: torch.nn.Linear(6, width))
    model = fit(so.FedAvg(net(width=3), rounds=10, lr=0.5))
    assert model.score(X, Y) > 0.8
    with pytest.raises(so.errors.UsageError, match=r"no model .* registered"):
        fit(so.FedAvg(models.Registered("test.unknown"), rounds=1))


def test_parameter_counts_of_the_theses():
    counts = {
        101_770: so.nn.mlp(784, 128, 10),
        5_354: so.nn.simple_cnn(),
        1_342_122: so.nn.complex_cnn(),
        819_920: so.nn.lstm(80, 80),  # as LEAF counts its 80 characters
    }
    for count, model in counts.items():
        assert Architecture(model).layout.trained == count
        module = model.module()
        assert sum(p.numel() for p in module.parameters()) == count


def test_rows_that_are_not_shuffled_are_taken_as_they_lie():
    """The programs of the selection thesis train so; two steps by hand."""
    rows = np.random.default_rng(0).normal(size=(6, 2))
    labels = np.array([0, 0, 0, 1, 1, 1])
    fed = so.simulate(so.data.FederatedData(rows, labels, np.array([0, 6])))
    how = {"rounds": 1, "lr": 0.5, "batch_size": 3, "dtype": "float64"}
    model = so.FedAvg(so.nn.linear(2, 2), shuffle=False, **how).fit(fed)
    module = Architecture(so.nn.linear(2, 2)).load(
        Architecture(so.nn.linear(2, 2)).start(fed.seed, "float64")
    )
    for batch in (slice(0, 3), slice(3, 6)):
        loss = torch.nn.functional.cross_entropy(
            module(torch.tensor(rows[batch])), torch.tensor(labels[batch])
        )
        parameters = list(module.parameters())
        for w, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            w.data -= 0.5 * gradient
    by_hand = np.concatenate([w.detach().numpy().ravel() for w in module.parameters()])
    np.testing.assert_allclose(model.weights_, by_hand, rtol=1e-12)
    shuffled = so.FedAvg(so.nn.linear(2, 2), **how).fit(fed)
    assert not np.allclose(shuffled.weights_, by_hand)


def test_workers_learn_of_modules_that_come_later():
    with so.simulate(UNEQUAL, seed=1, engine="processes", workers=2) as fed:
        for hidden in (4, 5):  # the second is unknown to the workers of the first
            net = torch.nn.Sequential(
                torch.nn.Linear(6, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 3)
            )
            model = so.FedAvg(net, rounds=1, batch_size=20).fit(fed)
            assert np.isfinite(model.weights_).all()

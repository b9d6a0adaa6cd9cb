"""FedTorch: a loop of one's own gives what FedAvg and its relatives give, on every engine."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import solera as so

X, Y, X_TEST, Y_TEST = so.datasets.digits()
FULL = {"rounds": 3, "batch_size": None}


def network():
    layers = [torch.nn.Linear(64, 16), torch.nn.Tanh(), torch.nn.Linear(16, 10)]
    return torch.nn.Sequential(*layers)


@pytest.fixture(scope="module")
def net():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return network()


def descend(model, loader, context):
    """Plain gradient descent, some epochs."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(context.config.get("epochs", 1)):
        for rows, classes in loader:
            optimiser.zero_grad()
            loss = F.cross_entropy(model(rows), classes)
            loss.backward()
            optimiser.step()
    return {"loss": loss}


def descend_by_closure(model, loader, context):
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(context.config.get("epochs", 1)):
        for rows, classes in loader:

            def closure(rows=rows, classes=classes):
                optimiser.zero_grad()
                loss = F.cross_entropy(model(rows), classes)
                loss.backward()
                return loss

            optimiser.step(closure)


def accuracy(model, loader, context):
    right = [(model(rows).argmax(1) == classes).sum() for rows, classes in loader]
    return {"accuracy": sum(right) / len(loader.dataset)}


def federation(**options):
    return so.simulate(X, Y, clients=5, partition=so.Dirichlet(1.0), seed=3, **options)


PEERS = {
    "average": (so.FedAvg, {}, {}),
    "prox": (so.FedProx, {"mu": 0.5}, {"mu": 0.5}),
    "scaffold": (so.learn.Scaffold, {}, {"scaffold": True}),
    "momentum": (so.learn.FedAvgM, {}, {"server": "momentum"}),
    "adam": (so.FedAdam, {}, {"server": "adam", "server_lr": 0.01}),
    "yogi": (so.learn.FedYogi, {}, {"server": "yogi", "server_lr": 0.01}),
    "adagrad": (so.learn.FedAdagrad, {}, {"server": "adagrad", "server_lr": 0.01}),
    "median": (so.FedAvg, {"aggregate": so.robust.Median()}, {"aggregate": so.robust.Median()}),
    "equal": (so.FedAvg, {"weight": None}, {"weight": None}),
    "clipped": (
        so.FedAvg,
        {"update_steps": [so.updates.Clip(0.1)]},
        {"update_steps": [so.updates.Clip(0.1)]},
    ),
}


@pytest.mark.parametrize("loop", [descend, descend_by_closure])
@pytest.mark.parametrize("name", PEERS)
def test_the_same_as_the_learner_that_has_its_own_loop(name, loop, net):
    cls, params, same = PEERS[name]
    fed = federation()
    peer = cls(net, lr=0.1, epochs=3, **FULL, **params).fit(fed)
    model = so.FedTorch(net, train=loop, config={"epochs": 3}, **FULL, **same).fit(fed)
    np.testing.assert_allclose(model.weights_, peer.weights_, atol=5e-6)
    if name in ("prox", "scaffold"):
        plain = so.FedTorch(net, train=loop, config={"epochs": 3}, **FULL).fit(fed)
        assert np.abs(model.weights_ - plain.weights_).max() > 1e-2
    assert so.FedTorch(net, train=loop, **FULL).fit(fed).history_[-1]["clients"] == 5


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.Adam(p, lr=0.01),
        lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
        lambda p: torch.optim.RMSprop(p, lr=0.001),
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    ],
)
def test_mu_pulls_whatever_optimiser_steps(make, net):
    def train(model, loader, context):
        optimiser = make(model.parameters())
        for rows, classes in loader:
            optimiser.zero_grad()
            F.cross_entropy(model(rows), classes).backward()
            optimiser.step()

    def by_hand(model, loader, context):
        start = [p.detach().clone() for p in model.parameters()]
        optimiser = make(model.parameters())
        for rows, classes in loader:
            optimiser.zero_grad()
            loss = F.cross_entropy(model(rows), classes)
            for p, s in zip(model.parameters(), start, strict=True):
                loss = loss + 0.5 * 3.0 * ((p - s) ** 2).sum()
            loss.backward()
            optimiser.step()

    fed = federation()
    pulled = so.FedTorch(net, train=train, rounds=2, mu=3.0).fit(fed)
    wanted = so.FedTorch(net, train=by_hand, rounds=2).fit(fed)
    np.testing.assert_allclose(pulled.weights_, wanted.weights_, atol=5e-4)


def test_lbfgs_minimises_the_corrected_loss(net):
    """A closure's loss and gradients are corrected alike, or its line search would fail."""

    def train(model, loader, context):
        optimiser = torch.optim.LBFGS(model.parameters(), max_iter=5, line_search_fn="strong_wolfe")
        rows, classes = next(iter(loader))

        def closure():
            optimiser.zero_grad()
            loss = F.cross_entropy(model(rows), classes)
            loss.backward()
            return loss

        optimiser.step(closure)

    fed = federation()
    far, near = (
        so.FedTorch(net, train=train, mu=mu, rounds=1, batch_size=None).fit(fed)
        for mu in (0.0, 9.0)
    )
    start = so.FedAvg(net, rounds=1, lr=1e-12).fit(fed).weights_
    assert np.linalg.norm(near.weights_ - start) < 0.5 * np.linalg.norm(far.weights_ - start)


def test_private_layers_and_noise_and_secure_sums(net):
    fed = federation(test=0.2)
    own = so.FedTorch(net, train=descend, evaluate=accuracy, private=["2"], rounds=3).fit(fed)
    peer = so.learn.FedPer(net, private=["2"], batch_size=None, rounds=3, lr=0.1).fit(fed)
    same = so.FedTorch(net, train=descend, private=["2"], **FULL).fit(fed)
    np.testing.assert_allclose(same.at(2).weights_, peer.at(2).weights_, atol=5e-6)
    assert own.evaluate(fed)["accuracy"].clients == 5
    with pytest.raises(so.errors.UsageError, match="at"):
        own.predict(X_TEST)
    assert own.at(1).predict(X_TEST).shape == (len(X_TEST), 10)
    noised = so.FedTorch(
        net,
        train=descend,
        evaluate=accuracy,
        rounds=2,
        weight=None,
        dp=so.DP(noise_multiplier=1.0, delta=1e-3, clip=1.0),
    ).fit(fed)
    assert noised.history_[-1]["epsilon"] > 0
    assert not {"loss", "test_accuracy"} & noised.history_[-1].keys()  # none leaves
    secret = federation(test=0.2, secure=True)
    options = {"train": descend, "evaluate": accuracy, "rounds": 2}
    named = so.FedTorch(net, metrics=["loss", "accuracy"], **options).fit(secret)
    plain = so.FedTorch(net, **options).fit(fed)
    np.testing.assert_allclose(named.weights_, plain.weights_, atol=5e-6)
    for name in ("loss", "test_accuracy"):
        assert named.history_[-1][name] == pytest.approx(plain.history_[-1][name])
    with pytest.raises(so.errors.UsageError, match=r"names before.*metrics=\['loss'\]"):
        so.FedTorch(net, **options).fit(secret)


def draws(model, loader, context):
    """A loop that draws from everybody's generators, and keeps an optimiser's state."""
    import random

    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    if "optimiser" in context.state:
        optimiser.load_state_dict(context.state["optimiser"])
    for rows, classes in loader:
        rows = rows + 0.1 * torch.randn_like(rows) + 0.1 * random.random() + 0.1 * np.random.rand()  # noqa: NPY002
        optimiser.zero_grad()
        F.cross_entropy(F.dropout(model(rows), 0.1), classes).backward()
        optimiser.step()
    context.state["optimiser"] = optimiser.state_dict()


class Stop(so.callbacks.Callback):
    def on_round(self, learner, round):
        if round.index == 1:
            raise KeyboardInterrupt


@pytest.mark.parametrize("engine", ["local", "processes"])
def test_the_same_bits_on_every_engine_and_after_a_stop(engine, net, tmp_path):
    def learner():
        return so.FedTorch(net, train=draws, rounds=4, per_round=3)

    before = torch.random.get_rng_state()
    whole = learner().fit(federation())
    assert torch.equal(before, torch.random.get_rng_state())
    with federation(engine=engine) as fed:
        file = tmp_path / "fit.checkpoint"
        with pytest.raises(KeyboardInterrupt):
            learner().fit(fed, checkpoint=file, callbacks=[Stop()])
        resumed = learner().fit(fed, checkpoint=file)
    assert np.array_equal(resumed.weights_, whole.weights_)


def test_a_fitted_model_is_a_network_and_is_saved_without_code(net, tmp_path, caplog):
    fed = federation(test=0.2)
    model = so.FedTorch(network, train=descend, evaluate=accuracy, rounds=3).fit(fed)
    module = model.module()
    assert not module.training
    scores = module(torch.tensor(X_TEST, dtype=torch.float32)).detach().numpy()
    np.testing.assert_allclose(model.predict(X_TEST), scores, atol=1e-5)
    assert model.state_dict().keys() == module.state_dict().keys()
    assert model.score(X_TEST, Y_TEST) == pytest.approx((scores.argmax(1) == Y_TEST).mean())
    assert model.evaluate(fed)["accuracy"].part == "test"
    assert set(model.evaluate(fed).clients) == set(range(5))
    model.save(tmp_path / "model.sol")
    assert "so.load(path, model=…)" in caplog.text
    loaded = so.load(tmp_path / "model.sol", model=network)
    assert np.array_equal(loaded.predict(X_TEST), model.predict(X_TEST))
    with pytest.raises(so.errors.UsageError, match="other parameters"):
        so.load(tmp_path / "model.sol", model=torch.nn.Linear(64, 10)).predict(X_TEST)


def test_weights_of_metrics_and_examples(net):
    def train(model, loader, context):
        descend(model, loader, context)
        context.log(seen=context.client)
        return {"mine": (context.client, 1), "broken": float("nan"), "examples": 1 + context.client}

    fed = federation()
    model = so.FedTorch(net, train=train, rounds=1).fit(fed)
    entry = model.history_[-1]
    assert entry["mine"] == pytest.approx(2.0)
    assert entry["seen"] == pytest.approx(np.average(range(5), weights=range(1, 6)))
    assert "broken" not in entry  # what is no number counts nothing


def test_running_statistics_are_averaged_beside_the_update():
    def make():
        return torch.nn.Sequential(
            torch.nn.Linear(64, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 10)
        )

    def train(model, loader, context):
        descend(model, loader, context)

    fed = so.simulate(X, Y, clients=5, seed=0)
    model = so.FedTorch(make, train=train, rounds=2, update_steps=[so.updates.Clip(1e-9)]).fit(fed)
    state = model.state_dict()
    batches = [-(-size // 32) for size in fed.engine.sizes("train")]
    assert state["1.num_batches_tracked"].dtype == torch.int64
    assert 2 * min(batches) <= int(state["1.num_batches_tracked"]) <= 2 * max(batches)
    assert state["1.running_var"].abs().max() != 1  # clipping left them alone
    robust = so.FedTorch(make, train=train, rounds=2, aggregate=so.robust.Krum(f=1)).fit(fed)
    assert np.isfinite(robust.buffers_).all()
    dp = so.DP(noise_multiplier=1.0, delta=1e-3, clip=1.0)
    with pytest.raises(so.errors.UsageError, match=r"1 keeps statistics.*GroupNorm"):
        so.FedTorch(make, train=train, weight=None, dp=dp).fit(fed)

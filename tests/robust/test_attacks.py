"""Clients that lie, what becomes of their updates, and what is told about them."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import solera as so
from solera.core.component import Component
from solera.learn.averaging.base import Averaging
from solera.learn.base import from_bytes

R = so.robust
NET = so.nn.mlp(6, 8, 3)
SMALL = {"rounds": 2, "batch_size": 8, "lr": 0.1, "dtype": "float64"}


def rows(outputs=3):
    draw = np.random.default_rng(5)
    X = draw.normal(size=(240, 6))
    scores = X @ draw.normal(size=(6, outputs))
    return X, scores.argmax(axis=1), (scores > 0).astype(np.uint8)


def learner(cls, **options):
    """A small learner of this class."""
    if cls is so.FedLinear:
        return cls(rounds=2, batch_size=8, **options)
    if cls is so.FedLoRA:
        return cls(transformer(), rank=2, rounds=2, local_steps=2, batch_size=8, lr=0.1, **options)
    if cls is so.FedTorch:
        return cls(loop_network, train=descend, rounds=2, batch_size=8, **options)
    more = {"buffer": 12, "concurrency": 12} if cls is so.FedBuff else {}
    more |= {"batch_size": None} if cls is so.FedSGD else {}
    more |= {"stop": None} if cls is so.MLFedAvg else {}
    more |= {"private": ["0"]} if cls is so.FedBN else {}
    net = so.nn.mlp(6, 8, 8) if cls is so.MLFedAvg else NET
    return cls(net, **{**SMALL, **more, **options})


def loop_network():
    import torch

    return torch.nn.Sequential(torch.nn.Linear(6, 3), torch.nn.BatchNorm1d(3)).double()


def descend(model, loader, context):
    """A loop of a user's."""
    import torch

    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for X, y in loader:
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(X), y).backward()
        optimiser.step()


@cache
def transformer():
    """A base model that is small, with weights of its own."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 1, "vocab_size": 40}
    config = transformers.BertConfig(num_hidden_layers=1, attn_implementation="eager", **sizes)
    return transformers.BertModel(config)


def federation(cls, attack=None, clients=12, **options):
    X, y, labels = rows()
    if cls is so.FedLoRA:
        X = np.floor(np.abs(X) * 6)  # numbers of tokens
    target = labels if cls is so.MLFedAvg else y
    return so.simulate(X, target, clients=clients, seed=3, attack=attack, **options)


EVERY = sorted(
    (c for c in Component.registry.values()
     if issubclass(c, Averaging) and c.__module__.startswith("solera.")),
    key=lambda c: c.__name__,
)  # fmt: skip


@pytest.mark.parametrize("cls", EVERY, ids=lambda c: c.__name__)
@pytest.mark.parametrize("kind", ["nan", "infinite", "shape", "huge"])
@pytest.mark.parametrize("rule", [None, R.Median()], ids=["mean", "median"])
def test_what_is_no_update_is_excluded_counted_and_named(cls, kind, rule):
    fed = federation(cls, R.Broken(share=0.25, kind=kind))
    model = learner(cls, aggregate=rule).fit(fed, progress=False)
    assert len(fed.attackers) == 3
    for entry in model.history_:
        excluded = entry.get("excluded", [])
        named = {client for client, _ in excluded}
        assert named == set(fed.attackers.tolist()) or (cls is so.FedBuff and entry["round"])
        assert entry["failures"] >= len(excluded)
        assert all(reason for _, reason in excluded)
    for name, value in model.get_state().items():
        if isinstance(value, np.ndarray) and value.dtype.kind == "f":
            assert np.abs(value).max() < 1e3, name


@pytest.mark.parametrize("kind", ["nan", "huge"])
def test_the_model_is_that_of_the_others(kind):
    fed = federation(so.FedAvg, R.Broken(share=0.25, kind=kind))
    model = learner(so.FedAvg).fit(fed, progress=False)
    alone = learner(so.FedAvg)
    alone.fit(federation(so.FedAvg, failures=_Gone(fed.attackers)), progress=False)
    np.testing.assert_allclose(model.weights_, alone.weights_, atol=1e-12)


class _Gone:
    """A fault model in which some clients are never reached."""

    def __init__(self, clients):
        self.clients = clients

    def faults(self, ask, clients):
        from solera.engines.faults import Faults

        gone = np.isin(clients, self.clients)
        gone &= ask.task.startswith("averaging")
        none = np.zeros(len(clients), dtype=bool)
        return Faults(gone, none, none, np.zeros(len(clients)))


@pytest.mark.parametrize("cls", EVERY, ids=lambda c: c.__name__)
def test_every_learner_takes_a_rule(cls):
    honest = federation(cls)
    rule = R.MultiKrum(f=3)
    lied = federation(cls, R.SignFlip(share=0.25, factor=50))
    model = learner(cls, aggregate=rule).fit(lied, progress=False)
    mean = learner(cls).fit(honest, progress=False)
    named = {client for entry in model.history_ for client, *_ in entry.get("down_weighted", [])}
    if cls is not so.FedBuff:
        assert named == set(lied.attackers.tolist())
    for name, value in mean.get_model().items():
        spread = 1 + np.abs(value).max()
        assert np.abs(model.get_model()[name] - value).max() < 3 * spread, name


def test_a_rule_sees_changes_whatever_clients_send():
    for send in ("difference", "weights"):
        fed = federation(so.FedAvg, R.SignFlip(share=0.25, factor=5))
        model = learner(so.FedAvg, aggregate=R.NormBound(0.01), send=send).fit(fed, progress=False)
        start = learner(so.FedAvg, lr=1e-12).fit(federation(so.FedAvg), progress=False)
        assert np.linalg.norm(model.weights_ - start.weights_) <= 2 * 0.01 * (1 + 1e-9)


def test_one_client_one_vote():
    """Of robust rules a client that says it has many rows gets nothing more."""
    fed = federation(so.FedAvg)
    plain = learner(so.FedAvg, aggregate=R.Median(), weight="rows").fit(fed, progress=False)
    equal = learner(so.FedAvg, aggregate=R.Median(), weight=None).fit(fed, progress=False)
    assert np.array_equal(plain.weights_, equal.weights_)


def test_who_was_down_weighted_when_and_why_is_in_the_history():
    fed = federation(so.FedLinear, R.SignFlip(share=0.25, factor=20))
    model = so.FedLinear(rounds=3, aggregate=R.CentredClipping()).fit(fed, progress=False)
    for entry in model.history_:
        clients, trust, reasons = zip(*entry["down_weighted"], strict=True)
        assert list(clients) == fed.attackers.tolist()
        assert max(trust) < 0.5
        assert all("from the centre" in reason for reason in reasons)
    assert from_bytes(model.to_bytes()).history_ == model.history_
    honest = so.FedLinear(rounds=2).fit(federation(so.FedLinear), progress=False)
    assert not any("down_weighted" in entry for entry in honest.history_)


def test_on_digits_two_rules_hold_where_the_mean_does_not():
    X, y, X_test, y_test = so.datasets.digits()
    X, X_test = X / 16, X_test / 16

    def score(attack, rule):
        fed = so.simulate(X, y, clients=20, seed=1, attack=attack)
        model = so.FedLinear(rounds=12, lr=0.5, epochs=2, aggregate=rule).fit(fed, progress=False)
        return model.score(X_test, y_test)

    clean = score(None, None)
    flip = R.SignFlip(share=0.2, factor=5)
    assert score(flip, None) < clean - 0.2
    assert score(flip, R.Median()) > clean - 0.02
    assert score(flip, R.MultiKrum(0.2)) > clean - 0.02
    little = R.ALittleIsEnough(share=0.2, z=12.0)
    assert score(little, None) < clean - 0.02
    assert score(little, R.Median()) > clean - 0.02
    assert score(little, R.MultiKrum(0.2)) > clean - 0.02


def test_buckets_hold_and_only_sums_of_buckets_are_asked():
    fed = federation(so.FedLinear, R.SignFlip(share=0.1, factor=100))
    rule = R.Buckets(R.Median(), buckets=4)
    model = so.FedLinear(rounds=3, aggregate=rule).fit(fed, progress=False)
    clean = so.FedLinear(rounds=3).fit(federation(so.FedLinear), progress=False)
    assert np.abs(model.coef_ - clean.coef_).max() < 0.5
    asked = [r for r in fed.meter.records if r.task == "linear.train"]
    assert len(asked) == 12
    for round in range(3):
        dealt = [r.clients for r in asked if r.round == round]
        assert sorted(np.concatenate(dealt).tolist()) == list(range(12))
        assert {len(bucket) for bucket in dealt} == {3}
    assert {tuple(r.clients) for r in asked[:4]} != {tuple(r.clients) for r in asked[4:8]}
    with pytest.raises(so.errors.NotEnoughReplies, match="20 buckets"):
        so.FedLinear(aggregate=R.Buckets(R.Median(), buckets=20)).fit(fed, progress=False)


def test_attacks_are_seeded_and_touch_nobody_else():
    attack = R.Gaussian(share=0.25)
    fits = [so.FedLinear(rounds=2).fit(federation(so.FedLinear, attack), progress=False)
            for _ in range(2)]  # fmt: skip
    assert np.array_equal(fits[0].coef_, fits[1].coef_)
    processes = federation(so.FedLinear, attack, engine="processes", workers=2)
    with processes:
        other = so.FedLinear(rounds=2).fit(processes, progress=False)
    np.testing.assert_allclose(other.coef_, fits[0].coef_, atol=1e-9)
    fed = federation(so.FedLinear, attack)
    honest = federation(so.FedLinear)
    ask = {"coef": np.zeros((6, 3)), "intercept": np.zeros(3), "classes": np.arange(3),
           "loss": "softmax", "lr": 0.1, "epochs": 1, "batch_size": 8, "l2": 0.0}  # fmt: skip
    lies, truth = (
        {r.client: r["change"] for r in f.ask("linear.train", ask)} for f in (fed, honest)
    )
    differ = [c for c in truth if not np.array_equal(lies[c]["coef"], truth[c]["coef"])]
    assert differ == fed.attackers.tolist()


def test_lies_are_those_of_their_papers():
    draw = np.random.default_rng(0)
    seen = [draw.normal(1.0, 0.5, 2000) for _ in range(40)]
    own = seen[0]
    sent = R.ALittleIsEnough().lie(own, draw, seen, wrong=10)
    mean, spread = np.mean(seen, axis=0), np.std(seen, axis=0)
    z = 0.2533471  # Φ⁻¹((40 − 16)/40), s = 26 − 10
    np.testing.assert_allclose(sent, mean - z * spread, atol=1e-6)
    np.testing.assert_allclose(R.InnerProduct(factor=0.5).lie(own, draw, seen, 10), -0.5 * mean)
    np.testing.assert_allclose(R.SignFlip(factor=5).lie(own, draw, [], 0), -5 * own)
    noise = R.Gaussian(factor=10).lie(own, draw, [], 0)
    assert abs(noise.std() / (10 * np.sqrt(np.mean(own**2))) - 1) < 0.1


def test_rows_of_attackers_are_poisoned_and_no_others():
    clean = federation(so.FedLinear, test=0.25).data
    for attack in (R.LabelFlip(0.25), R.NoisyLabels(0.25, rate=0.5), R.Backdoor(0.25, target=1)):
        fed = federation(so.FedLinear, attack, test=0.25)
        for client in range(12):
            ids = np.array([client])
            before, after = clean.segments(ids)[0], fed.data.segments(ids)[0]
            same = np.array_equal(before.X, after.X) and np.array_equal(before.y, after.y)
            assert same == (client not in fed.attackers)
            held = (d.segments(ids, "test")[0] for d in (clean, fed.data))
            assert np.array_equal(*(part.y for part in held))
    flipped = federation(so.FedLinear, R.LabelFlip(0.25), test=0.25)
    liar = flipped.attackers[:1]
    assert np.array_equal(flipped.data.segments(liar)[0].y, 2 - clean.segments(liar)[0].y)


def test_a_backdoor_opens_for_the_mean():
    X, y, X_test, y_test = so.datasets.digits()
    attack = R.Backdoor(0.3, columns=[0, 7, 56, 63], value=16.0, target=0)
    model = so.FedLinear(rounds=8, lr=0.01).fit(
        so.simulate(X, y, clients=10, seed=0, attack=attack), progress=False
    )
    clean = so.FedLinear(rounds=8, lr=0.01).fit(so.simulate(X, y, clients=10), progress=False)
    assert attack.success(model, X_test, y_test) > 0.6 > attack.success(clean, X_test, y_test)
    assert model.score(X_test, y_test) > 0.85


def test_what_cannot_be_attacked_is_named():
    X = np.random.default_rng(0).normal(size=(40, 2))
    with pytest.raises(so.errors.UsageError, match="target is numbers"):
        so.simulate(X, X[:, 0], clients=4, attack=R.LabelFlip())
    with pytest.raises(so.errors.UsageError, match="attack='SignFlip'"):
        so.simulate(X, X[:, 0], clients=4, attack="SignFlip")
    with pytest.raises(so.errors.UsageError, match="share"):
        R.SignFlip(share=2.0)
    fed = federation(so.FedAvg, R.SignFlip())
    with pytest.raises(so.errors.SoleraError, match="Quantise"):
        learner(so.FedAvg, update_steps=[so.updates.Quantise(8)]).fit(fed, progress=False)


def test_buckets_work_where_only_sums_are_seen_and_other_rules_say_that_they_do_not():
    plain = federation(so.FedLinear)
    secret = federation(so.FedLinear, secure=True)
    rule = R.Buckets(R.Median(), buckets=3)
    fits = [so.FedLinear(rounds=1, aggregate=rule).fit(f, progress=False) for f in (plain, secret)]
    np.testing.assert_allclose(fits[0].coef_, fits[1].coef_, atol=1e-6)
    with pytest.raises(so.errors.SoleraError, match="no sum"):
        so.FedLinear(rounds=1, aggregate=R.Median()).fit(secret, progress=False)
    clipped = learner(so.FedAvg, update_steps=[so.updates.Clip(0.01)], rounds=1, weight=None)
    clipped.fit(federation(so.FedAvg, secure=True), progress=False)
    start = learner(so.FedAvg, lr=1e-12, rounds=1).fit(federation(so.FedAvg), progress=False)
    assert np.linalg.norm(clipped.weights_ - start.weights_) <= 0.0101


def test_noise_that_is_counted_for_a_mean_takes_no_rule():
    dp = so.DP(epsilon=1.0, delta=1e-5, clip=1.0)
    with pytest.raises(so.errors.UsageError, match="counts the noise of a mean"):
        learner(so.FedAvg, aggregate=R.Median(), dp=dp, weight=None)


def test_updates_that_are_masked_cannot_be_lied_about():
    rows, attack = np.eye(20), so.robust.SignFlip(0.2)
    with pytest.raises(so.errors.UsageError, match="masks before anybody sees"):
        so.simulate(rows, np.arange(20) % 2, clients=5, attack=attack, secure=True)

"""Random masks of updates: what is sent, what is kept, and how they go with other steps."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import solera as so
from solera.core.clients import Client, Draws
from solera.core.errors import PayloadError, UsageError
from solera.core.rng import stream_keys
from solera.learn.averaging.training.devices import torch
from solera.learn.averaging.updates import pack_update, unpack_update

rng = np.random.default_rng(4)
X = rng.normal(size=(240, 5))
Y = (X @ rng.normal(size=(5, 3))).argmax(axis=1)
NET = so.nn.mlp(5, 40, 3)
HOW = {"rounds": 15, "lr": 0.3}
SOURCE = so.simulate(X, Y, clients=6, seed=0).engine.source


def federation():
    return so.simulate(X, Y, clients=4, seed=0)


def send(values, steps, states=None, who=None, round=0):
    """What travels, as arrays."""
    who = np.arange(len(values)) if who is None else who
    keys = stream_keys(0, "test", round, who)
    states = [{} for _ in values] if states is None else states
    group = [Client(i, SOURCE, Draws(0, "test", round), {}) for i in who]
    parts = pack_update(torch().from_numpy(values), steps, keys, states, group)
    return {n: v if isinstance(v, np.ndarray) else v.numpy() for n, v in parts.items()}


def arrive(values, steps, states=None, round=0):
    parts = send(values, steps, states, round=round)
    return unpack_update(parts, steps, values.shape[1])


onions = st.sampled_from(
    [
        [so.updates.RandomMask(0.3)],
        [so.updates.RandomMask(0.3, unbiased=True)],
        [so.updates.RandomMask(0.5), so.updates.TopK(0.5)],
        [so.updates.TopK(0.5), so.updates.RandomMask(0.5)],
        [
            so.updates.Clip(0.5),
            so.updates.Noise(0.1),
            so.updates.RandomMask(0.4),
            so.updates.Quantise(4),
        ],
        [so.updates.RandomMask(0.4, unbiased=True), so.updates.Quantise(8)],
        [so.updates.RandomMask(0.6), so.updates.TopK(0.5), so.updates.Quantise(8)],
    ]
)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 60), st.integers(1, 6), onions)
def test_a_group_sends_what_its_clients_send_alone(size, clients, steps):
    values = np.random.default_rng(size).normal(size=(clients, size))
    states = [{} for _ in values]
    together = send(values, steps, states)
    for i in range(clients):
        kept: list[dict[str, object]] = [{}]
        alone = send(values[i : i + 1], steps, kept, who=[i])
        assert alone.keys() == together.keys()
        for name, part in alone.items():
            np.testing.assert_allclose(part[0], together[name][i], rtol=1e-12)
        assert kept[0].keys() == states[i].keys()


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 200), st.floats(0.001, 1.0), st.booleans())
def test_what_is_sent_arrives_in_its_place(size, fraction, unbiased):
    step = so.updates.RandomMask(fraction, unbiased=unbiased)
    values = np.random.default_rng(size).normal(size=(3, size))
    states = [{} for _ in values]
    arrived = arrive(values, [step], states)
    count = step.sent_size(size)
    assert (np.count_nonzero(arrived, axis=1) == count).all()
    scale = size / count if unbiased else 1.0
    np.testing.assert_allclose(arrived, np.where(arrived != 0, scale * values, 0))
    if unbiased:
        assert states == [{}] * 3
    else:
        kept = np.stack([state["update_residual"] for state in states])
        np.testing.assert_array_equal(arrived + kept, values)


def test_unbiased():
    """The mean over many clients that hold the same numbers is these numbers, within 5 σ."""
    x = rng.normal(size=50)
    for steps in ([so.updates.RandomMask(0.2, unbiased=True)],
                  [so.updates.RandomMask(0.2, unbiased=True), so.updates.Quantise(8)]):  # fmt: skip
        arrived = arrive(np.tile(x, (4000, 1)), steps)
        sigma = arrived.std(axis=0) / np.sqrt(len(arrived))
        assert (np.abs(arrived.mean(axis=0) - x) < 5 * sigma).all()
    biased = arrive(np.tile(x, (4000, 1)), [so.updates.RandomMask(0.2)])
    np.testing.assert_allclose(biased.mean(axis=0), 0.2 * x, atol=0.1 * np.abs(x).max())


def test_every_round_and_every_client_has_a_mask_of_its_own():
    ones = np.ones((30, 40))
    first, second = (
        arrive(ones, [so.updates.RandomMask(0.5, unbiased=True)], round=r) for r in (0, 1)
    )
    for other in (second, np.roll(first, 1, axis=0)):
        assert 0.3 < ((first > 0) & (other > 0)).sum() / (first > 0).sum() < 0.7


def test_feedback_makes_up_for_what_was_left_out():
    """No number waits long, so the sum of what arrives follows the sum of what was meant."""
    values, states = rng.normal(size=(2, 50)), [{}, {}]
    total = sum(arrive(values, [so.updates.RandomMask(0.25)], states, round=r) for r in range(80))
    behind = np.stack([state["update_residual"] for state in states])
    np.testing.assert_allclose(total + behind, 80 * values)
    assert np.abs(behind / values).max() < 40


def test_fewer_bytes():
    plain = so.FedAvg(NET, **HOW).fit(federation())
    masked = so.FedAvg(NET, update_steps=[so.updates.RandomMask(0.1)], **HOW).fit(federation())
    top = so.FedAvg(NET, update_steps=[so.updates.TopK(0.1)], **HOW).fit(federation())
    sent, whole, places = (m.history_[0]["bytes_up"] / 4 for m in (masked, plain, top))
    numbers = 5 * 40 + 40 + 40 * 3 + 3
    assert whole - sent == pytest.approx(0.9 * numbers * 4, abs=48)
    assert places - sent == pytest.approx(0.1 * numbers * 4, abs=48)  # a seed instead of places


@pytest.mark.parametrize(
    "steps",
    [
        [so.updates.RandomMask(0.3)],
        [so.updates.RandomMask(0.3, unbiased=True)],
        [
            so.updates.Clip(2.0),
            so.updates.Noise(0.001),
            so.updates.RandomMask(0.3),
            so.updates.Quantise(8),
        ],
        [so.updates.RandomMask(0.5), so.updates.TopK(0.5), so.updates.Quantise(8)],
    ],
    ids=str,
)
def test_masked_networks_learn(steps):
    plain = so.FedAvg(NET, **HOW).fit(federation()).score(X, Y)
    masked = so.FedAvg(NET, update_steps=steps, **HOW).fit(federation()).score(X, Y)
    assert masked > plain - 0.1


def test_sending_everything_changes_nothing():
    exact = {**HOW, "dtype": "float64"}
    plain = so.FedAvg(NET, **exact).fit(federation())
    for step in (so.updates.RandomMask(1.0), so.updates.RandomMask(1.0, unbiased=True)):
        masked = so.FedAvg(NET, update_steps=[step], **exact).fit(federation())
        np.testing.assert_allclose(masked.weights_, plain.weights_, rtol=1e-12, atol=1e-14)


def test_other_learners_take_masks():
    steps = [so.updates.RandomMask(0.5)]
    for make in (so.FedProx, so.FedAdam, so.Scaffold, so.FedPer):
        model = make(NET, rounds=2, lr=0.05, update_steps=steps).fit(federation())
        assert np.isfinite(model.weights_).all()
    model = so.FedBuff(NET, rounds=3, buffer=2, concurrency=3, update_steps=steps)
    assert np.isfinite(model.fit(federation()).weights_).all()


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: so.updates.RandomMask(0), r"fraction must be a number in \(0, 1\]"),
        (lambda: so.updates.RandomMask(1.5), "fraction"),
        (lambda: so.updates.RandomMask(float("nan")), "fraction"),
        (lambda: so.updates.TopK(0), "fraction"),
        (lambda: so.updates.Clip(-1.0), "norm must be a number > 0"),
        (lambda: so.updates.Noise(-1.0), "deviation"),
        (lambda: so.updates.Quantise(7), "bits must be 4, 8 or 16"),
    ],
)
def test_bad_steps_are_named_when_they_are_made(make, match):
    with pytest.raises(UsageError, match=match):
        make()


@pytest.mark.parametrize(
    ("steps", "match"),
    [
        ([so.updates.RandomMask(), so.updates.Noise(1.0)], "after clipping and noise"),
        ([so.updates.RandomMask(0.5), so.updates.RandomMask(0.5)], "once"),
        ([so.updates.Quantise(8), so.updates.RandomMask()], "last"),
        ([so.updates.TopK(), so.updates.RandomMask(unbiased=True)], "feedback"),
        ([so.updates.Clip(1.0).set_params(norm=-1.0)], "norm"),
    ],
    ids=str,
)
def test_steps_that_do_not_go_together_are_named_before_anybody_is_asked(steps, match):
    fed = federation()
    with pytest.raises(UsageError, match=match):
        so.FedAvg(NET, rounds=1, update_steps=steps)
    model = so.FedAvg(NET, rounds=1).set_params(update_steps=steps)
    with pytest.raises(UsageError, match=match):
        model.fit(fed)
    assert not any(record.task == "averaging.train" for record in fed.meter.records)


@pytest.mark.parametrize(
    "parts",
    [
        {"values": np.ones((1, 2))},
        {"mask": np.array([3])},
        {"values": np.ones((1, 3)), "mask": np.array([3])},
        {"values": np.ones((2, 2)), "mask": np.array([3])},
        {"values": np.ones((1, 2)), "mask": np.array([0.5])},
        {"values": np.ones((1, 2)), "mask": np.array([[3]])},
    ],
)
def test_hostile_masks_are_refused(parts):
    with pytest.raises(PayloadError):
        unpack_update(parts, [so.updates.RandomMask(0.4)], 5)

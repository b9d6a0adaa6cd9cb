"""Bad input, update steps, personalisation and multi-label averaging."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from sklearn.metrics import f1_score, label_ranking_loss

import solera as so
from solera.core.clients import Client, Draws
from solera.core.component import Component
from solera.core.errors import DataError, NotEnoughReplies, PayloadError, UsageError
from solera.core.rng import stream_keys
from solera.learn.averaging import learner, models, multilabel
from solera.learn.averaging.label_metrics import label_scores, tune_thresholds
from solera.learn.averaging.multilabel import worse_twice
from solera.learn.averaging.training.devices import torch
from solera.learn.averaging.updates import UpdateStep, pack_update, unpack_update

rng = np.random.default_rng(1)
X = rng.normal(size=(240, 5))
Y = (X @ rng.normal(size=(5, 3))).argmax(axis=1)
NET = so.nn.mlp(5, 12, 3)


def clients(offsets=(0, 100, 101, 180, 240), X=X, y=Y):
    return so.simulate(so.data.FederatedData(X, y, np.array(offsets)))


# --- bad input ---


def test_client_with_one_row_and_client_with_one_class():
    y = Y.copy()
    y[:100] = 0
    model = so.FedAvg(NET, rounds=30, lr=0.3).fit(clients(y=y))
    assert np.isfinite(model.weights_).all()
    assert model.score(X, y) > 0.7


@pytest.mark.parametrize("net", [NET, so.nn.mlp(5, 3)], ids=["mlp", "linear"])
def test_diverging_client_is_reported_and_the_run_goes_on(net):
    wild = X.copy()
    wild[:100] *= 1e30
    fed = clients(X=wild)
    model = so.FedAvg(net, rounds=3, lr=1.0).fit(fed)
    assert [entry["failures"] for entry in model.history_] == [1, 1, 1]
    assert np.isfinite(model.weights_).all()


def test_all_clients_diverge():
    with pytest.raises(NotEnoughReplies, match="client 0"):
        so.FedAvg(NET, rounds=2, lr=1e30).fit(clients(X=X * 1e20))


@pytest.mark.parametrize(
    ("net", "match"),
    [
        (so.nn.mlp(4, 12, 3), "takes rows of 4 values, the data has 5"),
        (so.nn.mlp(5, 12, 2), "has 2 outputs, the target needs 3"),
        (so.nn.conv_net((8, 8, 1), 3), "takes rows of 64 values"),
    ],
)
def test_model_that_does_not_match_the_data(net, match):
    with pytest.raises(DataError, match=match):
        so.FedAvg(net, rounds=1).fit(clients())


@pytest.mark.parametrize(
    "options",
    [
        {"lr": 0},
        {"optimiser": "lbfgs"},
        {"momentum": 1.0},
        {"epochs": 0},
        {"local_steps": 0},
        {"batch_size": 0},
        {"dtype": "float16"},
        {"send": "pickles"},
        {"weight": "loss"},
        {"update_steps": [so.updates.TopK(0.5), so.updates.Noise(1.0)]},
        {"update_steps": ["clip"]},
        {"update_steps": [so.updates.Clip(1.0)], "send": "weights"},
        {"device": "cuda:7"},
    ],
)
def test_bad_parameters_are_named(options):
    with pytest.raises(UsageError):
        so.FedAvg(NET, rounds=1, **options).fit(clients())


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: so.nn.mlp(5, 3, activation="tanhh"), "activation must be 'relu', 'tanh' or"),
        (lambda: so.nn.mlp(5), "sizes must be two or more"),
        (lambda: so.nn.mlp(5, 0, 3), "sizes must be a list, each a whole number of at least 1"),
        (lambda: so.nn.conv_net((4, 4, 1)), "sides of at least 8"),
        (lambda: so.FedProx(NET, lr=0), "lr must be a number > 0"),
        (lambda: so.MLFedAvg(NET, stop="soon"), "stop must be 'thesis'"),
        (lambda: so.nn.CosineDecay(2.0), "floor must be a number in"),
    ],
)
def test_bad_parameters_are_named_when_a_component_is_made(make, match):
    with pytest.raises(UsageError, match=match):
        make()


def test_the_network_is_described_once_per_fit(monkeypatch):
    """A module's description hashes all its values: not in every round."""
    calls = []
    monkeypatch.setattr(learner, "described", lambda m: calls.append(m) or models.described(m))
    net = torch().nn.Linear(5, 3)
    so.FedAvg(net, rounds=5).fit(clients())
    few = len(calls)
    so.FedAvg(net, rounds=10).fit(clients())
    assert len(calls) == 2 * few


@pytest.mark.parametrize("server_lr", [1.0, 0.5])
def test_models_of_earlier_rounds_stay_as_they_were(server_lr):
    seen = []

    class Look(so.callbacks.Callback):
        def on_round(self, learner, round):
            seen.append((learner.weights_, learner.weights_.copy()))

    so.FedAvg(NET, rounds=4, server_lr=server_lr).fit(clients(), callbacks=[Look()])
    assert all(np.array_equal(kept, then) for kept, then in seen)
    assert len({then.tobytes() for _, then in seen}) == 4


def test_a_model_is_needed():
    with pytest.raises(UsageError, match="a model is needed"):
        so.FedAvg("resnet", rounds=1).fit(clients())


# --- update steps ---


def packed(values, steps, states=None):
    keys = stream_keys(0, "test", 0, np.arange(len(values)))
    states = [{} for _ in values] if states is None else states
    parts = pack_update(torch().from_numpy(values), steps, keys, states)
    return unpack_update(parts, steps, values.shape[1]), states


@settings(deadline=None, max_examples=25)
@given(
    st.integers(1, 40),
    st.sampled_from(
        [
            [so.updates.TopK(0.3)],
            [so.updates.Quantise(4)],
            [so.updates.Quantise(8)],
            [so.updates.TopK(0.5), so.updates.Quantise(8)],
        ]
    ),
)
def test_what_compression_loses_is_kept(size, steps):
    values = np.random.default_rng(size).normal(size=(3, size))
    arrived, states = packed(values, steps)
    kept = np.stack([state["update_residual"] for state in states])
    np.testing.assert_allclose(arrived + kept, values, atol=1e-12)
    again, _ = packed(values, steps, states)
    assert again.shape == values.shape


def test_error_feedback_makes_up_for_what_was_lost():
    """The sum of what arrives follows the sum of what was meant."""
    values = rng.normal(size=(1, 50))
    states = [{}]
    total = sum(packed(values, [so.updates.TopK(0.1)], states)[0] for _ in range(60))
    assert np.abs(total - 60 * values).max() < 12 * np.abs(values).max()


def test_clip_and_noise():
    values = rng.normal(size=(4, 2000))
    clipped, _ = packed(values, [so.updates.Clip(1.0)])
    np.testing.assert_allclose(np.linalg.norm(clipped, axis=1), 1)
    short, _ = packed(values * 1e-4, [so.updates.Clip(1.0)])
    np.testing.assert_allclose(short, values * 1e-4)


def noised(values, step, secret=None, seed=0):
    """What a step adds at agents whose secrets begin so, or in a simulation."""
    source = so.simulate(X, Y, clients=4, seed=0).engine.source
    own = [None if secret is None else secret + bytes([i]) for i in range(4)]
    group = [Client(i, source, Draws(seed, "test", 0, own[i]), {}) for i in range(4)]
    keys = stream_keys(seed, "test", 0, np.arange(4))
    parts = pack_update(torch().from_numpy(values), [step], keys, [{}] * 4, group)
    return parts["values"] - values


STEPS_THAT_PROTECT = [so.updates.Noise(2.0)]


def test_every_step_that_protects_is_tested():
    every = {c for c in Component.registry.values() if issubclass(c, UpdateStep) and c.protects}
    assert {type(step) for step in STEPS_THAT_PROTECT} == every


@pytest.mark.parametrize("step", STEPS_THAT_PROTECT)
def test_noise_is_drawn_from_secrets_and_not_from_the_seed(step):
    values = rng.normal(size=(4, 2000))
    simulated = noised(values, step)
    assert simulated.std() == pytest.approx(2.0, rel=0.05)
    assert abs(np.corrcoef(simulated)[0, 1]) < 0.1
    one, other = noised(values, step, b"a" * 31), noised(values, step, b"b" * 31)
    assert np.array_equal(one, noised(values, step, b"a" * 31, seed=9))
    assert abs(np.corrcoef(one[0], other[0])[0, 1]) < 0.1
    assert abs(np.corrcoef(one[0], simulated[0])[0, 1]) < 0.1


def test_compression_saves_bytes_and_still_learns():
    plain = so.FedAvg(NET, rounds=15, lr=0.3).fit(clients())
    small = so.FedAvg(
        NET, rounds=15, lr=0.3, update_steps=[so.updates.TopK(0.1), so.updates.Quantise(8)]
    )
    small.fit(clients())
    assert small.history_[0]["bytes_up"] < 0.5 * plain.history_[0]["bytes_up"]
    assert small.score(X, Y) > plain.score(X, Y) - 0.1


def test_hostile_places_are_refused():
    parts = {"values": np.ones((1, 2)), "places": np.array([[0, 9]], np.int32)}
    with pytest.raises(PayloadError):
        unpack_update(parts, [so.updates.TopK(0.4)], 5)


# --- personalisation ---


def rotated():
    """Clients that agree on features but permute the classes."""
    y = np.concatenate([(Y[k * 60 : (k + 1) * 60] + k) % 3 for k in range(4)])
    data = so.data.FederatedData(X, y, np.arange(0, 241, 60)).split(test=0.25, seed=0)
    return so.simulate(data)


@pytest.mark.parametrize("cls", [so.FedPer, so.FedRep, so.Ditto])
def test_personal_models_beat_the_shared_one(cls):
    fed = rotated()
    model = cls(NET, rounds=40, lr=0.3, epochs=2).fit(fed)
    shared = so.FedAvg(NET, rounds=40, lr=0.3, epochs=2).fit(fed).evaluate(fed)["accuracy"]
    assert model.evaluate(fed)["accuracy"] > shared + 0.15


def test_private_parts_do_not_travel():
    fed = rotated()
    model = so.FedPer(NET, rounds=2).fit(fed)
    full = so.FedAvg(NET, rounds=2).fit(rotated())
    head = (12 * 3 + 3) * 4 * 4
    saved = full.history_[0]["bytes_up"] - model.history_[0]["bytes_up"]
    assert saved == pytest.approx(head, abs=64)
    start = model.first_model(0)["weights"]
    np.testing.assert_array_equal(model.weights_[-39:], start[-39:])


def test_fedbn_keeps_normalisation():
    images = rng.random((40, 64))
    fed = so.simulate(images, np.arange(40) % 2, clients=2)
    model = so.FedBN(so.nn.complex_cnn((8, 8, 1), 2), rounds=1, lr=0.01).fit(fed)
    arrays = model._architecture.layout.arrays(model.weights_)
    assert (arrays["3.running_mean"] == 0).all()
    assert "private_part" in model.at_clients(fed).states()[0]


# --- several labels ---


def labelled(labels=(2, 2), seed=0, rows=400, draw=rng):
    features = draw.normal(size=(rows, 8))
    y = (features @ draw.normal(size=(8, 4)) > 0.3).astype(np.uint8)
    return so.data.deal_labels(features, y, labels, seed=seed, noise=0.1)


@pytest.mark.parametrize("labels", [(2, 2), [[0, 1, 2], [2, 3]], [[0, 1, 2, 3]] * 2])
@pytest.mark.parametrize("aggregation", ["uniform", "samples", "samples_labels"])
def test_disjoint_overlapping_and_complete_labels(labels, aggregation):
    data = labelled(labels)
    fed = so.simulate(data.clients)
    model = so.MLFedAvg(so.nn.mlp(8, 16, 6), aggregation=aggregation, rounds=25, lr=0.02).fit(fed)
    scores = model.evaluate_clients(fed, data.X_test, data.y_test)
    assert np.mean([score["macro_f1"] for score in scores.values()]) > 0.7


def test_unknown_labels_move_nothing():
    """Whatever an unknown label would have been, training is the same; −1 keeps it out."""
    data = labelled()
    known = data.clients.y >= 0
    assert not known.all()
    fed = so.simulate(data.clients)
    model = so.MLFedAvg(so.nn.mlp(8, 16, 6), rounds=2, stop=None).fit(fed)
    head = model.at_clients(fed).states()[0]["private_part"].reshape(-1)
    start = so.MLFedAvg(so.nn.mlp(8, 16, 6), rounds=2, stop=None)
    start.schema_ = data.clients.schema
    first = start.first_model(0)["weights"][start._hidden]
    weights = slice(0, 4 * 6)
    moved = (head != first)[weights].reshape(4, 6).any(axis=1)
    assert moved.tolist() == [label in data.owned[0] for label in range(4)]


def test_alone_sends_nothing():
    fed = so.simulate(labelled().clients)
    model = so.MLFedAvg(so.nn.mlp(8, 16, 6), rounds=3, share=False, stop=None).fit(fed)
    assert np.array_equal(model.weights_, model.first_model(0)["weights"])
    assert max(entry["bytes_up"] for entry in model.history_) < 400


@pytest.mark.parametrize("stop", ["patience", "thesis"])
def test_clients_alone_stop_each_by_its_own_rows(stop):
    """Every client's model is the one that it comes to when no other is there.

    Of rows with which all stop early: Adam multiplies what rounding differs by with every round.
    """
    draw = np.random.default_rng(4)
    fed = so.simulate(labelled([[0, 1], [1, 2], [2, 3]], rows=900, draw=draw).clients)
    learner = so.MLFedAvg(
        so.nn.mlp(8, 12, 6),
        rounds=60,
        lr=0.05,
        stop=stop,
        patience=2,
        share=False,
        dtype="float64",
    )
    model = learner.clone().fit(fed)
    rounds, rows = [], draw.normal(size=(50, 8))
    for client in range(3):
        others = [k for k in range(3) if k != client]
        alone = learner.clone().fit(fed.without(*others))
        rounds.append(alone.rounds_)
        a, b = (each.at(client).decision_function(rows) for each in (alone, model))
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    assert len({*rounds}) > 1
    asked = [entry["clients"] for entry in model.history_]
    assert asked == [sum(r > index for r in rounds) for index in range(max(rounds))]


def test_improved_variant_restores_tunes_and_scores():
    data = labelled(rows=900)
    fed = so.simulate(data.clients)
    model = so.MLFedAvg(
        so.nn.mlp(8, 16, 6), rounds=60, lr=0.02, stop="patience", patience=3, fine_tune=2,
        thresholds=True, label_loss="asymmetric",
    ).fit(fed)  # fmt: skip
    assert model.rounds_ < 60
    losses = [loss for _, loss in model.watched_]
    assert len(losses) - 1 - int(np.argmin(losses)) == 3
    assert "thresholds" in model.at_clients(fed).states()[0]


def test_stopping_needs_validation_rows():
    data = so.data.deal_labels(X, (X[:, :4] > 0).astype(int), (2, 2), validation=0, local_test=0)
    with pytest.raises(DataError, match="validation"):
        so.MLFedAvg(so.nn.mlp(5, 6), rounds=2).fit(so.simulate(data.clients))
    with pytest.raises(DataError, match="labels"):
        so.MLFedAvg(so.nn.mlp(5, 6), rounds=2).fit(clients())


def test_stopping_rule_of_the_thesis():
    falls, rises = [[0.9, 1.0], [0.8, 1.1], [0.7, 1.2]], [[0.9, 1.0], [0.8, 1.1], [0.7, 1.0]]
    assert worse_twice(falls)
    assert not worse_twice(rises)
    assert not worse_twice(falls[:2])


@pytest.mark.parametrize(("stop", "rounds"), [("thesis", 3), ("program", 11)])
def test_both_stopping_rules_of_mlfedavg(monkeypatch, stop, rounds):
    """The program looks at means over all rounds of argmax accuracy, from the eleventh on."""
    seen = []

    def scores(self, federation, what, to=None):
        seen.append(len(seen))
        worse = {"subset_accuracy": 0.9, "argmax_accuracy": 0.9, "loss": 1.0 + 0.1 * len(seen)}
        falling = "argmax_accuracy" if stop == "program" else "subset_accuracy"
        return {0: {**worse, falling: 0.9 - 0.01 * len(seen), "rows": 1.0}}

    monkeypatch.setattr(so.MLFedAvg, "_scores", scores)
    labels = (np.random.default_rng(0).random((60, 4)) < 0.5).astype(int)
    dealt = so.data.deal_labels(X[:60], labels, (2, 2), seed=0)
    learner = so.MLFedAvg(so.nn.mlp(5, 4), rounds=20, stop=stop)
    assert learner.fit(so.simulate(dealt.clients)).rounds_ == rounds


def test_one_bad_round_does_not_move_the_means_twice():
    up_and_down = [[0.5, 2.0], [0.9, 1.0], [0.8, 1.1], [0.7, 1.2]]
    assert worse_twice(up_and_down)
    assert not worse_twice(multilabel._so_far(up_and_down))


def test_label_metrics_against_scikit_learn():
    z = rng.normal(size=(60, 5))
    truth = (rng.random((60, 5)) < 0.3).astype(int)
    truth[:, 4] = 0
    found = label_scores(z, truth)
    guess = (z > 0).astype(int)
    assert found["macro_f1"] == pytest.approx(f1_score(truth, guess, average="macro"))
    assert found["micro_f1"] == pytest.approx(f1_score(truth, guess, average="micro"))
    assert found["ranking_loss"] == pytest.approx(label_ranking_loss(truth, z))
    assert found["subset_accuracy"] == (truth == guess).all(axis=1).mean()
    assert found["hamming_loss"] == pytest.approx((truth != guess).mean())


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10_000))
def test_tuned_thresholds_are_the_best_there_are(seed):
    draw = np.random.default_rng(seed)
    z, y = draw.integers(-4, 4, (15, 1)).astype(float), draw.integers(0, 2, (15, 1))
    cut = tune_thresholds(z, y)
    best = max(f1_score(y[:, 0], z[:, 0] > t, zero_division=0) for t in np.arange(-5.5, 5))
    assert f1_score(y[:, 0], (z > cut)[:, 0], zero_division=0) == pytest.approx(best)


def test_client_without_a_positive_label():
    y = np.zeros((80, 3), np.uint8)
    y[40:, 0] = 1
    data = so.data.FederatedData(X[:80], y, np.array([0, 40, 80]))
    model = so.FedAvg(so.nn.mlp(5, 6, 3), rounds=3).fit(so.simulate(data))
    assert np.isfinite(model.weights_).all()


# --- asynchronous rounds ---


def test_fedbuff_with_everyone_in_every_buffer_is_fedavg():
    """One client per slot, all in the buffer, equally fast: nothing is stale."""
    exact = {"rounds": 3, "lr": 0.3, "batch_size": None, "dtype": "float64"}
    offsets = (0, 60, 120, 180, 240)
    same = so.simulation.Durations(1.0, slowest=1.0, jitter=0.0)
    model = so.FedBuff(NET, buffer=4, concurrency=4, arrivals=same, **exact).fit(clients(offsets))
    assert [entry["staleness"] for entry in model.history_] == [0, 0, 0]
    plain = so.FedAvg(NET, **{**exact, "rounds": 1}).fit(clients(offsets))
    first = so.FedBuff(NET, buffer=4, concurrency=4, arrivals=same, **{**exact, "rounds": 1})
    np.testing.assert_allclose(
        first.fit(clients(offsets)).weights_, plain.weights_, rtol=1e-9, atol=1e-12
    )


def test_fedbuff_with_all_clients_in_the_buffer_is_never_stale_whoever_is_slow():
    fed = so.simulate(X, Y, clients=6, seed=0)
    slow = so.simulation.Durations(1.0, slowest=30.0)
    model = so.FedBuff(NET, rounds=8, buffer=6, concurrency=6, lr=0.3, arrivals=slow).fit(fed)
    assert [entry["staleness"] for entry in model.history_] == [0] * 8
    assert all(entry["clients"] == 6 for entry in model.history_)
    fewer = so.FedBuff(NET, rounds=8, buffer=3, concurrency=6, lr=0.3, arrivals=slow).fit(fed)
    assert max(entry["staleness"] for entry in fewer.history_) > 0


def test_fedbuff_counts_a_client_once_in_a_move(monkeypatch):
    moves = []
    move = so.FedBuff._move

    def watched(self, r, arrived):
        moves.append([job["client"] for job in arrived])
        assert len(self.jobs_) == 5
        move(self, r, arrived)

    monkeypatch.setattr(so.FedBuff, "_move", watched)
    fed = so.simulate(X, Y, clients=6, seed=0)
    slow = so.simulation.Durations(1.0, slowest=100.0)
    so.FedBuff(NET, rounds=12, buffer=3, concurrency=5, lr=0.3, arrivals=slow).fit(fed)
    assert len(moves) == 12
    assert all(len(set(clients)) == 3 for clients in moves)


def test_fedbuff_learns_and_does_not_wait_for_the_slowest():
    fed = so.simulate(X, Y, clients=12, seed=0)
    slow = so.simulation.Durations(1.0, slowest=100.0)
    model = so.FedBuff(NET, rounds=60, buffer=3, concurrency=6, lr=0.3, arrivals=slow).fit(fed)
    assert model.score(X, Y) > 0.8
    times = [entry["time"] for entry in model.history_]
    assert times == sorted(times)
    assert max(entry["staleness"] for entry in model.history_) > 0
    slowest = slow.durations(0, 0, np.arange(12)).max()
    assert times[-1] < 60 * slowest / 4
    assert "jobs_" not in vars(model)


def test_fedbuff_bad_parameters():
    with pytest.raises(UsageError, match="concurrency"):
        so.FedBuff(NET, rounds=1, concurrency=20).fit(clients())
    with pytest.raises(UsageError, match=r"buffer=20\): buffer must be at most 4 clients"):
        so.FedBuff(NET, rounds=1, buffer=20, concurrency=4).fit(clients())
    with pytest.raises(UsageError, match="fastest"):
        so.FedBuff(NET, concurrency=2, buffer=1, arrivals=so.simulation.Durations(0.0)).fit(
            clients()
        )

"""FedAvg(dp=…): what noise there is, on what, and what is said about it."""

from __future__ import annotations

import math

import numpy as np
import pytest

import solera as so
from solera.core.accounting import Event, epsilon_of
from solera.core.clients import Client, Draws
from solera.core.component import describe
from solera.core.errors import UsageError
from solera.learn.averaging.learner import train_and_send
from solera.learn.averaging.multilabel import train_core
from solera.learn.averaging.private_updates import protect_updates
from solera.learn.closed import price_of
from solera.trust.open_asks import numbers_of
from solera.trust.policy import Policy

torch = pytest.importorskip("torch")
pytest.importorskip("dp_accounting")
rng = np.random.default_rng(0)
X = rng.normal(size=(240, 5))
Y = (X @ rng.normal(size=(5, 3))).argmax(axis=1)
NET = so.nn.mlp(5, 40, 3)
DELTA = 1e-3


def clients(count=8, **options):
    return so.simulate(X, Y, clients=count, seed=0, **options)


def averaging(dp, model=NET, **options):
    return so.FedAvg(model, weight=None, dp=dp, **{"rounds": 4, "lr": 0.3, **options})


def a_client(i=0, secret=None, source=None):
    source = clients().engine.source if source is None else source
    return Client(i, source, Draws(0, "averaging.train", 0, secret), {})


def alone(client, ask, task=train_and_send):
    """What a client sends that is asked by itself."""
    return numbers_of(task, client, ask, task(client, ask))


PRIVACY = {"level": "client", "noise": 1.5, "clip": 2.0, "share": 4, "below": None, "rate": None}
EVERYTHING = np.ones(4000, dtype=bool)


# --- client level ---


def test_the_noise_of_an_update_is_its_share_of_sigma_times_clip():
    values = np.zeros((4, 4000))
    noised, _ = protect_updates(values, EVERYTHING, PRIVACY, [a_client(i) for i in range(4)])
    share = 1.5 * 2.0 / math.sqrt(4)
    assert noised.std(axis=1) == pytest.approx(share, rel=0.05)
    assert noised.sum(axis=0).std() == pytest.approx(1.5 * 2.0, rel=0.05)  # the sum has it all
    assert abs(np.corrcoef(noised)[0, 1]) < 0.1


def test_one_client_more_or_less_changes_the_sum_by_the_clip_at_most():
    quiet = {**PRIVACY, "noise": 1e-9}
    values = rng.normal(size=(4, 4000)) * np.array([[1e-3], [0.1], [1.0], [1e6]])
    sent, _ = protect_updates(values, EVERYTHING, quiet, [a_client(i) for i in range(4)])
    lengths = np.linalg.norm(sent, axis=1)
    assert lengths.max() <= 2.0 + 1e-6
    np.testing.assert_allclose(lengths[0], np.linalg.norm(values[0]), rtol=1e-4)  # short: as it is


def test_zero_updates_are_noise_alone_and_infinite_ones_stay_so():
    values = np.zeros((2, 4000))
    values[1, 3] = np.inf
    noised, _ = protect_updates(values, EVERYTHING, PRIVACY, [a_client(i) for i in range(2)])
    assert np.isfinite(noised[0]).all()
    assert not np.isfinite(noised[1]).all()


def test_what_no_gradient_moves_is_outside_the_norm_and_is_not_touched():
    counted = EVERYTHING.copy()
    counted[100:] = False
    values = np.zeros((1, 4000))
    values[0, 100:] = 1e9
    quiet = {**PRIVACY, "noise": 1e-9}
    values[0, :100] = 0.01
    noised, _ = protect_updates(values, counted, quiet, [a_client()])
    np.testing.assert_allclose(noised[0, :100], 0.01, atol=1e-6)
    assert (noised[0, 100:] == 0).all()


class Counting(torch.nn.Module):
    """Has an integer counter and a constant of floats, which training does not move."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(5, 3)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("scale", torch.full((5,), 0.5))

    def forward(self, x):
        self.calls += 1
        return self.layer(x * self.scale)


def test_integer_counters_and_constants_of_a_module_stay_as_they_are():
    model = averaging(so.DP(noise_multiplier=1, delta=DELTA, clip=1), Counting()).fit(clients())
    module = model.module()
    assert int(module.calls) == 0
    assert torch.equal(module.scale, torch.full((5,), 0.5))
    assert not torch.equal(module.layer.weight, Counting().layer.weight)


def test_epsilon_of_every_round_is_that_of_dp_accounting():
    from dp_accounting import GaussianDpEvent
    from dp_accounting.rdp import RdpAccountant

    model = averaging(so.DP(noise_multiplier=3.0, delta=DELTA, clip=1.0)).fit(clients())
    theirs = RdpAccountant()
    for entry in model.history_:
        theirs.compose(GaussianDpEvent(3.0))
        assert entry["epsilon"] == pytest.approx(theirs.get_epsilon(DELTA), rel=1e-12)
        assert entry["noise"] == "simulated"
        assert "loss" not in entry


def test_the_noise_for_an_epsilon_spends_it_and_no_more():
    model = averaging(so.DP(epsilon=5.0, delta=DELTA, clip=1.0)).fit(clients())
    assert 4.9 < model.history_[-1]["epsilon"] <= 5.0
    known = averaging(so.DP(epsilon=5.0, noise_multiplier=2.0, clip=1.0)).fit(clients())
    delta = known.accounts_["delta"]
    assert epsilon_of([Event(2.0, 4)], delta) == pytest.approx(5.0, rel=1e-3)


def test_clients_that_drop_out_take_their_share_of_the_noise_with_them():
    failing = clients(failures=so.simulation.Failures(dropout=0.5))
    model = averaging(so.DP(noise_multiplier=3.0, delta=DELTA, clip=1.0)).fit(failing)
    came = [e["clients"] - e["failures"] for e in model.history_]
    assert min(came) < 8
    events = [Event(3.0 * math.sqrt(k / 8)) for k in came]
    assert model.history_[-1]["epsilon"] == pytest.approx(epsilon_of(events, DELTA), rel=1e-9)


def test_drawing_clients_is_counted_as_they_are_drawn():
    def last(**options):
        dp = so.DP(noise_multiplier=1.5, delta=DELTA, clip=1.0, **options)
        return averaging(dp, per_round=4).fit(clients(16)).history_[-1]["epsilon"]

    fixed = Event(1.5, 4, rate=0.25, sampling="fixed", among=16)
    assert last() == pytest.approx(epsilon_of([fixed], DELTA), rel=1e-9)
    assert last(where="local") == pytest.approx(epsilon_of([Event(1.5, 4)], DELTA), rel=1e-9)


def test_poisson_sampling_draws_each_client_by_itself_and_divides_by_what_is_expected():
    selector = so.selectors.Poisson()
    roster = so.selectors.Roster(1000, 100, None)
    counts = [len(selector.choose(r, roster, np.random.default_rng(r))) for r in range(200)]
    assert np.mean(counts) == pytest.approx(100, rel=0.03)
    assert np.var(counts) == pytest.approx(90, rel=0.35)
    dp = so.DP(noise_multiplier=1.5, delta=DELTA, clip=1.0, sampling="poisson")
    model = averaging(dp, per_round=8).fit(clients(16))
    (event,) = {(e["rate"], e["sampling"]) for e in model.accounts_["events"]}
    assert event == (0.5, "poisson")
    with pytest.raises(UsageError, match="per_round"):
        averaging(dp)


@pytest.mark.parametrize("factor", [0.1, 100.0])
def test_the_clipping_norm_finds_the_quantile_of_the_norms(factor):
    """The updates' norms hardly change from round to round, since the step size is tiny."""
    fed, tiny = clients(40), {"lr": 1e-6, "batch_size": None}
    true = _median_norm(fed, tiny)
    dp = so.DP(noise_multiplier=0.01, delta=DELTA, clip=true * factor, adaptive=0.5)
    model = averaging(dp, rounds=90, server_lr=1e-6, **tiny).fit(fed)
    late = np.array([entry["clip"] for entry in model.history_[70:]])
    assert late.mean() == pytest.approx(true, rel=0.3)


def _median_norm(fed, how):
    ask = {**_ask(so.FedAvg(NET, rounds=1, **how), fed)}
    replies = fed.ask(train_and_send, ask).collect()
    return float(np.median([np.linalg.norm(r.payload["update"]["values"]) for r in replies]))


def _ask(learner, fed):
    learner.schema_ = fed.schema
    fed = learner.with_noise(fed)
    learner.begin(fed)
    ask = learner.round_ask(0)
    return ask if fed.noise is None else fed.noise.added_to(learner.update, ask)


def test_the_noised_share_below_costs_nothing_on_top():
    """1/σ² = 1/z² + 1/(2 σ_b)² (Andrew et al. 2021, Theorem 1)."""
    dp = so.DP(noise_multiplier=1.5, delta=DELTA, clip=1.0, adaptive=0.5)
    table = _ask(averaging(dp), clients())["privacy"]
    assert table["noise"] ** -2 + (2 * table["below"]) ** -2 == pytest.approx(1.5**-2)
    assert table["noise"] > 1.5


def test_a_client_whose_update_is_not_finite_is_left_out_and_named():
    rows = X.copy()
    rows[:30] *= 1e30  # those of the first client
    fed = so.simulate(
        rows, Y, clients=8, seed=0, partition=so.partitions.Explicit(np.arange(240).reshape(8, 30))
    )
    model = averaging(so.DP(noise_multiplier=1, delta=DELTA, clip=1), lr=1e15).fit(fed)
    assert np.isfinite(model.weights_).all()
    assert all(entry["failures"] >= 1 for entry in model.history_)


# --- record level ---


def gradient_by_row(weights, rows, targets):
    """The textbook: one backward pass per row."""
    model = averaging(so.DP(noise_multiplier=1, delta=DELTA, clip=1))
    model.schema_ = clients().schema
    module = model._architecture.load(weights)
    found = []
    for x, y in zip(rows, targets, strict=True):
        loss = torch.nn.functional.cross_entropy(module(torch.tensor(x[None])), torch.tensor([y]))
        parts = torch.autograd.grad(loss, list(module.parameters()))
        found.append(torch.cat([part.flatten() for part in parts]).numpy())
    return np.stack(found)


def record_ask(fed, model=NET, *, clip, noise, rate, dtype="float64", **options):
    dp = so.DP(level="record", noise_multiplier=1.0, delta=DELTA, clip=clip, rate=rate)
    learner = averaging(dp, model, rounds=1, local_steps=1, lr=1.0, dtype=dtype, **options)
    ask = _ask(learner, fed)
    return {**ask, "privacy": {**ask["privacy"], "noise": noise}}


def test_without_noise_a_step_is_the_mean_of_the_clipped_gradients_of_rows():
    fed = clients(2)
    ask = record_ask(fed, clip=2.2, noise=1e-12, rate=1.0)
    for reply in fed.ask(train_and_send, ask).collect():
        rows = fed.engine.source.segments(np.array([reply.client]), "train")[0]
        each = gradient_by_row(ask["weights"], rows.X, rows.y)
        norms = np.linalg.norm(each, axis=1)
        assert norms.min() < 2.2 < norms.max()
        wanted = -(each * np.minimum(1, 2.2 / norms)[:, None]).mean(axis=0)
        np.testing.assert_allclose(reply.payload["update"]["values"], wanted, atol=1e-9)


class Mixed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(5, 8), torch.nn.Linear(8, 3)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


def test_other_networks_are_clipped_row_by_row_too():
    fed = clients(2)
    modules = {"any module": Mixed(), "our layers": so.nn.mlp(5, 8, 3, activation="tanh")}
    for network in modules.values():
        ask = record_ask(fed, network, clip=0.05, noise=1e-12, rate=1.0)
        for reply in fed.ask(train_and_send, ask).collect():  # every row is longer than C
            length = np.linalg.norm(reply.payload["update"]["values"])
            assert 0.01 < length <= 0.05 + 1e-6


def test_convolutions_are_clipped_row_by_row():
    images = rng.normal(size=(12, 64))
    fed = so.simulate(images, np.arange(12) % 3, clients=2, seed=0)
    network = so.nn.conv_net((8, 8, 1), 3, channels=(4,), dense=5)
    ask = record_ask(fed, network, clip=0.05, noise=1e-12, rate=1.0)
    weights = ask["weights"]
    for reply in fed.ask(train_and_send, ask).collect():
        rows = fed.engine.source.segments(np.array([reply.client]), "train")[0]
        learner = so.FedAvg(network)
        learner.schema_ = fed.schema
        module, found = learner._architecture.load(weights), []
        for x, y in zip(rows.X, rows.y, strict=True):
            outputs = module(torch.tensor(x[None]))
            loss = torch.nn.functional.cross_entropy(outputs, torch.tensor([int(y)]))
            parts = torch.autograd.grad(loss, list(module.parameters()))
            found.append(torch.cat([part.flatten() for part in parts]).numpy())
        each = np.stack(found)
        scale = np.minimum(1, 0.05 / np.linalg.norm(each, axis=1))
        wanted = -(each * scale[:, None]).mean(axis=0)
        np.testing.assert_allclose(reply.payload["update"]["values"], wanted, atol=1e-9)


def test_the_noise_of_a_step_is_sigma_times_clip_over_the_rows_expected():
    fed = clients(2)
    replies = fed.ask(train_and_send, record_ask(fed, clip=1e-6, noise=4e6, rate=0.5)).collect()
    for reply in replies:  # 120 rows, 60 expected: the gradients are too small to be seen
        assert reply.payload["update"]["values"].std() == pytest.approx(4.0 / 60, rel=0.1)


def test_one_row_more_changes_the_sum_of_gradients_by_the_clip_at_most():
    alone, moved = X[:40].copy(), X[:40].copy()
    moved[7] = 1e3
    sums = []
    for rows in (alone, moved):
        fed = so.simulate(rows, Y[:40], clients=1, seed=0)
        ask = record_ask(fed, clip=0.5, noise=1e-12, rate=1.0)
        (reply,) = fed.ask(train_and_send, ask).collect()
        sums.append(40 * reply.payload["update"]["values"])
    assert 0.1 < np.linalg.norm(sums[0] - sums[1]) <= 2 * 0.5 + 1e-6


def test_which_rows_are_drawn_is_as_secret_as_the_noise():
    fed = clients(2)
    ask = record_ask(fed, clip=0.5, noise=1e-12, rate=0.3)
    source = fed.engine.source

    def sent(secret, seed=0):
        client = Client(0, source, Draws(seed, "averaging.train", 0, secret), {})
        return alone(client, ask)["update"]["values"]

    assert np.array_equal(sent(b"a" * 32), sent(b"a" * 32, seed=5))
    assert not np.allclose(sent(b"a" * 32), sent(b"b" * 32), atol=1e-6)


def test_record_level_epsilon_counts_every_step():
    dp = so.DP(level="record", noise_multiplier=1.0, delta=DELTA, clip=1.0, rate=0.25)
    model = averaging(dp, epochs=2, rounds=3).fit(clients())
    wanted = epsilon_of([Event(1.0, 3 * 8, rate=0.25)], DELTA)
    assert model.history_[-1]["epsilon"] == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize(
    "dp",
    [
        so.DP(level="record", noise_multiplier=0.5, delta=DELTA, clip=1.0, rate=0.25),
        so.DP(noise_multiplier=0.5, delta=DELTA, clip=1.0, adaptive=0.5),
    ],
)
def test_many_clients_at_once_get_what_each_would_alone(dp):
    fed = clients(4)
    ask = _ask(averaging(dp), fed)
    together = fed.ask(train_and_send, ask).collect()
    for reply in together:
        client = Client(reply.client, fed.engine.source, Draws(0, "averaging.train", 0), {})
        np.testing.assert_allclose(
            reply.payload["update"]["values"], alone(client, ask)["update"]["values"], atol=1e-4
        )


# --- other learners whose clients send an update alone ---

LABELS = (X[:, :4] > 0.3).astype(np.int64)


def labelled(count=8, **options):
    return so.simulate(X, LABELS, clients=count, seed=0, **options)


def several_labels(dp, **options):
    how = {"aggregation": "uniform", "stop": None, "rounds": 4, "lr": 0.1, "optimiser": "sgd"}
    return so.MLFedAvg(so.nn.mlp(5, 9), dp=dp, **{**how, **options})


def test_labels_are_learnt_with_the_epsilon_that_is_said():
    dp = so.DP(epsilon=5.0, delta=DELTA, clip=1.0)
    model = several_labels(dp).fit(labelled())
    sigma = model.accounts_["noise"]
    spent = [entry["epsilon"] for entry in model.history_]
    wanted = [epsilon_of([Event(sigma, rounds)], DELTA) for rounds in (1, 2, 3, 4)]
    assert spent == pytest.approx(wanted, rel=1e-9)
    assert 4.9 < spent[-1] <= 5.0
    assert not any({"loss", "validation_loss"} & entry.keys() for entry in model.history_)


def label_ask(fed, **privacy):
    learner = several_labels(so.DP(noise_multiplier=1.0, delta=DELTA, clip=1.0))
    ask = _ask(learner, fed)
    return {**ask, "privacy": {**ask["privacy"], **privacy}}


def test_the_core_of_labels_is_clipped_as_one_update_and_heads_stay():
    fed = labelled(2)
    free = {key: value for key, value in label_ask(fed).items() if key != "privacy"}
    exact = labelled(2).ask(train_core, free).collect()  # where no head was trained before
    sent = fed.ask(train_core, label_ask(fed, noise=1e-12, clip=1e-3)).collect()
    for reply, whole in zip(sent, exact, strict=True):
        values, before = reply["update"]["values"], whole["update"]["values"]
        assert set(reply.payload) == {"update", "rows"}
        assert len(values) == 5 * 9 + 9, "the head of 4 labels has no part in it"
        assert np.linalg.norm(before) > 2e-3
        np.testing.assert_allclose(values, before * 1e-3 / np.linalg.norm(before), rtol=1e-3)
        assert reply["rows"] == 1


def test_the_noise_on_a_core_is_its_share_of_sigma_times_clip():
    fed = labelled(40)
    replies = fed.ask(train_core, label_ask(fed, noise=1e3, clip=1e-2, share=4)).collect()
    values = np.stack([reply["update"]["values"] for reply in replies])
    assert values.std() == pytest.approx(1e3 * 1e-2 / 2, rel=0.05)


def test_what_a_core_with_noise_spends_is_priced_for_one_person():
    """At the sum σ is of what a person may change, which is twice the clip."""
    dp = so.DP(noise_multiplier=3.0, delta=DELTA, clip=1.0)
    fed = labelled(3, policy=Policy("noise", budget=(50.0, DELTA)))
    model = several_labels(dp, rounds=2).fit(fed)
    assert price_of(several_labels(dp, rounds=2), 3).events == (Event(3.0, 2),)
    assert model.epsilon_ == epsilon_of([Event(3.0, 2)], DELTA, "analytic")


@pytest.mark.parametrize("kind", [so.FedPer, so.FedRep, so.Ditto])
def test_own_models_are_learnt_with_noise_on_what_is_shared(kind):
    dp = so.DP(noise_multiplier=2.0, delta=DELTA, clip=1.0)
    model = kind(NET, rounds=2, weight=None, dp=dp).fit(clients())
    assert model.history_[-1]["epsilon"] == pytest.approx(epsilon_of([Event(2.0, 2)], DELTA))
    assert "loss" not in model.history_[-1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"aggregation": "samples"}, "aggregation='uniform'"),
        ({"aggregation": "samples_labels"}, "needs more noise"),
        ({"stop": "thesis"}, "stop=None"),
        ({"dp": so.DP(level="record", noise_multiplier=1, delta=DELTA, clip=1, rate=0.5)}, "level"),
    ],
)
def test_what_labels_would_tell_without_noise_is_refused(options, said):
    with pytest.raises(UsageError, match=said):
        several_labels(**{"dp": so.DP(noise_multiplier=1, delta=DELTA, clip=1), **options})


# --- what is refused ---


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"weight": "rows"}, "weighs more"),
        ({"weight": lambda reply: 1.0}, "weighs more"),
        ({"send": "weights"}, "difference"),
    ],
)
def test_weights_that_would_need_other_noise_are_refused(options, said):
    dp = so.DP(noise_multiplier=1, delta=DELTA, clip=1)
    with pytest.raises(UsageError, match=said):
        so.FedAvg(NET, **{"weight": None, "dp": dp, **options})


def test_what_is_missing_is_named():
    with pytest.raises(UsageError, match="give two of epsilon, delta"):
        so.DP(epsilon=1.0)
    with pytest.raises(UsageError, match="clip is missing"):
        averaging(so.DP(epsilon=1.0, delta=DELTA))
    with pytest.raises(UsageError, match="rate is missing"):
        averaging(so.DP(epsilon=1.0, delta=DELTA, clip=1.0, level="record"))
    with pytest.raises(UsageError, match="sends more than an update"):
        so.learn.Scaffold(NET, weight=None, dp=so.DP(epsilon=1.0, delta=DELTA, clip=1.0))
    with pytest.raises(UsageError, match="at any time"):
        so.FedBuff(NET, dp=so.DP(epsilon=1.0, delta=DELTA, clip=1.0))


def test_batch_normalisation_is_refused():
    images = rng.normal(size=(24, 64))
    fed = so.simulate(images, np.arange(24) % 3, clients=2, seed=0)
    dp = so.DP(noise_multiplier=1, delta=DELTA, clip=1)
    with pytest.raises(UsageError, match="statistics of rows"):
        averaging(dp, so.nn.complex_cnn((8, 8, 1), 3)).fit(fed)


def test_a_private_run_that_was_interrupted_ends_the_same(tmp_path):
    class Interrupt(so.callbacks.Callback):
        def on_round(self, learner, round):
            if round.index == 1:
                raise KeyboardInterrupt

    dp = so.DP(epsilon=5.0, delta=DELTA, clip=1.0, adaptive=0.5)
    whole = averaging(dp).fit(clients())
    with pytest.raises(KeyboardInterrupt):
        averaging(dp).fit(clients(), checkpoint=tmp_path / "run", callbacks=[Interrupt()])
    resumed = averaging(dp).fit(clients(), checkpoint=tmp_path / "run")
    assert np.array_equal(whole.weights_, resumed.weights_)
    assert [e["epsilon"] for e in whole.history_] == [e["epsilon"] for e in resumed.history_]
    whole.save(tmp_path / "model.sol")
    assert so.load(tmp_path / "model.sol").dp == dp
    assert describe(dp)["params"]["adaptive"] == 0.5


def test_shares_of_noise_and_a_secure_sum_go_together():
    """Nobody sees less than all of the noise, and the model is the same."""
    pytest.importorskip("cryptography")
    dp = so.DP(noise_multiplier=1.0, delta=DELTA, clip=1.0, adaptive=0.5)
    plain = averaging(dp, rounds=2).fit(clients())
    secure = averaging(dp, rounds=2).fit(clients(secure=True))
    assert "was masked" in secure.card()
    np.testing.assert_allclose(secure.weights_, plain.weights_, atol=1e-4)
    assert secure.history_[-1]["epsilon"] == plain.history_[-1]["epsilon"]


def test_early_stopping_gives_nothing_of_the_budget_back():
    stop = so.callbacks.EarlyStopping("epsilon", patience=2, mode="min")
    model = averaging(so.DP(noise_multiplier=3.0, delta=DELTA, clip=1.0), rounds=6)
    model.fit(clients(), callbacks=[stop])
    assert len(model.history_) == 3
    assert model.accounts_["events"][0]["times"] == 3
    assert f"ε = {model.history_[-1]['epsilon']:.4g} at" in model.card()

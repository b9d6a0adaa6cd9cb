"""What went wrong in a fit without an error: who was left out, what diverged, what did nothing."""

from __future__ import annotations

import logging

import numpy as np
import pytest

import solera as so
from solera.core.errors import UsageError

RNG = np.random.default_rng(0)
X = 3 * RNG.normal(size=(200, 4))
NUMBERS = 2 * X[:, 0] + RNG.normal(size=200)
CLASSES = (NUMBERS > 0).astype(int)


def federation(y=CLASSES, **options):
    return so.simulate(X, y, clients=["ada", "bob", "cyd", "dan"], seed=0, **options)


def warnings(model):
    return (model._trained_with or {}).get("warnings", [])


class Silent(so.callbacks.Callback):
    pass


# --- who is left out ---


@pytest.mark.parametrize("how", ["plain", "encrypted", "secure"])
def test_a_model_without_a_client_names_it(how, caplog, tmp_path, monkeypatch):
    learner = so.FedHEONN()
    if how == "encrypted":
        pytest.importorskip("tenseal", reason="the extra 'he' is not installed")
        from solera.privacy.he import keys

        keys.create(tmp_path, "small", keys.SMALL_CLIENT)
        monkeypatch.setenv("SOLERA_KEYS", str(tmp_path))
        learner.set_params(encrypt=so.Encryption("small"))
    fed = so.simulate(
        X,
        CLASSES,
        clients=list("abcdefghij"),
        seed=3 if how == "secure" else 0,
        failures=so.simulation.Failures(dropout=0.12),
        secure=how == "secure",
    )
    model = learner.fit(fed)
    asked = [record for record in fed.meter.records if record.task == "heonn.statistics"]
    replied = np.concatenate([record.replied for record in asked])
    lost = [name for i, name in enumerate(fed.names) if i not in replied]
    assert lost
    text = f"FedHEONN: the model lacks {', '.join(lost)} ({len(lost)} in all)"
    warning = f"{text}: no answer to 'heonn.statistics'"
    assert warning in warnings(model)
    assert warning in caplog.text
    assert f"**Warning**: {warning}" in model.card().splitlines()[:6]
    assert text in model._repr_html_()
    again = so.load(model.save(tmp_path / "model.sol"))
    assert warnings(again) == warnings(model)


def test_who_answers_in_some_round_is_not_left_out():
    model = so.FedLinear(rounds=30).fit(federation(failures=so.simulation.Failures(dropout=0.3)))
    assert sum(entry["failures"] for entry in model.history_) > 10
    assert not warnings(model)


def test_a_resumed_fit_does_not_forget_who_answered_before(tmp_path):
    file = tmp_path / "run.checkpoint"
    options = {"failures": so.simulation.Failures(dropout=0.5)}
    so.FedLinear(rounds=20).fit(federation(**options), checkpoint=file)
    resumed = so.FedLinear(rounds=21).fit(federation(**options), checkpoint=file)
    assert resumed.history_[-1]["failures"]
    assert not warnings(resumed)


def test_a_pipeline_says_what_its_steps_said(caplog):
    fed = federation(failures=so.simulation.Failures(dropout=0.6))
    model = so.Pipeline(so.FedScaler(), so.FedHEONN()).fit(fed)
    kinds = [warning.partition(":")[0] for warning in warnings(model)]
    assert kinds == ["FedScaler", "FedHEONN"]
    assert len(caplog.records) == len(set(caplog.records))
    assert warnings(model)[1] in model.card()


def test_a_learner_without_a_plan_may_lose_clients():
    class Unplanned(so.learn.Learner):
        def train(self, federation):
            federation.ask("data.describe").collect()

    assert not warnings(Unplanned().fit(federation(failures=so.simulation.Failures(dropout=0.3))))


# --- divergence ---


def test_divergence_is_the_first_thing_that_is_said(caplog):
    model = so.FedLinear(rounds=10, lr=0.5).fit(federation(NUMBERS))
    assert model.history_[-1]["loss"] > 1e20
    (warning,) = warnings(model)
    assert warning.startswith("FedLinear: training diverged, from a loss of ")
    assert "lower lr" in warning
    assert "so.FedScaler()" in warning
    assert [record.getMessage() for record in caplog.records] == [warning]
    assert model.history_[-1]["warnings"] == [warning]
    assert model.card().splitlines()[2] == f"**Warning**: {warning}"
    assert "training diverged" in model._repr_html_().partition("lr")[0]


def test_classes_diverge_without_growing():
    """The first round is as bad as the last where columns are a thousand times too large."""
    fed = so.simulate(1e5 * X, CLASSES, clients=4, seed=0)
    model = so.FedLinear(rounds=2, lr=1.0).fit(fed)
    assert model.history_[-1]["loss"] > 1e3
    assert "training diverged" in warnings(model)[0]


def test_weights_that_are_not_finite_have_diverged():
    pytest.importorskip("torch", reason="the extra 'torch' is not installed")
    model = so.FedAvg(so.nn.mlp(4, 2), rounds=1, server_lr=1e39).fit(federation())
    assert not np.isfinite(model.weights_).all()
    assert np.isfinite(model.history_[-1]["loss"])
    assert "training diverged" in warnings(model)[0]


@pytest.mark.parametrize("lr", [1e-4, 0.01, 0.1])
@pytest.mark.parametrize("y", [NUMBERS, CLASSES, 1e6 * NUMBERS, 1e-6 * NUMBERS], ids=range(4))
@pytest.mark.parametrize("partition", [so.partitions.IID(), so.Dirichlet(0.1)], ids=["iid", "far"])
def test_fits_that_converge_are_not_warned_of(y, lr, partition):
    if y.dtype.kind == "f":
        partition = so.partitions.IID()
    fed = so.simulate(X, y, clients=6, partition=partition, seed=0)
    for per_round in (None, 1):
        model = so.FedLinear(rounds=20, lr=lr, per_round=per_round).fit(fed)
        assert not warnings(model)


def test_going_on_from_a_perfect_model_is_no_divergence():
    exact = X @ [1.0, -1.0, 0.5, 0.0]
    learner = so.FedLinear(rounds=300, lr=0.02)
    first = learner.fit(federation(exact))
    again = learner.clone().set_params(lr=0.05, rounds=1).fit(federation(exact), start=first)
    assert again.history_[0]["loss"] < 1e-6
    assert not warnings(again)


# --- without effect ---


def test_rounds_in_which_nobody_took_part_leave_the_model_as_it_began():
    select = so.selectors.FedCS(deadline=1e-6)
    model = so.FedLinear(rounds=3, select=select).fit(
        federation(clock=so.simulation.VirtualClock())
    )
    assert warnings(model) == ["FedLinear: nobody took part in 3 rounds: the model is as it began"]


def test_a_callback_that_nothing_calls_is_named():
    stop = so.callbacks.EarlyStopping("loss")
    model = so.FedHEONN().fit(federation(), callbacks=[stop, Silent()])
    assert warnings(model) == [
        "FedHEONN: there were no rounds for EarlyStopping",
        "FedHEONN: there were no rounds for Silent",
    ]
    assert not warnings(so.FedLinear(rounds=2).fit(federation(), callbacks=[Silent()]))
    chained = so.Pipeline(so.FedScaler(), so.FedHEONN())
    assert len(warnings(chained.fit(federation(), callbacks=[stop]))) == 1


def test_a_secure_sum_passes_aggregators_by():
    model = so.FedHEONN().fit(federation(secure=True, topology=so.simulation.Hierarchy(2)))
    assert warnings(model) == [
        "FedHEONN: one server asked all clients, as in a star: Hierarchy(aggregators=2) "
        "had no effect"
    ]


@pytest.mark.parametrize(
    ("option", "exchange"),
    [
        ({"per_round": 2}, "parallel"),
        ({"select": so.selectors.RoundRobin()}, "cyclic"),
        ({"aggregate": so.robust.Median()}, "cyclic"),
        ({"aggregate": so.robust.Median()}, "random"),
        ({"aggregate": so.robust.Buckets(so.robust.Median(), buckets=2)}, "parallel"),
    ],
)
def test_options_for_a_server_are_refused_between_peers(option, exchange):
    fed = federation(topology=so.simulation.Peers(exchange))
    (name,) = option
    with pytest.raises(UsageError, match=f"{name} must be None: peers have no server"):
        so.PeerToPeer(so.FedLinear(rounds=1, **option)).fit(fed)


def test_peers_who_all_train_compare_one_another():
    fed = federation(topology=so.simulation.Peers("parallel"))
    mean, median = (
        so.PeerToPeer(so.FedLinear(rounds=1, aggregate=rule)).fit(fed)
        for rule in (None, so.robust.Median())
    )
    assert not np.array_equal(mean.learner_.coef_, median.learner_.coef_)


def test_nothing_is_said_of_a_fit_as_it_should_be(caplog):
    with caplog.at_level(logging.WARNING, "solera"):
        model = so.Pipeline(so.FedScaler(), so.FedLinear(rounds=3)).fit(federation())
    assert not caplog.records
    assert "warnings" not in model._trained_with
    assert "warnings" not in model.history_[-1]
    assert "Warning" not in model.card()

"""What a newcomer gets wrong is named, with the way out."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from typer.testing import CliRunner

import solera as so
from solera.cli.app import app
from solera.core.errors import DataError, UnknownArgument, UsageError

X = np.random.default_rng(0).normal(size=(60, 4))
Y = (X[:, 0] > 0).astype(int)


@pytest.mark.parametrize(
    ("partition", "says"),
    [
        ("dirichlet", r"must be a Partition or None \(did you mean an object, Dirichlet\(…\)\?\)"),
        (so.Dirichlet, r"that is a class: give an object, Dirichlet\(…\)"),
        (0.3, r"partition=0\.3\): partition must be a Partition or None"),
    ],
)
def test_a_partition_is_an_object(partition, says):
    with pytest.raises(UsageError, match=says):
        so.simulate(X, Y, partition=partition)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: so.simulate(X, Y, client=3), "simulate has no argument 'client'.*'clients'"),
        (lambda: so.FedLinear(round=3), "FedLinear has no argument 'round'.*'rounds'"),
        (lambda: so.FedLinear().set_params(round=3), "no parameter 'round'.*'rounds'"),
        (lambda: so.from_pandas(None, targt="y"), "from_pandas has no argument 'targt'.*'target'"),
        (
            lambda: so.FedLinear().fit(so.simulate(X, Y), callback=[]),
            "fit has no argument 'callback'.*'callbacks'",
        ),
    ],
)
def test_a_misspelt_argument_is_told_its_nearest_name(call, says):
    with pytest.raises(UsageError, match=says):
        call()


def test_a_misspelt_argument_is_the_error_that_python_raises():
    with pytest.raises(TypeError):
        so.FedLinear(round=3)
    assert issubclass(UnknownArgument, TypeError)


def test_a_list_of_pairs_is_a_client_each():
    pairs = [(X[:20], Y[:20]), (X[20:], Y[20:])]
    federation = so.simulate(pairs)
    assert federation.data.sizes().tolist() == [20, 40]
    assert np.array_equal(federation.data.segments(np.array([1]))[0].y, Y[20:])
    with pytest.raises(UsageError, match="has its clients already"):
        so.simulate(pairs, clients=3)
    with pytest.raises(DataError, match=r"client 1 has rows of shape \(3,\)"):
        so.simulate([pairs[0], (X[20:, :3], Y[20:])])


def test_missing_targets_are_found_before_training():
    y = np.where(X[:, 0] > 1, np.nan, X[:, 1])
    with pytest.raises(DataError, match=r"y is missing or infinite in .* rows, the first is row"):
        so.simulate(X, y)


@pytest.mark.parametrize("step", [so.FedEncoder(), so.FedBins(4)])
def test_columns_are_not_made_of_cubes(step):
    federation = so.simulate(X.reshape(60, 2, 2), Y)
    with pytest.raises(DataError, match=r"needs columns, X has 3 dimensions.*reshape"):
        so.Pipeline(step, so.FedHEONN()).fit(federation)


def test_an_activation_is_checked_when_the_network_is_made():
    with pytest.raises(UsageError, match=r"tanhh.*must be 'relu', 'tanh' or 'sigmoid'"):
        so.nn.mlp(4, 5, 2, activation="tanhh")


def test_a_tree_says_why_it_is_at_chance(caplog):
    parts = [np.flatnonzero(Y == 0), np.flatnonzero(Y == 1)]
    federation = so.simulate(X, Y, partition=so.partitions.Explicit(parts))
    with caplog.at_level(logging.WARNING, logger="solera"):
        so.FederatedTree().fit(federation)
    assert "every client has rows of one class only" in caplog.text
    caplog.clear()
    so.FederatedTree().fit(so.simulate(X, Y, clients=2))
    assert not caplog.text


def test_a_run_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["runs", "show", "nope"])
    assert result.exit_code == 1
    assert "no run 'nope'" in result.stderr
    assert "there are no runs in runs yet" in result.stderr


def test_a_database_that_refuses_is_no_bug_of_ours(tmp_path, monkeypatch):
    pytest.importorskip("psycopg")
    monkeypatch.setenv("SOLERA_DATABASE", "postgresql+psycopg://ana:secret@127.0.0.1:1/cardio")
    result = CliRunner().invoke(app, ["serve", "--folder", str(tmp_path / "coordinator")])
    assert result.exit_code == 1
    assert "the database refuses: connection failed" in result.stderr
    assert "check the address, user and password" in result.stderr
    assert "bug" not in result.stderr
    assert "secret" not in result.output + result.stderr

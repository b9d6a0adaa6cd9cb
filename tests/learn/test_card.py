"""Model cards, and what a saved model says it needs."""

from __future__ import annotations

import subprocess

import numpy as np
import pytest
from tests.programs import run_program

import solera as so
from solera.core.errors import NotFitted


@pytest.fixture(scope="module")
def federation():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 3))
    return so.simulate(X, (X[:, 0] > 0).astype(int), clients=4, test=0.25, seed=7)


def test_a_card_says_what_is_known_and_what_is_not(federation):
    model = so.FedLinear(rounds=3).fit(federation)
    rows = int(federation.engine.sizes("train").sum())
    text = model.card()
    for line in (
        "# Model card: FedLinear",
        "- columns: 3 numeric",
        "- classes: 0, 1",
        "- clients: 4",
        f"- rows: {rows}",
        "- seed: 7",
        "- rounds: 3",
        "- not known: give `card` what `evaluate` returned",
        "- differential privacy: none, ε is not bounded",
        "- not measured",
        f"- numpy {np.__version__}",
    ):
        assert f"{line}\n" in text, line
    found = model.evaluate(federation)
    assert f"- accuracy: {found['accuracy'].words}\n" in model.card(found)
    with so.energy.track_energy(federation) as tracked:
        model.fit(federation)
    assert str(tracked.use) in model.card(energy=tracked.use)


def test_the_card_travels_with_the_file(federation, tmp_path):
    model = so.Pipeline(so.FedScaler(), so.FedLinear(rounds=2)).fit(federation)
    assert so.load(model.save(tmp_path / "model.sol")).card() == model.card()


def test_a_card_does_not_count_what_it_does_not_know(federation):
    first = so.FedLinear(rounds=1).fit(federation)
    again = so.FedLinear(rounds=1).fit(federation, start=first)
    assert "began with a model" in again.card()
    assert "began with a model" not in first.card()
    model = so.FedHEONN().fit(federation)
    assert "- clients: 4\n" in model.card()
    assert "- clients: not known\n" in model.partial_fit(federation, clients=[1]).card()


def test_epsilon_and_encryption_are_named():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 2, (60, 2))
    federation = so.simulate(X, X[:, 0], clients=2)
    model = so.Pipeline(so.FedBins(2), so.FedID3(max_depth=2, epsilon=1.5)).fit(federation)
    steps = model.steps_[-1].card()
    assert "- differential privacy: ε = 1.5 at δ = 0 for one record, by FedID3" in steps
    assert "- its noise was simulated from the seed and protects nobody\n" in steps
    assert "differential privacy: none" not in steps
    assert "- differential privacy: ε = 1.5 at δ = 0 for one record, by FedID3" in model.card()


def test_a_learner_that_is_not_fitted_has_no_card():
    with pytest.raises(NotFitted):
        so.FedLinear().card()


IN_A_NEW_PROCESS = """
import sys
from torch import nn
import solera as so
if sys.argv[2]:
    so.nn.register(sys.argv[2], lambda: nn.Sequential(nn.Linear(3, 2)))
print(so.load(sys.argv[1]).predict([[1.0, 2.0, 3.0]]).tolist())
"""


def test_a_model_with_a_module_of_ones_own_says_what_it_needs(federation, tmp_path, caplog):
    from torch import nn

    model = so.Pipeline(so.FedScaler(), so.FedAvg(nn.Sequential(nn.Linear(3, 2)), rounds=1))
    model.fit(federation)
    path = model.save(tmp_path / "own.sol")
    said = caplog.records[-1].getMessage()
    assert said.startswith("own.sol holds no code: before so.load, call so.nn.register('given/")
    assert "Sequential" in said
    name = said.split("'")[1]
    assert f"so.nn.register('{name}', factory)" in model.card()

    program = tmp_path / "loads.py"
    program.write_text(IN_A_NEW_PROCESS)

    def loaded(name: str) -> subprocess.CompletedProcess[str]:
        return run_program(program, str(path), name, folder=tmp_path, seconds=600)

    found = loaded(name)
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip() == str(model.predict([[1.0, 2.0, 3.0]]).tolist())
    assert "is registered here" in loaded("").stderr
    caplog.clear()
    so.FedAvg(so.nn.mlp(3, 2), rounds=1).fit(federation).save(tmp_path / "ours.sol")
    assert not caplog.records

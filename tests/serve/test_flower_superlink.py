"""Learners over a real SuperLink and three SuperNodes give what they give in simulation."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_iris
from typer.testing import CliRunner

import solera as so
from solera.cli.app import app as cli
from solera.core.task import installed_tasks

pytestmark = pytest.mark.slow
for library in ("fastapi", "httpx", "cryptography", "pandas", "torch"):
    pytest.importorskip(library, reason="the extras 'serve' and 'torch' are not installed")

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks" / "peers"))

from flower_network import FlowerNetwork, find_flower  # noqa: E402
from tests.serve.test_flower import LEARNERS, TRUSTED, configs, outputs, simulation  # noqa: E402

APP = """
import json
from pathlib import Path

import solera as so
from solera.serve.flower import client_app, server_app
from tests.serve.test_flower import LEARNERS


def main(federation, config):
    out = Path(config["out"])
    asked = federation.ask("select.rows")
    answered = [reply.client for reply in asked.collect()]
    refused = [[failure.client, failure.kind, failure.reason] for failure in asked.failures]
    for name, make in LEARNERS.items():
        make().fit(federation).save(out / f"{name}.sol")
    (out / "told").write_text(json.dumps({"answered": answered, "refused": refused}))
    (out / "told").rename(out / "done")


server = server_app(main)
client = client_app()
"""
SECONDS = 1500


def test_over_a_superlink_and_three_supernodes(tmp_path):
    """The four learners, and a task that one owner does not allow."""
    binaries = find_flower()
    if binaries is None:
        pytest.skip("Flower is not there: SOLERA_PEERS names a folder with an environment flower")
    nodes = configs(tmp_path, simulation().engine.source)
    prefixes = {name.partition(".")[0] for name in installed_tasks()} - {"select"}
    allowed = "".join(f'[[task]]\nname = "{prefix}.*"\n' for prefix in sorted(prefixes))
    (tmp_path / "site-1" / "policy.toml").write_text(TRUSTED + allowed)
    app, out = tmp_path / "heart", tmp_path / "out"
    out.mkdir()
    assert CliRunner().invoke(cli, ["flower", "init", str(app)]).exit_code == 0
    (app / "solera_app.py").write_text(APP)
    with FlowerNetwork(binaries, tmp_path) as network:
        network.start([" ".join(f"{k}={json.dumps(v)}" for k, v in n.items()) for n in nodes])
        network.run(app, out / "done", SECONDS, f'out="{out}" seed=3')
    told = json.loads((out / "done").read_text())
    assert told["answered"] == [0, 2]
    ((client, kind, reason),) = told["refused"]
    assert (client, kind) == (1, "refused")
    assert "select.rows" in reason
    X, _ = load_iris(return_X_y=True)
    for name, make in LEARNERS.items():
        there = outputs(so.load(out / f"{name}.sol"), X)
        here = outputs(make().fit(simulation()), X)
        assert np.abs(there - here).max() < 1e-9, name


def test_the_app_that_is_written_runs_as_it_is(tmp_path):
    """``solera flower init`` and ``flwr run``, nothing edited."""
    binaries = find_flower()
    if binaries is None:
        pytest.skip("Flower is not there: SOLERA_PEERS names a folder with an environment flower")
    nodes = configs(tmp_path, simulation().engine.source)
    app, out = tmp_path / "heart", tmp_path / "model.sol"
    assert CliRunner().invoke(cli, ["flower", "init", str(app)]).exit_code == 0
    with FlowerNetwork(binaries, tmp_path) as network:
        network.start([" ".join(f"{k}={json.dumps(v)}" for k, v in n.items()) for n in nodes])
        network.run(app, out, SECONDS)
    X, y = load_iris(return_X_y=True)
    assert so.load(out).score(X, y) > 0.8

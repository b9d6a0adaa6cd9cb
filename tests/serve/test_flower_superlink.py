"""Learners over a real SuperLink and three SuperNodes give what they give in simulation."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_iris
from typer.testing import CliRunner

import solera as so
from solera.cli.app import app as cli

pytestmark = pytest.mark.slow
for library in ("fastapi", "httpx", "cryptography", "pandas", "torch"):
    pytest.importorskip(library, reason="the extras 'serve' and 'torch' are not installed")

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks" / "peers"))

from flower_network import FlowerNetwork, find_flower  # noqa: E402
from tests.serve.test_flower import LEARNERS, configs, outputs, simulation  # noqa: E402

APP = """
import json
from pathlib import Path

from solera.serve.flower import client_app, server_app
from tests.serve.test_flower import LEARNERS


def main(federation, config):
    if config["learner"]:
        LEARNERS[config["learner"]]().fit(federation).save(config["out"])
        return
    asked = federation.ask("select.rows")
    answered = [reply.client for reply in asked.collect()]
    refused = [[failure.client, failure.kind, failure.reason] for failure in asked.failures]
    Path(config["out"]).write_text(json.dumps({"answered": answered, "refused": refused}))


server = server_app(main)
client = client_app()
"""
SECONDS = 1200
"""For a run; on a busy machine Flower takes half a minute for an ask."""


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """A SuperLink and three SuperNodes, whose owners trust the driver."""
    binaries = find_flower()
    if binaries is None:
        pytest.skip("Flower is not there: SOLERA_PEERS names a folder with an environment flower")
    folder = tmp_path_factory.mktemp("flower")
    nodes = configs(folder, simulation().engine.source)
    with FlowerNetwork(binaries, folder) as network:
        network.start([" ".join(f"{k}={json.dumps(v)}" for k, v in n.items()) for n in nodes])
        yield network


def written(network, folder, name):
    """The app that ``solera flower init`` writes."""
    app = network.folder / name
    assert CliRunner().invoke(cli, ["flower", "init", str(app)]).exit_code == 0
    return app


def run(network, folder, name, learner):
    """What the app writes that learns, or asks for what one owner does not allow."""
    app = written(network, folder, name)
    (app / "solera_app.py").write_text(APP)
    project = app / "pyproject.toml"
    project.write_text(project.read_text() + 'learner = ""\n')
    out = folder / name
    network.run(app, out, SECONDS, f'out="{out}" seed=3 learner="{learner}"')
    return out


@pytest.mark.parametrize("name", LEARNERS)
def test_a_learner_gives_what_it_gives_in_simulation(name, network, tmp_path):
    X, _ = load_iris(return_X_y=True)
    there = outputs(so.load(run(network, tmp_path, name.lower(), name)), X)
    here = outputs(LEARNERS[name]().fit(simulation()), X)
    assert np.abs(there - here).max() < 1e-9


def test_the_app_that_is_written_runs_as_it_is(network, tmp_path):
    """``solera flower init`` and ``flwr run``, nothing edited."""
    network.run(written(network, tmp_path, "heart"), network.folder / "model.sol", SECONDS)
    X, y = load_iris(return_X_y=True)
    assert so.load(network.folder / "model.sol").score(X, y) > 0.8


ASKING = """
import json
import time
from pathlib import Path

from solera.serve.flower import client_app, server_app


def main(federation, config):
    out = Path(config["out"])
    told = {}
    for turn in ("before", "after"):
        asked = federation.ask("data.flaws", deadline=120)
        told[turn] = [reply.client for reply in asked.collect()]
        told["gone"] = [[failure.client, failure.kind] for failure in asked.failures]
        out.with_suffix(".asked").touch()
        while not out.with_suffix(".killed").exists():
            time.sleep(0.1)
    out.write_text(json.dumps(told))


server = server_app(main)
client = client_app()
"""


def test_a_supernode_that_is_killed_is_a_client_that_is_gone(network, tmp_path):
    """The last test: two SuperNodes are left afterwards."""
    app, out = written(network, tmp_path, "killed"), tmp_path / "told.json"
    (app / "solera_app.py").write_text(ASKING)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(network.run, app, out, SECONDS, f'out="{out}" seed=3')
        while not out.with_suffix(".asked").exists() and not running.done():
            time.sleep(0.1)
        os.killpg(network.running[-1].pid, signal.SIGKILL)
        out.with_suffix(".killed").touch()
        running.result()
    told = json.loads(out.read_text())
    assert told["before"] == [0, 1, 2]
    assert told["after"] == [0, 1]
    ((client, kind),) = told["gone"]
    assert client == 2
    assert kind in ("dropped", "late")

"""Owners that know different labels: joined by the line, trained, judged, described and used."""

from __future__ import annotations

import time

import numpy as np
import pytest

import solera as so

pd = pytest.importorskip("pandas")
for library in ("fastapi", "uvicorn", "httpx", "sqlalchemy", "alembic", "cryptography"):
    pytest.importorskip(library, reason="the extra 'serve' is not installed")

from network import Network, Program  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

from solera.cli.app import app  # noqa: E402
from solera.serve import wire  # noqa: E402
from solera.serve.driver.published import fetch  # noqa: E402
from solera.serve.job_spec import parse_job  # noqa: E402

JOIN = """
import sys
from solera.cli.app import main
main()
"""
LABELS = ["asthma", "gout", "lupus"]
LACKS = {"Lugo": "asthma", "Vigo": "", "Noia": "lupus"}
TOML = """
name = "managed"
federation = "cardio"
seed = 5
clients = 3
evaluate = "test"
scores = true

[learner]
kind = "MLFedAvg"
model = { kind = "MLP", sizes = [4, 6] }
rounds = 6
lr = 0.05
stop = false
"""


def rows_of(name):
    """An owner's table: a cell may be empty, and one owner's column is not there at all."""
    draw = np.random.default_rng(len(name) + ord(name[0]))
    X = draw.normal(size=(60, 4))
    frame = pd.DataFrame(X, columns=[f"marker{i}" for i in range(4)])
    for i, label in enumerate(LABELS):
        frame[label] = np.where(draw.random(60) < 0.1, np.nan, X[:, i] + 0.3 * X[:, 3] > 0)
    return frame.drop(columns=LACKS[name] or [])


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    network = Network(tmp_path_factory.mktemp("labels"))
    network.start()
    (network.folder / "policy.toml").write_text('policy = "trusted"\n')
    driver = network.driver()
    for name in LACKS:
        file = network.folder / f"{name}.csv"
        rows_of(name).to_csv(file, index=False)
        path = "/v1/federations/cardio/invites"
        token = driver.request("POST", path, json={"name": name}).json()["token"]
        about = ["--data", str(file), "--policy", str(network.folder / "policy.toml")]
        about += [word for label in LABELS for word in ("--target", label)]
        about += ["--test", "0.25", "--token", token, "--ca", network.ca]
        about += ["--folder", str(network.folder / name)]
        network.agents[name] = Program(JOIN, "join", network.url, *about)
        deadline = time.monotonic() + 300
        while len(driver.call("GET", "/v1/federations/cardio", wire.Members).clients) < len(
            network.agents
        ):
            assert time.monotonic() < deadline, f"{name} does not join"
            time.sleep(0.1)
    driver.close()
    yield network
    network.close()


def test_owners_are_described_by_what_they_know(network):
    found = so.describe(network.connect("described", seed=5))
    columns = [feature.name for feature in found.schema.features]
    assert columns == ["marker0", "marker1", "marker2", "marker3", *LABELS]
    for client, name in enumerate(LACKS):
        held = len(rows_of(name)) - 15
        lacking = LACKS[name]
        for label in LABELS:
            missing = found.missing[client, columns.index(label)]
            assert missing == held if label == lacking else 0 < missing < held


def test_own_heads_are_trained_judged_and_used_by_owners(network, tmp_path):
    driver, spec = network.driver(), parse_job(TOML)
    assert spec.learner.stop is None
    described = spec.describe(TOML)
    new = wire.NewJob.of(described, id="managed", spec=driver.upload(described.to_bytes()))
    driver.request("POST", "/v1/federations/cardio/jobs", json=new)
    ends = time.monotonic() + 300
    while driver.call("GET", "/v1/jobs/managed", wire.Job).state not in ("finished", "failed"):
        assert time.monotonic() < ends, "the job does not end"
        time.sleep(0.2)
    notes = driver.call("GET", "/v1/jobs/managed/events?event=evaluated", list[wire.Event])
    told = notes[-1].facts or {}
    fetch(driver, "managed", tmp_path / "managed.sol")
    driver.close()

    federation = network.connect("driven", seed=5)
    model = spec.learner.clone().fit(federation)
    found = model.evaluate(federation, scores=True)
    np.testing.assert_array_equal(so.load(tmp_path / "managed.sol").weights_, model.weights_)
    for name in ("subset_accuracy", "macro_f1", "auroc"):
        assert told[name]["value"] == pytest.approx(float(found[name]))
        assert told[name]["rows"] == found[name].rows == 45
        assert found[name].is_whole
    assert found["macro_f1"] > 0.6

    for name, lacking in LACKS.items():
        folder, out = network.folder / name, tmp_path / f"{name}.csv"
        rows = str(network.folder / f"{name}.csv")
        arguments = ["predict", str(tmp_path / "managed.sol"), rows, "--folder", str(folder)]
        said = CliRunner().invoke(app, [*arguments, "--proba", "--out", str(out)])
        assert said.exit_code == 0, said.output
        answers = pd.read_csv(out)
        for label in LABELS:
            predicted = answers[f"prediction {label}"]
            if label == lacking:
                assert (predicted == -1).all()
                assert answers[f"probability {label}"].isna().all()
                continue
            assert {*predicted} == {0, 1}
            known = rows_of(name)[label].notna()
            assert (predicted == rows_of(name)[label])[known].mean() > 0.6

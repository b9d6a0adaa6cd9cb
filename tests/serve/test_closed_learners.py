"""Every learner that a closed job carries, over four agents and TLS: the simulation's bytes."""

from __future__ import annotations

import os
import re
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import solera as so

for library in ("fastapi", "uvicorn", "httpx", "sqlalchemy", "alembic", "cryptography", "torch"):
    pytest.importorskip(library, reason="the extras 'serve' and 'torch' are not installed")

from closed_network import NAMES, ClosedNetwork, learned  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

from solera.cli.app import app  # noqa: E402
from solera.core.component import build  # noqa: E402
from solera.core.payload import encode  # noqa: E402
from solera.learn.closed_evaluation import to_payload  # noqa: E402
from solera.serve.agent.closed.store import ClosedStore  # noqa: E402
from solera.serve.agent.memory import own_model  # noqa: E402
from solera.serve.closed_words import name_of, text_words  # noqa: E402
from solera.serve.job_spec import read_job  # noqa: E402
from solera.trust.board.text import parse  # noqa: E402

NUMBERS = ["a", "b", "c", "d"]
WHOLE = [*NUMBERS, "gap", "ward"]
LABELS = ["flu", "cold"]
ACME = '''
"""A package of somebody else, with both sides of a learner."""

import numpy as np
import solera as so


@so.task("acme.moments", many=True)
def moments(client, ask):
    """X'X and X'y with an intercept: all that least squares needs to know."""
    X = np.column_stack([client.data.X, np.ones(len(client.data))])
    return {"xx": so.gram(X, X), "xy": so.gram(X, client.data.y[:, None])}


class AcmeRidge(so.learn.Predictor):
    """Ridge regression in one ask: w = (Σ X'X + λI)⁻¹ Σ X'y."""

    def __init__(self, lam=1e-3):
        self.lam = lam

    def train(self, federation):
        total = federation.ask(moments).fold(so.aggregations.Sum())
        width = len(total["xx"])
        self.w_ = np.linalg.solve(total["xx"] + self.lam * np.eye(width), total["xy"][:, 0])

    def predict(self, X):
        X = self.check_rows(X)
        return X @ self.w_[:-1] + self.w_[-1]
'''


def table(rows=400):
    """Numbers, one of them with gaps, a column of categories; classes, numbers and labels."""
    draw = np.random.default_rng(0)
    X = draw.normal(size=(rows, 4)).round(3)
    score = X @ [1, -1, 0.5, 0]
    frame = pd.DataFrame(X, columns=NUMBERS)
    frame["gap"] = np.where(draw.random(rows) < 0.2, np.nan, draw.normal(size=rows).round(2))
    frame["ward"] = draw.choice(["east", "north", "west"], rows)
    for name in LABELS:
        frame[name] = np.where(score + draw.logistic(size=rows) > 0, "1", "0")
    ends = np.random.default_rng(1)
    event, censored = ends.exponential(90 * np.exp(-score / 2)), ends.exponential(150, rows)
    frame["days"] = np.ceil(np.minimum(event, censored))
    frame["event"] = (event <= censored).astype(float)
    frame["cost"] = (score + draw.normal(size=rows)).round(2)
    frame["died"] = np.where(score + draw.logistic(size=rows) > 0, "yes", "no")
    return frame


def install(folder: Path) -> None:
    """A package with entry points, as pip would leave it."""
    (folder / "acme.py").write_text(ACME)
    about = folder / "acme-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    entries = "[solera.tasks]\nacme = acme\n[solera.learners]\nacme = acme\n"
    (about / "entry_points.txt").write_text(entries)


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """Agents that are programs of their own, where the other package is installed."""
    packages = tmp_path_factory.mktemp("packages")
    install(packages)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(packages), prepend=os.pathsep)
        patch.syspath_prepend(packages)
        import_module("acme")  # agents find it by its entry points alone
        here = ClosedNetwork(
            tmp_path_factory.mktemp("closed"), table(), simd=dict.fromkeys(NAMES, "")
        )
        yield here
        here.close()


def net(outputs=2):
    return so.nn.mlp(4, 5, outputs)


SMALL = {"rounds": 2, "batch_size": 20}
CLASSES = {"columns": NUMBERS, "target": "died"}
COSTS = {"columns": NUMBERS, "target": "cost"}
ALL = {"columns": WHOLE, "target": "died"}
ENDS = {"columns": [*NUMBERS, "ward"], "target": ["days", "event"]}
LEARNERS = {
    "Cox of all rows": (
        lambda: so.Pipeline(so.learn.FedSelect(["a", "b"]), so.FedCox(strata=None)),
        ENDS,
    ),
    "GLM": (lambda: so.FedGLM("binomial"), CLASSES),
    "k-means": (
        lambda: so.Pipeline(so.learn.FedSelect(NUMBERS), so.FedScaler(), so.FedKMeans(3)),
        CLASSES,
    ),
    "Scaffold": (lambda: so.learn.Scaffold(net(), **SMALL), CLASSES),
    "columns": (
        lambda: so.Pipeline(
            so.FedImputer("median"), so.FedEncoder(), so.FedScaler(), so.FedHEONN()
        ),
        ALL,
    ),
    "boosted trees": (lambda: so.FedHistGBDT(rounds=3, max_depth=3), ALL),
    "ID3": (lambda: so.Pipeline(so.FedBins(4), so.FedID3()), ALL),
    "another package": (lambda: build({"$component": "AcmeRidge", "params": {"lam": 0.1}}), COSTS),
}
MORE = {
    "Cox by owner": (lambda: so.Pipeline(so.learn.FedSelect(["a", "b"]), so.FedCox()), ENDS),
    "Linear": (lambda: so.FedLinear(rounds=3), CLASSES),
    "Linear of numbers": (lambda: so.FedLinear(rounds=3, batch_size=20), COSTS),
    "GLM of numbers": (lambda: so.FedGLM(), COSTS),
    "HEONN": (lambda: so.FedHEONN(), CLASSES),
    "HEONN, random features": (
        lambda: so.FedHEONN("linear", features="fourier", hidden=20),
        COSTS,
    ),
    "Avg": (lambda: so.FedAvg(net(), **SMALL), CLASSES),
    "Avg of numbers": (lambda: so.FedAvg(net(1), **SMALL), COSTS),
    "Avg by Adam": (lambda: so.FedAvg(net(), optimiser="adam", local_steps=3, **SMALL), CLASSES),
    "Avg, compressed": (
        lambda: so.FedAvg(
            net(), update_steps=[so.updates.Clip(1.0), so.updates.TopK(0.2)], **SMALL
        ),
        CLASSES,
    ),
    "Avg, weights": (lambda: so.FedAvg(net(), send="weights", l2=0.01, **SMALL), CLASSES),
    "SGD": (lambda: so.FedSGD(net(), rounds=2, batch_size=None), CLASSES),
    "Prox": (lambda: so.FedProx(net(), **SMALL), CLASSES),
    "Nova": (lambda: so.FedNova(net(), **SMALL), CLASSES),
    "AvgM": (lambda: so.learn.FedAvgM(net(), **SMALL), CLASSES),
    "Adam": (lambda: so.FedAdam(net(), **SMALL), CLASSES),
    "Adagrad": (lambda: so.learn.FedAdagrad(net(), **SMALL), CLASSES),
    "Yogi": (lambda: so.learn.FedYogi(net(), **SMALL), CLASSES),
    "BN": (lambda: so.FedBN(net(), private=["0"], **SMALL), CLASSES),
    "Per": (lambda: so.FedPer(net(), **SMALL), CLASSES),
    "Rep": (lambda: so.FedRep(net(), **SMALL), CLASSES),
    "Ditto": (lambda: so.Ditto(net(), **SMALL), CLASSES),
    "MLAvg": (
        lambda: so.MLFedAvg(net(), stop=None, fine_tune=1, **SMALL),
        {"columns": NUMBERS, "target": LABELS},
    ),
    "boosted trees of numbers": (lambda: so.FedHistGBDT(rounds=3, max_depth=3), COSTS),
    "stumps": (lambda: so.FedHistGBDT(rounds=3, max_depth=1, bins=3), CLASSES),
    "Bins": (lambda: so.FedBins(4), ALL),
    "Scaler": (lambda: so.FedScaler(), CLASSES),
    "Imputer": (lambda: so.FedImputer(), {"columns": [*NUMBERS, "gap"], "target": "died"}),
    "Encoder": (lambda: so.FedEncoder(), ALL),
    "ordinal Encoder": (lambda: so.FedEncoder("ordinal"), ALL),
    "Select": (lambda: so.learn.FedSelect([3, 1]), CLASSES),
    "Columns": (
        lambda: so.FedColumns(("scaled", so.FedScaler(), [0, 2]), (so.FedImputer(), [4])),
        {"columns": [*NUMBERS, "gap"], "target": "died"},
    ),
    "pipeline of a network": (
        lambda: so.Pipeline(
            so.FedImputer(), so.FedEncoder(), so.FedScaler(), so.FedAvg(so.nn.mlp(8, 5, 2), **SMALL)
        ),
        ALL,
    ),
    "pipeline of a GLM": (
        lambda: so.Pipeline(so.FedImputer(), so.FedEncoder("dummy"), so.FedGLM()),
        {"columns": WHOLE, "target": "cost"},
    ),
    "pipeline of labels": (
        lambda: so.Pipeline(so.FedScaler(), so.FedHEONN()),
        {"columns": NUMBERS, "target": LABELS},
    ),
}


def check(network, make, selected):
    model = make().fit(network.closed(test=0.2, **selected))
    owners = network.simulation(test=0.2, **selected)
    simulated = make().fit(owners, progress=False)
    assert learned(model) == learned(simulated)
    if model.predicts:
        judged = model.evaluate(network.closed(test=0.2, **selected), scores=True)
        expected = simulated.evaluate(owners, scores=True)
        assert encode(to_payload(judged)) == encode(to_payload(expected))


@pytest.mark.parametrize("name", LEARNERS)
def test_a_learner_has_the_bytes_of_its_simulation(network, name):
    check(network, *LEARNERS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE)
def test_every_other_learner_has_them_too(network, name):
    check(network, *MORE[name])


def test_survival_curves_have_the_bytes_of_their_simulation(network):
    curves = so.learn.kaplan_meier(network.closed(**ENDS), by="ward")
    simulated = so.learn.kaplan_meier(network.simulation(**ENDS), by="ward")
    assert encode(asdict(curves)) == encode(asdict(simulated))
    assert str(curves) == str(simulated)
    assert len(curves.curves) == 3
    assert all(len(curve.times) >= 2 for curve in curves.curves)
    with pytest.raises(so.errors.UsageError, match="leave grid= out"):
        so.learn.kaplan_meier(network.closed(**ENDS), [30.0, 60.0])


def test_an_owner_predicts_by_the_part_of_a_model_that_it_alone_keeps(network):
    model = so.FedPer(net(), **SMALL).fit(network.closed(**CLASSES))
    owners = network.simulation(**CLASSES)
    simulated = so.FedPer(net(), **SMALL).fit(owners, progress=False)
    states = [
        worker._states[simulated._client_fit]
        for worker in owners.closed_job("FedPer").engine.exchange.workers
    ]
    X = network.frame[NUMBERS].to_numpy()
    for name, state in zip(NAMES, states, strict=True):
        here = own_model(model, network.folder / name)
        assert (here.predict_proba(X) == simulated.with_part(state).predict_proba(X)).all()
    with pytest.raises(so.errors.UsageError, match="keeps no part"):
        own_model(so.FedGLM("binomial").fit(network.closed(**CLASSES)), network.folder / "north")


def test_the_positive_class_is_part_of_the_text(network):
    chosen = {**CLASSES, "positive": "no", "test": 0.2}
    model = so.FedGLM("binomial").fit(network.closed(**chosen))
    owners = network.simulation(**chosen)
    simulated = so.FedGLM("binomial").fit(owners, progress=False)
    assert learned(model) == learned(simulated)
    assert model.classes_.tolist() == ["yes", "no"]
    judged = model.evaluate(network.closed(**chosen))
    assert judged.positive == judged["sensitivity"].positive == "no"
    assert encode(to_payload(judged)) == encode(to_payload(simulated.evaluate(owners)))
    with pytest.raises(so.errors.UsageError, match="is not one of two classes"):
        so.FedGLM("binomial").fit(network.closed(**{**chosen, "positive": "dead"}))


GRID = """
name = "risk"
federation = "cardio"
owner = "ana"
columns = ["a", "b", "c", "d"]
validation = 0.2
test = 0.2
evaluate = "test"

[[learner]]
kind = "FedPer"
rounds = 2
batch_size = 20
lr = [0.01, 0.1]
[learner.model]
kind = "MLP"
sizes = [4, 5, 2]

[[learner]]
kind = "FedGLM"
family = "binomial"
rounds = 1

[[learner]]
kind = "FedGLM"
family = "binomial"
"""


def job(network, *arguments):
    place = ["--url", network.url, "--ca", network.ca]
    environment = {
        "SOLERA_TOKEN": network.token,
        "SOLERA_RESEARCHER_KEY": str(network.folder / "researcher.key"),
        "COLUMNS": "300",
    }
    return CliRunner().invoke(app, ["job", *map(str, arguments), *place], env=environment)


def test_a_grid_is_one_text_whose_best_point_is_the_result(network):
    """Of four points one cannot be fitted; the others are those of fits of their own."""
    file, out = network.folder / "grid.toml", network.folder / "best.sol"
    file.write_text(GRID)
    done = job(network, "start", file, "--out", out)
    assert done.exit_code == 0, done.output
    selected = {**CLASSES, "validation": 0.2, "test": 0.2}
    points = read_job(file).grid
    losses = []
    for point in (*points[:2], points[3]):
        owners = network.simulation(**selected)
        model = point.clone().fit(owners, progress=False)
        loss = float(model.evaluate(owners, "validation", scores=True)["log_loss"])
        losses.append((loss, learned(model)))
        assert f"{loss:.4g}" in done.output, done.output
    best = min(losses)
    assert learned(so.load(out)) == best[1]
    assert "has not converged in 1 rounds" in done.output
    jid = re.search(r"hash ([0-9a-f]{64})", done.output)[1]
    store = ClosedStore(network.folder / "north" / "closed.sqlite")
    text = parse(store.job(jid).text)
    store.close()
    assert len(text.learners) == 4
    words = text_words(text)
    assert "learner 2 of 4: FedPer(" in words
    assert "lr=0.1" in words
    assert name_of(text) == "the best of 4: FedPer, FedGLM"

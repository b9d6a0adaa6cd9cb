"""From a messy table of one's own to predictions on another day, in another process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.programs import run_program

import solera as so
from solera.core.errors import DataError

pd = pytest.importorskip("pandas")

TOWNS = ["A Coruña", "Lugo", "Ourense", "Vigo"]


def patients(rows: int, seed: int) -> Any:
    """Strings, dates, gaps, booleans, nullable integers, a text target and whose row it is."""
    rng = np.random.default_rng(seed)
    made = pd.DataFrame(
        {
            "hospital": rng.choice(TOWNS, rows),
            "age": rng.integers(20, 90, rows),
            "bmi": np.where(rng.random(rows) < 0.1, np.nan, rng.normal(26, 4, rows)),
            "smokes": rng.choice(["never", "former", "daily", None], rows, p=[0.4, 0.3, 0.2, 0.1]),
            "stage": pd.Categorical(
                rng.choice(["I", "II", "III"], rows), categories=["I", "II", "III"], ordered=True
            ),
            "icu": rng.random(rows) < 0.3,
            "visits": pd.array(rng.integers(0, 9, rows), dtype="Int64"),
            "admitted": pd.Timestamp("2024-01-01")
            + pd.to_timedelta(rng.integers(0, 365, rows), unit="D"),
            "born": [f"{year}-05-31" for year in rng.integers(1940, 2004, rows)],
        }
    )
    made.loc[::9, "visits"] = pd.NA
    risk = made["age"] / 20 + 2.0 * (made["smokes"] == "daily") + made["icu"]
    return made.assign(outcome=np.where(risk > risk.median(), "relapse", "healthy"))


def prepared(learner: so.Learner) -> so.Pipeline:
    return so.Pipeline(so.FedEncoder(), so.FedImputer(), so.FedScaler(), learner)


LEARNERS = {
    "linear": lambda: prepared(so.FedLinear(rounds=25)),
    "heonn": lambda: prepared(so.FedHEONN()),
    "averaging": lambda: prepared(so.FedAvg(so.nn.mlp(13, 8, 2), rounds=15, lr=0.2)),
    "forest": lambda: so.FedForest(trees=12),
    "boosting": lambda: so.FedHistGBDT(rounds=12),
    "tree": lambda: so.Pipeline(so.FedImputer(), so.FederatedTree(max_depth=4)),
}


@dataclass
class Journey:
    """A fitted model on its way out, and the frames it is asked about."""

    model: Any
    path: Path
    frames: dict[str, Any]


@pytest.fixture(scope="module")
def federation():
    return so.simulate(
        patients(500, 1), target="outcome", group="hospital", unknown="other", test=0.2, seed=3
    )


@pytest.fixture(scope="module", params=LEARNERS)
def journey(request, federation, tmp_path_factory):
    model = LEARNERS[request.param]().fit(federation)
    path = model.save(tmp_path_factory.mktemp("models") / f"{request.param}.sol")
    later = patients(60, 2).drop(columns=["outcome", "hospital"])
    frames = {
        "as it was": later,
        "another order": later[later.columns[::-1]],
        "unseen categories": later.assign(smokes="a pipe on Sundays"),
        "missing categories": later.assign(smokes=None, icu=None),
        "one category": later.assign(smokes="never"),
    }
    return Journey(model, path, frames)


def test_the_federation_keeps_the_names(federation):
    assert federation.names == tuple(TOWNS)
    kinds = {f.name: f.kind for f in federation.schema.features}
    assert kinds == {
        "age": "numeric",
        "bmi": "numeric",
        "smokes": "categorical",
        "stage": "categorical",
        "icu": "categorical",
        "visits": "numeric",
        "admitted": "date",
        "born": "date",
    }


def test_it_learns_and_is_judged_by_names(journey, federation):
    found = journey.model.evaluate(federation)
    assert found["accuracy"] > 0.75
    assert [found.names[client] for client in found.clients] == TOWNS
    fresh = patients(300, 5)
    assert journey.model.score(fresh) > 0.75
    assert journey.model.evaluate(fresh)["accuracy"] == journey.model.score(fresh)
    assert set(journey.model.predict(fresh)) == {"healthy", "relapse"}


def test_rows_mean_the_same_alone_and_in_company(journey):
    for name, frame in journey.frames.items():
        whole = journey.model.predict_proba(frame)
        assert np.isfinite(whole).all(), name
        alone = np.concatenate([journey.model.predict_proba(frame.iloc[[i]]) for i in range(5)])
        assert np.allclose(whole[:5], alone, atol=1e-12), name
    order = journey.model.predict_proba(journey.frames["another order"])
    assert np.array_equal(order, journey.model.predict_proba(journey.frames["as it was"]))


def test_unseen_and_missing_categories_count_alike(journey):
    frames = journey.frames
    missing = frames["as it was"].assign(smokes=None)
    unseen = journey.model.predict_proba(frames["unseen categories"])
    assert np.array_equal(unseen, journey.model.predict_proba(missing))


IN_A_NEW_PROCESS = """
import json, sys
import pandas as pd
import solera as so
model = so.load(sys.argv[1])
answers = {}
for name, file in json.loads(sys.argv[2]).items():
    frame = pd.read_parquet(file)
    answers[name] = [model.predict(frame).tolist(), model.predict_proba(frame).tolist()]
print(json.dumps([model.classes_.tolist(), answers]))
"""


def test_the_model_answers_the_same_in_a_new_process(journey, tmp_path):
    files = {}
    for name, frame in journey.frames.items():
        files[name] = str(tmp_path / f"{name}.parquet")
        frame.to_parquet(files[name])
    program = tmp_path / "predict.py"
    program.write_text(IN_A_NEW_PROCESS)
    told = str(journey.path), json.dumps(files)
    done = run_program(program, *told, folder=tmp_path, seconds=600)
    assert done.returncode == 0, done.stderr
    classes, answers = json.loads(done.stdout)
    assert classes == ["healthy", "relapse"]
    for name, frame in journey.frames.items():
        predicted, probability = answers[name]
        assert predicted == journey.model.predict(frame).tolist()
        assert np.array_equal(probability, journey.model.predict_proba(frame))


def test_the_exported_graph_answers_the_same(journey):
    runtime = pytest.importorskip("onnxruntime")
    runtime.disable_telemetry_events()
    path = journey.model.export(journey.path.with_suffix(".onnx"))
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for name, frame in journey.frames.items():
        predicted, probability = session.run(None, journey.model.onnx_inputs(frame))
        assert predicted.tolist() == journey.model.predict(frame).tolist(), name
        assert np.abs(probability - journey.model.predict_proba(frame)).max() < 1e-5, name


def test_without_the_rule_for_others_an_unseen_category_is_named():
    federation = so.simulate(patients(200, 1), target="outcome", group="hospital")
    model = LEARNERS["heonn"]().fit(federation)
    with pytest.raises(DataError, match=r"'smokes' holds 'a pipe', which was not there"):
        model.predict(patients(5, 2).assign(smokes="a pipe"))

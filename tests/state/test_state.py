"""What an older version left on disk is opened, or refused by name before a byte is changed.

Every folder beside this file is what ``make_state.py`` wrote with the version it is called after.
A version that no longer reads a part of it adds a line to REFUSED: nothing is refused by accident.
"""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

import solera as so
from solera.core.errors import SoleraError
from solera.core.payload import decode, encode

from . import make_state

T = TypeVar("T")

VERSIONS = sorted(path for path in Path(__file__).parent.iterdir() if (path / "models").is_dir())
REFUSED: dict[str, str] = {}
"""Parts that this version refuses (``b921b27e/models/*``), and what its error names."""
CORRECTED = {
    ("b921b27e", "patches", "predict_proba"): "shares of votes: predict is the class with most",
}
"""Answers that were wrong, and what is right about those of now."""
CLOSE = {"rtol": 1e-12, "atol": 1e-12}

pytestmark = [
    pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name),
    pytest.mark.usefixtures("unrendered"),
]


@pytest.fixture
def state(version, tmp_path):
    """A copy of a version's state, with its files for their owner alone as they were written."""
    folder = tmp_path / version.name
    shutil.copytree(version, folder)
    for path in folder.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """Every file, without the empty ones that stand beside a database or mark a lock."""
    files = (path for path in folder.rglob("*") if path.is_file())
    held = {str(path.relative_to(folder)): path.read_bytes() for path in files}
    return {
        name: data for name, data in held.items() if data and not name.endswith(("-shm", ".lock"))
    }


def refused(state: Path, act: Callable[[], Any]) -> str:
    """The error with which it ends, which has changed nothing."""
    before = contents(state)
    with pytest.raises(SoleraError) as error:
        act()
    assert contents(state) == before
    return str(error.value)


def opened(state: Path, part: str, act: Callable[[], T]) -> T:
    """What becomes of a part of the state, or the end of the test where it is refused by name."""
    name = f"{state.name}/{part}"
    for pattern, words in REFUSED.items():
        if fnmatch(name, pattern):
            assert words in refused(state, act)
            pytest.skip(f"{name} is refused: {words}")
    return act()


# --- models ---


def model_names() -> list[str]:
    return sorted(
        {path.stem for version in VERSIONS for path in (version / "models").glob("*.sol")}
    )


def with_answers(state: Path, name: str) -> tuple[Any, dict[str, np.ndarray]]:
    """A saved learner, and what it answered when it was saved."""
    pytest.importorskip("torch" if name in ("averaging", "personal", "labels") else "numpy")
    path = state / "models" / f"{name}.sol"
    if not path.exists():
        pytest.skip(f"{state.name} has no model {name}")
    model = opened(state, f"models/{name}.sol", lambda: so.load(path))
    with np.load(path.with_suffix(".npz")) as said:
        return model, dict(said)


def check(answer: np.ndarray, expected: np.ndarray) -> None:
    if expected.dtype.kind == "f":
        np.testing.assert_allclose(answer, expected, **CLOSE)
    else:
        assert np.array_equal(answer, expected)


@pytest.mark.parametrize("name", sorted(set(model_names()) - {"pipeline", "vertical"}))
def test_a_model_answers_as_it_did(state, name):
    model, said = with_answers(state, name)
    X = said.pop("X")
    assert said
    for method, expected in said.items():
        if model.is_personal:  # it answered by a head that was never trained
            with pytest.raises(so.errors.UsageError, match="rows name no client"):
                getattr(model, method)(X)
            continue
        answer = getattr(model, method)(X)
        if (state.name, name, method) in CORRECTED:
            assert not np.allclose(answer, expected)
            assert np.array_equal(model.schema_.classes[answer.argmax(axis=1)], model.predict(X))
        else:
            check(answer, expected)
    assert so.learn.base.from_bytes(model.to_bytes()).get_params() == model.get_params()


def test_a_closed_form_goes_on_with_more_rows(state):
    model, _ = with_answers(state, "heonn")
    more = make_state.simulation("classes")
    afresh = so.FedHEONN().fit(more).partial_fit(more)
    check(model.partial_fit(more).solution_, afresh.solution_)


def test_a_pipeline_answers_about_a_table(state):
    pd = pytest.importorskip("pandas")
    model, said = with_answers(state, "pipeline")
    new = pd.read_csv(state / "models" / "pipeline.csv")
    for method, expected in said.items():
        check(getattr(model, method)(new), expected)


def test_a_vertical_model_answers_with_its_parts(state):
    pytest.importorskip("torch")
    pytest.importorskip("cryptography")
    model, said = with_answers(state, "vertical")
    federation = make_state.vertical_simulation()
    for party in ("bank", "shop"):
        path = state / "models" / f"vertical.{party}"
        give = partial(model.load_part, federation, party, path)
        opened(state, f"models/{path.name}", give)
    answer = model.predict_proba(federation, "test")
    np.testing.assert_allclose(answer, said["predict_proba"], rtol=1e-5, atol=1e-6)  # float32


def test_a_model_of_another_format_is_refused(state):
    path = state / "models" / "linear.sol"
    content = decode(path.read_bytes())
    path.write_bytes(encode({**content, "format": 99}))
    words = refused(state, lambda: so.load(path))
    assert str(path) in words
    assert "99" in words


# --- a checkpoint ---


def test_an_interrupted_fit_goes_on(state):
    path = state / "checkpoint" / "run.checkpoint"
    rounds: list[int] = []

    class Rounds(so.callbacks.Callback):
        def on_round(self, learner, round):
            rounds.append(round.index)

    def go_on(federation):
        fresh = make_state.interrupted()
        return fresh.fit(federation, checkpoint=path, callbacks=[Rounds()])

    model = opened(
        state, "checkpoint/run.checkpoint", lambda: go_on(make_state.simulation("classes"))
    )
    assert rounds == [3, 4, 5]
    assert [entry["round"] for entry in model.history_] == list(range(6))
    with np.load(state / "checkpoint" / "learned.npz") as learned:
        np.testing.assert_allclose(model.coef_, learned["coef"], **CLOSE)
        np.testing.assert_allclose(model.intercept_, learned["intercept"], **CLOSE)


def test_a_checkpoint_of_another_run_is_refused(state):
    path = state / "checkpoint" / "run.checkpoint"
    federation = make_state.simulation("classes")
    other = so.FedLinear(rounds=6, lr=0.2)
    assert str(path) in refused(state, lambda: other.fit(federation, checkpoint=path))


# --- a study ---


def run_of(folder: Path, text: str | None = None) -> Any:
    from solera.study.files.reader import parse
    from solera.study.run.runner import run_study

    text = text or (folder / "wine.toml").read_text()
    return run_study(parse(text, file="wine.toml", name="wine"), folder / "run")


def test_a_study_goes_on_without_training_again(state):
    folder = state / "study"
    cells = {path: path.read_bytes() for path in sorted((folder / "run" / "cells").iterdir())}
    run = opened(state, "study", lambda: run_of(folder))
    assert run.started == 0
    assert {path: path.read_bytes() for path in cells} == cells
    stored = {path.stem: json.loads(data)["result"]["metrics"] for path, data in cells.items()}
    assert len(stored) == len(run.finished) == 8
    for cell, result in run.finished:
        assert float(result.metrics["accuracy"]) == stored[cell.stem]["accuracy"]
        assert result.metrics["accuracy"].whose == "rows that are not known"
    assert (folder / "run" / "report.html").exists()


def test_the_runs_of_a_folder_are_listed(state):
    with open(state / "study" / "run" / "metrics.csv", newline="") as file:
        written = [
            float(line["value"])
            for line in csv.DictReader(file)
            if (line["part"], line["metric"], line["client"]) == ("test", "accuracy", "")
        ]
    run = opened(state, "study", lambda: so.runs.load(state / "study" / "run"))
    assert run.cells == len(written) == 8
    assert run.metrics["accuracy"].whose == "rows that are not known"
    assert run.best == "FedHEONN() (wine, IID(), federated)"
    assert run.metrics["accuracy"] == max(np.mean(written[i : i + 2]) for i in range(0, 8, 2))


def test_the_models_of_a_study_open(state):
    for path in sorted((state / "study" / "run" / "models").glob("*.sol")):
        model = opened(state, "study/models", partial(so.load, path))
        assert len(model.history_) == (3 if isinstance(model, so.FedLinear) else 0)


def test_a_folder_of_another_study_is_refused(state):
    folder = state / "study"
    other = (folder / "wine.toml").read_text().replace("clients = 3", "clients = 4")
    assert str(folder / "run") in refused(state, lambda: run_of(folder, other))


# --- a coordinator and its agents ---


def serving() -> None:
    for library in ("fastapi", "httpx", "sqlalchemy", "alembic", "cryptography"):
        pytest.importorskip(library, reason="the extra 'serve' is not installed")


def app_of(folder: Path) -> Any:
    from solera.serve.coordinator.run import coordinator_app

    return coordinator_app(folder)


def test_a_coordinator_starts_over_its_folder(state):
    serving()
    from fastapi.testclient import TestClient

    folder = state / "coordinator"
    app = opened(state, "coordinator", lambda: app_of(folder))
    token = (folder / "driver.token").read_text()
    with TestClient(app, headers={"Authorization": f"Bearer {token}"}) as http:
        store = app.state.coordinator.store
        assert [(job.id, job.state) for job in store.jobs("cardio")] == [
            ("readmission", "finished"),
            ("length-of-stay", "running"),
        ]
        assert {client.name for client in store.clients("cardio")} == {"north", "south"}
        assert store.census(0.0).asks == 1  # what north holds
        listed = http.get("/v1/federations/cardio/jobs").json()
        assert [job["id"] for job in listed] == ["readmission", "length-of-stay"]
        assert listed[0]["state"] == "finished"
        digest = http.get("/v1/jobs/readmission/model").json()["digest"]
        model = so.learn.base.from_bytes(http.get(f"/v1/blobs/{digest}").content)
    assert model.predict([[80.0, 27.0], [20.0, 27.0]]).tolist() == ["relapse", "healthy"]


def test_a_database_of_a_newer_version_is_refused(state):
    serving()
    import sqlite3
    from contextlib import closing

    folder = state / "coordinator"
    with closing(sqlite3.connect(folder / "coordinator.sqlite")) as database, database:
        database.execute("UPDATE alembic_version SET version_num = '9999'")
    words = refused(state, lambda: app_of(folder))
    assert "9999" in words


def agent_of(state: Path, name: str) -> Any:
    from solera.serve.agent.agent import Agent
    from solera.serve.agent.policy import OwnerPolicy
    from solera.serve.agent.worker import Worker

    place = state / "agents"
    worker = Worker(lambda: so.data.FederatedData(*make_state.rows("classes"), np.array([0, 90])))
    policy = (place / f"{name}.toml").read_text().replace('"training"', '"trusted"')
    try:
        return Agent(place / name, worker, OwnerPolicy.parse(policy))
    except SoleraError:
        worker.close()
        raise


@pytest.mark.parametrize("name", ["north", "south"])
def test_a_policy_of_an_earlier_version_is_refused_with_the_line_to_write(state, name):
    from solera.serve.agent.policy import OwnerPolicy

    path = state / "agents" / f"{name}.toml"
    if 'policy = "training"' not in path.read_text():
        pytest.skip("this version's policies are those of now")
    with pytest.raises(so.errors.UsageError, match=rf"{name}\.toml:1: there is no policy 'training' any more"):
        OwnerPolicy.read(path)


@pytest.mark.parametrize(("name", "waiting"), [("north", 1), ("south", 0)])
def test_an_agent_works_in_its_folder(state, name, waiting):
    serving()
    agent = opened(state, f"agents/{name}", lambda: agent_of(state, name))
    try:
        assert (agent.place.federation, agent.place.name) == ("cardio", name)
        assert [job.job for job in agent.held.read()] == ["length-of-stay"] * waiting
        log = agent.folder / "audit.log"
        assert agent.head.n == len(log.read_bytes().splitlines()) > 5
        for job in agent.held.read():
            assert agent.approvals.approval(job.hash) is None
    finally:
        agent.close()


def test_what_ana_approved_is_still_signed(state):
    serving()
    agent = opened(state, "agents/north", lambda: agent_of(state, "north"))
    try:
        decision = json.loads((agent.folder / "approvals.json").read_text())
        assert agent.approvals.approval(decision["job"]).person == "ana"
    finally:
        agent.close()


@pytest.mark.parametrize("part", ["agents/north", "agents/south", "coordinator"])
def test_a_signed_log_verifies(state, part):
    serving()
    from solera.serve.audit import verify
    from solera.serve.identity import Identity

    folder = state / part
    keys = folder / "identity" if part == "coordinator" else folder
    identity = opened(state, part, lambda: Identity.load(keys))
    log = folder / "audit.log"
    report = opened(state, f"{part}/audit.log", lambda: verify(log, identity.sign_key))
    assert report.ok, report.problems
    assert report.torn == 0
    log.write_bytes(log.read_bytes().replace(b"readmission", b"readmissior", 1))
    assert not verify(log, identity.sign_key).ok


def test_a_memory_of_another_version_is_refused(state):
    serving()
    path = state / "agents" / "north" / "memory.sol"
    content = decode(path.read_bytes())
    path.write_bytes(encode({**content, "sequence": "of another kind"}))
    assert str(path) in refused(state, lambda: agent_of(state, "north"))


def test_what_is_said_to_be_refused_must_be(state, monkeypatch):
    """The contract itself: a part named in REFUSED that opens, or that is changed, fails."""
    path = state / "models" / "linear.sol"
    monkeypatch.setitem(REFUSED, f"{state.name}/models/*", "format")
    with pytest.raises(pytest.fail.Exception):
        opened(state, "models/linear.sol", lambda: so.load(path))

    def change_and_refuse():
        path.write_bytes(b"nothing")
        so.load(path)

    with pytest.raises(AssertionError):
        opened(state, "models/linear.sol", change_and_refuse)


def test_the_state_is_small(version):
    files = [path for path in version.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 600_000
    assert max(path.stat().st_size for path in files) < 200_000
    assert not any(str(Path.home()).encode() in path.read_bytes() for path in files)

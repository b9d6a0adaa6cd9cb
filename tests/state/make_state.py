"""Write small state as one version of Solera leaves it, for later versions to open or refuse.

    python tests/state/make_state.py tests/state/$(git rev-parse --short=8 HEAD)

The version is the one that ``import solera`` and ``python -m solera.cli.app`` find: run it in a
checkout of that version, or with its ``src`` as PYTHONPATH. It fills a folder that is not there:

``models/``       a saved learner of every family, beside each the rows it was asked about and what
                  it said (``.npz``); ``pipeline.csv`` for the one that learned from a table; of the
                  vertical one every party's part, too
``checkpoint/``   of a fit that was interrupted after the third of six rounds, and what the fit
                  learns when nothing disturbs it
``study/``        a run folder with its study file: eight cells, all finished; without pictures
``coordinator/``  the folder of ``solera serve``: two clients, one job that has finished, and one
                  that waits for a person at north
``agents/``       the folders of these clients with their rows and policies, and the key of north's
                  approver; in each the signed ``audit.log``

All keys and tokens in it were made for it and are good for nothing else. ``test_state.py`` opens a
copy of every such folder.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pandas as pd

import solera as so

SECONDS = 300
SMALL = {"rounds": 2, "epochs": 1, "batch_size": 16, "lr": 0.1, "dtype": "float64"}

# --- rows ---


def rows(target: str) -> tuple[np.ndarray, np.ndarray]:
    """Ninety rows of four numbers, and a target that depends on them."""
    rng = np.random.default_rng(25)
    X = rng.normal(size=(90, 4)).round(3)
    score = X @ [1.0, -2.0, 0.5, 0.0]
    if target == "classes":
        return X, np.digitize(score, [-1, 1])
    if target == "labels":
        return X, (X[:, :3] > 0.2).astype(np.uint8)
    if target == "counts":
        return X, rng.poisson(np.exp(0.3 * score)).astype(float)
    if target == "survival":
        times = rng.exponential(np.exp(-0.5 * score)).round(4) + 0.01
        return X, np.column_stack([times, (rng.random(90) < 0.7).astype(float)])
    return X, score + 2


def simulation(target: str) -> so.Federation:
    X, y = rows(target)
    return so.simulate(X, y, clients=3, seed=0)


def patients() -> pd.DataFrame:
    """A table with numbers, text and gaps."""
    rng = np.random.default_rng(7)
    frame = pd.DataFrame(
        {
            "age": rng.integers(20, 90, 90),
            "bmi": rng.normal(27, 4, 90).round(1),
            "smokes": rng.choice(["never", "daily", "once"], 90),
        }
    )
    frame["outcome"] = np.where(frame.age + rng.normal(0, 9, 90) > 55, "relapse", "healthy")
    frame.loc[::17, "bmi"] = np.nan
    return frame


# --- models ---


def learners() -> dict[str, tuple[so.learn.Learner, str]]:
    """One of every family, and the target that it learns."""
    network = so.nn.mlp(4, 5, 3)
    bins = so.FedBins(3)
    return {
        "linear": (so.FedLinear(rounds=3, lr=0.1), "classes"),
        "glm": (so.FedGLM("poisson"), "counts"),
        "heonn": (so.FedHEONN(), "classes"),
        "heonn_numbers": (so.FedHEONN("linear", lam=[1e-3, 1.0]), "numbers"),
        "patches": (so.FedHEONN("linear", ensemble=so.RandomPatches(4, rows=0.8)), "classes"),
        "averaging": (so.FedAvg(network, **SMALL), "classes"),
        "personal": (so.FedPer(network, **SMALL), "classes"),
        "labels": (so.MLFedAvg(network, stop=None, fine_tune=1, **SMALL), "labels"),
        "kmeans": (so.FedKMeans(3, rounds=4), "classes"),
        "id3": (so.Pipeline(bins, so.FedID3()), "classes"),
        "cart": (so.FederatedTree("cart", max_depth=3), "classes"),
        "forest": (so.FedForest(trees=4, max_depth=3), "classes"),
        "boosted": (so.FedHistGBDT(rounds=3, max_depth=2), "classes"),
        "cox": (so.FedCox(), "survival"),
    }


def make_models(folder: Path) -> None:
    folder.mkdir()
    for name, (learner, target) in learners().items():
        model = learner.fit(simulation(target))
        model.save(folder / f"{name}.sol")
        X = rows(target)[0][:30]
        np.savez_compressed(folder / f"{name}.npz", X=X, **answers(model, X))
    make_pipeline(folder)
    make_vertical(folder)


def answers(model: so.learn.Learner, X: object) -> dict[str, np.ndarray]:
    """What a model says of rows."""
    said = {"predict": np.asarray(model.predict(X))}
    if hasattr(model, "predict_proba") and model.schema_.target == "classes":
        said["predict_proba"] = np.asarray(model.predict_proba(X))
    return said


def make_pipeline(folder: Path) -> None:
    steps = (so.FedEncoder(), so.FedImputer(), so.FedScaler(), so.FedHEONN())
    model = so.Pipeline(*steps).fit(so.simulate(patients(), target="outcome", clients=3))
    model.save(folder / "pipeline.sol")
    new = patients().drop(columns="outcome")[:30]
    new.to_csv(folder / "pipeline.csv", index=False)
    said = answers(model, new)
    said["predict"] = said["predict"].astype(str)
    np.savez_compressed(folder / "pipeline.npz", **said)


def vertical_simulation() -> so.Federation:
    X, _ = rows("numbers")
    frame = pd.DataFrame(X, columns=list("abcd"))
    frame["y"] = (frame.a + frame.c > 0).astype(int)
    frame["id"] = [f"P-{i:02d}" for i in range(90)]
    columns = {"bank": ["a", "b"], "shop": ["c", "d"]}
    return so.simulate_vertical(frame, columns=columns, target="y", id="id", seed=0)


def make_vertical(folder: Path) -> None:
    federation = vertical_simulation()
    model = so.SplitNN(3, epochs=2, batch_size=30, test=0.3).fit(federation)
    model.save(folder / "vertical.sol")
    for party in ("bank", "shop"):
        model.save_part(federation, party, folder / f"vertical.{party}")
    np.savez_compressed(
        folder / "vertical.npz", predict_proba=model.predict_proba(federation, "test")
    )


# --- a checkpoint ---


def interrupted() -> so.learn.Learner:
    """The learner of the checkpoint, to be fitted to ``simulation("classes")``."""
    return so.FedLinear(rounds=6, lr=0.1)


class Stop(so.callbacks.Callback):
    """Somebody presses Ctrl-C in the fourth round."""

    def on_round(self, learner: object, round: object) -> None:
        if round.index == 3:
            raise KeyboardInterrupt


def make_checkpoint(folder: Path) -> None:
    folder.mkdir()
    try:
        interrupted().fit(
            simulation("classes"), checkpoint=folder / "run.checkpoint", callbacks=[Stop()]
        )
    except KeyboardInterrupt:
        whole = interrupted().fit(simulation("classes"))
        np.savez(folder / "learned.npz", coef=whole.coef_, intercept=whole.intercept_)
        return
    raise AssertionError("the fit was not interrupted")


# --- a study ---

STUDY = """\
name = "wine"
seeds = [0, 1]
schemes = ["federated", "centralised"]
[data]
name = "wine"
clients = 3
client_test = 0.2
[[learner]]
kind = "FedLinear"
rounds = 3
lr = 1e-5
[[learner]]
kind = "FedHEONN"
"""


def make_study(folder: Path) -> None:
    folder.mkdir()
    (folder / "wine.toml").write_text(STUDY)
    solera("run", "wine.toml", "--folder", "run", at=folder)
    (folder / "run" / "report.html").unlink()
    shutil.rmtree(folder / "run" / "figures")


# --- a federation ---

JOB = """\
name = "{name}"
federation = "cardio"
owner = "dr. vega"
clients = 2
seed = 3

[learner]
kind = "Pipeline"
steps = [{{ kind = "FedScaler" }}, {{ kind = "FedLinear", rounds = {rounds}, epochs = 1 }}]
"""
POLICY = """\
policy = "trusted"
"""
ASKS_ANA = """\

[approval]
mode = "ask"
[approval.approvers]
{ana}
"""
CLIENTS = ("north", "south")


def solera(*arguments: str, at: Path, **environment: str) -> str:
    """What a command prints."""
    done = subprocess.run(
        [sys.executable, "-m", "solera.cli.app", *arguments],
        cwd=at,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    if done.returncode:
        raise SystemExit(f"solera {' '.join(arguments)}\n{done.stdout}{done.stderr}")
    return done.stdout


@contextmanager
def running(*arguments: str, at: Path) -> Iterator[None]:
    """A command that runs until it is interrupted."""
    process = subprocess.Popen(
        [sys.executable, "-m", "solera.cli.app", *arguments],
        cwd=at,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(SECONDS)


def until(what: str, holds) -> None:
    end = time.monotonic() + SECONDS
    while not holds():
        if time.monotonic() > end:
            raise SystemExit(f"{what}: not within {SECONDS} s")
        time.sleep(0.3)


def reached(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def make_federation(folder: Path) -> None:
    """In plain HTTP on loopback, since no certificate is to run out."""
    port = 20_000 + secrets.randbelow(12_000)
    agents, state = folder / "agents", folder / "coordinator"
    agents.mkdir()
    place = {"SOLERA_URL": f"http://127.0.0.1:{port}"}
    with running("serve", "--folder", str(state), "--port", str(port), at=folder):
        until("the coordinator answers", lambda: reached(port))
        place["SOLERA_TOKEN"] = (state / "driver.token").read_text()
        join = {name: enrol(agents, name, place) for name in CLIENTS}
        with running(*join["north"], at=agents), running(*join["south"], at=agents):
            start(agents, "readmission", 3, place)
            approve(agents)
            until("the first job has finished", lambda: "finished" in jobs(agents, place))
            start(agents, "length-of-stay", 2, place)
            until("the second job is held", lambda: held(agents))
    for database in folder.rglob("*.sqlite"):
        with closing(sqlite3.connect(database)) as connection:
            connection.execute("VACUUM")
    for path in [*folder.rglob("*.lock"), *agents.glob("*.invitation")]:
        path.unlink()
    for path in agents.rglob("started.json"):
        path.write_text(path.read_text().replace(str(agents), "/srv/cardio"))


def enrol(agents: Path, name: str, place: dict[str, str]) -> list[str]:
    """A client's rows, policy and invitation; the command with which its agent joins."""
    frame = patients().drop(columns=["smokes"]).fillna(27.0)
    half = frame.iloc[CLIENTS.index(name) :: 2]
    half.to_csv(agents / f"{name}.csv", index=False)
    policy = POLICY
    if name == "north":
        said = solera("approver", "new", "ana", at=agents)
        policy += ASKS_ANA.format(ana=re.search(r"^ana = .*$", said, re.MULTILINE)[0])
    (agents / f"{name}.toml").write_text(policy)
    token = solera("invite", name, "--federation", "cardio", at=agents, **place).strip()
    (agents / f"{name}.invitation").write_text(token)
    os.chmod(agents / f"{name}.invitation", 0o600)
    files = ["--data", f"{name}.csv", "--target", "outcome", "--policy", f"{name}.toml"]
    join = ["--token-file", f"{name}.invitation", "--folder", name]
    return ["join", place["SOLERA_URL"], *join, *files]


def start(agents: Path, name: str, rounds: int, place: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        job = Path(scratch) / f"{name}.toml"
        job.write_text(JOB.format(name=name, rounds=rounds))
        solera("job", "start", str(job), at=agents, **place)


def jobs(agents: Path, place: dict[str, str]) -> str:
    return solera("jobs", "--federation", "cardio", at=agents, **place)


def held(agents: Path) -> list[str]:
    """Hashes of the jobs that wait at north."""
    if not (agents / "north").exists():
        return []
    said = solera("held", "--folder", "north", "--json", at=agents)
    return re.findall(r"\b[0-9a-f]{64}\b", said)


def approve(agents: Path) -> None:
    until("the first job is held", lambda: held(agents))
    key = ["--key", "ana.key", "--policy", "north.toml", "--folder", "north"]
    solera("approve", held(agents)[0], *key, at=agents)


def main(folder: Path) -> None:
    if folder.exists():
        raise SystemExit(f"{folder} is there already")
    folder.mkdir(parents=True)
    make_models(folder / "models")
    make_checkpoint(folder / "checkpoint")
    make_study(folder / "study")
    make_federation(folder)
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    print(f"{len(sizes)} files, {sum(sizes) / 1000:.0f} kB, the largest {max(sizes) / 1000:.0f} kB")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())

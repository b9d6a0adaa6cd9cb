"""Vertical learning between real agents, by ``solera join --id``, with TLS; killed on the way."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import time
from contextlib import suppress

import numpy as np
import pandas as pd
import pytest

import solera as so

for library in ("fastapi", "uvicorn", "httpx", "sqlalchemy", "alembic", "cryptography", "torch"):
    pytest.importorskip(library, reason="the extras 'serve' and 'torch' are not installed")

import torch  # noqa: E402
from network import Network, Program, kill  # noqa: E402

from solera.core.payload import decode, encode  # noqa: E402
from solera.core.rounds import Callback  # noqa: E402
from solera.learn.averaging.training.architecture import architecture_of  # noqa: E402
from solera.learn.base import from_bytes  # noqa: E402
from solera.learn.vertical.encoding import encode as encode_rows  # noqa: E402
from solera.learn.vertical.party import PARTS  # noqa: E402
from solera.serve import wire  # noqa: E402
from solera.serve.agent.memory import Memory  # noqa: E402
from solera.serve.job_spec import parse_job  # noqa: E402

JOIN = """
import sys
from solera.cli.app import main
sys.argv = ["solera", *sys.argv[1:]]
main()
"""
JOB = """
federation = "town"
owner = "ana"
seed = 3
clients = 2
evaluate = "test"
[learner]
kind = "SplitNN"
bottoms = 3
labels = "bank"
epochs = 2
batch_size = 40
test = 0.4
"""
NAMES = ("bank", "shop")
POLICY = 'policy = "trusted"\njobs = ["vertical"]\n'


def tables():
    rng = np.random.default_rng(4)
    df = pd.DataFrame(rng.normal(size=(90, 4)), columns=["age", "income", "visits", "spent"])
    df["y"] = (df.age + df.visits > 0).astype(int)
    df["id"] = [f"P-{i:03d}" for i in range(90)]
    shop = df[["id", "visits", "spent"]].sample(frac=1, random_state=1)
    shop["id"] = shop["id"].str.lower()
    return {"bank": df[["id", "age", "income", "y"]], "shop": shop}


class Town(Network):
    """A bank and a shop."""

    def __init__(self, folder):
        super().__init__(folder, "town")
        self.start()
        for name, table in tables().items():
            self.enrol(name)
            table.to_csv(folder / f"{name}.csv", index=False)
            (folder / f"{name}.toml").write_text(POLICY)

    def work(self, name):
        target = ["--target", "y"] if name == "bank" else []
        files = ["--data", str(self.folder / f"{name}.csv")]
        files += ["--policy", str(self.folder / f"{name}.toml")]
        place = ["--folder", str(self.folder / name), "--ca", self.ca, "--wait", "5"]
        program = ["join", self.url, *files, "--id", "id", *target, *place]
        self.agents[name] = Program(JOIN, *program)

    def begin(self, job):
        described = parse_job(JOB, name=job).describe(JOB)
        driver = self.driver()
        new = wire.NewJob.of(described, id=job, spec=driver.upload(described.to_bytes()))
        driver.request("POST", f"/v1/federations/{self.federation}/jobs", json=new)
        driver.close()

    def progress(self, job):
        driver = self.driver()
        found = driver.call("GET", f"/v1/jobs/{job}", wire.JobProgress)
        driver.close()
        return found

    def events(self, job, event):
        driver = self.driver()
        found = driver.call("GET", f"/v1/jobs/{job}/events?event={event}", list[wire.Event])
        driver.close()
        return found

    def parts(self):
        held = {n: Memory.read(self.folder / n / "memory.sol").states[PARTS] for n in NAMES}
        return {name: encode(parts) for name, parts in held.items()}

    def until(self, job, condition, seconds=1200):
        end = time.monotonic() + seconds
        while not condition(found := self.progress(job)):
            assert found.state in ("created", "waiting", "running"), found.reason
            assert time.monotonic() < end, f"the job does not go on: {found.progress}"
            time.sleep(0.3)
        return found


def finished(found):
    return found.state == "finished"


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    town = Town(tmp_path_factory.mktemp("calm"))
    try:
        for name in NAMES:
            town.work(name)
        town.begin("loans")
        town.until("loans", finished)
        yield town, town.parts()
    finally:
        town.close()


def network_of(split, which):
    return architecture_of(split[which]["model"]).load(split[which]["weights"])


def bottom_inputs(table, split):
    """A party's columns as its own network gets them."""
    encoded = encode_rows(table.to_numpy(), so.from_pandas(table).schema, split["encoding"])
    return torch.tensor(encoded.astype(np.float32))


def test_a_job_file_names_the_label_owner_and_agents_learn_together(calm):
    """How good it is depends on draws from the owners' secrets; that it is this is certain."""
    town, parts = calm
    bank, shop = (next(iter(decode(parts[name]).values())) for name in NAMES)
    assert [bank["split"][which]["steps"] for which in ("bottom", "top")] == [4, 4]
    assert shop["split"]["bottom"]["steps"] == 4
    held = tables()
    tested = {
        name: held[name].iloc[part["trained"]["order"][54:]]
        for name, part in (("bank", bank), ("shop", shop))
    }
    with torch.no_grad():
        of_bank = bottom_inputs(tested["bank"][["age", "income"]], bank["split"])
        of_shop = bottom_inputs(tested["shop"][["visits", "spent"]], shop["split"])
        said = [
            network_of(bank["split"], "bottom")(of_bank),
            network_of(shop["split"], "bottom")(of_shop),
        ]
        scores = network_of(bank["split"], "top")(torch.cat(said, dim=1))
    outputs = bank["outputs"]["values"]
    np.testing.assert_allclose(outputs, scores.softmax(dim=1).numpy(), atol=1e-5)
    (note,) = town.events("loans", "evaluated")
    told = note.facts["accuracy"]
    assert told["value"] == np.mean(outputs.argmax(axis=1) == tested["bank"]["y"])
    assert told["rows"] == len(outputs) == 36
    assert len(bank["trained"]["order"]) == 90
    ids = held["bank"]["id"].to_numpy()[bank["trained"]["order"]]
    others = held["shop"]["id"].to_numpy()[shop["trained"]["order"]]
    assert [i.lower() for i in ids] == list(others)
    assert "top" in bank["split"]
    assert "top" not in shop["split"]


def test_the_coordinator_holds_no_row_no_label_no_identifier(calm):
    town, parts = calm
    kept = b"".join(
        path.read_bytes()
        for path in (town.folder / "coordinator").rglob("*")
        if path.is_file() and path.stat().st_size < 1 << 26
    )
    held = tables()
    assert b"visits" in kept  # what it may know lies there readable
    for identifier in held["bank"]["id"][:30]:
        for written in (identifier, identifier.lower(), identifier.lower().replace("-", "")):
            assert written.encode() not in kept
    for name, columns in (("bank", ["age", "income"]), ("shop", ["visits", "spent"])):
        X = held[name][columns].to_numpy()
        split = next(iter(decode(parts[name]).values()))["split"]
        encoded = encode_rows(X, so.from_pandas(held[name][columns]).schema, split["encoding"])
        said = network_of(split, "bottom")(bottom_inputs(held[name][columns], split))
        for values in (X, encoded, encoded.astype(np.float32), said.detach().numpy()):
            assert not any(row.tobytes() in kept for row in values[:30])
        for which in ("bottom", "top"):
            assert which not in split or split[which]["weights"].tobytes() not in kept


def test_parts_outlive_the_job_and_predict_in_another_one(calm):
    town, _ = calm
    driver = town.driver()
    found = driver.call("GET", "/v1/jobs/loans/model", wire.Model)
    model = from_bytes(driver.download(found.digest))
    driver.close()
    fed = town.connect("ask", seed=3)
    said = model.predict_proba(fed, "test")
    assert said.shape == (36, 2)
    assert said.index.dtype.kind == "i"  # numbers of the label owner's rows: no identifier leaves
    fed.close()


def storm(folder, secrets_of, kills, chance):
    """The same job where processes are killed, with the same secrets of the same clients."""
    town = Town(folder)
    try:
        for name in NAMES:
            shutil.copy(secrets_of.folder / name / "secret.key", folder / name / "secret.key")
            os.chmod(folder / name / "secret.key", 0o600)
            town.work(name)
        town.begin("loans")
        asks = 0
        for _ in range(kills):
            aim = asks + chance.randint(1, 3)
            found = town.until("loans", lambda f, aim=aim: finished(f) or f.progress.asks >= aim)
            if finished(found):
                break
            asks = found.progress.asks
            victim = chance.choice([*NAMES, "coordinator"])
            if victim == "coordinator":
                kill(town.coordinator)
                town.start()
            else:
                kill(town.agents[victim])
                town.work(victim)
        town.until("loans", finished)
        return town.parts()
    finally:
        town.close()


@pytest.mark.parametrize("kills", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_killed_at_random_every_part_has_the_same_bytes(calm, kills, tmp_path):
    town, parts = calm
    assert storm(tmp_path, town, kills, random.Random(kills)) == parts


def test_a_party_that_leaves_is_named_within_the_deadline_and_training_goes_on_later(calm):
    town, _ = calm

    def fit(job, deadline, *callbacks):
        fed = town.connect(job, seed=1)
        try:
            model = so.SplitNN(2, epochs=2, batch_size=45, labels="bank", deadline=deadline)
            return model.fit(fed, callbacks=callbacks)
        finally:
            fed.close()

    for deadline in (5.0, 30.0, 240.0):  # on a busy machine those who did not leave are late, too
        leaves = Leaves(town.agents["shop"].pid)
        with pytest.raises(so.errors.NotEnoughReplies) as late:
            fit(f"away-{deadline:.0f}", deadline, leaves)
        if leaves.left:
            break
    assert re.search(r"shop did not answer .* \(late\)", str(late.value))
    os.kill(town.agents["shop"].pid, signal.SIGCONT)
    for _ in range(20):
        with suppress(so.errors.NotEnoughReplies):  # late again
            model = fit(f"away-{deadline:.0f}", deadline)
            break
    assert len(model.history_) == 2
    shop = decode(town.parts()["shop"])[model.model_]
    assert shop["split"]["bottom"]["steps"] == 4


class Leaves(Callback):
    """Stops a process after the first epoch."""

    def __init__(self, pid):
        self.pid = pid
        self.left = False

    def on_round(self, learner, round):
        os.kill(self.pid, signal.SIGSTOP)
        self.left = True

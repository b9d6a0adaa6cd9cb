"""Encrypted vertical learning between real agents with TLS; killed on the way."""

from __future__ import annotations

import random
import shutil

import numpy as np
import pytest

for library in ("fastapi", "uvicorn", "httpx", "sqlalchemy", "alembic", "tenseal", "torch"):
    pytest.importorskip(library, reason="the extras 'serve', 'he' and 'torch' are not installed")

from network import kill  # noqa: E402
from test_vertical import NAMES, Town, finished, tables  # noqa: E402

from solera.core.payload import decode, encode  # noqa: E402
from solera.serve import wire  # noqa: E402
from solera.serve.job_spec import parse_job  # noqa: E402

JOB = """
federation = "town"
owner = "ana"
seed = 3
clients = 2
evaluate = "test"
[learner]
labels = "bank"
test = 0.2
"""
LEARNERS = {
    "SecureBoost": """
kind = "SecureBoost"
rounds = 1
lr = 1.0
max_depth = 2
bins = 4
min_rows = 5
""",
    "VerticalLogisticRegression": """
kind = "VerticalLogisticRegression"
epochs = 1
lr = 0.5
batch_size = 30
validation = 0.3
""",
}


class Ciphers(Town):
    """A bank and a shop that learn with encrypted numbers."""

    def begin(self, job):
        text = JOB + LEARNERS[job]
        described = parse_job(text, name=job).describe(text)
        driver = self.driver()
        new = wire.NewJob.of(described, id=job, spec=driver.upload(described.to_bytes()))
        driver.request("POST", f"/v1/federations/{self.federation}/jobs", json=new)
        driver.close()


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    town = Ciphers(tmp_path_factory.mktemp("ciphers"))
    try:
        for name in NAMES:
            town.work(name)
        for job in LEARNERS:
            town.begin(job)
            town.until(job, finished)
        yield town, town.parts()
    finally:
        town.close()


def rows_to_test(parts_of_model):
    """Every party's columns of the rows to test, in the order that all share, and the labels."""
    rows = {}
    for name, part in parts_of_model.items():
        order, ends = part["trained"]["order"], part["trained"]["ends"]
        rows[name] = tables()[name].iloc[order[ends[-1] :]]
    labels = rows["bank"].pop("y").to_numpy()
    return {name: table.drop(columns="id").to_numpy() for name, table in rows.items()}, labels


def boosted_scores(held, rows):
    """What the tree says: the owner of a node knows by which of its columns rows go left."""
    (tree,) = held["bank"]["trees"]
    at = np.zeros(len(rows["bank"]), dtype=int)
    for _ in range(2):  # levels
        for row, node in enumerate(at):
            if tree["owner"][node] < 0:
                continue
            owner = NAMES[tree["owner"][node]]
            asked = held[owner]["conditions"]
            (which,) = np.flatnonzero(asked["node"] == node)
            goes_left = rows[owner][row, asked["column"][which]] <= asked["threshold"][which]
            at[row] = tree["child"][node] + (not goes_left)
    return held["bank"]["initial"][0] + tree["value"][at]


def regressed_scores(held, rows):
    """Sums of coefficients times standardised columns."""
    scores = 0.0
    for name, part in held.items():
        design = part["design"]
        X = (rows[name] - design["mean"]) / design["scale"]
        X = np.clip(X, -design["clip"], design["clip"])
        if design["constant"]:
            X = np.column_stack([X, np.ones(len(X))])
        scores = scores + X @ part["coef"]
    return scores


def test_agents_report_what_their_parts_say(calm):
    """How good a model is depends on draws from the owners' secrets; that it is this is certain."""
    town, parts = calm
    held = {name: list(decode(parts[name]).values()) for name in NAMES}
    for number, (job, scores_of) in enumerate(
        zip(LEARNERS, (boosted_scores, regressed_scores), strict=True)
    ):
        of_model = {name: held[name][number] for name in NAMES}
        rows, labels = rows_to_test(of_model)
        outputs = of_model["bank"]["outputs"]["values"]
        expected = 1 / (1 + np.exp(-scores_of(of_model, rows)))
        np.testing.assert_allclose(outputs[:, 1], expected, atol=1e-6)
        (note,) = town.events(job, "evaluated")
        told = note.facts["accuracy"]
        assert told["value"] == np.mean(outputs.argmax(axis=1) == labels)
        assert told["rows"] == len(outputs) == 18


def test_each_party_holds_its_own_part(calm):
    _, parts = calm
    held = {name: list(decode(parts[name]).values()) for name in NAMES}
    boosted, regressed = held["bank"]
    assert len(boosted["trees"]) == 1
    assert regressed["coef"].any()
    for part in held["shop"]:
        assert "trees" not in part
        assert "target" not in part
    for part in (*held["bank"], *held["shop"]):
        assert not {"boosting", "key", "secret", "pending"} & set(part)


def test_the_coordinator_holds_no_row_no_label_no_coefficient(calm):
    town, parts = calm
    kept = b"".join(
        path.read_bytes()
        for path in (town.folder / "coordinator").rglob("*")
        if path.is_file() and path.stat().st_size < 1 << 26
    )
    assert b"visits" in kept
    for name in NAMES:
        table = tables()[name]
        columns = [c for c in table.columns if c not in ("id", "y")]
        assert not any(row.tobytes() in kept for row in table[columns].to_numpy())
        boosted, regressed = decode(parts[name]).values()
        assert regressed["coef"].tobytes() not in kept
        thresholds = boosted["conditions"]["threshold"]
        assert not any(value.tobytes() in kept for value in thresholds)


@pytest.mark.slow
@pytest.mark.parametrize("job", LEARNERS)
def test_killed_ten_times_every_part_has_the_same_bytes(calm, job, tmp_path):
    before, parts = calm
    chance = random.Random(7)
    town = Ciphers(tmp_path)
    try:
        for name in NAMES:
            shutil.copy(before.folder / name / "secret.key", tmp_path / name / "secret.key")
            (tmp_path / name / "secret.key").chmod(0o600)
            town.work(name)
        town.begin(job)
        asks, killed = 0, 0
        while killed < 10:
            aim = asks + chance.randint(1, 2)
            found = town.until(job, lambda f, aim=aim: finished(f) or f.progress.asks >= aim)
            if finished(found):
                break
            asks, killed = found.progress.asks, killed + 1
            victim = chance.choice([*NAMES, "coordinator"])
            if victim == "coordinator":
                kill(town.coordinator)
                town.start()
            else:
                kill(town.agents[victim])
                town.work(victim)
        town.until(job, finished)
        assert killed == 10
        after = {name: next(iter(decode(town.parts()[name]).values())) for name in NAMES}
        number = list(LEARNERS).index(job)
        for name in NAMES:
            expected = list(decode(parts[name]).values())[number]
            assert encode(after[name]) == encode(expected)
    finally:
        town.close()

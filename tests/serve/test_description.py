"""The description of a job travels whole, and its hash is of this job alone."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

pytest.importorskip("cryptography", reason="the extra 'serve' is not installed")

from solera.core.plan import PlannedTask
from solera.core.ranges import Range

from solera.core.errors import PayloadError
from solera.core.payload import decode, encode
from solera.serve.description import Description, job_hash

PLAN = (
    PlannedTask("linear.train", 2, 10, {"epochs": Range(max=5.0)}),
    PlannedTask("prepare.FedScaler", 1, 1),
)
JOB = Description(
    job="readmission",
    federation="cardio",
    kind="managed",
    owner="dr. vega",
    seed=3,
    learner={"kind": "FedLinear", "rounds": 10, "start": np.arange(3.0)},
    plan=PLAN,
    seconds=60.0,
    toml='name = "readmission"',
)


def test_a_description_travels_whole():
    again = Description.from_bytes(JOB.to_bytes())
    assert again.to_bytes() == JOB.to_bytes()
    assert again.plan == PLAN
    assert again.learner["start"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "change",
    [
        {"job": "../x"},
        {"kind": "other"},
        {"seed": -1},
        {"plan": [{"task": "a", "version": 1, "most": 1, "more": 1}]},
        {"plan": [{"task": "a", "version": 1, "most": -1}]},
        {"plan": 5},
        {"unknown": 1},
        {"owner": "o" * 201},
    ],
)
def test_what_is_no_description_is_not_taken_for_one(change):
    with pytest.raises(PayloadError, match=r"not one|not a plan"):
        Description.from_bytes(encode({**decode(JOB.to_bytes()), **change}))
    with pytest.raises(PayloadError, match=r"not one|not a plan"):
        Description.from_bytes(encode([1]))


def test_the_hash_is_of_federation_name_and_every_byte():
    spec = "ab" * 32
    seen = {job_hash(f, j, s) for f in "fg" for j in "jk" for s in (spec, "ac" * 32)}
    assert len(seen) == 8
    assert replace(JOB, seed=4).to_bytes() != JOB.to_bytes()
